/* verify.h - evaluates a token and drafted ones that may follow it in one pass (a chain). The sequence then
 * advances through those that turn out to follow.
 *
 *   verify_run -> verify_take, once or more, while verify_has
 *
 * The logits of each token have the bits that evaluating it by itself gives: products of up to VERIFY_ROWS
 * tokens are exact, and operations with a state run token by token. The recurrent state after every token is
 * kept, so that accepting one is an exchange of buffers; rows of tokens that did not follow are written again
 * by those that do. */
#ifndef MOEFLUX_ENGINE_RUN_VERIFY_H
#define MOEFLUX_ENGINE_RUN_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;
struct sampler;
struct stage;

enum { VERIFY_ROWS = EXEC_MAX_INVARIANT }; /* most tokens of a chain */

/* The tokens of a session's last chain; zeroed at first. */
struct verified {
    float *logits; /* [VERIFY_ROWS][vocab_size]; made on first use */
    int32_t ids[VERIFY_ROWS];
    uint32_t n, at;                   /* tokens, of which the first `at` were taken; n 0: there are none */
    uint32_t pos;                     /* the session's, after those */
    uint64_t mark;                    /* the session's */
    bool is_chosen;                   /* there are no logits: the device has sampled after each token */
    uint32_t results[VERIFY_ROWS][2]; /* sample_call.result */
};

/* Returns the most tokens of a chain on this model, at most VERIFY_ROWS. 0: it evaluates no chains, since
 * several tokens would have other bits, or their experts are traced or replaced. */
uint32_t verify_most(const struct moeflux_model *m);
/* Whether every expert is in memory now. If experts are read, a chain of tokens reads more of them, and
 * drafts do not pay. */
bool verify_pays(struct moeflux_model *m);
/* Makes the states after each of n tokens, at most verify_most. Returns for how many there is memory. */
uint32_t verify_reserve(struct moeflux_session *s, uint32_t n);
/* Evaluates n >= 1 tokens, at most verify_most. None is part of the sequence yet. sampler: what samples after
 * each of them, in the state before the first is accepted, if nothing but its number of picks changes in
 * between; the last device may do it then. NULL: the logits are wanted. Returns the number of tokens
 * evaluated: fewer if memory or the context have no room for n. 0: for none; then nothing happened.
 * Errors: those of moeflux_session_eval. */
int verify_run(struct moeflux_session *s, const int32_t *ids, uint32_t n, const struct sampler *sampler,
               struct moeflux_err *e);
/* Returns whether the next token of the last chain has this id, so that it needs no evaluation. Any other
 * evaluation of the session ends the chain. */
bool verify_has(const struct moeflux_session *s, int32_t id);
/* Appends that token to the sequence. Returns the logits after it, [vocab_size]; valid until the next call of
 * verify_run. NULL: the device has sampled; *result is for sequence_choose. */
const float *verify_take(struct moeflux_session *s, const uint32_t **result);
/* Returns whether a device has begun to evaluate the session's next token by itself (token.h). A chain would
 * waste that. */
bool verify_is_late(struct moeflux_session *s);

/* Forgets the rest of a chain. */
static inline void verify_drop(struct verified *v)
{
    v->n = v->at = 0;
}
/* Frees the states of a session on a stage, whose turn the caller has. */
void verify_free_on(struct exec_buffer states[VERIFY_ROWS], struct stage *at);

#endif
