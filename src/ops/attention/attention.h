/* attention.h - softmax attention over a KV cache: what the kinds of attention share.
 *   o_h = softmax_p(scale q_h . k_p) v_p over p <= pos + t, head h reads key head h / (n_heads / n_kv_heads)
 *   with gates:    o_h * sigmoid(gate_h)
 *   with sinks:    the softmax runs over one more score, sink_h, whose value is zero
 *   with a window: p > pos + t - window
 *   with a choice: p is in one of the blocks that an indexer chose for the token (choice.h)
 * Keys and values lie in the KV cache (kv_cache.h), with two exceptions:
 *   latent: there are no values; the first value_dim channels of a key are its value, and all heads share the
 *           keys
 *   flat:   keys and values lie outside the cache, each in an array of its own */
#ifndef MOEFLUX_OPS_ATTENTION_ATTENTION_H
#define MOEFLUX_OPS_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/attention/choice.h"
#include "ops/attention/kv_cache.h"

/* Norms of queries and keys: none, one for each head, one over all heads. The kernels use these numbers. */
enum attention_norm { ATTENTION_NORM_NONE, ATTENTION_NORM_HEADS, ATTENTION_NORM_ALL };

struct attention_shape {
    uint32_t n_heads, n_kv_heads, key_dim, value_dim;
    bool latent, gated, flat;
    /* applied when attention prepares a single token itself (gqa.h); the same holds for `biased` */
    enum attention_norm norm;
    bool biased;
    bool sinks;      /* never with `latent` */
    uint32_t window; /* number of positions that a token sees, including its own; 0: all */
    float scale;
    enum kv_type kv_type;
    struct kv_choice choice; /* never with `flat` or a window */
    float value_scale;       /* applied like `norm`: factor of the values; 0: none */
};

/* kernels/attention/prefill.comp: rows of a workgroup in float32 (f16_rows is the float16 kernel's number);
 * most channels of a value, latents aside. */
enum { ATTENTION_PREFILL_ROWS = 64, ATTENTION_PREFILL_MAX_DIM = 256 };

/* How a Vulkan device runs it: the positions are split, and a second dispatch merges the splits. */
struct attention_plan {
    /* see kernels/attention/decode.comp */
    uint32_t subgroup, lanes, fours, heads, rows, at_once, streams, teams, members;
    uint32_t blocks; /* number of blocks into which a key/value head's query heads are divided */
    uint32_t max_splits, min_positions; /* limits: number of splits, positions in each */
    uint32_t most_positions;            /* largest number of positions in a split */
    uint32_t prefill_from; /* fewest tokens for kernels/attention/prefill.comp; UINT32_MAX: never used */
    uint32_t long_from; /* position from which on prefill.comp takes any number of tokens; UINT32_MAX: none */
};

/* A plan for single tokens that attention prepares itself (attention_prepares). Each range of positions has a
 * kernel. */
enum { ATTENTION_RANGES = 3 };
struct attention_range {
    struct attention_plan plan;
    struct kernel kernel, each; /* one sequence, several */
};

struct attention {
    struct attention_shape shape;
    struct { /* vulkan */
        struct kernel decode, merge;
        struct attention_range fresh[ATTENTION_RANGES];
        struct kernel prefill, f16; /* chunks: products in float32, in float16 */
        /* f16 for devices whose matrices do not have the known fragment layout (exec/fragment_layout.h) */
        struct kernel f16_shared;
        uint32_t f16_rows, f16_shared_rows;                    /* rows of their workgroups */
        struct kernel chosen;                                  /* decode for tokens with a list of blocks */
        struct kernel wide_scores, wide_values;                /* see wide.h */
        struct kernel few_merge;                               /* merge for few splits */
        struct kernel chosen_each, merge_each, few_merge_each; /* several sequences */
        uint32_t merge_cols, few_merge_cols;                   /* groups of four channels in a workgroup */
        /* u32 [ATTENTION_CONCURRENT][n_kv_heads][blocks of fresh[0]'s plan], 0 between dispatches */
        struct exec_buffer counters;
        struct attention_plan plan;
        bool takes_wide;        /* wide.h is possible */
        uint32_t f16_from;      /* fewest tokens for f16; UINT32_MAX: never used */
        struct kernel matrices; /* single tokens of many sequences */
        uint32_t matrices_from; /* fewest positions that a token sees for it; 0: never used */
    } gpu;
};

/* What attention needs to prepare a single token's query, key and value itself (ops/gqa/gqa.h, prepare). */
struct attention_fresh {
    uint64_t q_norm, k_norm, bias, rope; /* see gqa_call */
    uint32_t rotary_dim;
    float eps;
    bool norms_values; /* each head's values are divided by their rms */
};

