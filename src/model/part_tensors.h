/* part_tensors.h - the tensors of each kind of part: names and shapes. schema.h lists those of a model,
 * src/arch loads them by their index here; no other file names them. */
#ifndef MOEFLUX_MODEL_PART_TENSORS_H
#define MOEFLUX_MODEL_PART_TENSORS_H

#include "model/config.h"

enum { PART_TENSOR_NAME = 48, PART_MAX_TENSORS = 11 };

struct part_tensor {
    char name[PART_TENSOR_NAME]; /* below "model.layers.N."; a matrix's base name, or a vector's whole name */
    uint32_t rows;               /* 0: a vector of `cols` elements */
    uint32_t cols;               /* 0: the part has no such tensor */
};

/* What is loaded together stands together, matrices in the order of their outputs. */
enum gqa_tensor {
    GQA_Q,
    GQA_K,
    GQA_V,
    GQA_OUT,
    GQA_Q_NORM,
    GQA_K_NORM,
    GQA_BIASES, /* three: queries, keys, values */
    GQA_OUT_BIAS = GQA_BIASES + 3,
    GQA_SINKS,
};
enum delta_tensor {
    DELTA_QKV,
    DELTA_Z,
    DELTA_B,
    DELTA_A,
    DELTA_OUT,
    DELTA_CONV,
    DELTA_A_LOG,
    DELTA_DT_BIAS,
    DELTA_NORM
};
enum latent_tensor {
    LATENT_Q_A, /* q_a, or all queries */
    LATENT_Q_NORM,
    LATENT_Q_B,
    LATENT_KV_A,
    LATENT_KV_NORM,
    LATENT_KV_B, /* keys and values of the heads, or these in two matrices: */
    LATENT_EMBED_Q,
    LATENT_UNEMBED,
    LATENT_OUT,
};
enum dense_tensor { DENSE_GATE, DENSE_UP, DENSE_DOWN };
enum experts_tensor {
    EXPERTS_ROUTER,
    EXPERTS_ROUTER_BIAS,
    EXPERTS_SHARED_GATE, /* weight of the shared expert */
    EXPERTS_BIASES,      /* three, of all routed experts: gate, up, down */
    EXPERTS_GATE = EXPERTS_BIASES + 3,
    EXPERTS_UP,
    EXPERTS_DOWN, /* the last three are the shared expert's */
};

/* Fills out [PART_MAX_TENSORS] with the tensors of a description; the routed experts' matrices are not
 * among them. Entries that the kind does not have are zero. */
void part_tensors(const struct config *c, const struct part_config *p, struct part_tensor *out);
/* Returns the norm before a block's part. */
struct part_tensor part_norm(const struct config *c, const struct config_block *b);

#endif
