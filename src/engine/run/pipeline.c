#include "engine/run/pipeline.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/stage_run.h"
#include "engine/run/stage_turn.h"

/* How long the caller waits before it asks its callback again. */
enum { SLICE_NS = 50000000 };

struct prompt_pipeline;

struct worker { /* one stage and its thread */
    struct prompt_pipeline *pipeline;
    uint32_t idx;
    uint32_t n_done;     /* chunks that it has handed over */
    uint32_t first_half; /* chunk 0's half of the crossing to the next stage */
    bool has_turn;       /* it holds its stage, from the first chunk to the last one */
    int rc;
    struct moeflux_err err;
};

struct prompt_pipeline {
    struct moeflux_session *s;
    struct moeflux_model *m;
    const struct pipeline_call *call;
    struct worker workers[MOEFLUX_MAX_DEVICES];
    pthread_mutex_t lock; /* lock of n_done */
    pthread_cond_t moved; /* some n_done has changed, or the pipeline stops */
    atomic_bool stops;
};

uint32_t pipeline_n_older(uint32_t stage, uint32_t n_stages)
{
    return n_stages - 1 - stage;
}

static bool make_older(struct moeflux_session *s)
{
    struct moeflux_model *m = s->model;
    for (uint32_t i = 0; m->recurrent_state_bytes && i < m->n_stages; i++)
        for (uint32_t k = 0; k < pipeline_n_older(i, m->n_stages); k++) {
            struct exec_buffer *b = &s->on[i].older[k];
            if (b->address)
                continue;
            stage_take(&m->stages[i]);
            int rc = exec_buffer_new(m->stages[i].exec, b, EXEC_DEVICE, s->on[i].recurrent.bytes, NULL);
            m->stages[i].state_bytes += rc == 0 ? b->bytes : 0;
            stage_give(&m->stages[i]);
            if (rc < 0)
                return false;
        }
    return true;
}

bool pipeline_takes(struct moeflux_session *s, const struct moeflux_outputs *outputs)
{
    const struct moeflux_model *m = s->model;
    return m->n_stages > 1 && !m->trace && !outputs->hidden && make_older(s);
}

/* ---- recurrent states: without any, make_older makes none, and nothing moves ---- */

/* Makes a finished chunk's state the current one. Older ones follow it, and the oldest is overwritten
 * next. */
static void move_on(struct stage_state *on, uint32_t n_older)
{
    const struct exec_buffer current = on->recurrent;
    on->recurrent = on->recurrent_next;
    on->recurrent_next = n_older ? on->older[n_older - 1] : current;
    for (uint32_t k = n_older; k > 1; k--)
        on->older[k - 1] = on->older[k - 2];
    if (n_older)
        on->older[0] = current;
}

/* Goes back by n chunks. */
static void move_back(struct stage_state *on, uint32_t n)
{
    if (n == 0)
        return;
    const struct exec_buffer current = on->recurrent;
    on->recurrent = on->older[n - 1];
    on->older[n - 1] = current;
}

/* ---- the workers ---- */

static uint32_t tokens_of(const struct prompt_pipeline *l, uint32_t chunk)
{
    return (uint32_t)size_min(l->call->n - chunk * l->m->max_chunk, l->m->max_chunk);
}

static bool go_on_worker(void *ctx)
{
    const struct prompt_pipeline *l = ctx;
    return !atomic_load(&l->stops);
}

/* The caller's thread, the only one that calls the progress callback. */
static bool go_on(void *ctx)
{
    struct prompt_pipeline *l = ctx;
    struct moeflux_model *m = l->m;
    struct progress_at *at = &l->s->progress_at;
    uint64_t here = (uint64_t)at->here * at->layer / m->dir.config.n_layers;
    if (!atomic_load(&l->stops) &&
        !progress_report(&m->progress, at->what, "tok", at->before + here, at->total)) {
        at->is_stopped = true;
        atomic_store(&l->stops, true);
    }
    return !atomic_load(&l->stops);
}

static bool is_caller(const struct worker *t)
{
    return t->idx + 1 == t->pipeline->m->n_stages;
}

/* Waits until a worker has handed over n chunks. False: the pipeline stops. */
static bool await_chunks(struct worker *t, const struct worker *other, uint32_t n)
{
    struct prompt_pipeline *l = t->pipeline;
    pthread_mutex_lock(&l->lock);
    while (other->n_done < n && !atomic_load(&l->stops)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += SLICE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&l->moved, &l->lock, &until);
        pthread_mutex_unlock(&l->lock);
        if (is_caller(t))
            go_on(l);
        pthread_mutex_lock(&l->lock);
    }
    bool is_there = other->n_done >= n;
    pthread_mutex_unlock(&l->lock);
    return is_there && !atomic_load(&l->stops);
}

