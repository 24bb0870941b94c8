/* mla.h - multi-head latent attention between its projections (DeepSeek-V2, arXiv 2405.04434, section 2.1).
 * The cache holds one row for each position, c = rms(latent) * norm and the rotary key k = rope(pe), shared
 * by all heads. In the absorbed form the matrices that would turn c into a head's keys and values turn the
 * head's query and result instead:
 *   q'_h = embed_h q_h[0 .. nope_dim)      embed_h [latent_dim][nope_dim], the head's key matrix transposed
 *   r_h  = rope(q_h[nope_dim ..))
 *   s_p  = scale ((q'_h, r_h) . (c_p, k_p)),   ctx_h = softmax_p(s_p) c_p   over p <= pos + t, or over the
 *          positions that an indexer chose for the token (ops/attention/choice.h)
 *   out_h = unembed_h ctx_h                unembed_h [v_dim][latent_dim], the head's value matrix
 * Many tokens that see everything may take the expanded form (expanded.h) if it is faster on the device.
 * A head's key matrix is stored either transposed (embed_q) or by rows (kv_b_proj). Its groups run along the
 * stored rows, so it cannot be transposed without dequantising it.
 * RoPE turns the pairs (2i, 2i + 1) (interleaved) or (i, i + rope_dim / 2) by the caller's cos and sin. */
#ifndef MOEFLUX_OPS_MLA_MLA_H
#define MOEFLUX_OPS_MLA_MLA_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/matvec_transposed/matvec_transposed.h"
#include "ops/mla/expanded.h"

struct moeflux_err;

/* The form of attention. */
enum mla_form {
    MLA_FASTER, /* the one of the next two that costs less on the device */
    MLA_ABSORBED,
    MLA_EXPANDED, /* if possible */
};

struct mla_shape {
    uint32_t n_heads, nope_dim, rope_dim, latent_dim, v_dim; /* rope_dim 0: there are no rotary keys */
    bool interleaved;
    float scale, eps; /* the scores' scale; the latent norm's eps */
    enum kv_type kv_type;
    enum mla_form form;
    bool keys_by_rows; /* the same in all layers */
    struct kv_choice choice;
};

/* Vulkan: the values' product of one token. It joins attention's splits itself (kernels/mla/values.comp),
 * which saves a dispatch. */
struct mla_joined {
    struct kernel kernel; /* args_bytes 0: not possible */
    struct weights values;
    uint32_t step;   /* distance between the heads' matrices, in rows */
    uint32_t blocks; /* workgroups of a head */
};

/* A layer's matrices, a stack of n_heads each. */
struct mla_matrices {
    struct linear keys; /* embed [latent_dim][nope_dim] or, by rows, [nope_dim][latent_dim] */
    struct matvec_transposed transposed; /* keys stored by rows */
    struct linear values;                /* unembed [v_dim][latent_dim] */
    struct mla_joined joined;            /* the values' product for one token */
    struct weights stored;               /* the first head's keys */
};

struct mla {
    struct mla_shape shape;
    struct attention attention;
    struct mla_expanded expanded;
    struct exec_buffer scratch; /* borrowed */
    uint32_t slice;             /* tokens at a time in the absorbed form, which needs much scratch memory */
    struct {                    /* vulkan */
        struct kernel prepare;
        uint32_t prepare_group; /* invocations of a workgroup */
    } gpu;
};

struct mla_call {
    uint64_t q;      /* f32 [n][q_stride]: n_heads x (nope_dim, rope_dim); may be turned in place */
    uint64_t kv;     /* f32 [n][kv_stride]: latent and pe from kv_at on */
    uint64_t norm;   /* f32 [latent_dim] */
    uint64_t rope;   /* f32 [n][rope_dim / 2][2]: cos, sin */
    uint64_t blocks; /* u64 table of the cache (kv_cache.h) */
    uint64_t chosen; /* shapes with a choice: the tokens' lists, see attention_call */
    const struct mla_matrices *matrices;
    uint64_t dst; /* f32 [n][n_heads * v_dim] */
    bool use_f16; /* prompts may be computed in float16 if the device is fast at it */
    uint32_t n, pos, q_stride, kv_stride, kv_at, layer_off;
};

/* Returns the bytes of scratch memory from an address in it on. */
static inline uint64_t mla_room_from(const struct exec_buffer *scratch, uint64_t at)
{
    return at - scratch->address < scratch->bytes ? scratch->address + scratch->bytes - at : 0;
}

/* Opens the operation. scratch: mla_scratch_bytes, borrowed until close, aligned to 16 bytes; a call that
 * needs more fails its batch. ERR_UNSUPPORTED unless latent_dim and rope_dim are multiples of 4. */
int mla_open(struct mla *op, struct exec *x, const struct mla_shape *shape, const struct exec_buffer *scratch,
             struct moeflux_err *e);
void mla_close(struct mla *op, struct exec *x);
/* Returns the bytes of scratch for chunks of up to n tokens that see up to n_pos positions. */
uint64_t mla_scratch_bytes(const struct mla_shape *shape, const struct exec_caps *caps, uint32_t n,
                           uint32_t n_pos);

/* Opens a layer's matrices. w: embed_q [n_heads * latent_dim][nope_dim] and unembed_out [n_heads *
 * v_dim][latent_dim]. If keys are stored by rows, only the first is used, kv_b_proj [n_heads * (nope_dim +
 * v_dim)][latent_dim]: each head's keys, then its values. */
int mla_matrices_open(struct mla_matrices *m, struct exec *x, const struct mla_shape *shape,
                      const struct weights w[2], struct moeflux_err *e);
void mla_matrices_close(struct mla_matrices *m, struct exec *x);
void mla_run(const struct mla *op, struct exec *x, const struct mla_call *call);

/* Norm, RoPE and the write to the cache. q, stride, step, at: where the queries' rotary channels go, each
 * head's at `at`, `step` apart. */
struct mla_prepare_call {
    const struct mla_call *of;
    uint64_t q;
    uint32_t stride, step, at;
};
int mla_vulkan_open(struct mla *op, struct exec *x, struct moeflux_err *e);
int mla_joined_open(struct mla_joined *j, struct exec *x, const struct mla_shape *s,
                    const struct weights *values, uint32_t step, struct moeflux_err *e);
/* parts: what attention of one token left at `partial`. */
void mla_joined_run(const struct mla_joined *j, struct exec *x, uint32_t n_heads, uint64_t partial,
                    const struct attention_parts *parts, uint64_t dst);
void mla_prepare_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn mla_prepare_cpu, mla_prepare_ref;

#endif
