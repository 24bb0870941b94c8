/* metrics.h - what the server has done, as numbers that a Prometheus server collects. Locked: any thread may
 * call. */
#ifndef MOEFLUX_SERVER_METRICS_H
#define MOEFLUX_SERVER_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "generate/sequences.h"
#include "moeflux.h"

struct str;
struct moeflux_err;

enum { METRICS_BUCKETS = 12 };

struct metrics {
    pthread_mutex_t lock;
    uint64_t n_requests, n_refused, n_cancelled, n_failed; /* requests; of them answered with an error, ... */
    uint64_t n_prompt, n_cached, n_answered;               /* tokens */
    uint64_t decode_ns;
    uint64_t n_first, first_ns, first[METRICS_BUCKETS]; /* times to the first token */
    struct moeflux_stats engine;                        /* as a worker saw it last */
    struct sequences_counts sequences;
};

int metrics_init(struct metrics *m, struct moeflux_err *e);
void metrics_free(struct metrics *m);

/* A request was answered with this status of HTTP. */
void metrics_request(struct metrics *m, unsigned status);
/* A job's prompt is evaluated and its first token is there. */
void metrics_first_token(struct metrics *m, uint64_t ns);
struct metrics_job {
    uint32_t n_prompt, n_cached, n_answered;
    uint64_t decode_ns;
    bool cancelled, failed;
};
void metrics_job(struct metrics *m, const struct metrics_job *j);
/* By whoever has the model. */
void metrics_engine(struct metrics *m, const struct moeflux_stats *engine, const struct sequences_counts *q);

/* The text format of Prometheus, version 0.0.4. */
void metrics_text(struct metrics *m, uint32_t n_waiting, uint32_t n_running, struct str *out);

#endif