static void fill_inputs(const struct prompt_pipeline *l, struct pass *p, uint32_t chunk)
{
    struct stage *at = p->at;
    uint32_t from = chunk * l->m->max_chunk, n = tokens_of(l, chunk);
    if (at == l->m->stages)
        memcpy(at->ids.host, l->call->ids + from, n * sizeof *l->call->ids);
    p->chunk.rope = rope_cache_of_chunk(&at->rope, l->m, n, l->s->pos + from);
}

static struct work work_of(struct prompt_pipeline *l, uint32_t chunk)
{
    return (struct work){.m = l->m,
                         .list = &l->s,
                         .n = tokens_of(l, chunk),
                         .keep = chunk + 1 == l->call->n_chunks ? l->call->keep : 0,
                         .is_watched = true,
                         .is_pipelined = true,
                         .ahead = chunk * l->m->max_chunk,
                         .flips = chunk,
                         .outputs = l->call->outputs};
}

/* ---- hidden states: if both devices see the memory of a crossing, no thread copies them ----
 *
 * Chunks use the two halves of a crossing alternately. When a worker begins chunk c, it has handed over
 * chunk c - 1. So the next worker had finished chunk c - 2 (hand_over), which was the last in the same half.
 * The next prompt continues with the other half: when it begins, the next stage may still compute this
 * prompt's last chunk, and its own second chunk comes after hand_over's wait for that stage. After a stop a
 * device may still read or write a half. Whoever takes its stage waits for that (stage_enter), and the result
 * of what it reads is dropped. */

static uint32_t half_of(const struct worker *t, uint32_t chunk)
{
    return (t->first_half + chunk) & 1;
}

static void choose_halves(const struct worker *t, uint32_t chunk, struct pass *p)
{
    const struct stage *at = p->at;
    if (crossing_is_there(&at->crossing))
        p->out = crossing_out(&at->crossing, half_of(t, chunk));
    if (t->idx > 0 && crossing_is_there(&at[-1].crossing))
        p->in = crossing_in(&at[-1].crossing, half_of(t - 1, chunk));
}

/* Takes the worker's stage for the first chunk. asks: the watch of the calling thread, which may be another
 * worker's. On failure the worker does not have the turn. */
static int take_stage(struct worker *t, bool (*asks)(void *ctx), struct moeflux_err *e)
{
    struct prompt_pipeline *l = t->pipeline;
    struct stage *at = &l->m->stages[t->idx];
    const struct work all = {.m = l->m, .list = &l->s, .n = l->call->n};
    int rc = stage_enter_watched(l->m, at, &(struct exec_watch){asks, l}, e);
    if (rc < 0)
        return rc;
    t->has_turn = true;
    t->first_half = at->crossing.next;
    stage_watch(at, &(struct exec_watch){is_caller(t) ? go_on : go_on_worker, l});
    forward_track(&all, at);
    return 0;
}

/* Gives the worker's stage back after the last chunk; others may use it then. */
static void give_stage(struct worker *t, int rc)
{
    struct stage *at = &t->pipeline->m->stages[t->idx];
    if (!t->has_turn)
        return;
    stage_watch(at, NULL);
    /* A chunk that was stopped may still write to its next state. */
    at->is_stopped |= rc < 0;
    at->crossing.next = half_of(t, t->n_done);
    t->has_turn = false;
    stage_give(at);
}

/* Hands the chunk's hidden states over when the next stage has finished the chunk before. */
static int hand_over(struct worker *t, const struct work *w, uint32_t chunk)
{
    if (is_caller(t))
        return 0;
    if (!await_chunks(t, t + 1, chunk))
        return err_set(&t->err, ERR_INTERRUPTED, "interrupted");
    const struct stage *at = &t->pipeline->m->stages[t->idx];
    int rc = chunk == 0 ? take_stage(t + 1, go_on_worker, &t->err) : 0;
    if (rc == 0 && !crossing_is_there(&at->crossing))
        stage_hand_over(w, at);
    return rc;
}

/* Runs one chunk on one stage. */
static int run_chunk(struct worker *t, uint32_t chunk)
{
    struct prompt_pipeline *l = t->pipeline;
    struct stage *at = &l->m->stages[t->idx];
    struct stage_state *on = &l->s->on[t->idx];
    const struct work w = work_of(l, chunk);
    bool is_last = chunk + 1 == l->call->n_chunks;
    struct pass p = stage_pass(&w, at, NULL);
    fill_inputs(l, &p, chunk);
    if (!is_caller(t))
        p.progress = NULL;
    choose_halves(t, chunk, &p);
    int rc = stage_run(&p, l->call->last && is_last, &t->err);
    if (rc < 0)
        return rc;
    rc = hand_over(t, &w, chunk);
    if (rc < 0)
        return rc;
    if (l->m->recurrent_state_bytes)
        move_on(on, pipeline_n_older(t->idx, l->m->n_stages));
    return 0;
}

