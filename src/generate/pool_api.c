/* The pools of moeflux_chat.h: a queue of jobs (jobs.h), the workers that compute them (workers.h), and for
 * batches jobs that are held until a worker is free (queue.h). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/run/batched.h"
#include "generate/chat_api.h"
#include "generate/jobs.h"
#include "generate/queue.h"
#include "generate/request_api.h"
#include "generate/workers.h"
#include "moeflux_chat.h"

struct moeflux_pool {
    struct moeflux_chat *chat;
    struct moeflux_pool_options options;
    struct jobs jobs;
    pthread_mutex_t lock; /* protects the queue */
    struct queue queue;   /* BATCH: jobs that are held */
    struct workers *workers;
    bool has_jobs, has_lock, has_ended;
    bool is_paused; /* no job begins */
    char why[128];  /* the text of jobs that fail because the pool has ended */
};

static bool is_batch(const struct moeflux_pool *p)
{
    return p->options.reuse == MOEFLUX_POOL_BATCH;
}

/* ---- a pool ---- */

/* Sets what the caller leaves open. */
static int take_options(struct moeflux_pool *p, const struct moeflux_pool_options *from,
                        struct moeflux_err *e)
{
    struct moeflux_pool_options *o = &p->options;
    uint32_t n_models = 1 + p->chat->generator.n_copies;
    *o = *from;
    if (o->reuse != MOEFLUX_POOL_RECENT && o->reuse != MOEFLUX_POOL_BATCH)
        return err_set(e, ERR_USAGE, "`reuse` is %d, expected 0 or 1", (int)o->reuse);
    o->parallel = o->parallel ? o->parallel : n_models;
    o->sequences = o->sequences ? o->sequences : o->parallel;
    if (o->parallel < n_models || o->parallel > WORKERS_MAX)
        return err_set(e, ERR_USAGE, "`parallel` is %u, expected %u to %d: an answer for each model",
                       o->parallel, n_models, WORKERS_MAX);
    if (o->sequences < o->parallel)
        return err_set(e, ERR_USAGE, "`sequences` is %u, expected at least %u, as many as answers",
                       o->sequences, o->parallel);
    if (is_batch(p) && (!o->most_waiting || o->most_waiting > MOEFLUX_POOL_MAX_HELD))
        o->most_waiting = MOEFLUX_POOL_MAX_HELD;
    return 0;
}

/* Lets jobs that are held begin, one for each idle worker. A single worker has no job then, so its last
 * sequence is idle. */
static void begin_held(struct moeflux_pool *p)
{
    const struct moeflux_session *last = NULL;
    struct moeflux_err ignored; /* the pool has ended: the job has failed */
    uint32_t n_waiting, n_running;
    pthread_mutex_lock(&p->lock);
    jobs_count(&p->jobs, &n_waiting, &n_running);
    for (; !p->is_paused && n_waiting + n_running < p->options.parallel; n_waiting++) {
        if (p->options.parallel == 1)
            last = workers_latest(p->workers);
        struct moeflux_job *j = queue_choose(&p->queue, last);
        if (!j)
            break;
        j->copy = workers_find_copy(p->workers, j->choices[0]);
        if (jobs_add(&p->jobs, &j, 1, &ignored))
            jobs_fail(&p->jobs, j, p->why);
    }
    pthread_mutex_unlock(&p->lock);
}

static void begin_next(void *ctx)
{
    begin_held(ctx);
}

/* One worker reuses all that it can of a prompt. With several, each cuts a prompt at the same places,
 * whichever others there are: a result does not depend on them. */
static struct workers_options batch_options(const struct moeflux_pool *p, uint32_t chunk)
{
    return (struct workers_options){
        .keep = {.most = p->options.parallel, .chunk = chunk, .checkpoints = chunk ? 0 : UINT32_MAX},
        .waits = true};
}

static struct workers_options recent_options(const struct moeflux_pool_options *o)
{
    return (struct workers_options){.keep = {.most = o->sequences, .bytes = o->bytes},
                                    .files = {.dir = o->dir,
                                              .bytes = o->dir_bytes,
                                              .n_files = o->dir_files,
                                              .tell = o->warning.tell,
                                              .ctx = o->warning.ctx},
                                    .converse = true};
}

static int start(struct moeflux_pool *p, struct moeflux_err *e)
{
    const struct moeflux_pool_options *o = &p->options;
    struct generator *g = &p->chat->generator;
    uint32_t chunk = is_batch(p) && o->parallel > 1 ? batched_chunk(g->model) : 0;
    struct workers_options all = is_batch(p) ? batch_options(p, chunk) : recent_options(o);
    all.lost = o->lost;
    all.lost_ctx = o->ctx;
    all.ended = is_batch(p) && !o->holds ? begin_next : NULL;
    all.ended_ctx = p;
    /* Other pools may use what generator_prepare changes. */
    int rc = workers_check_models(g, e);
    rc = rc ? rc : generator_prepare(g, o->context, e);
    if (!rc && is_batch(p))
        rc = queue_init(&p->queue, g->model, g->max_context, chunk, e);
    if (!rc)
        rc = jobs_init(&p->jobs, is_batch(p) || !o->most_waiting ? UINT32_MAX : o->most_waiting, e);
    p->has_jobs = !rc;
    if (!rc && !(p->workers = workers_new(o->parallel, &p->jobs, e)))
        rc = ERR_MEMORY;
    return rc ? rc : workers_start(p->workers, g, &all, e);
}

