/* attention.h - grouped-query attention between its projections, in three dispatches:
 *   prep:  q_h = rope(rms(q_h) * q_norm), k_g = rope(rms(k_g) * k_norm); k and v go into the cache
 *   score, merge (scores.h): out_h = softmax_p(q_h . k_p / sqrt(head_dim)) v_p, gated: * sigmoid(gate_h)
 * RoPE turns the pairs (i, i + rotary_dim / 2) of the first rotary_dim channels by the caller's cos and sin. */
#ifndef MOEFLUX_OPS_ATTENTION_H
#define MOEFLUX_OPS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/exec.h"
#include "ops/kv_cache.h"
#include "ops/scores.h"

struct attention_shape {
    uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
    float eps;
    enum kv_type kv_type;
    bool gated; /* a gate stands behind each query */
};

struct attention {
    struct kernel prep;
    struct scores scores;
    struct attention_shape shape;
};

struct attention_call {
    uint64_t qkv;            /* f32 [n][stride]: n_heads x (query, gated: gate), keys, values */
    uint64_t q_norm, k_norm; /* f32 [head_dim] */
    uint64_t rope;           /* f32 [n][rotary_dim / 2][2]: cos, sin */
    uint64_t blocks;         /* u64 table */
    uint64_t q, partial;     /* scratch: f32 [n][n_heads][head_dim]; attention_partial_bytes */
    uint64_t dst;            /* f32 [n][n_heads * head_dim] */
    uint32_t n, pos, stride, layer_off;
    bool half; /* many tokens may go through float16 where the device is fast at it */
};

/* ERR_UNSUPPORTED unless n_heads % n_kv_heads = 0, head_dim is a multiple of 4, rotary_dim is even and at most
 * head_dim. qkv, q and the cache are aligned to 16 bytes. Of call.n >= scores.half_from tokens, queries, keys and values are
 * rounded to float16 before they are multiplied, if the call allows it (half). */
int attention_open(struct attention *op, struct exec *x, const struct attention_shape *shape, struct err *e);
/* The shape of its scores. */
struct scores_shape attention_scores(const struct attention_shape *s);
/* Bytes of `partial` for chunks of up to n tokens that see up to n_pos positions; 0 without heads. */
uint64_t attention_partial_bytes(const struct attention_shape *s, const struct exec_caps *caps, uint32_t n,
                                 uint32_t n_pos);
void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call);

#endif
