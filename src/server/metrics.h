/* metrics.h - counters of the server in the format of Prometheus. Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_METRICS_H
#define MOEFLUX_SERVER_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "moeflux_chat.h"

struct str;
struct moeflux_err;

enum { METRICS_BUCKETS = 12 };

/* A histogram: number, sum, and the numbers of the buckets. */
struct metrics_times {
    uint64_t n, ns, buckets[METRICS_BUCKETS];
};

struct metrics {
    pthread_mutex_t lock;
    uint64_t n_requests, n_refused, n_cancelled, n_failed; /* requests, those refused (>= 400); answers */
    uint64_t n_prompt, n_cached, n_answered;               /* tokens */
    uint64_t n_drafted, n_accepted, n_evaluations;         /* draft_counts */
    uint64_t n_losses;                                     /* lost devices */
    uint64_t decode_ns;
    struct metrics_times first,
        between;                 /* times from a request to its first token; from a token to the next one */
    struct moeflux_stats engine; /* last values that a worker reported */
    struct moeflux_sequence_counts sequences;
};

/* Sets all counters to 0. ERR_MEMORY. */
int metrics_init(struct metrics *m, struct moeflux_err *e);
void metrics_free(struct metrics *m);

/* Counts a reply with this HTTP status. */
void metrics_request(struct metrics *m, unsigned status);
/* Counts the first token of an answer, `ns` after it was asked for. */
void metrics_first_token(struct metrics *m, uint64_t ns);
/* Counts a later one, `ns` after the one before it. */
void metrics_next_token(struct metrics *m, uint64_t ns);
struct metrics_job {
    uint32_t n_prompt, n_cached, n_answered;
    uint64_t n_drafted, n_accepted, n_evaluations;
    uint64_t decode_ns;
    bool cancelled, failed;
};
/* Adds the counts of a job that has ended. */
void metrics_job(struct metrics *m, const struct metrics_job *j);
/* Counts the loss of a device. */
void metrics_loss(struct metrics *m);
/* Sets the statistics of the model and the sequences. */
void metrics_engine(struct metrics *m, const struct moeflux_stats *engine,
                    const struct moeflux_sequence_counts *q);

/* Appends all metrics in the text format of Prometheus, version 0.0.4. */
void metrics_text(struct metrics *m, uint32_t n_waiting, uint32_t n_running, struct str *out);

#endif
