#include "server/answers.h"

#include <jansson.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "api/completion.h"
#include "server/exchange.h"
#include "server/jobs.h"
#include "server/state.h"
#include "server/workers.h"

/* Interval of checks whether the client has disconnected. */
enum { LOOK_MS = 100 };

/* ---- whole ---- */

/* Collects the pieces of one choice until it is done. False: the client has disconnected. */
static bool keep_all(struct exchange *x, uint32_t idx)
{
    bool done = false;
    while (!done) {
        struct job_piece *all = jobs_read(&x->server->jobs, x->jobs[idx], LOOK_MS, &done);
        for (struct job_piece *p = all; p; p = p->next)
            completion_keep(x->completion, idx, &p->piece);
        jobs_free_pieces(all);
        if (!done && exchange_is_gone(x))
            return false;
    }
    return true;
}

static int reply_whole(struct exchange *x)
{
    bool there = true;
    exchange_set_waiting(x, true);
    for (uint32_t i = 0; there && i < x->call.n_asks; i++) {
        const struct ask_result *r = &x->call.asks[i].result;
        there = keep_all(x, i);
        if (there && r->rc)
            refusal_of(&x->no, r->rc, &r->error);
    }
    exchange_set_waiting(x, false);
    if (!there)
        return -1;
    return x->no.status ? exchange_refuse(x) : exchange_reply_json(x, completion_json(x->completion));
}

/* ---- as events ---- */

/* Waits up to LOOK_MS for pieces and fills `out` with their events. */
static void collect(struct exchange *x)
{
    bool done = false;
    struct job_piece *all = jobs_read(&x->server->jobs, x->jobs[x->at], LOOK_MS, &done);
    for (struct job_piece *p = all; p; p = p->next)
        completion_send_piece(x->completion, x->at, &p->piece, &x->out);
    jobs_free_pieces(all);
    if (!done)
        return;
    completion_send_end(x->completion, x->at, &x->out);
    x->at++;
    if (x->at == x->call.n_asks) {
        completion_send_last(x->completion, &x->out);
        x->ended = true;
    }
}

static long read_events(void *ctx, uint64_t pos, char *buf, size_t most)
{
    struct exchange *x = ctx;
    (void)pos;
    while (x->out_pos == x->out.len && !x->ended) {
        str_clear(&x->out);
        x->out_pos = 0;
        collect(x);
        if (x->out.len)
            continue;
        if (exchange_is_gone(x))
            return -2;
        if (clock_ns() - x->sent_ns > SERVER_ALIVE_S * (uint64_t)1000000000)
            str_add_text(&x->out, ": still here\n\n");
    }
    if (!str_ok(&x->out))
        return -2;
    size_t n = x->out.len - x->out_pos;
    if (n == 0)
        return -1;
    if (n > most)
        n = most;
    memcpy(buf, x->out.data + x->out_pos, n);
    x->out_pos += n;
    x->sent_ns = clock_ns();
    return (long)n;
}

/* ---- both ---- */

static int make_jobs(struct exchange *x, struct moeflux_err *e)
{
    x->jobs = mem_new(x->call.n_asks, sizeof *x->jobs, e);
    for (uint32_t i = 0; x->jobs && i < x->call.n_asks; i++) {
        if (!(x->jobs[i] = jobs_new(&x->call.asks[i], e)))
            return ERR_MEMORY;
        x->jobs[i]->home = workers_home(x->server->workers, &x->call.asks[i]);
    }
    return x->jobs ? 0 : ERR_MEMORY;
}

static int answer(struct exchange *x, bool chat)
{
    struct server *s = x->server;
    struct moeflux_err e;
    int rc = call_read(&x->call, chat, str_text(&x->body), x->body.len, s->generator, &s->defaults, &x->no);
    if (rc)
        return exchange_refuse(x);
    x->completion = completion_new(&x->call, s->options.name, s->generator->tokenizer, &e);
    rc = x->completion ? make_jobs(x, &e) : (int)e.code;
    if (!rc)
        rc = jobs_add(&s->jobs, x->jobs, x->call.n_asks, &e);
    if (rc == ERR_NO_FIT) {
        refusal_set(&x->no, 429, NULL, "queue_full", "%s", e.text);
        return exchange_refuse(x);
    }
    if (rc) {
        refusal_of(&x->no, rc, &e);
        return exchange_refuse(x);
    }
    /* The body is not needed any more. */
    str_free(&x->body);
    x->sent_ns = clock_ns();
    return x->call.stream ? exchange_reply_stream(x, "text/event-stream", read_events) : reply_whole(x);
}

int answers_chat(struct exchange *x)
{
    return answer(x, true);
}

int answers_completion(struct exchange *x)
{
    return answer(x, false);
}
