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
#include "api/dialect.h"
#include "server/http_request.h"
#include "server/reading.h"
#include "server/state.h"
#include "text/utf8.h"

/* Interval of checks whether the client has disconnected. */
enum { LOOK_MS = 100 };

/* An answer of a request: its job, and when its tokens come. */
struct server_answer {
    struct server *server;
    struct moeflux_job *job; /* NULL: none yet */
    atomic_bool is_unwanted; /* the client has disconnected */
    uint32_t n_tokens;
    uint64_t added_ns, last_ns; /* clock_ns() of the request, of the last token */
};

static void take_piece(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    const struct http_request *req = ctx;
    (void)idx;
    req->reply->dialect->piece(req->reply, req->at, p);
}

/* ---- whole ---- */

/* Collects the pieces of an answer until it is done. False: the client has disconnected. */
static bool keep_all(struct http_request *req)
{
    while (!moeflux_job_read(req->answers[req->at].job, LOOK_MS, take_piece, req))
        if (http_request_client_is_gone(req))
            return false;
    return true;
}

static int reply_whole(struct http_request *req)
{
    bool there = true;
    http_request_set_waiting(req, true);
    for (; there && req->at < req->api.n_choices; req->at++) {
        struct moeflux_err e;
        there = keep_all(req);
        int rc = there ? moeflux_job_result(req->answers[req->at].job, &e) : 0;
        if (rc)
            refusal_of(&req->refusal, rc, &e);
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
    if (!moeflux_job_read(req->answers[req->at].job, LOOK_MS, take_piece, req))
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
    struct moeflux_sequence_counts counts;
    moeflux_pool_get_stats(s->pool, &stats, &counts);
    metrics_engine(&s->metrics, &stats, &counts);
}

/* Counts the engine's work several times a second, on whichever thread of the pool calls it. */
static void count_engine_sometimes(struct server *s)
{
    const uint64_t often = 200000000;
    uint64_t now = clock_ns(), told = atomic_load(&s->told_ns);
    if (now - told > often && atomic_compare_exchange_strong(&s->told_ns, &told, now))
        answers_count_engine(s);
}

static bool count_token(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    struct server_answer *a = ctx;
    struct server *s = a->server;
    (void)idx;
    if (p->id < 0)
        return true;
    uint64_t now = clock_ns();
    if (a->n_tokens++ == 0)
        metrics_first_token(&s->metrics, now - a->added_ns);
    else
        metrics_next_token(&s->metrics, now - a->last_ns);
    a->last_ns = now;
    count_engine_sometimes(s);
    return true;
}

/* Whether the next request may fail as well: a file of the model is damaged, or a disk or a device fails. A
 * device that is lost is opened again (serve.h). */
static bool is_own_fault(int code)
{
    return code == ERR_IO || code == ERR_DEVICE;
}

/* Keeps for /health whether answers fail, and prints the first failure. */
static void note_failure(struct server *s, const struct moeflux_err *err)
{
    char text[sizeof err->text + 32];
    bool fails = is_own_fault((int)err->code);
    if ((err->code && !fails) || atomic_exchange(&s->is_failing, fails) == fails || !fails)
        return;
    snprintf(text, sizeof text, "an answer failed: %s", err->text);
    if (s->options.tell)
        s->options.tell(s->options.ctx, text);
}

/* Counts an answer. One that the end of the server cut off before its first token becomes an error, so that
 * the client can ask again: an empty answer would look like the model's. With tokens it stays an answer. */
static void end_answer(void *ctx, uint32_t idx, const struct moeflux_answer_info *info,
                       struct moeflux_err *err)
{
    struct server_answer *a = ctx;
    struct server *s = a->server;
    bool interrupted = err->code == ERR_INTERRUPTED || (!err->code && info->stop == MOEFLUX_STOP_INTERRUPTED);
    (void)idx;
    if (interrupted && info->n_tokens == 0)
        err_set(err, ERR_INTERRUPTED, SERVER_ENDS);
    answers_count_engine(s);
    note_failure(s, err);
    struct metrics_job counted = {
        .n_prompt = info->n_prompt,
        .n_cached = info->n_reused,
        .n_answered = info->n_tokens,
        .n_drafted = info->n_drafted,
        .n_accepted = info->n_accepted,
        .n_evaluations = info->n_evaluations,
        .decode_ns = info->decode_ns,
        .cancelled = atomic_load(&a->is_unwanted),
        .failed = err->code && err->code != ERR_INTERRUPTED,
    };
    metrics_job(&s->metrics, &counted);
}

static int make_job(struct http_request *req, struct server_answer *a, uint32_t idx, struct moeflux_err *e)
{
    const struct moeflux_job_options o = {.requests = &req->api.requests[idx],
                                          .n = 1,
                                          .priority = req->api.priority,
                                          .keeps_pieces = true,
                                          .piece = count_token,
                                          .ended = end_answer,
                                          .ctx = a};
    *a = (struct server_answer){.server = req->server, .added_ns = clock_ns()};
    return moeflux_job_new(&a->job, req->server->pool, &o, e);
}

/* Asks for all answers, or for none. */
static int add_jobs(struct http_request *req, struct moeflux_err *e)
{
    struct moeflux_job *jobs[API_REQUEST_MAX_CHOICES];
    int rc = 0;
    if (!(req->answers = mem_new(req->api.n_choices, sizeof *req->answers, e)))
        return ERR_MEMORY;
    for (uint32_t i = 0; !rc && i < req->api.n_choices; i++) {
        rc = make_job(req, &req->answers[i], i, e);
        jobs[i] = req->answers[i].job;
    }
    return rc ? rc : moeflux_pool_add(req->server->pool, jobs, req->api.n_choices, e);
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
        rc = dialect_read(d, &req->api, str_text(&req->body), req->body.len, s->reader.generator, defaults,
                          &req->refusal);
        reading_end(req);
    }
    /* The body is not needed any more. */
    reading_give(req);
    const char *skipped = rc ? NULL : api_request_skipped_tool(&req->api);
    if (skipped && !req->api.note[0])
        snprintf(req->api.note, sizeof req->api.note, "tools of these types are left out: %.40s", skipped);
    if (!rc && !req->api.note[0] && api_request_hides_tools(&req->api))
        snprintf(req->api.note, sizeof req->api.note,
                 "the chat template leaves tools out: the model does not see them");
    if (!rc && req->api.note[0])
        tell_note(s, d, req->api.note);
    return rc;
}

