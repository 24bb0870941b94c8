/* times.h - how long the answers of --batch took to begin, and between tokens: two lines of --stats. */
#ifndef MOEFLUX_CLI_BATCH_TIMES_H
#define MOEFLUX_CLI_BATCH_TIMES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_answer_info;
struct str;

/* An answer's times in seconds; between: from one token to the next, on average. NaN: there were no such
 * tokens. */
struct batch_time {
    double first, between;
};

/* Threads may add at the same time. */
struct batch_times {
    pthread_mutex_t lock;
    struct batch_time *of; /* [n], in the order in which the answers ended */
    size_t n, cap;
};

/* Without memory for it the answer is left out. */
void batch_times_add(struct batch_times *t, const struct moeflux_answer_info *a);
/* Appends the median and the 95th percentile of both, and sorts the times. No answers: nothing. */
void batch_times_print(struct batch_times *t, struct str *to);
void batch_times_free(struct batch_times *t);

#endif
