#include "server/answers.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "api/completion.h"
#include "server/http_request.h"
#include "server/jobs.h"
#include "server/state.h"
#include "server/workers.h"

/* Interval of checks whether the client has disconnected. */
enum { LOOK_MS = 100 };

/* ---- whole ---- */

/* Collects the pieces of one choice until it is done. False: the client has disconnected. */
static bool keep_all(struct http_request *req, uint32_t idx)
{
    bool done = false;
    while (!done) {
        struct job_piece *all = jobs_read(&req->server->jobs, req->jobs[idx], LOOK_MS, &done);
        for (struct job_piece *p = all; p; p = p->next)
            completion_keep(req->completion, idx, &p->piece);
        jobs_free_pieces(all);
        if (!done && http_request_client_is_gone(req))
            return false;
    }
    return true;
}

static int reply_whole(struct http_request *req)
{
    bool there = true;
    http_request_set_waiting(req, true);
    for (uint32_t i = 0; there && i < req->api.n_choices; i++) {
        const struct choice_result *r = &req->api.choices[i].result;
        there = keep_all(req, i);
        if (there && r->rc)
            refusal_of(&req->refusal, r->rc, &r->error);
    }
    http_request_set_waiting(req, false);
    if (!there)
        return -1;
    return req->refusal.status ? http_request_refuse(req)
                               : http_request_reply_json(req, completion_json(req->completion));
}

/* ---- as events ---- */

/* Waits up to LOOK_MS for pieces and fills `out` with their events. */
static void collect(struct http_request *req)
{
    bool done = false;
    struct job_piece *all = jobs_read(&req->server->jobs, req->jobs[req->at], LOOK_MS, &done);
    for (struct job_piece *p = all; p; p = p->next)
        completion_send_piece(req->completion, req->at, &p->piece, &req->out);
    jobs_free_pieces(all);
    if (!done)
        return;
    completion_send_end(req->completion, req->at, &req->out);
    req->at++;
    if (req->at == req->api.n_choices) {
        completion_send_last(req->completion, &req->out);
        req->ended = true;
    }
}

static long read_events(void *ctx, uint64_t pos, char *buf, size_t most)
{
    struct http_request *req = ctx;
    (void)pos;
    while (req->out_pos == req->out.len && !req->ended) {
        str_clear(&req->out);
        req->out_pos = 0;
        collect(req);
        if (req->out.len)
            continue;
        if (http_request_client_is_gone(req))
            return -2;
        if (clock_ns() - req->sent_ns > SERVER_ALIVE_S * (uint64_t)1000000000)
            str_add_text(&req->out, ": still here\n\n");
    }
    if (!str_ok(&req->out))
        return -2;
    size_t n = req->out.len - req->out_pos;
    if (n == 0)
        return -1;
    if (n > most)
        n = most;
    memcpy(buf, req->out.data + req->out_pos, n);
    req->out_pos += n;
    req->sent_ns = clock_ns();
    return (long)n;
}

/* ---- both ---- */

static int make_jobs(struct http_request *req, struct moeflux_err *e)
{
    req->jobs = mem_new(req->api.n_choices, sizeof *req->jobs, e);
    for (uint32_t i = 0; req->jobs && i < req->api.n_choices; i++) {
        if (!(req->jobs[i] = jobs_new(&req->api.choices[i], e)))
            return ERR_MEMORY;
        req->jobs[i]->holder = workers_find_holder(req->server->workers, &req->api.choices[i]);
    }
    return req->jobs ? 0 : ERR_MEMORY;
}

/* Notes tools that the model is not offered, because they are no functions. */
static void tell_skipped_tool(const struct server *s, const struct api_request *a)
{
    const char *type = a->choices[0].request.skipped_tool;
    char text[128];
    if (!type || !s->options.tell)
        return;
    snprintf(text, sizeof text, "a request has tools of type \"%.40s\", which are left out", type);
    s->options.tell(s->options.ctx, text);
}

static int answer(struct http_request *req, bool chat)
{
    struct server *s = req->server;
    struct moeflux_err e;
    int rc = api_request_read(&req->api, chat, str_text(&req->body), req->body.len, s->generator,
                              &s->defaults, &req->refusal);
    if (rc)
        return http_request_refuse(req);
    tell_skipped_tool(s, &req->api);
    req->completion = completion_new(&req->api, s->options.name, s->generator->tokenizer, &e);
    rc = req->completion ? make_jobs(req, &e) : (int)e.code;
    if (!rc)
        rc = jobs_add(&s->jobs, req->jobs, req->api.n_choices, &e);
    if (rc == ERR_NO_FIT) {
        refusal_set(&req->refusal, 429, NULL, "queue_full", "%s", e.text);
        return http_request_refuse(req);
    }
    if (rc) {
        refusal_of(&req->refusal, rc, &e);
        return http_request_refuse(req);
    }
    /* The body is not needed any more. */
    str_free(&req->body);
    req->sent_ns = clock_ns();
    return req->api.stream ? http_request_reply_stream(req, "text/event-stream", read_events)
                           : reply_whole(req);
}

int answers_chat(struct http_request *req)
{
    return answer(req, true);
}

int answers_completion(struct http_request *req)
{
    return answer(req, false);
}
