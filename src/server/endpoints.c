#include "server/endpoints.h"

#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "generate/answer_json.h"
#include "generate/generator.h"
#include "server/answers.h"
#include "server/http_request.h"
#include "server/jobs.h"
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
    return http_request_reply_json(req, json_pack("{s: s}", "status", "ok"));
}

static const char MODELS[] = "/v1/models/";

static json_t *model_json(const struct server *s)
{
    const char *name = s->options.name;
    return json_pack("{s: o, s: s, s: I, s: s, s: I}", "id", answer_json_text(name, strlen(name)), "object",
                     "model", "created", (json_int_t)s->created, "owned_by", "moeflux", "max_model_len",
                     (json_int_t)s->generator->max_context);
}

static int reply_models(struct http_request *req)
{
    return http_request_reply_json(
        req, json_pack("{s: s, s: [o]}", "object", "list", "data", model_json(req->server)));
}

/* Answers MODELS followed by the name of a model. */
static int reply_model(struct http_request *req)
{
    const char *name = req->url + sizeof MODELS - 1, *own = req->server->options.name;
    if (strcmp(name, own) == 0)
        return http_request_reply_json(req, model_json(req->server));
    refusal_set(&req->refusal, 404, "model", "model_not_found",
                "there is no model %.100s; the server has %.100s", name, own);
    return http_request_refuse(req);
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

/* ---- the table ---- */

static const struct endpoint all[] = {
    {"GET", "/", true, reply_page},
    {"GET", "/health", true, reply_health},
    {"GET", "/metrics", false, reply_metrics},
    {"GET", "/v1/models", false, reply_models},
    {"GET", MODELS, false, reply_model},
    {"POST", "/v1/chat/completions", false, answers_chat},
    {"POST", "/v1/completions", false, answers_completion},
    {"POST", "/tokenize", false, tokens_reply_ids},
    {"POST", "/detokenize", false, tokens_reply_text},
};

/* Returns whether an endpoint serves a path. One that ends with a slash serves all paths below it. */
static bool is_at(const struct endpoint *p, const char *path)
{
    size_t n = strlen(p->path);
    return strcmp(p->path, path) == 0 ||
           (n > 1 && p->path[n - 1] == '/' && strncmp(p->path, path, n) == 0 && path[n]);
}

const struct endpoint *endpoints_find(const char *method, const char *path, const char **other)
{
    *other = NULL;
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
