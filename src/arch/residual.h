/* residual.h - a residual of several streams (model/config.h streams_config): the mixes before parts and
 * before the head. A part's input and its output are one vector of a token:
 *   mix:  in = low-rank mix of the normed streams, or sum_s w_s x_s
 *   add:  x_s += w_s out, or x_k = w_k out + sum_j m_jk x_j; the mix has computed the weights
 *   With blocks only the first stream changes, x_0 += out. The first layer of a block keeps it as another
 *   stream after the mix before its mixer, and then x_0 = out.
 * The operations are those of ops/streams/streams.h. */
#ifndef MOEFLUX_ARCH_RESIDUAL_H
#define MOEFLUX_ARCH_RESIDUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"
#include "ops/linear/linear.h"
#include "ops/streams/streams.h"

struct arch_tokens;
struct config;
struct loader;
struct moeflux_err;
struct scratch;

/* The weights of a mix. */
struct residual_mix {
    struct linear down;    /* [low; logits of the streams' weights]; or low of streams_collapse_call */
    struct linear up;      /* low rank */
    uint64_t norm;         /* low rank: f32 [n_streams][hidden]; blocks: [hidden], 0: all 1 */
    uint64_t coefficients; /* doubly stochastic: f32 scale, then base; 0: all streams weigh the same */
    uint64_t score;        /* blocks: f32 [hidden] */
    /* Blocks: the streams that are mixed with the first one, that which it is kept as (0: none), and whether
     * what is added next before the mix replaces it */
    uint32_t n_kept, keep;
    bool sets;
    /* lagged: which of the two has the weights; the other one gets those of the next mix */
    uint32_t turn;
    bool is_first; /* lagged: no mix comes before it */
};

struct residual {
    const struct config *config;
    struct exec *exec;
    struct streams op;
    struct residual_mix last; /* before the head */
    /* f32 [n][n_streams][hidden]: the residual; then, lagged, f32 [2][n][n_streams]: the weights of this mix
     * and of the next one */
    struct exec_buffer x;
    struct exec_buffer normed, up; /* low rank: f32 [n][n_streams][hidden] */
    struct exec_buffer squares;    /* doubly stochastic: f32 [n][streams_n_squares] */
    uint32_t most;                 /* tokens that the buffers hold */
    /* f32 [n][stride]: low, then the logits or the weights; kept until the part's output is added */
    struct exec_buffer low;
    uint64_t out; /* f32 [n][hidden]: the parts' outputs (part_output.h) */
    uint64_t f16_scratch;
};

/* Opens the operations. */
int residual_open(struct residual *r, struct exec *x, const struct config *c, struct moeflux_err *e);
void residual_allocate(struct residual *r, const struct config *c, uint32_t n, struct scratch *to);
void residual_close(struct residual *r, struct exec *x); /* zeroed is legal */
/* Load the mix of a layer's block; that before the head. */
int residual_load_mix(struct residual_mix *m, struct loader *l, uint32_t layer, uint32_t block,
                      struct moeflux_err *e);
int residual_load_last(struct residual *r, struct loader *l, struct moeflux_err *e);
void residual_close_mix(struct residual_mix *m, struct exec *x);

/* Sets all streams to src, f32 [n][hidden]. */
void residual_begin(const struct residual *r, uint64_t src, uint32_t n);
/* Mixes the streams of tokens t into dst, f32 [t->n][hidden]. adds: first adds r->out as residual_add
 * does. */
void residual_mix(const struct residual *r, const struct residual_mix *m, uint64_t dst,
                  const struct arch_tokens *t, bool adds);
/* Adds r->out to the streams of these tokens. */
void residual_add(const struct residual *r, uint32_t from, uint32_t n);

#endif
