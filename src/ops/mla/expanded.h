/* expanded.h - latent attention (mla.h) in the form that makes keys and values, for the many tokens of a
 * chunk. For each position p that they see, and each head h:
 *   k_hp = (embed_h^T c_p, k_p),  v_hp = unembed_h c_p,  out_h = softmax_p(scale (q_h, r_h) . k_hp) v_hp
 * A pair of a query and a position costs nope_dim + rope_dim + v_dim products here, 2 latent_dim + rope_dim
 * in the absorbed form. But every position seen costs latent_dim (nope_dim + v_dim) more; in the absorbed
 * form every token does. Keys and values lie in scratch memory, for as many heads at a time as fit.
 * Vulkan only; the host computes the absorbed form. Private to mla. */
#ifndef MOEFLUX_OPS_MLA_EXPANDED_H
#define MOEFLUX_OPS_MLA_EXPANDED_H

#include "args.h"
#include "exec/kernel.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"

struct moeflux_err;
struct mla_call;
struct mla_shape;

/* The cost of a head's query and one position, in products. */
struct mla_pair_cost {
    double absorbed, expanded;
};

struct mla_expanded {
    struct kernel transpose, transpose_extended, rows;
    struct kernel transpose_blocks[FORMAT_END - FORMAT_BLOCK_FIRST]; /* one a block format */
    /* product with the transposed key matrices in scratch memory; unused if keys are stored by rows */
    struct linear keys;
    struct attention attention;
    enum kv_type type; /* type of keys, values and latents between the kernels */
    uint64_t room;     /* bytes for keys and values */
    uint32_t from;     /* fewest tokens */
    struct mla_pair_cost pair;
};

/* Returns mla_open's errors. */
int mla_expanded_open(struct mla_expanded *op, struct exec *x, const struct mla_shape *shape,
                      uint64_t scratch, struct moeflux_err *e);
void mla_expanded_close(struct mla_expanded *op, struct exec *x);
/* Returns the bytes of scratch for chunks of up to n tokens that see up to n_pos positions. */
uint64_t mla_expanded_bytes(const struct mla_shape *shape, const struct exec_caps *caps, uint32_t n,
                            uint32_t n_pos);
/* Return whether the expanded form is possible for the call; whether it is faster for n tokens from pos
 * on. */
bool mla_expanded_can(const struct mla_expanded *op, const struct mla_shape *shape,
                      const struct mla_call *call);
bool mla_expanded_is_faster(const struct mla_expanded *op, const struct mla_shape *shape, uint32_t n,
                            uint32_t pos);
/* Computes call->dst from the turned queries in call->q and from the cache, which already holds the chunk's
 * own rows. */
void mla_expanded_run(const struct mla_expanded *op, struct exec *x, const struct mla_shape *shape,
                      const struct mla_call *call, const struct exec_buffer *scratch);

#endif