static void *run_worker(void *ctx)
{
    struct worker *t = ctx;
    struct prompt_pipeline *l = t->pipeline;
    for (uint32_t i = 0; i < l->call->n_chunks; i++) {
        if (is_caller(t)) {
            struct progress_at *at = &l->s->progress_at;
            at->before = at->from + i * l->m->max_chunk;
            at->here = tokens_of(l, i);
            at->layer = 0;
        }
        if (t->idx > 0 && !await_chunks(t, t - 1, i + 1))
            t->rc = err_set(&t->err, ERR_INTERRUPTED, "interrupted");
        else
            t->rc = run_chunk(t, i);
        pthread_mutex_lock(&l->lock);
        t->n_done += t->rc == 0;
        pthread_mutex_unlock(&l->lock);
        if (t->rc < 0)
            atomic_store(&l->stops, true);
        pthread_cond_broadcast(&l->moved);
        if (t->rc < 0)
            break;
    }
    /* After a failure another worker may be about to take the stage: pipeline_run gives it back. */
    if (t->rc == 0)
        give_stage(t, 0);
    return NULL;
}

/* Runs all workers at once, the last one on this thread. */
static int run_workers(struct prompt_pipeline *l, struct moeflux_err *e)
{
    pthread_t threads[MOEFLUX_MAX_DEVICES];
    uint32_t n = l->m->n_stages, n_started = 0;
    int rc = 0;
    while (rc == 0 && n_started + 1 < n) {
        if (pthread_create(&threads[n_started], NULL, run_worker, &l->workers[n_started]))
            rc = err_set(e, ERR_MEMORY, "a thread for a device cannot be made");
        else
            n_started++;
    }
    if (rc == 0)
        run_worker(&l->workers[n - 1]);
    else
        atomic_store(&l->stops, true);
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    return rc;
}

/* Returns the fault that stopped the pipeline; it only interrupted the other workers. */
static int result_of(const struct prompt_pipeline *l, struct moeflux_err *e)
{
    const struct worker *at = NULL;
    for (uint32_t i = 0; i < l->m->n_stages; i++) {
        const struct worker *t = &l->workers[i];
        if (t->rc < 0 && (!at || at->rc == ERR_INTERRUPTED))
            at = t;
    }
    if (at && e)
        *e = at->err;
    return at ? at->rc : 0;
}

/* Moves all stages to the last one's position. Returns the number of tokens of the finished chunks. */
static uint32_t align_stages(struct prompt_pipeline *l)
{
    struct moeflux_session *s = l->s;
    uint32_t n = l->m->n_stages, chunks = l->workers[n - 1].n_done, all = l->call->n_chunks;
    uint32_t tokens = chunks == all ? l->call->n : chunks * l->m->max_chunk;
    for (uint32_t i = 0; l->m->recurrent_state_bytes && i < n; i++)
        move_back(&s->on[i], l->workers[i].n_done - chunks);
    bool is_kept = chunks == all && l->call->keep;
    s->parity ^= (chunks - is_kept) & 1;
    memmove(s->history + s->pos, l->call->ids, tokens * sizeof *s->history);
    s->pos += tokens;
    return tokens;
}

int pipeline_run(struct moeflux_session *s, const struct pipeline_call *c, uint32_t *n_done,
                 struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct prompt_pipeline l = {
        .s = s, .m = m, .call = c, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    uint32_t n = m->n_stages;
    assert(n > 1 && n <= MOEFLUX_MAX_DEVICES);
    *n_done = 0;
    int rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        l.workers[i] = (struct worker){.pipeline = &l, .idx = i};
    s->progress_at.from = s->progress_at.before;
    s->progress_at.here = 0;
    rc = take_stage(&l.workers[0], go_on, e);
    if (rc < 0) {
        s->progress_at.is_stopped = rc == ERR_INTERRUPTED;
        return rc;
    }
    uint64_t start = clock_ns();
    s->is_stopped = true;
    rc = run_workers(&l, e);
    if (rc == 0)
        rc = result_of(&l, e);
    for (uint32_t i = 0; i < n; i++)
        give_stage(&l.workers[i], rc);
    *n_done = align_stages(&l);
    m->step_ns = (clock_ns() - start) / c->n_chunks;
    s->is_stopped = rc < 0;
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.moved);
    return rc;
}
