/* config.h - a model described: its layers, dimensions and constants, read from config.json (or a manifest's
 * "config") and checked. A family's file (family.h) does the reading; above it only the description counts.
 *
 * Names: the field's terms. All counts are > 0 where the model uses them and 0 where it does not. */
#ifndef MOEFLUX_MODEL_CONFIG_H
#define MOEFLUX_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct family;
struct json_t;

/* How the tokens of a layer meet. The numbers are in fingerprints of saved states: they stay. */
enum mixer_kind {
    MIXER_DELTA_NET,
    MIXER_ATTENTION, /* grouped-query attention */
    MIXER_LATENT,    /* multi-head latent attention */
    MIXER_KINDS
};

struct config_layer {
    enum mixer_kind mixer;
    bool has_experts; /* else its feed-forward part is dense */
    bool has_window;  /* of attention */
};

/* Norms of queries and keys in grouped-query attention: none, of each head, of all heads of a token together.
 * */
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
    uint32_t max_context; /* max_position_embeddings, or what YaRN stretches to; 0: not said */
    float rms_eps;
    bool tied;                   /* lm_head is the embedding */
    struct config_layer *layers; /* [n_layers], owned; one at least has experts */

    /* attention: n_heads is everybody's, the next five are of grouped-query attention */
    uint32_t n_heads, n_kv_heads, head_dim;
    bool attn_gated; /* q_proj makes a gate beside each query */
    enum qk_norm attn_norm;
    bool attn_biased;     /* q_proj, k_proj and v_proj have biases */
    bool attn_out_biased; /* and o_proj has */
    bool attn_sinks;      /* a score more for each head, without a value */
    uint32_t attn_window; /* positions that a token sees in layers with a window */
    uint32_t rotary_dim;  /* rotated channels of a head; MLA: rope_dim */
    struct rope_config rope;
    bool rope_interleave; /* pairs (2i, 2i+1) instead of (i, i + rotary_dim/2) */

    /* gated delta net */
    uint32_t n_k_heads, n_v_heads, k_head_dim, v_head_dim, conv_kernel;

    /* multi-head latent attention */
    uint32_t q_lora_rank; /* 0: plain q_proj */
    uint32_t kv_lora_rank, nope_dim, rope_dim, v_dim;
    bool has_kv_b; /* the heads' matrices are kv_b_proj, else embed_q and unembed_out; the tensors say it */

    /* feed-forward */
    uint32_t n_experts, moe_inner;
    uint32_t top_k;     /* routed experts of a token: the file's num_experts_per_tok, or the user's number */
    uint32_t own_top_k; /* the file's */
    float expert_share; /* of their weights that a token's experts need not exceed; 0: it has all top_k */
    uint32_t shared_inner; /* of all shared experts together; 0: there is none */
    uint32_t dense_inner;
    uint32_t first_dense, moe_freq; /* DeepSeek's way to say which layers are dense: for fingerprints alone */
    bool sigmoid;                   /* the router's scores, in groups; else softmax */
    uint32_t n_group, topk_group;
    float routed_scaling;
    bool norm_topk;
    bool experts_biased;
    float swiglu_limit; /* ops/experts/experts.h; 0: none */

    int32_t eos[CONFIG_MAX_EOS]; /* union of all places that name end-of-text ids */
    uint32_t n_eos;
};

/* Channels of the delta net's convolution: 2 * n_k_heads * k_head_dim + n_v_heads * v_head_dim. */
static inline uint32_t config_conv_dim(const struct config *c)
{
    return 2 * c->n_k_heads * c->k_head_dim + c->n_v_heads * c->v_head_dim;
}

/* The share of the weights that a token's experts carry at least; 1: all. */
static inline float config_expert_share(const struct config *c)
{
    return c->expert_share > 0 ? c->expert_share : 1;
}

/* Whether layer i has routed experts. */
static inline bool config_has_experts(const struct config *c, uint32_t i)
{
    return c->layers[i].has_experts;
}

/* The longest context a sequence may have, for models that do not say theirs too. */
static inline uint32_t config_longest_context(const struct config *c)
{
    return c->max_context ? c->max_context : 262144;
}

/* Takes n of the experts for a token, of them as few as sum to `share` of the weights (ops/router/router.h).
 * n 0: as many as the file says; share 0 and 1: all n. ERR_USAGE: the router cannot choose so many, or the
 * share is not one. */
int config_set_active_experts(struct config *c, uint32_t n, float share, struct moeflux_err *e);

/* Adds the eos ids of a generation_config.json object to c->eos (each once). */
int config_add_eos(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

void config_free(struct config *c);

#endif
