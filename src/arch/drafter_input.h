/* drafter_input.h - makes the input of a layer of multi-token prediction (model/drafter.h) of the
 * embedding of the next token and of hidden states:
 *   x_s = fc_embedding (rms(e) * embedding_norm) + fc_hidden h'_s
 * With one residual stream h' = rms(rms(h) * last_norm) * hidden_norm; some families have no last_norm
 * (config.drafts_raw). Several streams never have one, and each of them is a row of the product with
 * fc_hidden: a low-rank mix has one norm over all streams of a token, a doubly stochastic one has a norm
 * of each stream. */
#ifndef MOEFLUX_ARCH_DRAFTER_INPUT_H
#define MOEFLUX_ARCH_DRAFTER_INPUT_H

#include <stdint.h>

#include "exec/exec.h"
#include "ops/linear/linear.h"
#include "ops/normed_add.h"

struct arch_chunk;
struct config;
struct loader;
struct moeflux_err;
struct scratch;

struct drafter_input {
    const struct config *config;
    uint64_t last_norm; /* 0: none */
    uint64_t embedding_norm, hidden_norm;
    struct linear embedding_fc, hidden_fc;
    struct normed_add normed;    /* unused with a norm of each stream */
    struct exec_buffer embedded; /* f32 [n][hidden] */
    /* f32 [n][config_width]: hidden states (arch_view.fed), the same after a norm */
    struct exec_buffer fed, hidden;
};

int drafter_input_load(struct drafter_input *d, struct loader *l, const struct config *c,
                       struct moeflux_err *e);
/* Allocates its buffers for chunks of up to n tokens. */
void drafter_input_allocate(struct drafter_input *d, const struct config *c, uint32_t n, struct scratch *to);
void drafter_input_close(struct drafter_input *d, struct exec *x); /* zeroed is legal */

/* Writes the product with the embeddings in d->embedded to `to`, f32 [n][hidden]. */
void drafter_input_embed(const struct drafter_input *d, struct exec *x, const struct arch_chunk *c,
                         uint64_t to);
/* Adds the product with the hidden states to `to`, f32 [n][config_width]. own_norm: the weights of the
 * drafter's own last norm, in place of last_norm if the states are its own. */
void drafter_input_add(const struct drafter_input *d, struct exec *x, const struct arch_chunk *c,
                       uint64_t own_norm, uint64_t to);

#endif
