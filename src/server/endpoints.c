#include "server/endpoints.h"

#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "server/answers.h"
#include "server/http_request.h"
#include "server/describe.h"
#include "server/stored.h"
#include "api/dialect.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/state.h"
#include "server/tokens.h"

/* ---- the server and its model ---- */

static int reply_page(struct http_request *req)
{
    req->is_page = true;
    return http_request_reply(req, 200, "text/html; charset=utf-8", page_text(), page_bytes());
}

static int reply_health(struct http_request *req)
{
    static const char reopening[] = "{\"status\": \"reopening\"}", failing[] = "{\"status\": \"failing\"}";
    if (atomic_load(&req->server->is_lost))
        return http_request_reply(req, 503, "application/json", reopening, sizeof reopening - 1);
    if (atomic_load(&req->server->is_failing))
        return http_request_reply(req, 503, "application/json", failing, sizeof failing - 1);
    return http_request_reply_json(req, json_pack("{s: s}", "status", "ok"));
}

static int reply_metrics(struct http_request *req)
{
    struct str text = {0};
    uint32_t n_waiting, n_running;
    answers_count_jobs(req->server, &n_waiting, &n_running);
    metrics_text(&req->server->metrics, n_waiting, n_running, &text);
    int rc = str_ok(&text) ? http_request_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8",
                                                str_text(&text), text.len)
                           : -1;
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

/* Refuses the APIs of Ollama and llama.cpp that OpenAI's replaces. */
static int refuse_api(struct http_request *req)
{
    refusal_set(
        &req->refusal, 404, NULL, "unsupported_endpoint",
        "%s is not supported: this server speaks OpenAI's API, /v1/chat/completions and /v1/completions",
        req->url);
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
    {"POST", "/tokenize", false, tokens_reply_ids, NULL},
    {"POST", "/detokenize", false, tokens_reply_text, NULL},
    {"POST", "/embeddings", false, refuse_kind, NULL},
    {"POST", "/rerank", false, refuse_kind, NULL},
    {"POST", "/infill", false, refuse_kind, NULL},
    {"POST", "/completion", false, refuse_api, NULL},
    {"POST", "/api/", false, refuse_api, NULL},
    {"GET", "/api/", false, refuse_api, NULL},
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
