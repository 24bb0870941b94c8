/* rope_cache.h - cosines and sines of the rotary embedding (RoPE) for a stage's attention.
 *
 * A core takes more than a millisecond for 2,048 positions. So there is room for two chunks: while the device
 * uses one, the host computes those of the positions that follow it, which most likely come next. Only the
 * thread with the stage's turn uses it. */
#ifndef MOEFLUX_ENGINE_RUN_ROPE_CACHE_H
#define MOEFLUX_ENGINE_RUN_ROPE_CACHE_H

#include "exec/exec.h"

struct moeflux_model;

struct rope_cache {
    struct exec_buffer room; /* f32 [2][max_chunk][dim / 2][2] for each table */
    uint32_t half;           /* the half of the current chunk */
    uint32_t pos, n;         /* the current chunk's first position and length */
    bool is_ahead;           /* the other half has the next n positions */
};

/* Allocates room for chunks of the model. */
int rope_cache_open(struct rope_cache *r, struct exec *x, const struct moeflux_model *m,
                    struct moeflux_err *e);
void rope_cache_close(struct rope_cache *r, struct exec *x);

/* Computes cos and sin of positions pos .. pos + n - 1, f32 [n][dim / 2][2] for each table. */
void rope_cache_fill(const struct moeflux_model *m, float *out, uint32_t n, uint32_t pos);
/* Computes those of token idx of n, which is at `pos`, in the same layout. */
void rope_cache_fill_token(const struct moeflux_model *m, float *out, uint32_t n, uint32_t idx, uint32_t pos);
/* Returns the address of a chunk's values; computes them unless that was done ahead. The device must be
 * idle. */
uint64_t rope_cache_of_chunk(struct rope_cache *r, const struct moeflux_model *m, uint32_t n, uint32_t pos);
/* Computes the values of the next positions while the device uses the current chunk's. */
void rope_cache_go_ahead(struct rope_cache *r, const struct moeflux_model *m);
/* Returns where the caller writes the values of single tokens, which the device reads at *address, one of two
 * places. The device must not use that one. */
float *rope_cache_of_tokens(struct rope_cache *r, uint32_t half, uint64_t *address);

#endif
