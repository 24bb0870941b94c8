/* answer.h - answers one line of --batch. */
#ifndef MOEFLUX_CLI_BATCH_ANSWER_H
#define MOEFLUX_CLI_BATCH_ANSWER_H

#include <stdint.h>

struct batch_item;
struct batcher_slot;
struct generator;
struct moeflux_err;
struct request;

/* Tokens of prompts: all, those that had to be computed, and the time that took. */
struct batch_counts {
    uint64_t n_prompt, n_computed, prefill_ns;
};

/* What computes an answer: one sequence and what goes with it. */
struct batch_answerer {
    struct generator *generator; /* has a sequence */
    struct generator *grammars;  /* the generator that keeps compiled grammars */
    struct batcher_slot *slot;   /* place in the batched decode; NULL: answers are computed one at a time */
    uint64_t base_seed;          /* seed of line n without one: base_seed + n - 1 */
    /* Evaluates the prompt up to its last token's logits, and makes the generator's sampler with the seed.
     * *n_reused: tokens that the sequence had already. */
    int (*prefill)(void *ctx, const struct request *r, uint64_t seed, uint32_t *n_reused,
                   struct moeflux_err *e);
    void *ctx;
    struct batch_counts counts; /* sums over all answers so far */
};

/* Computes the item's answers. *line: the result, from malloc; NULL after a failure. ERR_FORMAT, ERR_USAGE
 * and ERR_UNSUPPORTED are the request's own fault; others would meet the next request, too. */
int batch_answer(struct batch_answerer *w, struct batch_item *item, char **line, struct moeflux_err *e);

#endif
