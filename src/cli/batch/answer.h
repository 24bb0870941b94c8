/* answer.h - the answer to one line of --batch. */
#ifndef MOEFLUX_CLI_BATCH_ANSWER_H
#define MOEFLUX_CLI_BATCH_ANSWER_H

#include <stdint.h>

struct batch_item;
struct batcher_slot;
struct generator;
struct moeflux_err;
struct request;

/* Tokens of prompts: all, those that had to be computed, and how long that took. */
struct batch_counts {
    uint64_t n_prompt, n_computed, prefill_ns;
};

/* Who answers. */
struct batch_answerer {
    struct generator *generator; /* with a sequence */
    struct generator *grammars;  /* which keeps them */
    struct batcher_slot *slot;   /* of the generator, where others answer at the same time; else NULL */
    uint64_t base_seed;          /* of lines that have none: this and the number of the line */
    /* Brings the sequence to the end of the prompt, with its logits, and gives the generator a sampler with
     * the seed. *n_reused: tokens that it had already. */
    int (*prefill)(void *ctx, const struct request *r, uint64_t seed, uint32_t *n_reused,
                   struct moeflux_err *e);
    void *ctx;
    struct batch_counts counts; /* so far */
};

/* *line: the result, from malloc. A failure is the line's own if its code is that of a refusal
 * (batch_item_refused). */
int batch_answer(struct batch_answerer *w, struct batch_item *item, char **line, struct moeflux_err *e);

#endif
