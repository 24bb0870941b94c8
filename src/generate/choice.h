/* choice.h - one answer that is asked for: what it is computed from, how it is computed, and how it ended.
 * The terminal, --batch, the server and the library ask in this form. */
#ifndef MOEFLUX_GENERATE_CHOICE_H
#define MOEFLUX_GENERATE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "generate/answer.h"
#include "generate/logprobs.h"
#include "generate/prefix.h"
#include "generate/request.h"

struct batcher_slot;
struct generator;

struct choice_result {
    int rc; /* 0, or the failure in `error` */
    struct moeflux_err error;
    uint32_t n_reused;   /* tokens of the prompt that were in the KV cache already */
    uint32_t n_answered; /* sampled tokens */
    struct draft_counts drafts;
    uint64_t start_ns;   /* clock_ns() when the prompt's evaluation began */
    uint64_t prefill_ns; /* time that it took */
    enum moeflux_stop stop;
    const char *stop_text; /* the stop that was found, borrowed from the request; NULL: none */
};

struct choice { /* zeroed at first; freed with choice_free */
    struct request request;
    struct prefix_stops stops; /* positions where a later prompt may differ from this one */
    struct prefix_cuts cuts;   /* where the prompt is cut for others with the same beginning */
    uint64_t seed;
    bool has_seed;  /* the caller has set it; else each answer to the request chooses one */
    bool is_placed; /* stops and cuts are set */
    bool score;     /* the prompt's tokens are scored (`echo` with `logprobs`) */

    struct logprobs scores; /* one for each token of the prompt except the first */
    struct choice_result result;
};

/* What computes a choice. */
struct choice_call {
    /* has a sequence, which is empty if the choice has `score`: reused tokens give no logits */
    struct generator *generator;
    struct generator *grammars; /* the one that keeps compiled grammars */
    struct batcher_slot *slot;  /* the generator's place in the batched decode; NULL: none */
    struct answer_sink sink;
    /* Evaluates the prompt up to its last token's logits, and makes the generator's sampler. *n_reused:
     * tokens that the sequence had already. */
    int (*prefill)(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                   uint32_t *n_reused, struct moeflux_err *e);
    void *ctx;
};

/* Computes the answer and fills c->result, except rc and error. `a` is zeroed at first; after a failure it
 * has what came before. Errors: those of generator_use_chat, prefill, constrain_begin and answer_run. */
int choice_answer(struct choice *c, const struct choice_call *call, struct answer *a, struct moeflux_err *e);

/* Returns whether both have the same prompt. */
bool choice_has_prompt_of(const struct choice *c, const struct choice *other);

/* Removes what an attempt to compute it has left. */
void choice_reset(struct choice *c);

void choice_free(struct choice *c);

#endif