struct attention_call {
    uint64_t q;             /* f32 [n][q_stride]: n_heads x key_dim; with `fresh`: gqa_call's qkv */
    uint64_t blocks;        /* u64 table of the cache's blocks; unused with `flat` */
    uint64_t keys, values;  /* flat only: [pos + n][n_kv_heads][key_dim], [pos + n][n_kv_heads][value_dim] */
    uint64_t partial;       /* scratch, attention_partial_bytes */
    uint64_t partial_bytes; /* size of `partial`; too few fail the batch */
    uint64_t sinks;         /* f32 [n_heads]; shapes with sinks only */
    uint64_t gates; /* shapes with gates only: f32 [n][gate_stride], head h's gates at (2 h + 1) value_dim */
    uint64_t dst;   /* f32 [n][dst_stride]: n_heads x value_dim */
    /* u32 [n][kv_choice_stride]: each token's lists of blocks; shapes with a choice only. Rows of tokens that
     * see everything are not read. */
    uint64_t chosen;
    /* NULL: queries are prepared, keys and values are in the cache. Never if the token has a list. */
    const struct attention_fresh *fresh;
    uint32_t n, pos, q_stride, dst_stride, gate_stride, layer_off;
    /* heads of this call: the shape's, or a part of them in the same proportion */
    uint32_t n_heads, n_kv_heads;
    bool use_f16; /* many tokens and latents may be computed in float16 if the device is fast at it */
    /* one token whose query is prepared, for attention_run_concurrent; only if attention_matrices_take */
    bool on_matrices;
    /* the caller joins the splits if attention_parts_of has some; dst is not written then */
    bool leaves_parts;
};

/* What a call leaves in `partial`: each row's sums and (m, l) of each split, in the layout that
 * kernels/attention/merge.glsl reads. */
struct attention_parts {
    uint32_t rows, n_splits; /* n_splits 0: nothing to join */
};

/* Opens attention of a shape. ERR_UNSUPPORTED unless n_heads % n_kv_heads = 0 and the dims are multiples of
 * 4. Latents need one key head, value_dim at most key_dim, no sinks and no window. Lists of heads are for all
 * key heads. Queries, gates, keys, values, partial and dst are aligned to 16 bytes. */
int attention_open(struct attention *op, struct exec *x, const struct attention_shape *shape,
                   struct moeflux_err *e);
void attention_close(struct attention *op, struct exec *x);
/* Returns whether it takes calls with `fresh`: one token, no latents, not flat. */
bool attention_prepares(const struct attention *op);
/* Returns whether matrix units may compute a token at this position, with float32's accuracy. Its results do
 * not depend on its neighbours, but differ from those of a call with `fresh`. */
bool attention_matrices_take(const struct attention *op, uint32_t pos);
/* Returns the bytes of `partial` for chunks of up to n tokens that see up to n_pos positions. */
uint64_t attention_partial_bytes(const struct attention_shape *shape, const struct exec_caps *caps,
                                 uint32_t n, uint32_t n_pos);
/* Tokens that see everything have the bits of a shape without a choice in a call of them alone. The others'
 * results depend on their number only by whether there are more than EXEC_MAX_INVARIANT in the call. */
void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call);
/* Returns what a call leaves in `partial` on the Vulkan backend. */
struct attention_parts attention_parts_of(const struct attention *op, const struct attention_call *call);
/* Runs n <= ATTENTION_CONCURRENT calls of one token each, from different sequences, each with a `partial`
 * of its own. They run concurrently if the device can do that. */
enum { ATTENTION_CONCURRENT = 128 };
void attention_run_concurrent(const struct attention *op, struct exec *x, const struct attention_call *calls,
                              uint32_t n);
/* Does the same for tokens at consecutive positions of one sequence, whose calls are `fresh`: stores all
 * rows, then computes the tokens. Returns false, and has done nothing, if they must run one after the
 * other. */
bool attention_run_chain(const struct attention *op, struct exec *x, const struct attention_call *calls,
                         uint32_t n);

/* Returns the first position that a token at `pos` sees. */
static inline uint32_t attention_first(const struct attention_shape *s, uint32_t pos)
{
    return s->window && pos >= s->window ? pos + 1 - s->window : 0;
}

/* Returns whether the call's tokens have lists; of the calls that implementations get, all have or none. */
static inline bool attention_has_lists(const struct attention_shape *s, const struct attention_call *c)
{
    return c->pos >= kv_choice_from(&s->choice);
}

/* The implementations. */
/* Fills the plans and takes_wide, which need no open device. */
void attention_vulkan_plan(struct attention *op, const struct exec_caps *caps);
/* Returns the bytes of `partial` that a call writes. */
uint64_t attention_vulkan_bytes(const struct attention *op, const struct attention_call *call);
int attention_vulkan_open(struct attention *op, struct exec *x, struct moeflux_err *e);
void attention_vulkan(const void *self, const void *what, struct exec *x);
void attention_vulkan_concurrent(const struct attention *op, struct exec *x,
                                 const struct attention_call *calls, uint32_t n);
bool attention_vulkan_chain(const struct attention *op, struct exec *x, const struct attention_call *calls,
                            uint32_t n);
uint64_t attention_cpu_partial_bytes(const struct attention_shape *s, uint32_t n_pos);
op_host_fn attention_cpu, attention_ref;

#endif
