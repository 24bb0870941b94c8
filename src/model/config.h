/* config.h - describes a model: its layers, dimensions and constants. config_read.h fills the description
 * from config.json (or a manifest's "config"). Floors above use it and do not ask for the family.
 *
 * Names are those of the literature. Counts are > 0 if the model uses them, else 0. */
#ifndef MOEFLUX_MODEL_CONFIG_H
#define MOEFLUX_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct family;
struct json_t;

/* The part of a layer that mixes tokens. The numbers are in fingerprints of saved states and must not
 * change. */
enum mixer_kind {
    MIXER_DELTA_NET,
    MIXER_ATTENTION, /* grouped-query attention */
    MIXER_LATENT,    /* multi-head latent attention */
    MIXER_KINDS
};

struct config_layer {
    enum mixer_kind mixer;
    bool has_experts; /* else its feed-forward part is dense */
    bool has_window;  /* its attention sees the last attn_window positions only */
};

/* Norms of queries and keys in grouped-query attention: none, one per head, one over all heads of a token. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEADS, QK_NORM_ALL };

enum { CONFIG_MAX_EOS = 16 };

struct rope_config {
    bool yarn;     /* false: plain RoPE */
    bool truncate; /* YaRN: floor and ceil the correction range */
    double theta;
    double factor, original_context, beta_fast, beta_slow; /* YaRN */
    double mscale, mscale_all_dim, attention_factor;       /* YaRN; 0: absent */
};

struct config {
    const struct family *family;
    uint32_t hidden, n_layers, vocab_size;
    uint32_t max_context; /* tokens: max_position_embeddings, or what YaRN stretches to; 0: unknown */
    float rms_eps;
    bool tied;                   /* lm_head is the embedding */
    struct config_layer *layers; /* [n_layers], owned; at least one has experts */

    /* attention: n_heads is used by every mixer, the others by grouped-query attention alone */
    uint32_t n_heads, n_kv_heads, head_dim;
    bool attn_gated; /* q_proj computes a gate for each query, too */
    enum qk_norm attn_norm;
    bool attn_biased;     /* q_proj, k_proj and v_proj have biases */
    bool attn_out_biased; /* o_proj has a bias */
    bool attn_sinks;      /* each head has one more score, without a value */
    uint32_t attn_window; /* positions that a token sees in layers with a window */
    uint32_t rotary_dim;  /* rotated channels of a head; MLA: rope_dim */
    struct rope_config rope;
    bool rope_interleave; /* pairs (2i, 2i+1) instead of (i, i + rotary_dim/2) */

    /* gated delta net */
    uint32_t n_k_heads, n_v_heads, k_head_dim, v_head_dim, conv_kernel;

    /* multi-head latent attention */
    uint32_t q_lora_rank; /* 0: plain q_proj */
    uint32_t kv_lora_rank, nope_dim, rope_dim, v_dim;
    bool has_kv_b; /* the heads' matrices are kv_b_proj, else embed_q and unembed_out; set from the tensors */

    /* feed-forward */
    uint32_t n_experts, moe_inner;
    uint32_t top_k;     /* routed experts of a token: the file's num_experts_per_tok, or the user's number */
    uint32_t own_top_k; /* the file's top_k */
    /* A token uses its best experts until their weights sum to this share of the total, (0, 1); 0: all
     * top_k */
    float expert_share;
    uint32_t shared_inner; /* sum over all shared experts; 0: there is none */
    uint32_t dense_inner;
    uint32_t first_dense, moe_freq; /* DeepSeek's keys for dense layers; only fingerprints use them */
    bool sigmoid;                   /* router: sigmoid scores, experts in groups; else softmax */
    uint32_t n_group, topk_group;
    float routed_scaling;
    bool norm_topk;
    bool experts_biased;
    float swiglu_limit; /* ops/experts/experts.h; 0: none */

    int32_t eos[CONFIG_MAX_EOS]; /* end-of-text ids of all files that name some, each once */
    uint32_t n_eos;
};

/* Returns the channels of the delta net's convolution. */
static inline uint32_t config_conv_dim(const struct config *c)
{
    return 2 * c->n_k_heads * c->k_head_dim + c->n_v_heads * c->v_head_dim;
}

/* Returns the share of the router's weights that a token's experts have at least; 1: all. */
static inline float config_expert_share(const struct config *c)
{
    return c->expert_share > 0 ? c->expert_share : 1;
}

/* Returns whether layer i has routed experts. */
static inline bool config_has_experts(const struct config *c, uint32_t i)
{
    return c->layers[i].has_experts;
}

/* Returns the longest context of a sequence in tokens, with a default for models that give none. */
static inline uint32_t config_longest_context(const struct config *c)
{
    return c->max_context ? c->max_context : 262144;
}

/* Sets how many experts a token uses: n of a layer, and of these only as many as reach `share` of the weights
 * (ops/router/router.h). n 0: the file's number; share 0 or 1: all n. ERR_USAGE: the router cannot choose n,
 * or `share` is outside [0, 1]. */
int config_set_active_experts(struct config *c, uint32_t n, float share, struct moeflux_err *e);

/* Adds the eos ids of a generation_config.json object to c->eos, each once. ERR_FORMAT. */
int config_add_eos(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

void config_free(struct config *c);

#endif