int answers_reply(struct http_request *req)
{
    struct server *s = req->server;
    struct moeflux_err e;
    if (read_body(req, &s->reader.defaults))
        return http_request_refuse(req);
    req->reply = reply_new(req->endpoint->dialect, &req->api, s->options.name, s->reader.generator,
                           req->api.stream ? &req->out : NULL, &e);
    int rc = req->reply ? add_jobs(req, &e) : ERR_MEMORY;
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
    for (uint32_t i = 0; req->answers && i < req->api.n_choices; i++) {
        atomic_store(&req->answers[i].is_unwanted, true);
        moeflux_job_free(req->answers[i].job);
    }
    free(req->answers);
    api_request_free(&req->api);
}

void answers_count_jobs(struct server *s, uint32_t *n_waiting, uint32_t *n_running)
{
    moeflux_pool_count(s->pool, n_waiting, n_running);
}

/* ---- prompts alone ---- */

/* Reads the body of a request whose prompt is not evaluated. */
static int read_prompt(struct http_request *req)
{
    struct api_request_defaults defaults = req->server->reader.defaults;
    defaults.counts = true;
    defaults.turns = false;
    return read_body(req, &defaults);
}

int answers_count(struct http_request *req)
{
    if (read_prompt(req))
        return http_request_refuse(req);
    return http_request_reply_json(req, req->endpoint->dialect->count(api_request_prompt(&req->api)->n));
}

int answers_prompt(struct http_request *req)
{
    const struct moeflux_tokenizer *t = req->server->tokenizer;
    struct str text = {0};
    if (read_prompt(req))
        return http_request_refuse(req);
    const struct token_list *ids = api_request_prompt(&req->api);
    for (size_t i = 0; i < ids->n; i++) {
        const char *bytes;
        size_t n = moeflux_tokenizer_bytes(t, ids->ids[i], &bytes);
        str_add(&text, n ? bytes : "", n);
    }
    json_t *prompt = str_ok(&text) ? utf8_json(str_text(&text), text.len) : NULL;
    str_free(&text);
    return http_request_reply_json(req, prompt ? json_pack("{s: o}", "prompt", prompt) : NULL);
}
