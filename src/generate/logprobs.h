/* logprobs.h - log-probabilities of tokens: the logarithm of the softmax of the logits, before temperature,
 * penalties and all other steps of sampling. */
#ifndef MOEFLUX_GENERATE_LOGPROBS_H
#define MOEFLUX_GENERATE_LOGPROBS_H

#include <stddef.h>
#include <stdint.h>

#include "moeflux_chat.h"

struct logprobs { /* zeroed at first; freed with logprobs_free */
    uint32_t n_top;
    size_t n; /* tokens */
    /* [n][1 + n_top]: the chosen one, then the likeliest; id -1: no more tokens */
    struct moeflux_logprob *items;
    size_t cap;
};

/* Appends a row: the chosen token, then the n_top likeliest ones, equal ones by id. logits: [n]. allowed:
 * bitmap of ids that may be among them; NULL: all. ERR_MEMORY. */
int logprobs_add(struct logprobs *l, const float *logits, uint32_t n, const uint8_t *allowed, int32_t chosen,
                 struct moeflux_err *e);

/* Returns the row [1 + n_top] of token `idx`. Borrowed until the next one is added. */
const struct moeflux_logprob *logprobs_of(const struct logprobs *l, size_t idx);

void logprobs_free(struct logprobs *l);

#endif