int moeflux_pool_open(struct moeflux_pool **out, struct moeflux_chat *c, const struct moeflux_pool_options *o,
                      struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    if (!c || !o)
        return err_set(e, ERR_USAGE, "the %s NULL", c ? "options are" : "chat is");
    struct moeflux_pool *p = mem_new(1, sizeof *p, &why);
    if (!p)
        return err_set(e, why.code, "%s", why.text);
    p->chat = c;
    p->has_lock = pthread_mutex_init(&p->lock, NULL) == 0;
    int rc = p->has_lock ? take_options(p, o, &why) : err_set(&why, ERR_MEMORY, "out of memory for a lock");
    if (!rc)
        rc = start(p, &why);
    if (!rc) {
        *out = p;
        return 0;
    }
    moeflux_pool_close(p);
    return err_set(e, rc, "%s", why.text);
}

/* Fails the jobs that are held. The caller holds the lock. */
static void fail_held(struct moeflux_pool *p)
{
    for (struct moeflux_job *j; (j = p->queue.first);) {
        queue_remove(&p->queue, j);
        jobs_fail(&p->jobs, j, p->why);
    }
}

void moeflux_pool_end(struct moeflux_pool *p, const char *why, uint32_t grace_ms)
{
    if (!p || p->has_ended || !p->has_jobs)
        return;
    pthread_mutex_lock(&p->lock);
    p->has_ended = p->is_paused = true;
    snprintf(p->why, sizeof p->why, "%s", why ? why : "the pool has ended");
    fail_held(p);
    pthread_mutex_unlock(&p->lock);
    jobs_close(&p->jobs, p->why);
    if (!jobs_drained(&p->jobs, grace_ms) && p->workers)
        workers_interrupt(p->workers);
    workers_join(p->workers);
}

