/* gqa.h - grouped-query attention between its projections. Two operations; on Vulkan a single token needs
 * only one:
 *   prepare:    qkv += bias                        if biased
 *               q_h = rope(rms(q_h) * q_norm)      without norms: q_h = rope(q_h)
 *               k_g = rope(rms(k_g) * k_norm)      without norms: k_g = rope(k_g)
 *               v_g = rms(v_g)                     if values.normed
 *               v_g *= values.scale                unless that is 0
 *               writes k and v into the cache
 *               A norm of all heads takes rms over all queries, and over all keys, of a token.
 *   attention:  out_h = softmax_p(scale q_h . k_p) v_p      gated: * sigmoid(gate_h)
 *               (attention.h, with sinks and windows)
 *
 * RoPE turns the pairs (i, i + rotary_dim / 2) of the first rotary_dim channels by the caller's cos and
 * sin. */
#ifndef MOEFLUX_OPS_GQA_GQA_H
#define MOEFLUX_OPS_GQA_GQA_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/attention/attention.h"

/* What values have of their own. */
struct gqa_values {
    bool normed;  /* each head's values are divided by their rms; excludes ATTENTION_NORM_ALL */
    float scale;  /* factor; 0: 1 */
    uint32_t dim; /* channels of a value, at most head_dim; 0: head_dim */
};

struct gqa_shape {
    uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
    float eps;
    enum kv_type kv_type;
    bool gated;
    enum attention_norm norm; /* norms of queries and keys; ATTENTION_NORM_ALL excludes `gated` */
    bool biased;              /* queries, keys and values have biases; excludes `gated` */
    bool sinks;               /* see attention.h, also for window and choice */
    uint32_t window;
    struct kv_choice choice;
    float scale; /* 0: 1 / sqrt(head_dim) */
    struct gqa_values values;
};

/* Returns the channels of a value. */
static inline uint32_t gqa_value_dim(const struct gqa_shape *s)
{
    return s->values.dim ? s->values.dim : s->head_dim;
}

struct gqa {
    struct gqa_shape shape;
    struct attention attention;
    struct kernel prepare, prepare_each; /* vulkan; each: several sequences */
};

struct gqa_call {
    uint64_t qkv; /* f32 [n][stride]: n_heads x (query, gated: gate), keys, values */
    /* f32 [head_dim], or for a norm of all heads [n_heads * head_dim], [n_kv_heads * head_dim]; 0: none */
    uint64_t q_norm, k_norm;
    uint64_t bias;          /* f32, laid out like a row of qkv; 0: none */
    uint64_t sinks;         /* f32 [n_heads]; 0: none */
    uint64_t rope;          /* f32 [n][rotary_dim / 2][2]: cos, sin */
    uint64_t blocks;        /* u64 table of the cache's blocks */
    uint64_t chosen;        /* u32 [n][kv_choice_stride], see attention_call; 0: none */
    uint64_t q, partial;    /* scratch: f32 [n][n_heads][head_dim]; gqa_partial_bytes */
    uint64_t partial_bytes; /* size of `partial`; too few fail the batch */
    uint64_t dst;           /* f32 [n][n_heads * value_dim] */
    uint32_t n, pos, stride, layer_off;
    bool use_f16; /* many tokens may be computed in float16 if the device is fast at it */
    /* gqa_run_concurrent: matrix units may compute it (attention_matrices_take), and it has a `q` */
    bool may_use_matrices;
};

/* Opens the operation. ERR_UNSUPPORTED unless n_heads % n_kv_heads = 0, head_dim is a multiple of 4, and
 * rotary_dim is even and at most head_dim, as values.dim is. Gates exclude biases, a norm of all heads and
 * values of another size. qkv, q and the cache are aligned to 16 bytes. If the call allows it and has at
 * least attention.gpu.f16_from tokens, queries, keys and values are rounded to float16 before they are
 * multiplied. */
int gqa_open(struct gqa *op, struct exec *x, const struct gqa_shape *shape, struct moeflux_err *e);
void gqa_close(struct gqa *op, struct exec *x);
/* Returns the bytes of `partial` for chunks of up to n tokens that see up to n_pos positions; 0 without
 * heads. */
uint64_t gqa_partial_bytes(const struct gqa_shape *s, const struct exec_caps *caps, uint32_t n,
                           uint32_t n_pos);
void gqa_run(const struct gqa *op, struct exec *x, const struct gqa_call *call);
/* Runs n <= ATTENTION_CONCURRENT calls of one token each, from different sequences, each with a `partial` of
 * its own, and with a choice also a `q`. The result is batch-invariant. All calls have the same
 * may_use_matrices. */
void gqa_run_concurrent(const struct gqa *op, struct exec *x, const struct gqa_call *calls, uint32_t n);
/* Runs n <= ATTENTION_CONCURRENT calls of one token each, at consecutive positions of one sequence, each with
 * a `partial` of its own. Each token has the bits of gqa_run. */
void gqa_run_chain(const struct gqa *op, struct exec *x, const struct gqa_call *calls, uint32_t n);

/* The implementations of prepare. */
int gqa_vulkan_open(struct gqa *op, struct exec *x, struct moeflux_err *e);
void gqa_prepare_vulkan(const void *self, const void *what, struct exec *x);
/* Prepares a token of each of n <= ATTENTION_CONCURRENT calls. */
void gqa_prepare_vulkan_each(const struct gqa *op, struct exec *x, const struct gqa_call *const *calls,
                             uint32_t n);
op_host_fn gqa_prepare_cpu, gqa_prepare_ref;

#endif
