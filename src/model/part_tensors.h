/* part_tensors.h - the tensors of each kind of part: names and shapes. schema.h lists those of a model,
 * src/arch loads them by their index here; no other file names them. */
#ifndef MOEFLUX_MODEL_PART_TENSORS_H
#define MOEFLUX_MODEL_PART_TENSORS_H

#include "model/config.h"
#include "model/fused.h"

enum { PART_TENSOR_NAME = 48, PART_MAX_TENSORS = 20 };

struct part_tensor {
    char name[PART_TENSOR_NAME]; /* below "model.layers.N."; a matrix's base name, or a vector's whole name */
    uint32_t rows;               /* 0: a vector of `cols` elements */
    uint32_t cols;               /* 0: the part has no such tensor */
    bool is_ids;                 /* a vector of whole numbers: experts' indices */
    float factor;                /* multiplies a vector's numbers when they are loaded; 0: none */
};

/* What is loaded together stands together, matrices in the order of their outputs. */
enum gqa_tensor {
    GQA_Q,
    GQA_K,
    GQA_V,
    GQA_INDEX, /* the indexer's queries and its key, or these in two matrices: */
    GQA_INDEX_Q,
    GQA_INDEX_K,
    GQA_GATE, /* gates of the heads */
    GQA_OUT,
    GQA_Q_NORM,
    GQA_K_NORM,
    GQA_BIASES, /* three: queries, keys, values */
    GQA_OUT_BIAS = GQA_BIASES + 3,
    GQA_SINKS,
    GQA_INDEX_Q_NORM,
    GQA_INDEX_K_NORM,
};
enum delta_tensor {
    DELTA_QKV, /* or q, followed by k and v in matrices of their own: */
    DELTA_K,
    DELTA_V,
    DELTA_Z, /* Z and A: the first of two matrices if they have a low rank */
    DELTA_A,
    DELTA_B,
    DELTA_Z_UP,
    DELTA_A_UP,
    DELTA_OUT,
    DELTA_CONV, /* three: q, k, v; or one */
    DELTA_A_LOG = DELTA_CONV + 3,
    DELTA_DT_BIAS,
    DELTA_NORM
};
enum latent_tensor {
    LATENT_Q_A, /* q_a, or all queries */
    LATENT_Q_NORM,
    LATENT_Q_B,
    LATENT_KV_A,
    LATENT_GATE,
    LATENT_KV_NORM,
    LATENT_KV_B, /* keys and values of the heads, or these in two matrices: */
    LATENT_EMBED_Q,
    LATENT_UNEMBED,
    LATENT_OUT,
    LATENT_INDEX_Q, /* the indexer's queries, its key, a pooled key's gates, the weights of its heads */
    LATENT_INDEX_K,
    LATENT_INDEX_POOL_GATE,
    LATENT_INDEX_WEIGHTS,
    LATENT_INDEX_K_NORM,
    LATENT_INDEX_K_BIAS,
    LATENT_INDEX_POOL_BIAS,
};
/* DeepSeek-V4's attention. The first seven are products of the hidden state. */
enum compressed_tensor {
    COMPRESSED_Q_A,
    COMPRESSED_KV,
    COMPRESSED_ROWS, /* what compressed rows are made of, and the logits of its weights */
    COMPRESSED_WEIGHTS,
    COMPRESSED_INDEX_ROWS, /* the same of the indexer's keys */
    COMPRESSED_INDEX_WEIGHTS,
    COMPRESSED_INDEX_HEADS, /* weights of the indexer's heads */
    COMPRESSED_Q_B,         /* these two are products of the normed q_a */
    COMPRESSED_INDEX_Q,
    COMPRESSED_INDEX_KEY, /* product of a normed compressed row: its index key */
    /* [out_groups * out_rank][n_heads * head_dim / out_groups]: a group's rows and its heads */
    COMPRESSED_OUT_A,
    COMPRESSED_OUT_B,
    COMPRESSED_Q_NORM,
    COMPRESSED_KV_NORM,
    COMPRESSED_SINKS,
    /* [ratio][1 or 2][head_dim]: of the weights' logits, by the position's place in a row */
    COMPRESSED_BIASES,
    COMPRESSED_ROW_NORM,
    COMPRESSED_INDEX_BIASES,
    COMPRESSED_INDEX_ROW_NORM,
    COMPRESSED_INDEX_KEY_NORM,
};
enum mamba_tensor {
    MAMBA_IN, /* gates, channels, time steps */
    MAMBA_OUT,
    MAMBA_CONV,
    MAMBA_CONV_BIAS,
    MAMBA_A_LOG,
    MAMBA_D,
    MAMBA_DT_BIAS,
    MAMBA_NORM
};
enum dense_tensor { DENSE_GATE, DENSE_UP, DENSE_DOWN };
enum experts_tensor {
    EXPERTS_ROUTER,
    EXPERTS_ROUTER_BIAS,
    EXPERTS_SHARED_GATE, /* weight of the shared expert */
    EXPERTS_BIASES,      /* three, of all routed experts: gate, up, down */
    EXPERTS_GATE = EXPERTS_BIASES + 3,
    EXPERTS_UP,
    EXPERTS_DOWN, /* these three are the shared expert's */
    EXPERTS_ROUTER_NORM,
    EXPERTS_FACTORS,
    EXPERTS_OF_TOKENS, /* [vocab_size][own_top_k]: each token's experts */
    EXPERTS_LATENT_IN, /* projects to the routed experts' columns; the next one projects back */
    EXPERTS_LATENT_OUT,
    EXPERTS_LATENT_NORM, /* before the last one */
};

/* The table's rows are in tensors of their own (table.h). */
enum ngram_tensor {
    NGRAM_KEY,
    NGRAM_VALUE,
    NGRAM_K_NORM,
    NGRAM_X_NORM,
    NGRAM_U_NORM,
    NGRAM_CONV,
};

/* The tensors of a mix of streams, which is low-rank, doubly stochastic, or attention over blocks. */
enum streams_tensor {
    STREAMS_DOWN, /* low rank; the last mix has no STREAMS_BY */
    STREAMS_BY,
    STREAMS_UP,
    STREAMS_NORM,
    STREAMS_FN, /* doubly stochastic; the last mix has fewer rows, or nothing (ends_in_mean) */
    STREAMS_SCALE,
    STREAMS_BASE,
    STREAMS_SCORE, /* attention over blocks; STREAMS_NORM comes before it */
    STREAMS_TENSORS
};

/* Fills out [PART_MAX_TENSORS] with the tensors of a description; the routed experts' matrices are not
 * among them. Entries that the kind does not have are zero. */
void part_tensors(const struct config *c, const struct part_config *p, struct part_tensor *out);
/* Returns the norm before a block's part. */
struct part_tensor part_norm(const struct config *c, const struct config_block *b);
/* Fills in what follows a block's part. */
enum { POST_NORM, POST_OUTER, POST_FACTOR, POST_TENSORS };
void part_posts(const struct config *c, const struct config_block *b, struct part_tensor out[POST_TENSORS]);
/* Fills out [STREAMS_TENSORS] with the tensors of the mix `name`; all absent if it is NULL. is_last: no part
 * follows it. */
void part_streams(const struct config *c, const char *name, bool is_last, struct part_tensor *out);
/* Returns the name of the mix before the head, below "model."; NULL: there is none. */
const char *part_last_mix(const struct config *c);

/* The delta net's input projections as two matrices (fused.h). Each key head has a block of rows: in the
 * first its query, its key, its value heads' values and their gates z; in the second its value heads' rates
 * b, then a. */
extern const struct fused_matrix part_fused_delta_net[];

#endif
