/* attention.h - softmax attention over a KV cache: what the kinds of attention share.
 *   o_h = softmax_p(scale q_h . k_p) v_p over p <= pos + t, head h reads key head h / (n_heads / n_kv_heads)
 *   with gates: o_h * sigmoid(gate_h) with sinks: the softmax runs over one more score, sink_h, whose value
 *   is zero with a window: p > pos + t - window Keys and values lie in the KV cache (kv_cache.h). latent: it
 *   has no values; the first value_dim channels of a key are its value, and all heads share the keys. flat:
 *   keys and values lie outside the cache, each in memory of its own. */
#ifndef MOEFLUX_OPS_ATTENTION_ATTENTION_H
#define MOEFLUX_OPS_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/attention/kv_cache.h"

/* Norms of queries and keys: none, of each head, of all heads together. The numbers are the kernels'. */
enum attention_norm { ATTENTION_NORM_NONE, ATTENTION_NORM_HEADS, ATTENTION_NORM_ALL };

struct attention_shape {
    uint32_t n_heads, n_kv_heads, key_dim, value_dim;
    bool latent, gated, flat;
    enum attention_norm norm; /* of one token that is prepared here: gqa.h; also the next */
    bool biased;
    bool sinks;      /* not with latents */
    uint32_t window; /* positions that a token sees, its own among them; 0: all */
    float scale;
    enum kv_type kv_type;
};

/* Rows of a workgroup of kernels/attention/prefill.comp, but for f16_rows. */
enum { ATTENTION_PREFILL_ROWS = 64 };

/* How a Vulkan device runs it: the positions are split, and a second dispatch merges the parts. */
struct attention_plan {
    uint32_t subgroup, lanes, fours, heads, teams, members; /* see kernels/attention/decode.comp */
    uint32_t blocks;                                        /* of a key/value head's query heads */
    uint32_t max_splits, min_positions; /* at most so many splits, each of at least so many positions */
    uint32_t most_positions;            /* of a split */
    uint32_t prefill_from;              /* tokens of kernels/attention/prefill.comp; UINT32_MAX: never */
    uint32_t long_from; /* positions from which on any number of tokens goes there; likewise */
};

/* One token, prepared there (attention_prepares): each range of positions has a kernel of its own. */
enum { ATTENTION_RANGES = 3 };
struct attention_range {
    struct attention_plan plan;
    struct kernel kernel;
};

struct attention {
    struct attention_shape shape;
    struct { /* vulkan */
        struct kernel decode, merge;
        struct attention_range fresh[ATTENTION_RANGES];
        struct kernel prefill, f16; /* of a chunk's tokens, in float32 and with float16 products */
        /* f16 as it is where matrices do not have the layout of exec/fragment_layout.h */
        struct kernel f16_shared;
        uint32_t f16_rows;                          /* of a workgroup of f16 */
        struct kernel latent_scores, latent_values; /* see latent.h */
        struct kernel few_merge;                    /* merge, of few splits */
        uint32_t merge_cols, few_merge_cols;        /* fours of channels of a workgroup */
        /* u32 [EXEC_MAX_INVARIANT][n_kv_heads][blocks of fresh[0]'s plan], 0 between dispatches */
        struct exec_buffer counters;
        struct attention_plan plan;
        uint32_t f16_from; /* tokens; UINT32_MAX: never */
    } gpu;
};

/* Of one token whose queries, key and value come as they are projected: see ops/gqa/gqa.h, prepare. */
struct attention_fresh {
    uint64_t q_norm, k_norm, bias, rope; /* as in gqa_call */
    uint32_t rotary_dim;
    float eps;
};

struct attention_call {
    uint64_t q;            /* f32 [n][q_stride]: n_heads x key_dim; fresh: gqa_call's qkv */
    uint64_t blocks;       /* u64 table; not flat */
    uint64_t keys, values; /* flat: [pos + n][n_kv_heads][key_dim], [pos + n][n_kv_heads][value_dim] */
    uint64_t partial;      /* scratch: attention_partial_bytes */
    uint64_t sinks;        /* f32 [n_heads], where the shape has them */
    uint64_t gates;        /* gated: f32 [n][gate_stride], head h's gates at (2 h + 1) value_dim */
    uint64_t dst;          /* f32 [n][dst_stride]: n_heads x value_dim */
    const struct attention_fresh *fresh; /* NULL: queries are ready, keys and values in the cache */
    uint32_t n, pos, q_stride, dst_stride, gate_stride, layer_off;
    uint32_t n_heads, n_kv_heads; /* of this call: as the shape's, or part of them in the same proportion */
    bool use_f16;      /* many tokens, and latents, may go through float16 where the device is fast at it */
    bool leaves_parts; /* where attention_parts_of has some: the caller joins them, dst is not written */
};

/* What a call leaves in `partial`: each row's sums and (m, l) of each split, as kernels/attention/merge.glsl
 * takes them. */
struct attention_parts {
    uint32_t rows, n_splits; /* n_splits 0: there is nothing to join */
};

/* ERR_UNSUPPORTED unless n_heads % n_kv_heads = 0 and the dims are multiples of 4; latent: one key head and
 * value_dim at most key_dim, neither sinks nor a window; in the cache value_dim = key_dim. Queries, gates,
 * keys, values, partial and dst are aligned to 16 bytes. */
int attention_open(struct attention *op, struct exec *x, const struct attention_shape *shape,
                   struct moeflux_err *e);
void attention_close(struct attention *op, struct exec *x);
/* Takes calls with `fresh`: of one token, no latents, not flat. */
bool attention_prepares(const struct attention *op);
/* Bytes of `partial` for chunks of up to n tokens that see up to n_pos positions. */
uint64_t attention_partial_bytes(const struct attention_shape *shape, const struct exec_caps *caps,
                                 uint32_t n, uint32_t n_pos);
void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call);
/* Of a call for the Vulkan backend. */
struct attention_parts attention_parts_of(const struct attention *op, const struct attention_call *call);
/* n <= EXEC_MAX_INVARIANT calls of different sequences, each with memory of its own for `partial`: side by
 * side where the device can do that. */
void attention_run_concurrent(const struct attention *op, struct exec *x, const struct attention_call *calls,
                              uint32_t n);

/* The first position that a token at `pos` sees. */
static inline uint32_t attention_first(const struct attention_shape *s, uint32_t pos)
{
    return s->window && pos >= s->window ? pos + 1 - s->window : 0;
}

/* The implementations. */
int attention_vulkan_open(struct attention *op, struct exec *x, struct moeflux_err *e);
void attention_vulkan(const void *self, const void *what, struct exec *x);
void attention_vulkan_concurrent(const struct attention *op, struct exec *x,
                                 const struct attention_call *calls, uint32_t n);
uint64_t attention_cpu_partial_bytes(const struct attention_shape *s, uint32_t n_pos);
op_host_fn attention_cpu, attention_ref;

#endif
