/* expanded.h - latent attention (mla.h) in the form that makes keys and values, for the many tokens of a
 * chunk. For each position p that they see, and each head h:
 *   k_hp = (embed_h^T c_p, k_p),  v_hp = unembed_h c_p,  out_h = softmax_p(scale (q_h, r_h) . k_hp) v_hp
 * A pair of a query and a position costs nope_dim + rope_dim + v_dim products, which are 2 latent_dim +
 * rope_dim otherwise, but every position seen, not every token, costs latent_dim (nope_dim + v_dim) of them.
 * Keys and values live in scratch memory while some of the heads need them: as many heads as there is room
 * for. Only on Vulkan; the host computes the absorbed form. Private to mla. */
#ifndef MOEFLUX_OPS_MLA_EXPANDED_H
#define MOEFLUX_OPS_MLA_EXPANDED_H

#include "exec/kernel.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"

struct moeflux_err;
struct mla_call;
struct mla_shape;

/* Of a head's query and one position, in products of the matrices. */
struct mla_pair_cost {
    double absorbed, expanded;
};

struct mla_expanded {
    struct kernel transpose, transpose_other, rows;
    struct linear keys; /* on the transposed key matrices in scratch memory; not of keys by rows */
    struct attention attention;
    enum kv_type type; /* of keys, values and latents on their way */
    uint64_t room;     /* bytes for keys and values */
    uint32_t from;     /* the fewest tokens it takes */
    struct mla_pair_cost pair;
};

/* Errors as mla_open. */
int mla_expanded_open(struct mla_expanded *op, struct exec *x, const struct mla_shape *shape,
                      uint64_t scratch, struct moeflux_err *e);
void mla_expanded_close(struct mla_expanded *op, struct exec *x);
/* Bytes of scratch for chunks of up to n tokens that see up to n_pos positions. */
uint64_t mla_expanded_bytes(const struct mla_shape *shape, const struct exec_caps *caps, uint32_t n,
                            uint32_t n_pos);
/* Whether the call's tokens can go this way; whether n tokens from pos on are faster so. */
bool mla_expanded_can(const struct mla_expanded *op, const struct mla_shape *shape,
                      const struct mla_call *call);
bool mla_expanded_is_faster(const struct mla_expanded *op, const struct mla_shape *shape, uint32_t n,
                            uint32_t pos);
/* From the turned queries in call->q and the cache, which holds the chunk's own rows, to call->dst. */
void mla_expanded_run(const struct mla_expanded *op, struct exec *x, const struct mla_shape *shape,
                      const struct mla_call *call, uint64_t scratch);

#endif
