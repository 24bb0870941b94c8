/* pool.h - a fixed set of worker threads that run jobs in the order in which they were submitted. */
#ifndef MOEFLUX_BASE_POOL_H
#define MOEFLUX_BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct pool;

/* A job lives in the caller's memory until its function returns; the function may reuse or free it. */
struct pool_job {
    void (*run)(struct pool_job *job);
    struct pool_job *next; /* the pool's own */
};

/* Starts n_threads >= 1 threads. NULL with `e` filled. */
struct pool *pool_new(uint32_t n_threads, struct moeflux_err *e);

/* Appends one job. Never blocks, never fails. */
void pool_submit(struct pool *p, struct pool_job *job);

/* Runs fn(ctx, 0) to fn(ctx, n - 1) on the workers and returns when all are done. One caller at a time. */
void pool_for(struct pool *p, uint32_t n, void (*fn)(void *ctx, uint32_t i), void *ctx);

/* Waits for all submitted jobs and ends the threads. NULL is legal. */
void pool_free(struct pool *p);

uint32_t pool_n_threads(const struct pool *p);

#endif
