/* reader.h - reads whole experts from disk on a few threads.
 *
 *   reader_start -> the bytes arrive in request->dst on some thread -> reader_wait
 * A request is the caller's memory and stays untouched until reader_wait returned for it. Every extent is read in full
 * or the request fails; scales and biases are checked to be finite, so bad bytes never reach a kernel. */
#ifndef MOEFLUX_EXPERTS_READER_H
#define MOEFLUX_EXPERTS_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"

struct model_dir;
struct reader;

struct read_request {
    uint32_t layer, expert;
    uint8_t *dst; /* [model_dir.expert.bytes] */
    /* private */
    struct pool_job job;
    struct reader *reader;
    bool done;
    int code;
    struct err err;
};

/* The model directory must outlive the reader. NULL with `e` filled. */
struct reader *reader_open(const struct model_dir *m, uint32_t n_threads, struct err *e);
/* Waits for what is under way. NULL is legal. */
void reader_close(struct reader *r);

/* Queues a request whose layer, expert and dst are filled in. */
void reader_start(struct reader *r, struct read_request *q);
/* Returns when the request is finished: 0, ERR_IO or ERR_FORMAT naming layer and expert. */
int reader_wait(struct reader *r, struct read_request *q, struct err *e);

struct reader_stats {
    uint64_t bytes, n_reads;
    uint64_t busy_ns; /* summed over threads */
};
struct reader_stats reader_get_stats(struct reader *r);
void reader_reset_stats(struct reader *r);

#endif
