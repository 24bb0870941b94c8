/* config_parts.h - parts of configurations that several families share, for their readers: limits, checks
 * that name the key, grouped-query attention, RoPE. */
#ifndef MOEFLUX_MODEL_CONFIG_PARTS_H
#define MOEFLUX_MODEL_CONFIG_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

struct json_view;

/* Limits far above every real model. Products of two or three of them stay in 64 bits, the rows of every
 * matrix in 32. */
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

/* Operations read channels in fours: those of attention heads, of latents and of a dense part's inner
 * vector. */
enum { CONFIG_FOUR = 4 };

struct config_multiple {
    const char *key;
    uint64_t value, of;
};
/* Checks that each value is a multiple of its `of`. ERR_FORMAT names the first that is not. */
int config_check_multiples(const struct config_multiple *m, size_t n, const struct json_view *v);

/* Check that a switch is `expected` (the value of an absent one), and that a list is empty or absent.
 * ERR_UNSUPPORTED. */
int config_expect(struct json_view *v, const char *key, bool expected);
int config_expect_empty(struct json_view *v, const char *key);

/* Reads grouped-query attention: n_kv_heads, head_dim and rotary_dim, which is partial_rotary_factor (absent:
 * `part`) of head_dim. */
int config_read_attention(struct config *c, struct json_view *v, double part);

/* Reads dense_inner if a layer is dense. c->layers must be filled. */
int config_read_dense(struct config *c, struct json_view *v);

/* Reads DeepSeek-V3's router: sigmoid scores with a bias for the choice, groups; also n_experts and top_k. */
int config_read_sigmoid_router(struct config *c, struct json_view *v);

/* Reads DeepSeek-V3's keys for layers of which the first are dense, all with this mixer; also dense_inner and
 * shared_inner. */
int config_read_first_dense(struct config *c, struct json_view *v, enum mixer_kind mixer);

/* Reads what Qwen3-Next and Qwen3.5 have in common (model/families/qwen35moe.c). */
int config_read_hybrid(struct config *c, struct json_view *v);

/* Reads what DeepSeek-V3 and Kimi-K2 have in common (model/families/deepseek3.c). */
int config_read_latent(struct config *c, struct json_view *v);

/* Reads RoPE. c->rotary_dim must be set. takes_yarn: rope_type may be yarn. */
int config_read_rope(struct config *c, struct json_view *v, bool takes_yarn);

#endif
