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
    CONFIG_MAX_BUDGET = 1 << 20,
    CONFIG_MAX_STREAMS = 8,        /* residual streams with a doubly stochastic mix */
    CONFIG_MAX_BLOCK_STREAMS = 32, /* residual streams of blocks of layers */
};

/* Operations read channels in fours: those of attention heads, of latents and of a dense part's inner
 * vector. */
enum { CONFIG_FOUR = 4 };

/* The functions below do nothing if v->rc is an error, and set it if they fail: ERR_FORMAT, or
 * ERR_UNSUPPORTED for what no operation computes. The text names the key. */

/* Check that a value is a multiple of `of`; that a switch is `expected`, the value of an absent one; that
 * a list is empty or absent; that it has a 1 for each layer or is absent. */
void config_check_multiple(struct json_view *v, const char *key, uint64_t value, uint64_t of);
void config_expect(struct json_view *v, const char *key, bool expected);
void config_expect_empty(struct json_view *v, const char *key);
void config_expect_ones(struct json_view *v, const char *key);
/* Checks that a text is `expected`, the value of an absent one. */
void config_expect_text(struct json_view *v, const char *key, const char *expected);
/* Checks that a number is `expected`. fallback: the value of an absent one. */
void config_expect_number(struct json_view *v, const char *key, double fallback, double expected);
/* Returns whether the first object that has this key has null. */
bool config_is_null(const struct json_view *v, const char *key);
/* Returns `key`, or the first of its other names that is there if it is not. */
const char *config_key(const struct json_view *v, const char *key);
/* Checks that a key is there, under this or another name. Families use it for keys whose default differs
 * among their references. */
void config_need(struct json_view *v, const char *key);

/* Adds a description of a part and returns it; its fields are 0. */
struct part_config *config_add_part(struct config *c, enum part_kind kind);
/* Adds rows of an n-gram table before a layer's two blocks. */
void config_add_ngrams(struct config *c, struct config_layer *layer, const struct ngram_config *n);
/* Makes layer i two blocks: norm and this mixer, norm and a feed-forward part. */
void config_set_layer(struct config *c, uint32_t i, const struct part_config *mixer, bool has_experts);
/* Makes layer i one block: a norm and the only part of this kind. */
void config_set_only_block(struct config *c, uint32_t i, enum part_kind kind, const char *norm);
/* Makes the layer of multi-token prediction such. */
void config_set_drafter(struct config *c, const struct part_config *mixer, bool has_experts);
/* Sets a layer's mixer; the feed-forward part of a layer that has one stays. */
void config_set_mixer(struct config *c, uint32_t i, const struct part_config *mixer);
/* Makes all layers such, with experts: layer i has mixers[i % n]. */
void config_set_layers(struct config *c, const struct part_config *const *mixers, uint32_t n);

/* Reads layer_types: layer i has the mixer whose name is entry i. Absent: the layers stay. */
struct config_layer_type {
    const char *name;
    const struct part_config *mixer;
};
void config_read_layer_types(struct config *c, struct json_view *v, const struct config_layer_type *types,
                             size_t n);
/* Returns the list `key` if it has an entry for each layer (family.h, longer_lists); NULL: it is absent, or
 * v->rc is set. */
const struct json_t *config_layers_list(const struct config *c, struct json_view *v, const char *key);
/* Returns whether layer i's entry of such a list is 1; it must be 0 or 1. */
bool config_layer_flag(struct json_view *v, const struct json_t *list, const char *key, uint32_t i);

/* Returns per_layer_config; NULL: it is absent, or v->rc is set. Its keys are numbers of layers, which
 * transformers pads with zeros, its values objects. */
const struct json_t *config_overrides(const struct config *c, struct json_view *v);
/* Returns its object for layer i; NULL: it has none. */
const struct json_t *config_override(const struct json_t *all, uint32_t i);

/* Reads the heads of grouped-query attention, and how many channels the first table of angles rotates:
 * partial_rotary_factor (absent: `part`) of head_dim. */
void config_read_attention(struct config *c, struct json_view *v, struct gqa_config *g, double part);
/* Reads rotary_dim, which some exports have in place of partial_rotary_factor. */
void config_read_rotary_dim(struct config *c, struct json_view *v, const struct gqa_config *g);

/* Reads n_experts, under `key` or "num_experts", and top_k. */
void config_read_experts(struct config *c, struct json_view *v, const char *key);

