/* logprobs.h - how likely a model finds its tokens: the logarithm of the softmax of its logits, before
 * temperature, penalties and whatever else decides the choice. */
#ifndef MOEFLUX_GENERATE_LOGPROBS_H
#define MOEFLUX_GENERATE_LOGPROBS_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

enum { LOGPROBS_MAX = 20 }; /* of the likeliest tokens, beside the one that was chosen */

struct logprob {
    int32_t id;
    float value; /* natural logarithm */
};

struct logprobs { /* zeroed at first; freed with logprobs_free */
    uint32_t n_top;
    size_t n;              /* tokens */
    struct logprob *items; /* [n, 1 + n_top]: the chosen one, then the likeliest; id -1: there are no more */
    size_t cap;
};

/* The logarithm of the sum of the row's exponentials. */
double logprobs_log_sum(const float *row, uint32_t n);

/* Appends the chosen token and the n_top likeliest of those in the bitmap `allowed` (NULL: all), the
 * likeliest first, equal ones by id. ERR_MEMORY. */
int logprobs_add(struct logprobs *l, const float *logits, uint32_t n, const uint8_t *allowed, int32_t chosen,
                 struct moeflux_err *e);

/* [1 + n_top] of token `idx`. Borrowed until the next one is added. */
const struct logprob *logprobs_of(const struct logprobs *l, size_t idx);

void logprobs_free(struct logprobs *l);

#endif
