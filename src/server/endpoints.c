#include "server/endpoints.h"

#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "generate/answer_json.h"
#include "generate/generator.h"
#include "server/answers.h"
#include "server/http_request.h"
#include "server/describe.h"
#include "server/stored.h"
#include "api/dialect.h"
#include "api/fields.h"
#include "server/jobs.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/state.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

/* ---- the server and its model ---- */

static int reply_page(struct http_request *req)
{
    req->is_page = true;
    return http_request_reply(req, 200, "text/html; charset=utf-8", page_text(), page_bytes());
}

static int reply_health(struct http_request *req)
{
    return http_request_reply_json(req, json_pack("{s: s}", "status", "ok"));
}

static int reply_metrics(struct http_request *req)
{
    struct str text = {0};
    uint32_t n_waiting, n_running;
    jobs_count(&req->server->jobs, &n_waiting, &n_running);
    metrics_text(&req->server->metrics, n_waiting, n_running, &text);
    int rc = str_ok(&text) ? http_request_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8",
                                                str_text(&text), text.len)
                           : -1;
    str_free(&text);
    return rc;
}

/* ---- tokens ---- */

/* Returns a token with its text, or with its bytes if they are not whole characters. */
static json_t *piece_json(const struct tokenizer *t, int32_t id)
{
    const char *bytes;
    size_t n = tokenizer_bytes(t, id, &bytes);
    json_t *piece = NULL;
    if (n == 0 || utf8_is_valid(bytes, n)) {
        piece = answer_json_text(n ? bytes : "", n);
    } else {
        piece = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(piece, json_integer((unsigned char)bytes[i]));
    }
    return json_pack("{s: i, s: o}", "id", (int)id, "piece", piece);
}

static int encode(struct http_request *req, const json_t *in, struct token_list *ids)
{
    const struct generator *g = req->server->generator;
    struct moeflux_err e;
    const json_t *content = fields_get(in, "content");
    bool add_special = fields_bool(in, "add_special", false, &req->refusal);
    bool special = fields_bool(in, "parse_special", true, &req->refusal);
    if (!json_is_string(content))
        refusal_field(&req->refusal, "content", "content: expected a text, found %s", fields_kind(content));
    if (req->refusal.status)
        return -1;
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    enum token_specials how = special ? SPECIALS_AS_TOKENS : SPECIALS_AS_TEXT;
    int rc = add_special ? generator_encode(g, text, len, how, ids, NULL, &e)
                         : tokenizer_encode(g->tokenizer, text, len, how, ids, NULL, &e);
    return rc ? refusal_of(&req->refusal, rc, &e) : 0;
}

static int reply_tokens(struct http_request *req)
{
    struct token_list ids = {0};
    const struct tokenizer *t = req->server->generator->tokenizer;
    json_t *in = fields_parse(str_text(&req->body), req->body.len, &req->refusal), *all = json_array();
    bool with_pieces = in && fields_bool(in, "with_pieces", false, &req->refusal);
    if (in)
        encode(req, in, &ids);
    for (size_t i = 0; !req->refusal.status && i < ids.n; i++)
        json_array_append_new(all, with_pieces ? piece_json(t, ids.ids[i]) : json_integer(ids.ids[i]));
    token_list_free(&ids);
    json_decref(in);
    if (!req->refusal.status)
        return http_request_reply_json(req, json_pack("{s: o}", "tokens", all));
    json_decref(all);
    return http_request_refuse(req);
}

static int reply_text(struct http_request *req)
{
    const struct generator *g = req->server->generator;
    struct str text = {0};
    json_t *in = fields_parse(str_text(&req->body), req->body.len, &req->refusal);
    const json_t *ids = in ? fields_array(in, "tokens", &req->refusal) : NULL;
    if (in && !ids)
        refusal_field(&req->refusal, "tokens", "tokens is missing");
    for (size_t i = 0; !req->refusal.status && i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t k = json_is_integer(id) ? json_integer_value(id) : -1;
        const char *bytes;
        if (k < 0 || k >= (int64_t)g->info.vocab_size) {
            refusal_field(&req->refusal, "tokens", "tokens: expected token ids from 0 to %u",
                          g->info.vocab_size - 1);
            break;
        }
        size_t n = tokenizer_bytes(g->tokenizer, (int32_t)k, &bytes);
        str_add(&text, n ? bytes : "", n);
    }
    json_decref(in);
    int rc = req->refusal.status
                 ? http_request_refuse(req)
                 : http_request_reply_json(
                       req, json_pack("{s: o}", "content", answer_json_text(str_text(&text), text.len)));
    str_free(&text);
    return rc;
}

/* ---- what is not there ---- */

/* Refuses what other servers compute with models of other kinds. */
static int refuse_kind(struct http_request *req)
{
    /* Not 501: clients repeat requests that fail with 5xx. */
    refusal_set(&req->refusal, 404, NULL, "unsupported_endpoint",
                "%s is not supported: this server generates text only", req->url);
    return http_request_refuse(req);
}

/* ---- the table ---- */

static const struct endpoint all[] = {
    {"GET", "/", true, reply_page, NULL},
    {"GET", "/health", true, reply_health, NULL},
    {"GET", "/metrics", false, reply_metrics, NULL},
    {"GET", "/models", false, describe_models, NULL},
    {"GET", "/models/", false, describe_model, NULL},
    {"GET", "/props", false, describe_props, NULL},
    {"POST", "/chat/completions", false, answers_reply, &dialect_chat},
    {"POST", "/completions", false, answers_reply, &dialect_completions},
    {"POST", "/responses", false, answers_reply, &dialect_responses},
    {"POST", "/responses/input_tokens", false, answers_count, &dialect_responses},
    {"GET", "/responses/", false, stored_get, NULL},
    {"DELETE", "/responses/", false, stored_delete, NULL},
    {"POST", "/messages", false, answers_reply, &dialect_messages},
    {"POST", "/messages/count_tokens", false, answers_count, &dialect_messages},
    {"POST", "/apply-template", false, answers_prompt, &dialect_chat},
    {"POST", "/tokenize", false, reply_tokens, NULL},
    {"POST", "/detokenize", false, reply_text, NULL},
    {"POST", "/embeddings", false, refuse_kind, NULL},
    {"POST", "/rerank", false, refuse_kind, NULL},
    {"POST", "/infill", false, refuse_kind, NULL},
};

/* Returns a path without "/v1" in front. */
static const char *bare(const char *path)
{
    return strncmp(path, "/v1/", 4) == 0 && path[4] ? path + 3 : path;
}

/* Returns whether an endpoint serves a path. One that ends with a slash serves all paths below it. */
static bool is_at(const struct endpoint *p, const char *path)
{
    size_t n = strlen(p->path);
    return strcmp(p->path, path) == 0 || (n > 1 && p->path[n - 1] == '/' && strncmp(p->path, path, n) == 0);
}

const char *endpoints_rest(const struct http_request *req)
{
    return bare(req->url) + strlen(req->endpoint->path);
}

const struct endpoint *endpoints_find(const char *method, const char *path, const char **other)
{
    *other = NULL;
    path = bare(path);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!is_at(&all[i], path))
            continue;
        if (strcmp(all[i].method, method) == 0 ||
            (strcmp(method, "HEAD") == 0 && strcmp(all[i].method, "GET") == 0))
            return &all[i];
        *other = all[i].method;
    }
    return NULL;
}
