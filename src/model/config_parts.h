/* config_parts.h - what the configurations of families have in common, for their readers: limits, checks that
 * name the key, grouped-query attention, RoPE. */
#ifndef MOEFLUX_MODEL_CONFIG_PARTS_H
#define MOEFLUX_MODEL_CONFIG_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

struct json_view;

/* Far above every real model, and low enough that products of two or three of them stay in 64 bits and the
 * rows of every matrix in 32. */
enum {
    CONFIG_MAX_HIDDEN = 1 << 20,
    CONFIG_MAX_LAYERS = 4096,
    CONFIG_MAX_VOCAB = 1 << 24,
    CONFIG_MAX_HEADS = 1 << 14,
    CONFIG_MAX_HEAD_DIM = 1 << 13,
    CONFIG_MAX_INNER = 1 << 20,
    CONFIG_MAX_RANK = 1 << 16,
    CONFIG_MAX_EXPERTS = 1 << 16,
    CONFIG_MAX_SHARED = 64,
    CONFIG_MAX_CONV = 64,
};

/* Operations read fours of channels of attention's heads, of latents and of what lies between a dense part's
 * products. */
enum { CONFIG_FOUR = 4 };

struct config_multiple {
    const char *key;
    uint64_t value, of;
};
/* ERR_FORMAT names the first that is no multiple. */
int config_check_multiples(const struct config_multiple *m, size_t n, const struct json_view *v);

/* A switch that has to be as `expected` (also what it is when absent), or a list that has to be empty.
 * ERR_UNSUPPORTED. */
int config_expect(struct json_view *v, const char *key, bool expected);
int config_expect_empty(struct json_view *v, const char *key);

/* Grouped-query attention: n_kv_heads, head_dim, rotary_dim, of which partial_rotary_factor says how much of
 * head_dim it is; absent: `part`. */
int config_read_attention(struct config *c, struct json_view *v, double part);

/* dense_inner, if some layer is dense: the layers are described. */
int config_read_dense(struct config *c, struct json_view *v);

/* The router of DeepSeek-V3: sigmoid scores with a bias for the choice, in groups; n_experts and top_k with
 * it. */
int config_read_sigmoid_router(struct config *c, struct json_view *v);

/* Layers with the same mixer, of which the first are dense, as DeepSeek-V3 says it; dense_inner and
 * shared_inner with it. */
int config_read_first_dense(struct config *c, struct json_view *v, enum mixer_kind mixer);

/* All that Qwen3-Next and Qwen3.5 have in common (model/families/qwen35moe.c). */
int config_read_hybrid(struct config *c, struct json_view *v);

/* All that DeepSeek-V3 and Kimi-K2 have in common (model/families/deepseek3.c). */
int config_read_latent(struct config *c, struct json_view *v);

/* RoPE of rotary_dim channels, which are set. takes_yarn: rope_type may be yarn. */
int config_read_rope(struct config *c, struct json_view *v, bool takes_yarn);

#endif