void moeflux_pool_close(struct moeflux_pool *p)
{
    if (!p)
        return;
    moeflux_pool_end(p, NULL, 0);
    workers_free(p->workers);
    if (p->has_jobs)
        jobs_free(&p->jobs);
    if (p->has_lock)
        pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- a job ---- */

static int check_options(const struct moeflux_pool *p, const struct moeflux_job_options *o,
                         struct moeflux_err *e)
{
    const char *name = !p ? "pool" : !o ? "description of the job" : !o->requests ? "list of requests" : NULL;
    if (name)
        return err_set(e, ERR_USAGE, "the %s is NULL", name);
    if (!o->n)
        return err_set(e, ERR_USAGE, "a job without requests");
    for (uint32_t i = 0; i < o->n; i++)
        if (!o->requests[i])
            return err_set(e, ERR_USAGE, "request %u is NULL", i);
    return 0;
}

/* Choices of one prompt are consecutive: their cuts are found once. */
static int prepare(struct moeflux_job *j, struct moeflux_err *e)
{
    struct moeflux_pool *p = j->pool;
    enum chat_api_places places = !is_batch(p)     ? CHAT_API_TURNS
                                  : p->queue.chunk ? CHAT_API_CUTS
                                                   : CHAT_API_NOWHERE;
    for (uint32_t i = 0; i < j->n; i++) {
        struct moeflux_request *r = j->options.requests[i];
        struct choice *c = r->encoded, *last = i ? j->choices[i - 1] : NULL;
        if (c && last && !c->is_placed && !r->encoded_by && choice_has_prompt_of(c, last)) {
            c->stops = last->stops;
            c->cuts = last->cuts;
            c->is_placed = true;
        }
        int rc = chat_api_prepare(p->chat, r, p->chat->generator.max_context, places, e);
        if (rc)
            return rc;
        j->choices[i] = r->encoded;
    }
    return 0;
}

int moeflux_job_new(struct moeflux_job **out, struct moeflux_pool *p, const struct moeflux_job_options *o,
                    struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    int rc = check_options(p, o, &why);
    struct moeflux_job *j = rc ? NULL : jobs_new(o->n, &why);
    if (j) {
        j->pool = p;
        j->options = *o;
        rc = prepare(j, &why);
    }
    if (!rc && j && !o->ended)
        j->answers = mem_new(o->n, sizeof *j->answers, &why);
    if (!rc && j && (j->answers || o->ended)) {
        /* Callers need not keep the list. */
        j->options.requests = NULL;
        *out = j;
        return 0;
    }
    moeflux_job_free(j);
    return err_set(e, why.code, "%s", why.text);
}

/* Holds the jobs, all or none. */
static int hold(struct moeflux_pool *p, struct moeflux_job *const *jobs, size_t n, struct moeflux_err *e)
{
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    if (p->has_ended)
        rc = err_set(e, ERR_INTERRUPTED, "%s", p->why);
    else if (n > p->options.most_waiting - p->queue.n)
        rc = err_set(e, ERR_NO_FIT, "%u jobs of %u that may wait do so: there is no room for %zu more",
                     p->queue.n, p->options.most_waiting, n);
    for (size_t i = 0; !rc && i < n; i++)
        queue_add(&p->queue, jobs[i]);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* Marks the jobs as added, all or none: one that occurs twice was added before. */
static int mark_added(struct moeflux_pool *p, struct moeflux_job *const *jobs, size_t n,
                      struct moeflux_err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (jobs[i] && jobs[i]->pool == p && !jobs[i]->is_added) {
            jobs[i]->is_added = true;
            continue;
        }
        for (size_t k = 0; k < i; k++)
            jobs[k]->is_added = false;
        return err_set(e, ERR_USAGE, "job %zu is NULL, was added before or belongs to another pool", i);
    }
    return 0;
}

int moeflux_pool_add(struct moeflux_pool *p, struct moeflux_job *const *jobs, size_t n, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    int rc = err_need(&why, "pool", p, "list of jobs", jobs);
    if (!rc)
        rc = mark_added(p, jobs, n, &why);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    for (size_t i = 0; !is_batch(p) && i < n; i++)
        jobs[i]->copy = workers_find_copy(p->workers, jobs[i]->choices[0]);
    rc = is_batch(p) ? hold(p, jobs, n, &why) : jobs_add(&p->jobs, jobs, n, &why);
    for (size_t i = 0; rc && i < n; i++)
        jobs[i]->is_added = false;
    if (!rc && is_batch(p) && !p->options.holds)
        begin_held(p);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

void moeflux_pool_begin(struct moeflux_pool *p)
{
    if (is_batch(p))
        begin_held(p);
}

uint64_t moeflux_pool_await(struct moeflux_pool *p, uint64_t seen, uint32_t ms)
{
    return jobs_await(&p->jobs, seen, ms);
}

bool moeflux_pool_is_drained(struct moeflux_pool *p, uint32_t ms)
{
    return jobs_drained(&p->jobs, ms);
}

bool moeflux_job_wait(struct moeflux_job *j, uint32_t ms)
{
    return jobs_wait(&j->pool->jobs, j, ms);
}

void moeflux_job_cancel(struct moeflux_job *j)
{
    atomic_store(&j->cancelled, true);
}

bool moeflux_job_read(struct moeflux_job *j, uint32_t ms,
                      void (*take)(void *ctx, uint32_t idx, const struct moeflux_piece *p), void *ctx)
{
    return jobs_read(&j->pool->jobs, j, ms, take, ctx);
}

int moeflux_job_result(const struct moeflux_job *j, struct moeflux_err *e)
{
    int null = err_need(e, "job", j);
    if (null)
        return null;
    const struct choice_result *r = jobs_result(j);
    return r->rc ? err_set(e, r->rc, "%s", r->error.text) : 0;
}

struct moeflux_answer *moeflux_job_take(struct moeflux_job *j, uint32_t idx)
{
    struct moeflux_answer *a = j->answers && idx < j->n ? j->answers[idx] : NULL;
    if (a)
        j->answers[idx] = NULL;
    return a;
}

void moeflux_job_free(struct moeflux_job *j)
{
    if (!j)
        return;
    struct moeflux_pool *p = j->pool;
    pthread_mutex_lock(&p->lock);
    if (j->is_held)
        queue_remove(&p->queue, j);
    pthread_mutex_unlock(&p->lock);
    jobs_release(&p->jobs, j);
}

/* ---- counts ---- */

void moeflux_pool_count(struct moeflux_pool *p, uint32_t *n_waiting, uint32_t *n_running)
{
    jobs_count(&p->jobs, n_waiting, n_running);
    pthread_mutex_lock(&p->lock);
    *n_waiting += p->queue.n;
    pthread_mutex_unlock(&p->lock);
}

void moeflux_pool_get_stats(struct moeflux_pool *p, struct moeflux_stats *models,
                            struct moeflux_sequence_counts *sequences)
{
    if (sequences)
        *sequences = workers_count(p->workers);
    if (models)
        generator_get_stats(&p->chat->generator, models);
}

/* ---- a lost device ---- */

void moeflux_pool_pause(struct moeflux_pool *p)
{
    /* Nobody reads the workers' sequences from then on. */
    pthread_mutex_lock(&p->lock);
    p->is_paused = true;
    pthread_mutex_unlock(&p->lock);
    jobs_pause(&p->jobs);
    workers_join(p->workers);
}

int moeflux_pool_restart(struct moeflux_pool *p, struct moeflux_err *e)
{
    int null = err_need(e, "pool", p);
    if (null)
        return null;
    struct moeflux_err why = {0};
    int rc = workers_restart(p->workers, &why);
    pthread_mutex_lock(&p->lock);
    p->is_paused = rc != 0;
    pthread_mutex_unlock(&p->lock);
    if (!rc && is_batch(p) && !p->options.holds)
        begin_held(p);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}