/* Reads which layers are dense: those in mlp_only_layers, and those whose number is no multiple of
 * decoder_sparse_step. All have this mixer. Also reads the size of the dense part. */
void config_read_dense_list(struct config *c, struct json_view *v, const struct part_config *mixer);

/* Reads DeepSeek-V3's router: sigmoid scores with a bias for the choice, groups; also n_experts and top_k. */
void config_read_sigmoid_router(struct config *c, struct json_view *v);

/* Reads which layers have experts: mlp_layer_types, a list with "dense" or "sparse" for each layer; without
 * it, as the second function does, the list `key` of 0 and 1. Absent: the layers stay. */
void config_read_mlp_types(struct config *c, struct json_view *v);
void config_read_moe_flags(struct config *c, struct json_view *v, const char *key);
/* Reads the limits of activations, lists with a number for each layer: `routed` of its experts, `shared` of
 * the shared ones, which a dense layer must not have. Null, 0 or no entry: none. */
void config_read_clamps(struct config *c, struct json_view *v, const char *routed, const char *shared);
/* Reads the size of the dense part if a layer has one. */
void config_read_dense(struct config *c, struct json_view *v, const char *key);

/* Reads DeepSeek-V3's keys for layers of which the first are dense, all with this mixer; also the sizes of
 * the dense part and of the shared experts. */
void config_read_first_dense(struct config *c, struct json_view *v, const struct part_config *mixer);

/* Reads what Qwen3-Next and Qwen3.5 have in common: gated attention, delta net, a shared expert. */
void config_read_hybrid(struct config *c, struct json_view *v);
/* Does so for Qwen3.8, whose attention has an indexer and whose delta net may have another gate. */
void config_read_indexed_hybrid(struct config *c, struct json_view *v);

/* Reads the heads of latent attention, without its rotary angles. If the first table of angles has `none`,
 * there may be no rotary channels. */
void config_read_latent_heads(struct config *c, struct json_view *v, struct latent_config *m);
/* Reads Kimi Delta Attention; the keys' names differ. */
void config_read_kimi_delta(struct json_view *v, const char *heads, const char *dim, const char *taps,
                            struct delta_config *d);

/* Reads what DeepSeek-V3 and Kimi-K2 have in common: latent attention, dense layers before those with
 * experts. */
void config_read_latent(struct config *c, struct json_view *v);
/* Does so for GLM-5 and DeepSeek-V3.2, whose attention has an indexer in some layers or all. defaults: its
 * heads, and which channels it rotates, where the configuration does not say so. */
void config_read_indexed_latent(struct config *c, struct json_view *v, const struct index_config *defaults);

/* Reads the indexer of latent attention `full`, and which layers with it use the choice of a layer before
 * them. defaults: also whether its keys are pooled, and how many. */
void config_read_latent_index(struct config *c, struct json_view *v, struct part_config *full,
                              const struct index_config *defaults);

/* Reads residual streams with a doubly stochastic mix; c->layers must be set. */
void config_read_streams(struct config *c, struct json_view *v);
/* Checks the channels of all streams, whose number is `key`. */
void config_check_width(const struct config *c, struct json_view *v, const char *key);

/* Reads the first table of angles. Its dim must be set. Its theta is what an absent rope_theta means; 0:
 * 10,000. takes_yarn: rope_type may be yarn. */
void config_read_rope(struct config *c, struct json_view *v, bool takes_yarn);
/* Reads rope_type and YaRN's keys of `rope`, the object of a table whose theta and dim are set. */
void config_read_rope_type(struct config *c, struct json_view *rope, struct rope_config *r, bool takes_yarn);
/* Returns the object with the rotary keys: rope_scaling (old style), which a user adds to switch YaRN on,
 * else rope_parameters (new style). An empty one counts as absent. */
struct json_view config_rope_view(struct json_view *v);

/* Reads a table of angles of heads of head_dim channels. rope: a view of its own keys; theta, part: the
 * values of absent rope_theta and partial_rotary_factor. takes_llama3: rope_type may be llama3, or the
 * divisors may be given. */
#define CONFIG_DIVISORS_KEY "rope_divisors"
void config_read_rope_of(struct json_view *rope, uint32_t head_dim, double theta, double part,
                         bool takes_llama3, struct rope_config *r);

#endif
