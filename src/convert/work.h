/* work.h - state that the threads of a conversion share: workers, scratch memory, progress, first failure. */
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

/* Memory of a task: a block of weights as read (at most 4 bytes each), and room for the result. */
struct convert_scratch {
    uint8_t *in;  /* CONVERT_BLOCK * 4 bytes; `out` follows them */
    uint8_t *out; /* out_bytes */
};

/* Starts n_threads workers (0: one per core), or fewer if their scratch memory would exceed the budget.
 * out_bytes: size of a task's memory in addition to the block, at least CONVERT_BLOCK * 4. */
int convert_work_start(struct convert_work *w, uint32_t n_threads, uint64_t out_bytes,
                       const struct moeflux_progress *progress, struct moeflux_err *e);
/* Zeroed ones are legal. */
void convert_work_end(struct convert_work *w);

/* Begins a step of `total` bytes. */
void convert_work_step(struct convert_work *w, const char *what, uint64_t total);

/* Take and give back scratch memory. A task may hold one; then these never block and never fail. */
struct convert_scratch convert_work_take(struct convert_work *w);
void convert_work_give(struct convert_work *w, struct convert_scratch s);

/* Returns whether nothing has failed. */
bool convert_work_ok(struct convert_work *w);
/* Keeps the first failure. */
void convert_work_fail(struct convert_work *w, int rc, const struct moeflux_err *e);
/* Counts and reports progress. If the caller wants to stop, that is the failure ERR_INTERRUPTED. */
void convert_work_advance(struct convert_work *w, uint64_t step, uint64_t bytes_read, uint64_t bytes_written);

void convert_work_add_error(struct convert_work *w, enum convert_class kind, const struct convert_error *x);

/* Returns the first failure. */
int convert_work_result(struct convert_work *w, struct moeflux_err *e);

#endif
