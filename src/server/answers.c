#include "server/answers.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "generate/jobs.h"
#include "generate/workers.h"
#include "api/dialect.h"
#include "server/http_request.h"
#include "server/reading.h"
#include "server/state.h"
#include "text/utf8.h"

/* Interval of checks whether the client has disconnected. */
enum { LOOK_MS = 100 };

/* ---- whole ---- */

/* Collects the pieces of one choice until it is done. False: the client has disconnected. */
static bool keep_all(struct http_request *req, uint32_t idx)
{
    bool done = false;
    while (!done) {
        struct job_piece *all = jobs_read(req->server->jobs, req->jobs[idx], LOOK_MS, &done);
        for (struct job_piece *p = all; p; p = p->next)
            req->reply->dialect->piece(req->reply, idx, &p->piece);
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
                               : http_request_reply_json(req, req->reply->dialect->whole(req->reply));
}

/* ---- as events ---- */

/* Waits up to LOOK_MS for pieces and fills `out` with their events. */
static void collect(struct http_request *req)
{
    const struct dialect *d = req->reply->dialect;
    bool done = false;
    struct job_piece *all = jobs_read(req->server->jobs, req->jobs[req->at], LOOK_MS, &done);
    for (struct job_piece *p = all; p; p = p->next)
        d->piece(req->reply, req->at, &p->piece);
    jobs_free_pieces(all);
    if (!done)
        return;
    d->end(req->reply, req->at);
    req->at++;
    if (req->at == req->api.n_choices) {
        if (d->last)
            d->last(req->reply);
        req->ended = true;
    }
}

static long read_events(void *ctx, uint64_t pos, char *buf, size_t most)
{
    struct http_request *req = ctx;
    (void)pos;
    if (!req->begun && req->reply->dialect->begin)
        req->reply->dialect->begin(req->reply);
    req->begun = true;
    while (req->out_pos == req->out.len && !req->ended) {
        str_clear(&req->out);
        req->out_pos = 0;
        collect(req);
        if (req->out.len)
            continue;
        if (http_request_client_is_gone(req))
            return -2;
        if (clock_ns() - req->sent_ns > SERVER_ALIVE_S * (uint64_t)1000000000)
            req->reply->dialect->alive(req->reply);
    }
    req->sent_ns = clock_ns();
    return http_request_read_out(req, buf, most);
}

/* ---- both ---- */

void answers_count_engine(struct server *s)
{
    struct moeflux_stats stats;
    struct sequences_counts q;
    workers_count(s->workers, &stats, &q);
    const struct metrics_sequences counts = {q.n, q.n_saved, q.dir_bytes, q.n_loads, q.n_saves};
    metrics_engine(&s->metrics, &stats, &counts);
}

/* Counts the engine's work several times a second, on whichever worker calls it. */
static void count_engine_sometimes(struct server *s)
{
    const uint64_t often = 200000000;
    uint64_t now = clock_ns(), told = atomic_load(&s->told_ns);
    if (now - told > often && atomic_compare_exchange_strong(&s->told_ns, &told, now))
        answers_count_engine(s);
}

static int keep_piece(struct job *j, const struct answer_piece *p, struct moeflux_err *e)
{
    struct server *s = j->owner;
    int rc = jobs_give(s->jobs, j, p, e);
    if (p->id < 0)
        return rc;
    struct choice_result *r = &j->choices->result;
    uint64_t now = clock_ns();
    if (r->n_answered++ == 0)
        metrics_first_token(&s->metrics, now - j->added_ns);
    else
        metrics_next_token(&s->metrics, now - r->last_ns);
    r->last_ns = now;
    count_engine_sometimes(s);
    return rc;
}

/* Counts an answer. One that the end of the server cut off before its first token becomes an error, so that
 * the client can ask again: an empty answer would look like the model's. With tokens it stays an answer. */
static void end_job(struct job *j, const struct moeflux_answer_info *a)
{
    struct server *s = j->owner;
    struct choice_result *r = &j->choices->result;
    bool interrupted = r->rc == ERR_INTERRUPTED || (r->rc == 0 && a->stop == MOEFLUX_STOP_INTERRUPTED);
    if (interrupted && r->n_answered == 0)
        r->rc = err_set(&r->error, ERR_INTERRUPTED, SERVER_ENDS);
    answers_count_engine(s);
    struct metrics_job counted = {
        .n_prompt = (uint32_t)j->choices->request.tokens.n,
        .n_cached = r->n_reused,
        .n_answered = r->n_answered,
        .n_drafted = r->drafts.n_drafted,
        .n_accepted = r->drafts.n_accepted,
        .n_evaluations = r->drafts.n_runs,
        .decode_ns = a->decode_ns,
        .cancelled = atomic_load(&j->cancelled),
        .failed = r->rc && r->rc != ERR_INTERRUPTED,
    };
    metrics_job(&s->metrics, &counted);
}

static int make_jobs(struct http_request *req, struct moeflux_err *e)
{
    static const struct job_calls calls = {.piece = keep_piece, .ended = end_job};
    struct server *s = req->server;
    req->jobs = mem_new(req->api.n_choices, sizeof *req->jobs, e);
    for (uint32_t i = 0; req->jobs && i < req->api.n_choices; i++) {
        if (!(req->jobs[i] = jobs_new(&req->api.choices[i], 1, &calls, s, e)))
            return ERR_MEMORY;
        req->jobs[i]->copy = workers_find_copy(s->workers, &req->api.choices[i]);
        req->jobs[i]->priority = req->api.priority;
    }
    return req->jobs ? 0 : ERR_MEMORY;
}

/* Prints what was left out of a body, once for each text. */
static void tell_note(struct server *s, const struct dialect *d, const char *note)
{
    char text[256];
    uint64_t hash = XXH3_64bits(note, strlen(note));
    int at = 0;
    pthread_mutex_lock(&s->notes_lock);
    while (at < SERVER_NOTES && s->notes[at] && s->notes[at] != hash)
        at++;
    bool is_new = at < SERVER_NOTES && !s->notes[at];
    if (is_new)
        s->notes[at] = hash;
    pthread_mutex_unlock(&s->notes_lock);
    snprintf(text, sizeof text, "%s: %s", d->path, note);
    if (is_new && s->options.tell)
        s->options.tell(s->options.ctx, text);
}

/* Reads the body. Returns 0, or -1 with the refusal filled. */
static int read_body(struct http_request *req, const struct api_request_defaults *defaults)
{
    struct server *s = req->server;
    const struct dialect *d = req->endpoint->dialect;
    int rc = reading_begin(req);
    if (!rc) {
        rc = dialect_read(d, &req->api, str_text(&req->body), req->body.len, s->reader, defaults,
                          &req->refusal);
        reading_end(req);
    }
    /* The body is not needed any more. */
    reading_give(req);
    const char *skipped = rc ? NULL : req->api.choices[0].request.skipped_tool;
    if (skipped && !req->api.note[0])
        snprintf(req->api.note, sizeof req->api.note, "tools of these types are left out: %.40s", skipped);
    if (!rc && req->api.note[0])
        tell_note(s, d, req->api.note);
    return rc;
}

int answers_reply(struct http_request *req)
{
    struct server *s = req->server;
    struct moeflux_err e;
    if (read_body(req, &s->defaults))
        return http_request_refuse(req);
    req->reply = reply_new(req->endpoint->dialect, &req->api, s->options.name, s->reader->tokenizer,
                           req->api.stream ? &req->out : NULL, &e);
    int rc = req->reply ? make_jobs(req, &e) : ERR_MEMORY;
    if (!rc)
        rc = jobs_add(s->jobs, req->jobs, req->api.n_choices, &e);
    if (rc == ERR_NO_FIT) {
        refusal_set(&req->refusal, 429, NULL, "queue_full", "%s", e.text);
        return http_request_refuse(req);
    }
    if (rc) {
        refusal_of(&req->refusal, rc, &e);
        return http_request_refuse(req);
    }
    req->sent_ns = clock_ns();
    return req->api.stream ? http_request_reply_stream(req, "text/event-stream", read_events)
                           : reply_whole(req);
}

void answers_free(struct http_request *req)
{
    reply_free(req->reply);
    for (uint32_t i = 0; req->jobs && i < req->api.n_choices; i++)
        jobs_release(req->server->jobs, req->jobs[i]);
    free(req->jobs);
    api_request_free(&req->api);
}

void answers_count_jobs(struct server *s, uint32_t *n_waiting, uint32_t *n_running)
{
    jobs_count(s->jobs, n_waiting, n_running);
}

/* ---- prompts alone ---- */

/* Reads the body of a request whose prompt is not evaluated. */
static int read_prompt(struct http_request *req)
{
    struct api_request_defaults defaults = req->server->defaults;
    defaults.counts = true;
    defaults.turns = false;
    return read_body(req, &defaults);
}

int answers_count(struct http_request *req)
{
    if (read_prompt(req))
        return http_request_refuse(req);
    return http_request_reply_json(req, req->endpoint->dialect->count(req->api.choices[0].request.tokens.n));
}

int answers_prompt(struct http_request *req)
{
    const struct moeflux_tokenizer *t = req->server->tokenizer;
    struct str text = {0};
    if (read_prompt(req))
        return http_request_refuse(req);
    const struct token_list *ids = &req->api.choices[0].request.tokens;
    for (size_t i = 0; i < ids->n; i++) {
        const char *bytes;
        size_t n = moeflux_tokenizer_bytes(t, ids->ids[i], &bytes);
        str_add(&text, n ? bytes : "", n);
    }
    json_t *prompt = str_ok(&text) ? utf8_json(str_text(&text), text.len) : NULL;
    str_free(&text);
    return http_request_reply_json(req, prompt ? json_pack("{s: o}", "prompt", prompt) : NULL);
}
