/* config.h - a model's dimensions and constants, read from config.json (or a manifest's "config") and checked.
 *
 * Names: the field's terms; the keys each comes from stand in the model documentation. All counts are > 0 where
 * the family uses them and 0 where it does not. */
#ifndef MOEFLUX_MODEL_CONFIG_H
#define MOEFLUX_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct json_t;

enum family { FAMILY_QWEN35MOE, FAMILY_DEEPSEEK3 };
enum layer_kind { LAYER_DELTA, LAYER_ATTENTION, LAYER_MLA };

enum { CONFIG_MAX_EOS = 16, CONFIG_GROUP = 64 };

struct rope_config {
    bool yarn;     /* false: plain RoPE */
    bool truncate; /* YaRN: floor and ceil the correction range */
    double theta;
    double factor, original_context, beta_fast, beta_slow; /* YaRN */
    double mscale, mscale_all_dim, attention_factor;       /* YaRN; 0: absent */
};

struct config {
    enum family family;
    uint32_t hidden, n_layers, vocab_size;
    uint32_t max_context; /* max_position_embeddings; 0: not said */
    float rms_eps;
    bool tied;               /* lm_head is the embedding */
    enum layer_kind *layers; /* [n_layers], owned */

    /* full attention (Qwen) */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t rotary_dim; /* rotated channels of a head: Qwen partial_rotary_factor * head_dim, MLA rope_dim */
    struct rope_config rope;
    bool rope_interleave; /* pairs (2i, 2i+1) instead of (i, i + rotary_dim/2) */

    /* gated delta net (Qwen) */
    uint32_t n_k_heads, n_v_heads, k_head_dim, v_head_dim, conv_kernel;

    /* MLA (DeepSeek) */
    uint32_t q_lora_rank; /* 0: plain q_proj */
    uint32_t kv_lora_rank, nope_dim, rope_dim, v_dim;
    bool has_kv_b; /* the heads' matrices are kv_b_proj, else embed_q and unembed_out; the tensors say it */

    /* feed-forward */
    uint32_t n_experts, top_k, moe_inner;
    uint32_t shared_inner; /* of all shared experts together */
    uint32_t first_dense, moe_freq,
        dense_inner; /* DeepSeek: layer i is dense iff i < first_dense or i % moe_freq */
    uint32_t n_group, topk_group;
    float routed_scaling;
    bool norm_topk;

    int32_t eos[CONFIG_MAX_EOS]; /* union of all places that name end-of-text ids */
    uint32_t n_eos;
};

/* Channels of the delta net's convolution: 2 * n_k_heads * k_head_dim + n_v_heads * v_head_dim. */
static inline uint32_t config_conv_dim(const struct config *c)
{
    return 2 * c->n_k_heads * c->k_head_dim + c->n_v_heads * c->v_head_dim;
}

/* Whether layer i has routed experts. */
static inline bool config_has_experts(const struct config *c, uint32_t i)
{
    if (c->family == FAMILY_QWEN35MOE)
        return true;
    return i >= c->first_dense && i % c->moe_freq == 0;
}

/* The longest context a sequence may have, for models that do not say theirs too. */
static inline uint32_t config_longest_context(const struct config *c)
{
    return c->max_context ? c->max_context : 262144;
}

/* Reads a configuration object (nested text_config or flat). `where` names the file in messages.
 * ERR_FORMAT: a key is missing, of the wrong type or out of range (the key is named);
 * ERR_UNSUPPORTED: model_type, rope type, activation or bias that this program does not compute. */
int config_read(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

/* Adds the eos ids of a generation_config.json object to c->eos (each once). */
int config_add_eos(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

void config_free(struct config *c);

#endif
