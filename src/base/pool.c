#include "base/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct pool_job *first, *last;
    bool stopping;
    uint32_t n_threads;
    pthread_t *threads;
};

static void *worker(void *arg)
{
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->first && !p->stopping)
            pthread_cond_wait(&p->work, &p->lock);
        struct pool_job *job = p->first;
        if (!job)
            break;
        p->first = job->next;
        if (!p->first)
            p->last = NULL;
        pthread_mutex_unlock(&p->lock);
        job->run(job);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

struct pool *pool_new(uint32_t n_threads, struct moeflux_err *e)
{
    struct pool *p = mem_new(1, sizeof *p, e);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    p->threads = mem_new(n_threads, sizeof *p->threads, e);
    if (!p->threads)
        goto fail;
    for (; p->n_threads < n_threads; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, worker, p) != 0) {
            err_set(e, ERR_MEMORY, "thread %u of %u could not be started", p->n_threads + 1, n_threads);
            goto fail;
        }
    return p;
fail:
    pool_free(p);
    return NULL;
}

void pool_submit(struct pool *p, struct pool_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&p->lock);
    if (p->last)
        p->last->next = job;
    else
        p->first = job;
    p->last = job;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* The state of one pool_for. Only workers run it: each takes the next index until none is left. */
struct sweep {
    pthread_mutex_t lock;
    pthread_cond_t done;
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
    uint32_t next, n, n_running;
};

struct sweep_job {
    struct pool_job job;
    struct sweep *sweep;
};

static void sweep_run(struct pool_job *job)
{
    struct sweep *s = ((struct sweep_job *)job)->sweep;
    pthread_mutex_lock(&s->lock);
    while (s->next < s->n) {
        uint32_t i = s->next++;
        pthread_mutex_unlock(&s->lock);
        s->fn(s->ctx, i);
        pthread_mutex_lock(&s->lock);
    }
    if (--s->n_running == 0)
        pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
}

void pool_for(struct pool *p, uint32_t n, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    enum { MAX_JOBS = 64 };
    struct sweep_job jobs[MAX_JOBS];
    uint32_t n_jobs = (uint32_t)size_min(size_min(p->n_threads, n), MAX_JOBS);
    if (n_jobs == 0)
        return;
    struct sweep s = {.fn = fn, .ctx = ctx, .n = n, .n_running = n_jobs};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.done, NULL);
    for (uint32_t i = 0; i < n_jobs; i++) {
        jobs[i] = (struct sweep_job){.job.run = sweep_run, .sweep = &s};
        pool_submit(p, &jobs[i].job);
    }
    pthread_mutex_lock(&s.lock);
    while (s.n_running > 0)
        pthread_cond_wait(&s.done, &s.lock);
    pthread_mutex_unlock(&s.lock);
    pthread_cond_destroy(&s.done);
    pthread_mutex_destroy(&s.lock);
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}

uint32_t pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}
