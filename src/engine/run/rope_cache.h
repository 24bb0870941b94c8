/* rope_cache.h - cosines and sines by which a stage's attention rotates (RoPE).
 *
 * Those of 2,048 positions take a core more than a millisecond. So there is room for two chunks: while the
 * device has one, the host computes those of as many positions behind it, which most likely come next. Of the
 * thread that has the stage's turn. */
#ifndef MOEFLUX_ENGINE_RUN_ROPE_CACHE_H
#define MOEFLUX_ENGINE_RUN_ROPE_CACHE_H

#include "exec/exec.h"

struct moeflux_model;

struct rope_cache {
    struct exec_buffer room; /* f32 [2][max_chunk][rotary_dim / 2][2] */
    uint32_t half;           /* that the chunk at hand has, */
    uint32_t pos, n;         /* and its positions */
    bool is_ahead;           /* the other half has the n positions behind them */
};

/* Room for chunks of the model. */
int rope_cache_open(struct rope_cache *r, struct exec *x, const struct moeflux_model *m,
                    struct moeflux_err *e);
void rope_cache_close(struct rope_cache *r, struct exec *x);

/* cos and sin of positions pos .. pos + n - 1, f32 [n][rotary_dim / 2][2]. */
void rope_cache_fill(const struct moeflux_model *m, float *out, uint32_t n, uint32_t pos);
/* The address of a chunk's; computes them unless that was done ahead. The device is idle. */
uint64_t rope_cache_of_chunk(struct rope_cache *r, const struct moeflux_model *m, uint32_t n, uint32_t pos);
/* While the device has that chunk: computes those of what comes behind it. */
void rope_cache_go_ahead(struct rope_cache *r, const struct moeflux_model *m);
/* Where the caller puts those of single tokens, always at the same address (room.address). The device is
 * idle. */
float *rope_cache_of_tokens(struct rope_cache *r);

#endif
