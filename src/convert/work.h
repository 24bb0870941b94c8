/* work.h - what the threads of a conversion share: workers, scratch memory, progress, the first failure. */
#ifndef MOEFLUX_CONVERT_WORK_H
#define MOEFLUX_CONVERT_WORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "convert/errors.h"

struct pool;

/* Weights that a task reads at once. */
enum { CONVERT_BLOCK = 1 << 20 };

struct convert_work {
    struct pool *pool;
    pthread_mutex_t lock;
    const struct moeflux_progress *progress;
    const char *what;     /* the step, for progress */
    uint64_t done, total; /* bytes of that step */
    uint64_t bytes_read, bytes_written;
    struct convert_errors errors;
    int rc;                 /* the first failure; tasks that start later do nothing */
    struct moeflux_err err; /* its text */
    uint8_t **free_scratch;
    uint32_t n_free;
};

/* One block of weights as they are read (4 bytes each at most), and room for what is made of them. */
struct convert_scratch {
    uint8_t *in;  /* CONVERT_BLOCK * 4 bytes */
    uint8_t *out; /* out_bytes */
};

/* Starts the workers: n_threads (0: one a core), fewer when `n` times the scratch memory exceeded the budget.
 * out_bytes: what one task may need besides the block it reads, at least CONVERT_BLOCK * 4. */
int convert_work_start(struct convert_work *w, uint32_t n_threads, uint64_t out_bytes,
                       const struct moeflux_progress *progress, struct moeflux_err *e);
/* Zeroed ones are legal. */
void convert_work_end(struct convert_work *w);

/* Begins a step of `total` bytes. */
void convert_work_step(struct convert_work *w, const char *what, uint64_t total);

/* For tasks, which have one scratch each at most: never blocks, never fails. */
struct convert_scratch convert_work_take(struct convert_work *w);
void convert_work_give(struct convert_work *w, struct convert_scratch s);

/* Whether nothing failed so far. */
bool convert_work_ok(struct convert_work *w);
/* Keeps the first failure. */
void convert_work_fail(struct convert_work *w, int rc, const struct moeflux_err *e);
/* Counts and reports; a caller who wants to stop becomes the failure ERR_INTERRUPTED. */
void convert_work_advance(struct convert_work *w, uint64_t step, uint64_t bytes_read, uint64_t bytes_written);

void convert_work_add_error(struct convert_work *w, enum convert_class kind, const struct convert_error *x);

/* The first failure for the caller. */
int convert_work_result(struct convert_work *w, struct moeflux_err *e);

#endif
