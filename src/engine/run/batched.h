/* batched.h - moeflux_eval_batched for callers that keep all devices busy. */
#ifndef MOEFLUX_ENGINE_RUN_BATCHED_H
#define MOEFLUX_ENGINE_RUN_BATCHED_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;
struct sampler;

/* A token of one sequence. If it has a sampler that the last device can follow, and all experts are in
 * memory, the device samples: is_chosen. */
struct batched_token {
    struct moeflux_session *session;
    float *logits;                 /* [vocab_size]: receives the logits after it, unless is_chosen */
    const struct sampler *sampler; /* before it has accepted the id; NULL: the logits are wanted */
    int32_t id;
    uint32_t result[2]; /* argument of sequence_choose, if is_chosen */
    bool is_chosen;
};

/* A part of a prompt that is not its end. */
struct batched_prompt {
    struct moeflux_session *session;
    const int32_t *ids; /* [n] */
    uint32_t n;
};

/* Returns whether parts of prompts can be in a batch: in matrix arithmetic, on one device. */
bool batched_takes_prompts(const struct moeflux_model *m);
/* Returns whether no checkpoint is due inside the part, or after it: then it can be in a batch. */
bool batched_takes_prompt(const struct batched_prompt *p);

/* Evaluates a token of each of some sequences, and parts of other sequences' prompts: batched_chunk tokens at
 * most, moeflux_max_batched sequences at most, one at least. The results are batch-invariant: those of each
 * sequence are those of a batch with it alone. On failure the sequences do not change. left: called once, on
 * this thread, when the first device has finished its part: other sequences can be computed there while these
 * are on the later devices; NULL: nothing is called. Errors: those of moeflux_eval_batched. */
int batched_eval(struct batched_token *tokens, uint32_t n, const struct batched_prompt *prompts,
                 uint32_t n_prompts, void (*left)(void *ctx), void *ctx, struct moeflux_err *e);
/* Accepts the token and chooses the next one: takes the device's choice, or samples from the logits. */
int batched_choose(const struct batched_token *t, struct sampler *sampler, int32_t *next,
                   struct moeflux_err *e);
/* Adds the number of a sequence in a batch to why it failed; returns the code. */
int batched_blame(uint32_t idx, const struct moeflux_err *why, struct moeflux_err *e);
/* Returns the number of devices that an evaluation passes one after the other. */
uint32_t batched_n_stages(const struct moeflux_model *m);
/* Returns the most tokens of a prompt that are evaluated at once. Results depend on where a prompt is cut. */
uint32_t batched_chunk(const struct moeflux_model *m);

#endif
