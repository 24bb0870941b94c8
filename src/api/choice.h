/* choice.h - one choice of an API request: what it is computed from, and how it ended. */
#ifndef MOEFLUX_API_CHOICE_H
#define MOEFLUX_API_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "generate/answer.h"
#include "generate/logprobs.h"
#include "generate/prefix.h"
#include "generate/request.h"

struct generator;

struct choice_result {
    int rc; /* 0, or the failure in `error` */
    struct moeflux_err error;
    uint32_t n_reused;   /* tokens of the prompt that were in the KV cache already */
    uint32_t n_answered; /* sampled tokens */
    enum answer_stop stop;
    const char *stop_text; /* the stop that was found, borrowed from the request; NULL: none */
};

struct choice { /* zeroed at first; freed with choice_free */
    struct request request;
    struct prefix_stops stops; /* positions where a later prompt may differ from this one */
    uint64_t seed;
    bool score; /* the prompt's tokens are scored (`echo` with `logprobs`) */

    struct logprobs scores; /* one for each token of the prompt except the first */
    struct choice_result result;
};

/* Evaluates the prompt of a choice with `score` and fills `scores`. The generator's sequence must be empty,
 * because tokens that it has already give no logits. Errors: those of generator_eval. */
int choice_score(struct choice *a, struct generator *g, struct moeflux_err *e);

void choice_free(struct choice *a);

#endif
