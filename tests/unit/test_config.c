/* Configurations of all families: where keys may stand, defaults, and every refusal with the key's name.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/family.h"

#define QWEN        "tests/models/qwen-odd/mlx/config.json"
#define DEEPSEEK    "tests/models/deepseek-odd/mlx/config.json"
#define QWEN3       "tests/models/qwen3-odd/mlx/config.json"
#define GLM         "tests/models/families/glm-odd/config.json"
#define GPT_OSS     "tests/models/families/gptoss-odd/config.json"
#define MINIMAX     "tests/models/families/minimax-odd/config.json"
#define KIMI_LINEAR "tests/models/families/kimilin-plain/config.json"
#define KIMI_FLAT   "tests/models/families/kimilin-odd/config.json"
#define LING        "tests/models/families/ling-flash/config.json"
#define GLM5        "tests/models/families/glm5-plain/config.json"
#define DSV32       "tests/models/families/dsv32/config.json"

/* Shapes and keys of published configurations */
#define GLM_4_7                                                                                              \
    "{\"architectures\": [\"Glm4MoeForCausalLM\"], \"attention_bias\": true, \"attention_dropout\": 0.0, "   \
    "\"pad_token_id\": 151329, \"eos_token_id\": [151329, 151336, 151338], \"head_dim\": 128, "              \
    "\"hidden_act\": "                                                                                       \
    "\"silu\", \"hidden_size\": 5120, \"partial_rotary_factor\": 0.5, \"intermediate_size\": 12288, "        \
    "\"max_position_embeddings\": 202752, \"model_type\": \"glm4_moe\", \"moe_intermediate_size\": 1536, "   \
    "\"norm_topk_prob\": true, \"num_attention_heads\": 96, \"n_group\": 1, \"topk_group\": 1, "             \
    "\"n_routed_experts\": 160, \"n_shared_experts\": 1, \"routed_scaling_factor\": 2.5, "                   \
    "\"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3, \"num_hidden_layers\": 92, "                  \
    "\"num_key_value_heads\": 8, \"num_nextn_predict_layers\": 1, \"rms_norm_eps\": 1e-05, "                 \
    "\"rope_scaling\": null, \"rope_theta\": 1000000, \"tie_word_embeddings\": false, \"use_cache\": true, " \
    "\"use_qk_norm\": true, \"vocab_size\": 151552}"
#define GLM_4_7_FLASH                                                                                        \
    "{\"architectures\": [\"Glm4MoeLiteForCausalLM\"], \"attention_bias\": false, \"eos_token_id\": "        \
    "[154820], "                                                                                             \
    "\"hidden_act\": \"silu\", \"hidden_size\": 2048, \"intermediate_size\": 10240, "                        \
    "\"max_position_embeddings\": 202752, \"model_type\": \"glm4_moe_lite\", \"moe_intermediate_size\": "    \
    "1536, "                                                                                                 \
    "\"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true, \"num_attention_heads\": 20, \"n_group\": 1, " \
    "\"topk_group\": 1, \"n_routed_experts\": 64, \"n_shared_experts\": 1, \"routed_scaling_factor\": 1.8, " \
    "\"num_experts_per_tok\": 4, \"first_k_dense_replace\": 1, \"num_hidden_layers\": 47, "                  \
    "\"num_key_value_heads\": 20, \"num_nextn_predict_layers\": 1, \"partial_rotary_factor\": 1.0, "         \
    "\"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 1000000, \"tie_word_embeddings\": "    \
    "false, "                                                                                                \
    "\"q_lora_rank\": 768, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, "     \
    "\"v_head_dim\": 256, \"vocab_size\": 154880}"
#define MINIMAX_M2_7                                                                                         \
    "{\"architectures\": [\"MiniMaxM2ForCausalLM\"], \"attn_type_list\": [1, 1], \"bos_token_id\": 200019, " \
    "\"eos_token_id\": 200020, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 3072, "         \
    "\"intermediate_size\": 1536, \"max_position_embeddings\": 196608, \"model_type\": \"minimax_m2\", "     \
    "\"mtp_transformer_layers\": 1, \"num_attention_heads\": 48, \"num_experts_per_tok\": 8, "               \
    "\"num_hidden_layers\": 62, \"num_key_value_heads\": 8, \"num_local_experts\": 256, "                    \
    "\"num_mtp_modules\": 3, "                                                                               \
    "\"qk_norm_type\": \"per_layer\", \"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rotary_dim\": "    \
    "64, "                                                                                                   \
    "\"scoring_func\": \"sigmoid\", \"shared_intermediate_size\": 0, \"tie_word_embeddings\": false, "       \
    "\"use_mtp\": true, \"use_qk_norm\": true, \"use_routing_bias\": true, \"vocab_size\": 200064}"
#define KIMI_K2_5                                                                                            \
    "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"eos_token_id\": 163586, "                  \
    "\"media_placeholder_token_id\": 163605, \"model_type\": \"kimi_k25\", \"tie_word_embeddings\": false, " \
    "\"vision_config\": {\"hidden_size\": 1152, \"num_hidden_layers\": 27}, \"text_config\": "               \
    "{\"model_type\": "                                                                                      \
    "\"kimi_k2\", \"attention_bias\": false, \"first_k_dense_replace\": 1, \"hidden_act\": \"silu\", "       \
    "\"hidden_size\": 7168, \"intermediate_size\": 18432, \"kv_lora_rank\": 512, "                           \
    "\"max_position_embeddings\": "                                                                          \
    "262144, \"moe_intermediate_size\": 2048, \"moe_layer_freq\": 1, \"n_group\": 1, \"n_routed_experts\": " \
    "384, "                                                                                                  \
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 64, "                       \
    "\"num_experts_per_tok\": 8, "                                                                           \
    "\"num_hidden_layers\": 61, \"num_key_value_heads\": 64, \"num_nextn_predict_layers\": 0, "              \
    "\"q_lora_rank\": "                                                                                      \
    "1536, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-05, \"rope_scaling\": " \
    "{\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 64.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, " \
    "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, \"rope_theta\": 50000.0, "             \
    "\"routed_scaling_factor\": 2.827, \"scoring_func\": \"sigmoid\", \"topk_group\": 1, \"topk_method\": "  \
    "\"noaux_tc\", \"v_head_dim\": 128, \"vocab_size\": 163840}}"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

/* Sets "a.b" to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    json_t *object = root;
    if (dot) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(root, outer);
        assert_non_null(object);
        key = dot + 1;
    }
    if (value)
        assert_int_equal(json_object_set_new(object, key, parse(value)), 0);
    else
        assert_int_equal(json_object_del(object, key), 0);
}

static struct config read_ok(json_t *root)
{
    struct config c;
    struct moeflux_err e;
    int rc = config_read(&c, root, "config.json", &e);
    if (rc < 0)
        fail_msg("%s", e.text);
    json_decref(root);
    return c;
}

/* text_config's keys moved to the top level. */
static json_t *flatten(json_t *root)
{
    json_t *text = json_incref(json_object_get(root, "text_config"));
    json_object_del(root, "text_config");
    json_object_update(root, text);
    json_decref(text);
    return root;
}

static const struct gqa_config *gqa_of(const struct config *c)
{
    return &config_first(c, PART_ATTENTION)->gqa;
}

static const struct delta_config *delta_of(const struct config *c)
{
    return &config_first(c, PART_DELTA_NET)->delta;
}

static const struct latent_config *latent_of(const struct config *c)
{
    return &config_first(c, PART_LATENT)->latent;
}

static uint32_t dense_inner(const struct config *c)
{
    return config_first(c, PART_DENSE)->dense.inner;
}

/* Field by field: the padding between them is nobody's. */
static void expect_same(const struct config *a, const struct config *b)
{
#define SAME(field) assert_memory_equal(&a->field, &b->field, sizeof a->field)
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_parts, b->n_parts);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        assert_int_equal(a->layers[i].n_blocks, b->layers[i].n_blocks);
        for (uint32_t k = 0; k < a->layers[i].n_blocks; k++)
            assert_int_equal(a->layers[i].blocks[k].part, b->layers[i].blocks[k].part);
    }
    SAME(family), SAME(hidden), SAME(vocab_size), SAME(max_context), SAME(rms_eps), SAME(tied);
    SAME(parts), SAME(router.sigmoid), SAME(ropes[0].dim);
    SAME(ropes[0].yarn), SAME(ropes[0].truncate), SAME(ropes[0].theta), SAME(ropes[0].factor);
    SAME(ropes[0].original_context), SAME(ropes[0].beta_fast), SAME(ropes[0].beta_slow);
    SAME(ropes[0].mscale), SAME(ropes[0].mscale_all_dim), SAME(ropes[0].attention_factor);
    SAME(n_experts), SAME(top_k), SAME(moe_inner), SAME(shared_inner), SAME(first_dense), SAME(moe_freq);
    SAME(router.n_groups), SAME(router.keep_groups), SAME(router.scale), SAME(router.norm);
    SAME(eos), SAME(n_eos);
#undef SAME
}

#define FAMILY(name) "tests/models/families/" name "/config.json"

static void a_larger_models_type_decides_the_family(void **state)
{
    (void)state;
    static const char *const files[] = {FAMILY("kimi25-odd"), FAMILY("kimi25-plain")};
    for (int i = 0; i < 2; i++) {
        struct config c = read_ok(load(files[i])), flat = read_ok(flatten(load(files[i])));
        assert_ptr_equal(c.family, &family_kimik2);
        assert_ptr_equal(flat.family, i ? &family_deepseek3 : &family_kimik2);
        flat.family = c.family;
        expect_same(&c, &flat);
        config_free(&flat);
        config_free(&c);
    }
}

static void dense_layers_are_the_first_ones_or_those_listed(void **state)
{
    (void)state;
    struct config c = read_ok(load(FAMILY("glmlite-odd")));
    assert_ptr_equal(c.family, &family_glm4moelite);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 1) && config_has_experts(&c, 2));
    config_free(&c);
    json_t *root = load(FAMILY("glmlite-odd"));
    set(root, "first_k_dense_replace", "2");
    c = read_ok(root);
    assert_true(!config_has_experts(&c, 0) && !config_has_experts(&c, 1) && config_has_experts(&c, 2));
    config_free(&c);
    root = load(FAMILY("glmlite-odd"));
    set(root, "mlp_layer_types", "[\"sparse\", \"dense\", \"sparse\"]");
    c = read_ok(root);
    assert_true(config_has_experts(&c, 0) && !config_has_experts(&c, 1) && config_has_experts(&c, 2));
    config_free(&c);
}

/* Keys that the published configurations of further models have: their types, and what only they have. */
static void further_published_models_are_read(void **state)
{
    (void)state;
    json_t *root = load(DEEPSEEK);
    set(root, "model_type", "\"joyai_llm_flash\"");
    struct config c = read_ok(root), deepseek = read_ok(load(DEEPSEEK));
    expect_same(&c, &deepseek);
    config_free(&c);
    config_free(&deepseek);
    root = parse(GLM_4_7);
    c = read_ok(root);
    assert_ptr_equal(c.family, &family_glm4moe);
    assert_int_equal(gqa_of(&c)->norm, QK_NORM_HEADS);
    assert_true(gqa_of(&c)->biased && c.ropes[0].dim == 64 && c.n_eos == 3);
    assert_true(!config_has_experts(&c, 2) && config_has_experts(&c, 3));
    config_free(&c);
    c = read_ok(parse(MINIMAX_M2_7));
    assert_ptr_equal(c.family, &family_minimaxm2);
    assert_true(c.ropes[0].dim == 64 && c.ropes[0].theta == 5e6 && c.n_experts == 256);
    config_free(&c);
    c = read_ok(parse(GLM_4_7_FLASH));
    assert_ptr_equal(c.family, &family_glm4moelite);
    assert_true(latent_of(&c)->q_lora_rank == 768 && latent_of(&c)->v_dim == 256 && !c.ropes[0].yarn &&
                c.ropes[0].theta == 1e6);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 46));
    config_free(&c);
    c = read_ok(parse(KIMI_K2_5));
    assert_ptr_equal(c.family, &family_kimik2);
    assert_true(c.ropes[0].yarn && c.ropes[0].factor == 64 && c.max_context == 262144 && !c.tied);
    config_free(&c);
}

/* Deletes a key, if there is one. */
static void leave_out(json_t *root, const char *key)
{
    (void)json_object_del(root, key);
}

static void indexers_over_latents_are_read_with_their_defaults(void **state)
{
    (void)state;
    static const char *const keys[] = {"index_n_heads",         "index_head_dim", "index_topk",
                                       "indexer_types",         "topk_method",    "scoring_func",
                                       "rope_interleave",       "mlp_bias",       "norm_topk_prob",
                                       "routed_scaling_factor", "rms_norm_eps"};
    struct config c = read_ok(load(GLM5));
    const struct index_config *x = &latent_of(&c)->index;
    assert_ptr_equal(c.family, &family_glmdsa);
    assert_true(x->n_heads == 12 && x->dim == 32 && x->ratio == 1 && x->budget == 40 && x->rotary_dim == 16);
    assert_true(x->weighted && x->layer_norm && x->interleaved && c.rms_eps == 1e-5f);
    assert_true(!config_shares_choice(&c, 0) && !config_shares_choice(&c, 1) && config_shares_choice(&c, 2));
    config_free(&c);
    json_t *root = load(GLM5);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        leave_out(root, keys[i]);
    c = read_ok(root);
    x = &latent_of(&c)->index;
    assert_true(x->n_heads == 32 && x->dim == 128 && x->budget == 2048 && x->interleaved);
    assert_true(c.router.norm && c.router.scale == 2.5f && c.router.n_groups == 1 && c.rms_eps == 1e-5f);
    assert_true(!config_shares_choice(&c, 1) && !config_shares_choice(&c, 2) && latent_of(&c)->interleaved);
    config_free(&c);
    root = load(DSV32);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        leave_out(root, keys[i]);
    leave_out(root, "n_group");
    leave_out(root, "topk_group");
    set(root, "n_routed_experts", "16");
    c = read_ok(root);
    x = &latent_of(&c)->index;
    assert_ptr_equal(c.family, &family_deepseek32);
    assert_true(x->n_heads == 64 && !x->interleaved && c.ropes[0].yarn && c.ropes[0].factor == 40);
    assert_true(c.router.n_groups == 8 && c.router.keep_groups == 4 && c.router.scale == 2.5f &&
                c.rms_eps == 1e-6f);
    config_free(&c);
}

/* A list, a pattern in letters, a period; the first of these counts. */
static void layers_without_an_indexer_are_listed_or_follow_from_a_period(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        bool shared[3];
        const char *other, *other_value; /* NULL: none */
    } cases[] = {
        {.key = "indexer_types",
         .value = "[\"full\", \"shared\", \"full\", \"shared\"]",
         .shared = {false, true, false},
         .other = "index_topk_pattern",
         .other_value = "\"FSSS\""},
        {.key = "index_topk_pattern",
         .value = "\"FFSS\"",
         .shared = {false, false, true},
         .other = "index_topk_freq",
         .other_value = "1"},
        {"indexer_types", "[\"full\", \"shared\", \"full\", \"shared\"]", {false, true, false}, 0, 0},
        {"index_topk_pattern", "\"FSS\"", {false, true, true}, 0, 0},
        {"index_topk_pattern", "[\"full\", \"full\", \"shared\"]", {false, false, true}, 0, 0},
        {"index_topk_freq", "2", {false, false, true}, 0, 0},
        {"index_skip_topk_offset", "1", {false, false, false}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load(GLM5);
        leave_out(root, "indexer_types");
        set(root, cases[i].key, cases[i].value);
        if (cases[i].other)
            set(root, cases[i].other, cases[i].other_value);
        struct config c = read_ok(root);
        for (uint32_t k = 0; k < 3; k++)
            assert_int_equal(config_shares_choice(&c, k), cases[i].shared[k]);
        assert_true(latent_of(&c)->index.n_heads == 12);
        config_free(&c);
    }
}

static void qwen_dimensions_are_read_from_the_nested_form(void **state)
{
    (void)state;
    struct config c = read_ok(load(QWEN));
    assert_ptr_equal(c.family, &family_qwen35moe);
    assert_int_equal(c.hidden, 192);
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.vocab_size, 1003);
    assert_int_equal(c.max_context, 4096);
    assert_false(c.tied);
    assert_true(c.rms_eps == 1e-6f);
    assert_int_equal(gqa_of(&c)->n_heads, 6);
    assert_int_equal(gqa_of(&c)->n_kv_heads, 2);
    assert_int_equal(gqa_of(&c)->head_dim, 64);
    assert_int_equal(c.ropes[0].dim, 32);
    assert_true(c.ropes[0].theta == 10000 && !c.ropes[0].yarn && !latent_of(&c)->interleaved);
    assert_int_equal(config_conv_dim(delta_of(&c)), 1024);
    assert_int_equal(delta_of(&c)->conv_kernel, 4);
    assert_int_equal(c.n_experts, 12);
    assert_int_equal(c.top_k, 3);
    assert_int_equal(c.moe_inner, 64);
    assert_int_equal(c.shared_inner, 192);
    assert_true(c.router.norm);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(config_mixer(&c, i)->kind, i % 3 == 2 ? PART_ATTENTION : PART_DELTA_NET);
        assert_true(config_has_experts(&c, i));
    }
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 1);
    assert_int_equal(c.eos[1], 2);
    config_free(&c);
}

static void deepseek_dimensions_are_read(void **state)
{
    (void)state;
    struct config c = read_ok(load(DEEPSEEK));
    assert_ptr_equal(c.family, &family_deepseek3);
    assert_int_equal(latent_of(&c)->q_lora_rank, 192);
    assert_int_equal(latent_of(&c)->kv_lora_rank, 128);
    assert_int_equal(latent_of(&c)->nope_dim, 64);
    assert_int_equal(latent_of(&c)->rope_dim, 32);
    assert_int_equal(c.ropes[0].dim, 32);
    assert_int_equal(latent_of(&c)->v_dim, 64);
    assert_int_equal(c.router.n_groups, 4);
    assert_int_equal(c.router.keep_groups, 2);
    assert_true(c.router.scale == 2.5f);
    assert_int_equal(dense_inner(&c), 320);
    assert_int_equal(c.shared_inner, 64);
    assert_true(latent_of(&c)->interleaved && c.ropes[0].yarn && c.ropes[0].truncate);
    assert_true(c.ropes[0].factor == 40 && c.ropes[0].original_context == 64);
    assert_true(c.ropes[0].beta_fast == 32 && c.ropes[0].beta_slow == 1);
    assert_true(c.ropes[0].mscale == 1 && c.ropes[0].mscale_all_dim == 1 && c.ropes[0].attention_factor == 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(config_mixer(&c, i)->kind, PART_LATENT);
        assert_int_equal(config_has_experts(&c, i), i >= 2);
    }
    assert_int_equal(c.n_eos, 1);
    config_free(&c);
}

static void qwen3_dimensions_are_read(void **state)
{
    (void)state;
    struct config c = read_ok(load(QWEN3));
    assert_ptr_equal(c.family, &family_qwen3moe);
    assert_int_equal(gqa_of(&c)->n_heads, 6);
    assert_int_equal(gqa_of(&c)->n_kv_heads, 3);
    assert_int_equal(gqa_of(&c)->head_dim, 20);
    assert_int_equal(c.ropes[0].dim, 20);
    assert_true(c.ropes[0].theta == 1e6 && !c.ropes[0].yarn && !latent_of(&c)->interleaved);
    assert_true(c.tied && c.router.norm && !gqa_of(&c)->gated && !c.router.sigmoid);
    assert_int_equal(c.n_experts, 4);
    assert_int_equal(c.top_k, 2);
    assert_int_equal(c.shared_inner, 0);
    assert_int_equal(dense_inner(&c), 100);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(config_mixer(&c, i)->kind, PART_ATTENTION);
        assert_int_equal(config_has_experts(&c, i), i != 1);
    }
    config_free(&c);
}

static void qwen3_s_sparse_step_and_newer_keys_are_read(void **state)
{
    (void)state;
    json_t *root = load(QWEN3);
    set(root, "decoder_sparse_step", "3");
    set(root, "mlp_only_layers", NULL);
    set(root, "num_experts", NULL);
    set(root, "num_local_experts", "9");
    set(root, "norm_topk_prob", NULL);
    set(root, "rope_parameters",
        "{\"rope_type\": \"yarn\", \"rope_theta\": 5000, \"factor\": 4,"
        "\"original_max_position_embeddings\": 1024}");
    struct config c = read_ok(root);
    assert_int_equal(c.n_experts, 9);
    assert_false(c.router.norm);
    assert_true(c.ropes[0].yarn && c.ropes[0].theta == 5000 && c.ropes[0].factor == 4);
    assert_int_equal(c.max_context, 4096); /* 4 times 1,024, whatever max_position_embeddings says */
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(config_has_experts(&c, i), i == 2);
    config_free(&c);
}

/* Without dense layers nobody asks for the size of one. */
static void qwen3_without_dense_layers_needs_no_intermediate_size(void **state)
{
    (void)state;
    json_t *root = load(QWEN3);
    set(root, "mlp_only_layers", "null");
    set(root, "intermediate_size", NULL);
    struct config c = read_ok(root);
    assert_int_equal(dense_inner(&c), 0);
    config_free(&c);
}

static void flat_and_nested_forms_read_the_same(void **state)
{
    (void)state;
    struct config a = read_ok(load(QWEN)), b = read_ok(flatten(load(QWEN)));
    expect_same(&a, &b);
    config_free(&a);
    config_free(&b);
}

static void text_config_wins_over_the_top_level(void **state)
{
    (void)state;
    json_t *root = load(QWEN);
    set(root, "hidden_size", "128");
    struct config c = read_ok(root);
    assert_int_equal(c.hidden, 192);
    config_free(&c);
}

static void an_interval_stands_in_for_layer_types(void **state)
{
    (void)state;
    json_t *root = load(QWEN);
    set(root, "text_config.layer_types", NULL);
    struct config a = read_ok(load(QWEN)), b = read_ok(root);
    expect_same(&a, &b);
    config_free(&a);
    config_free(&b);
}

static void defaults_fill_what_may_be_absent(void **state)
{
    (void)state;
    json_t *root = flatten(load(QWEN));
    static const char *const keys[] = {"rope_parameters",
                                       "layer_types",
                                       "full_attention_interval",
                                       "rms_norm_eps",
                                       "hidden_act",
                                       "attention_bias",
                                       "max_position_embeddings",
                                       "eos_token_id",
                                       "linear_conv_kernel_dim",
                                       "tie_word_embeddings"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        set(root, keys[i], NULL);
    set(root, "head_dim", "null");
    set(root, "num_attention_heads", "4");
    set(root, "hidden_size", "256");
    struct config c = read_ok(root);
    assert_true(c.ropes[0].theta == 10000);
    assert_int_equal(gqa_of(&c)->head_dim, 64);
    assert_int_equal(c.ropes[0].dim, 16);
    assert_int_equal(delta_of(&c)->conv_kernel, 4);
    assert_int_equal(c.max_context, 0);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(config_mixer(&c, 3)->kind, PART_ATTENTION);
    assert_int_equal(config_mixer(&c, 2)->kind, PART_DELTA_NET);
    config_free(&c);
}

static void a_null_q_lora_rank_means_a_plain_projection(void **state)
{
    (void)state;
    json_t *root = load(DEEPSEEK);
    set(root, "q_lora_rank", "null");
    struct config c = read_ok(root);
    assert_int_equal(latent_of(&c)->q_lora_rank, 0);
    config_free(&c);
}

static void the_family_is_known_without_model_type(void **state)
{
    (void)state;
    json_t *root = flatten(load(QWEN));
    set(root, "model_type", NULL);
    struct config c = read_ok(root);
    assert_ptr_equal(c.family, &family_qwen35moe);
    config_free(&c);
    root = load(DEEPSEEK);
    set(root, "model_type", NULL);
    c = read_ok(root);
    assert_ptr_equal(c.family, &family_deepseek3);
    config_free(&c);
    /* GLM-5 and DeepSeek-V3.2 have the same keys. */
    struct moeflux_err e;
    root = load(DEEPSEEK);
    set(root, "model_type", NULL);
    set(root, "index_topk", "64");
    assert_int_equal(config_read(&c, root, "config.json", &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "key model_type is missing"));
    json_decref(root);
}

static void kimi_linear_is_read_with_its_lists_or_with_flat_keys(void **state)
{
    (void)state;
    struct config c = read_ok(load(KIMI_LINEAR));
    assert_ptr_equal(c.family, &family_kimilinear);
    assert_true(delta_of(&c)->by_channel && delta_of(&c)->lower == 0 && delta_of(&c)->gate_rank == 32);
    assert_true(delta_of(&c)->sigmoid && delta_of(&c)->conv_kernel == 4 && delta_of(&c)->n_v_heads == 2);
    assert_true(c.ropes[0].none && !latent_of(&c)->gated && c.max_context == 8192 && c.router.norm);
    assert_true(config_mixer(&c, 2)->kind == PART_DELTA_NET && config_mixer(&c, 3)->kind == PART_LATENT);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 1));
    config_free(&c);
    json_t *root = load(KIMI_LINEAR);
    set(root, "linear_attn_config.short_conv_kernel_size", NULL);
    set(root, "moe_layer_freq", "2");
    set(root, "mla_use_nope", NULL);
    c = read_ok(root);
    assert_true(delta_of(&c)->conv_kernel == 4 && !config_has_experts(&c, 1) && config_has_experts(&c, 2));
    config_free(&c);
    c = read_ok(load(KIMI_FLAT));
    assert_true(delta_of(&c)->conv_kernel == 3 && delta_of(&c)->n_v_heads == 3 && !c.router.norm);
    assert_true(c.router.n_groups == 2 && c.shared_inner == 128 && latent_of(&c)->q_lora_rank == 36);
    assert_true(config_mixer(&c, 0)->kind == PART_LATENT && config_mixer(&c, 2)->kind == PART_DELTA_NET);
    assert_true(config_has_experts(&c, 0) && !config_has_experts(&c, 1) && config_has_experts(&c, 2));
    config_free(&c);
}

static void lings_layers_have_a_bound_gates_and_clamps(void **state)
{
    (void)state;
    struct config c = read_ok(load(LING));
    assert_ptr_equal(c.family, &family_bailinghybrid);
    assert_true(delta_of(&c)->by_channel && delta_of(&c)->lower == -5 && delta_of(&c)->gate_rank == 0);
    assert_true(latent_of(&c)->gated && latent_of(&c)->interleaved && !c.ropes[0].none);
    assert_true(c.ropes[0].theta == 6e6 && c.router.n_groups == 3 && c.router.keep_groups == 2);
    /* The last layer is an incomplete group. */
    static const enum part_kind mixers[] = {PART_DELTA_NET, PART_DELTA_NET, PART_LATENT, PART_LATENT};
    static const float clamps[] = {0, 0, 0, 0.25f}, shared[] = {0, 0, 0.375f, 0.5f};
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(config_mixer(&c, i)->kind == mixers[i]);
        assert_true(c.layers[i].clamp == clamps[i] && c.layers[i].shared_clamp == shared[i]);
    }
    config_free(&c);
    json_t *root = load(LING);
    set(root, "kda_safe_gate", "false");
    set(root, "layer_types",
        "[\"full_attention\", \"linear_attention\", \"linear_attention\", \"linear_attention\"]");
    set(root, "moe_shared_expert_intermediate_size", "128");
    set(root, "expert_swiglu_limit_list", "[null, 4]");
    set(root, "share_expert_swiglu_limit_list", NULL);
    set(root, "rope_interleave", "false");
    set(root, "short_conv_kernel_size", "2");
    c = read_ok(root);
    assert_true(delta_of(&c)->lower == 0 && delta_of(&c)->conv_kernel == 2 && c.shared_inner == 128);
    assert_true(config_mixer(&c, 0)->kind == PART_LATENT && config_mixer(&c, 3)->kind == PART_DELTA_NET);
    assert_true(c.layers[1].clamp == 4 && c.layers[3].clamp == 0 && c.layers[3].shared_clamp == 0);
    assert_true(!latent_of(&c)->interleaved);
    config_free(&c);
    root = load(LING);
    set(root, "kda_lower_bound", "-3.5");
    c = read_ok(root);
    assert_true(delta_of(&c)->lower == -3.5f);
    config_free(&c);
}

static void layers_of_gpt_oss_have_windows_in_turn_where_nothing_is_said(void **state)
{
    (void)state;
    json_t *root = load(GPT_OSS);
    set(root, "layer_types", NULL);
    set(root, "swiglu_limit", NULL);
    struct config c = read_ok(root);
    assert_ptr_equal(c.family, &family_gptoss);
    assert_true(config_window(&c, 0) == 5 && !config_window(&c, 1) && config_window(&c, 2) == 5);
    assert_true(c.swiglu_limit == 7 && c.ropes[0].yarn && !c.ropes[0].truncate);
    config_free(&c);
}

static void end_of_text_ids_are_the_union_of_all_places(void **state)
{
    (void)state;
    struct moeflux_err e;
    json_t *root = load(QWEN),
           *generation = parse("{\"eos_token_id\": [2, 9], \"suppress_tokens\": [11, -1, 5000000000, 4]}");
    set(root, "eos_token_id", "7");
    set(root, "suppress_tokens", "[3]");
    struct config c = read_ok(root);
    assert_int_equal(config_add_generation(&c, generation, "generation_config.json", &e), 0);
    json_decref(generation);
    const int32_t suppressed[] = {3, 11, 4};
    assert_int_equal(c.n_suppressed, 3);
    assert_memory_equal(c.suppressed, suppressed, sizeof suppressed);
    assert_int_equal(c.n_eos, 4);
    const int32_t expected[] = {7, 1, 2, 9};
    assert_memory_equal(c.eos, expected, sizeof expected);
    config_free(&c);
}

struct refusal {
    const char *model, *key, *value;
    int code;
    const char *text; /* must be in the message */
};

static const struct refusal refusals[] = {
    {KIMI_LINEAR, "rms_norm_eps", NULL, ERR_FORMAT, "key rms_norm_eps is missing"},
    {KIMI_LINEAR, "routed_scaling_factor", NULL, ERR_FORMAT, "key routed_scaling_factor is missing"},
    {KIMI_LINEAR, "num_shared_experts", NULL, ERR_FORMAT, "key n_shared_experts is missing"},
    {KIMI_LINEAR, "first_k_dense_replace", NULL, ERR_FORMAT, "key first_k_dense_replace is missing"},
    {KIMI_LINEAR, "mla_use_nope", "false", ERR_UNSUPPORTED, "mla_use_nope is false, expected true"},
    {KIMI_LINEAR, "use_grouped_topk", "false", ERR_UNSUPPORTED, "use_grouped_topk"},
    {KIMI_LINEAR, "moe_router_activation_func", "\"softmax\"", ERR_UNSUPPORTED,
     "moe_router_activation_func is softmax, expected sigmoid"},
    {KIMI_LINEAR, "linear_attn_config", NULL, ERR_FORMAT, "key linear_attn_config is missing"},
    {KIMI_LINEAR, "linear_attn_config.head_dim", NULL, ERR_FORMAT, "key head_dim is missing"},
    {KIMI_LINEAR, "linear_attn_config.head_dim", "30", ERR_FORMAT,
     "head_dim is 30, expected a multiple of 4"},
    {KIMI_LINEAR, "linear_attn_config.short_conv_kernel_size", "1", ERR_FORMAT,
     "short_conv_kernel_size is 1"},
    {KIMI_LINEAR, "linear_attn_config.kda_layers", "[1, 2]", ERR_FORMAT,
     "layer 3 is in kda_layers and full_attn_layers 0 times"},
    {KIMI_LINEAR, "linear_attn_config.full_attn_layers", "[3, 4]", ERR_FORMAT,
     "layer 3 is in kda_layers and full_attn_layers 2 times"},
    {KIMI_FLAT, "layer_types", "[\"full_attention\", \"linear_attention\", \"x\"]", ERR_UNSUPPORTED,
     "layer_types[2] is x, expected linear_attention or full_attention"},
    {KIMI_FLAT, "num_experts_per_token", "3", ERR_FORMAT, "num_experts_per_tok is 3"},
    {LING, "architectures", "[\"BailingMoeV2_5ForCausalLM\"]", ERR_UNSUPPORTED,
     "architectures is BailingMoeV2_5ForCausalLM, expected BailingMoeV3ForCausalLM"},
    {LING, "architectures", NULL, ERR_UNSUPPORTED, "architectures is missing"},
    {LING, "n_group", NULL, ERR_FORMAT, "key n_group is missing"},
    {LING, "topk_group", NULL, ERR_FORMAT, "key topk_group is missing"},
    {LING, "rope_theta", NULL, ERR_FORMAT, "key rope_theta is missing"},
    {LING, "routed_scaling_factor", NULL, ERR_FORMAT, "key routed_scaling_factor is missing"},
    {LING, "num_shared_experts", NULL, ERR_FORMAT, "key n_shared_experts is missing"},
    {LING, "first_k_dense_replace", NULL, ERR_FORMAT, "key first_k_dense_replace is missing"},
    {LING, "layer_group_size", NULL, ERR_FORMAT, "key layer_group_size is missing"},
    {LING, "head_dim", NULL, ERR_FORMAT, "key head_dim is missing"},
    {LING, "no_kda_lora", "false", ERR_UNSUPPORTED, "no_kda_lora is false, expected true"},
    {LING, "use_kda_lora", "true", ERR_UNSUPPORTED, "use_kda_lora is true, expected false"},
    {LING, "use_mla_nope", "true", ERR_UNSUPPORTED, "use_mla_nope"},
    {LING, "use_qkv_bias", "true", ERR_UNSUPPORTED, "use_qkv_bias"},
    {LING, "use_bias", "true", ERR_UNSUPPORTED, "use_bias"},
    {LING, "value_norm", "true", ERR_UNSUPPORTED, "value_norm"},
    {LING, "up_proj_norm", "true", ERR_UNSUPPORTED, "up_proj_norm"},
    {LING, "moe_router_enable_expert_bias", "false", ERR_UNSUPPORTED, "moe_router_enable_expert_bias"},
    {LING, "gated_attention_proj_granularity_type", "\"element_wise\"", ERR_UNSUPPORTED,
     "gated_attention_proj_granularity_type is element_wise, expected head_wise"},
    {LING, "kda_lower_bound", "0", ERR_FORMAT, "kda_lower_bound is 0, expected less than 0"},
    {LING, "kda_safe_gate", "1", ERR_FORMAT, "kda_safe_gate"},
    {LING, "moe_shared_expert_intermediate_size", "96", ERR_FORMAT,
     "moe_shared_expert_intermediate_size is 96"},
    {LING, "expert_swiglu_limit_list", "[0, -1]", ERR_FORMAT, "expert_swiglu_limit_list[1]"},
    {LING, "share_expert_swiglu_limit_list", "[\"x\"]", ERR_FORMAT, "share_expert_swiglu_limit_list[0]"},
    {LING, "score_function", "\"softmax\"", ERR_UNSUPPORTED, "score_function"},
    {QWEN, "text_config.hidden_size", NULL, ERR_FORMAT, "key hidden_size is missing"},
    {QWEN, "text_config.hidden_size", "\"192\"", ERR_FORMAT,
     "hidden_size is a string, expected a whole number"},
    {QWEN, "text_config.hidden_size", "192.5", ERR_FORMAT, "hidden_size"},
    {QWEN, "text_config.hidden_size", "0", ERR_FORMAT, "hidden_size is 0"},
    {QWEN, "text_config.hidden_size", "-64", ERR_FORMAT, "hidden_size is -64"},
    {QWEN, "text_config.hidden_size", "4294967360", ERR_FORMAT, "hidden_size"},
    {QWEN, "text_config.hidden_size", "100", ERR_FORMAT, "hidden_size is 100, expected a multiple of 64"},
    {QWEN, "text_config.moe_intermediate_size", "96", ERR_FORMAT, "moe_intermediate_size"},
    {QWEN, "text_config.shared_expert_intermediate_size", "32", ERR_FORMAT,
     "shared_expert_intermediate_size"},
    {QWEN, "text_config.num_hidden_layers", "5", ERR_FORMAT, "layer_types has 6 entries, expected 5"},
    {QWEN, "text_config.layer_types", "[\"x\",\"x\",\"x\",\"x\",\"x\",\"x\"]", ERR_UNSUPPORTED,
     "layer_types[0]"},
    {QWEN, "text_config.layer_types", "[1,2,3,4,5,6]", ERR_UNSUPPORTED, "layer_types[0]"},
    {QWEN, "text_config.num_key_value_heads", "4", ERR_FORMAT, "num_attention_heads"},
    {QWEN, "text_config.linear_num_key_heads", "4", ERR_FORMAT, "linear_num_value_heads"},
    {QWEN, "text_config.num_experts_per_tok", "13", ERR_FORMAT, "num_experts_per_tok"},
    {QWEN, "text_config.num_experts", "true", ERR_FORMAT, "num_experts is a truth value"},
    {QWEN, "text_config.rms_norm_eps", "-1", ERR_FORMAT, "rms_norm_eps"},
    {QWEN, "text_config.rms_norm_eps", "\"small\"", ERR_FORMAT, "rms_norm_eps"},
    {QWEN, "text_config.hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act is gelu"},
    {QWEN, "text_config.hidden_act", "3", ERR_FORMAT, "hidden_act"},
    {QWEN, "text_config.attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
    {QWEN, "text_config.attention_bias", "0", ERR_FORMAT, "attention_bias"},
    {QWEN, "text_config.attn_output_gate", "false", ERR_UNSUPPORTED, "attn_output_gate"},
    {QWEN, "text_config.mlp_only_layers", "[1]", ERR_UNSUPPORTED, "mlp_only_layers"},
    {QWEN, "text_config.model_type", "\"llama\"", ERR_UNSUPPORTED,
     "model_type is llama, expected qwen3_5_moe, qwen3_moe, deepseek_v3, joyai_llm_flash, "
     "glm4_moe, qwen3_next, kimi_k2, kimi_k25, minimax_m2, minimax, gpt_oss, glm4_moe_lite, "
     "qwen4_exp, qwen3_8_flash_next_text, gemma4, glm_moe_dsa, deepseek_v32, "
     "kimi_linear, bailing_hybrid, deepseek_v4, deepseek_v41, glm5_next, "
     "minimax_m3_vl, step3p5, step3p7, mimo_v2_flash, nemotron_h or kimi_k3"},
    {QWEN, "text_config.model_type", "7", ERR_FORMAT, "model_type"},
    {GPT_OSS, "layer_types", "[\"sliding_attention\", \"linear_attention\", \"full_attention\"]",
     ERR_UNSUPPORTED, "layer_types[1] is linear_attention, expected sliding_attention or full_attention"},
    {GPT_OSS, "layer_types", "[\"full_attention\"]", ERR_FORMAT, "layer_types has 1 entries, expected 3"},
    {MINIMAX, "layer_types", "[\"full_attention\", \"linear_attention\"]", ERR_UNSUPPORTED,
     "layer_types[1] is linear_attention, expected full_attention"},
    {MINIMAX, "layer_types", "[1, 2]", ERR_UNSUPPORTED,
     "layer_types[0] is no string, expected full_attention"},
    {MINIMAX, "attn_type_list", "[1, 0]", ERR_UNSUPPORTED, "attn_type_list[1] is not 1"},
    {GPT_OSS, "sliding_window", NULL, ERR_FORMAT, "key sliding_window is missing"},
    {GPT_OSS, "sliding_window", "0", ERR_FORMAT, "sliding_window is 0"},
    {GPT_OSS, "swiglu_alpha", "1.5", ERR_UNSUPPORTED, "swiglu_alpha is 1.5, expected 1.702"},
    {QWEN, "text_config.per_layer_config", "{\"1\": {\"head_dim\": 32}}", ERR_UNSUPPORTED,
     "per_layer_config has 1 layers, expected none"},
    {DEEPSEEK, "per_layer_config", "[]", ERR_FORMAT, "per_layer_config is an array"},
    {GPT_OSS, "swiglu_limit", "-1", ERR_FORMAT, "swiglu_limit"},
    {GPT_OSS, "attention_bias", "false", ERR_UNSUPPORTED, "attention_bias is false, expected true"},
    {GPT_OSS, "num_experts_per_tok", "8", ERR_FORMAT, "num_experts_per_tok is 8"},
    {QWEN, "text_config.rope_parameters", "{\"rope_type\": \"yarn\"}", ERR_FORMAT, "key factor is missing"},
    {QWEN, "text_config.rope_parameters", "{\"rope_type\": \"longrope\"}", ERR_UNSUPPORTED,
     "rope_type is longrope, expected default or yarn"},
    {GLM, "rope_scaling", "{\"rope_type\": \"yarn\"}", ERR_UNSUPPORTED,
     "rope_type is yarn, expected default"},
    {QWEN, "text_config.rope_parameters", "{\"partial_rotary_factor\": 1.5}", ERR_FORMAT,
     "partial_rotary_factor"},
    {QWEN, "text_config.rope_parameters", "{\"partial_rotary_factor\": 0.02}", ERR_FORMAT,
     "partial_rotary_factor"},
    {QWEN, "text_config.rope_parameters", "{\"partial_rotary_factor\": 0.0}", ERR_FORMAT,
     "partial_rotary_factor"},
    {QWEN, "text_config.rope_parameters", "{\"rope_theta\": \"big\"}", ERR_FORMAT, "rope_theta"},
    {QWEN, "text_config.rope_parameters", "[]", ERR_FORMAT, "rope_parameters is an array"},
    {QWEN, "text_config", "[]", ERR_FORMAT, "text_config is an array, expected an object"},
    {QWEN, "eos_token_id", "\"x\"", ERR_FORMAT, "eos_token_id"},
    {QWEN, "suppress_tokens", "7", ERR_FORMAT, "suppress_tokens: expected a list of token ids"},
    {QWEN, "suppress_tokens", "[7, \"x\"]", ERR_FORMAT, "suppress_tokens[1]: expected a token id"},
    {QWEN, "eos_token_id", "[1, -1]", ERR_FORMAT, "eos_token_id"},
    {QWEN, "eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", ERR_FORMAT, "eos_token_id"},
    {QWEN, "text_config.head_dim", "16384", ERR_FORMAT, "head_dim"},
    {QWEN, "text_config.head_dim", "66", ERR_FORMAT, "head_dim is 66, expected a multiple of 4"},
    {QWEN3, "model_type", NULL, ERR_FORMAT, "key model_type is missing"},
    {QWEN3, "num_experts", NULL, ERR_FORMAT, "key num_experts is missing"},
    {QWEN3, "use_sliding_window", "true", ERR_UNSUPPORTED, "use_sliding_window is true, expected false"},
    {QWEN3, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias is true, expected false"},
    {QWEN3, "mlp_only_layers", "[3]", ERR_FORMAT, "mlp_only_layers[0]: expected a layer below 3"},
    {QWEN3, "mlp_only_layers", "[0, \"1\"]", ERR_FORMAT, "mlp_only_layers[1]: expected a layer below 3"},
    {QWEN3, "mlp_only_layers", "[0, 1, 2]", ERR_UNSUPPORTED, "all 3 layers are dense"},
    {QWEN3, "decoder_sparse_step", "4", ERR_UNSUPPORTED, "all 3 layers are dense"},
    {QWEN3, "decoder_sparse_step", "0", ERR_FORMAT, "decoder_sparse_step"},
    {QWEN3, "intermediate_size", NULL, ERR_FORMAT, "key intermediate_size is missing"},
    {QWEN3, "intermediate_size", "98", ERR_FORMAT, "intermediate_size is 98, expected a multiple of 4"},
    {QWEN3, "head_dim", "null", ERR_FORMAT, "head_dim is missing and hidden_size 128"},
    {QWEN3, "num_key_value_heads", "4", ERR_FORMAT, "num_attention_heads is 6, expected a multiple of 4"},
    {QWEN3, "num_experts_per_tok", "5", ERR_FORMAT, "num_experts_per_tok is 5, expected at most 4"},
    {QWEN3, "rope_scaling", "{\"type\": \"linear\"}", ERR_UNSUPPORTED,
     "rope_type is linear, expected default or yarn"},
    {DEEPSEEK, "n_group", NULL, ERR_FORMAT, "key n_group is missing"},
    {DEEPSEEK, "topk_group", NULL, ERR_FORMAT, "key topk_group is missing"},
    {DEEPSEEK, "routed_scaling_factor", NULL, ERR_FORMAT, "key routed_scaling_factor is missing"},
    {DEEPSEEK, "first_k_dense_replace", NULL, ERR_FORMAT, "key first_k_dense_replace is missing"},
    {DEEPSEEK, "n_group", "3", ERR_FORMAT, "n_routed_experts"},
    {DEEPSEEK, "n_group", "16", ERR_FORMAT, "n_group"},
    {DEEPSEEK, "topk_group", "5", ERR_FORMAT, "topk_group"},
    {DEEPSEEK, "num_experts_per_tok", "9", ERR_FORMAT, "num_experts_per_tok is 9, expected at most 8"},
    {DEEPSEEK, "topk_method", "\"greedy\"", ERR_UNSUPPORTED, "topk_method"},
    {DEEPSEEK, "scoring_func", "\"softmax\"", ERR_UNSUPPORTED, "scoring_func"},
    {DEEPSEEK, "intermediate_size", NULL, ERR_FORMAT, "intermediate_size"},
    {DEEPSEEK, "intermediate_size", "330", ERR_FORMAT, "intermediate_size"},
    {DEEPSEEK, "kv_lora_rank", "102", ERR_FORMAT, "kv_lora_rank is 102, expected a multiple of 4"},
    {DEEPSEEK, "qk_nope_head_dim", "66", ERR_FORMAT, "qk_nope_head_dim is 66, expected a multiple of 4"},
    {DEEPSEEK, "qk_rope_head_dim", "30", ERR_FORMAT, "qk_rope_head_dim is 30, expected a multiple of 4"},
    {DEEPSEEK, "mlp_only_layers", "[1]", ERR_UNSUPPORTED, "mlp_only_layers"},
    {DEEPSEEK, "first_k_dense_replace", "5", ERR_UNSUPPORTED, "all 5 layers are dense"},
    {DEEPSEEK, "moe_layer_freq", "0", ERR_FORMAT, "moe_layer_freq"},
    {DEEPSEEK, "rope_parameters.rope_type", "\"linear\"", ERR_UNSUPPORTED, "rope_type is linear"},
    {DEEPSEEK, "rope_parameters.factor", NULL, ERR_FORMAT, "rope_type yarn: key factor is missing"},
    {DEEPSEEK, "rope_parameters.factor", "0.5", ERR_FORMAT, "factor"},
    {DEEPSEEK, "rope_parameters.original_max_position_embeddings", "0", ERR_FORMAT, "original_max_position"},
    {DEEPSEEK, "routed_scaling_factor", "0", ERR_FORMAT, "routed_scaling_factor"},
    {GLM5, "q_lora_rank", NULL, ERR_UNSUPPORTED, "key q_lora_rank is missing: an indexer needs it"},
    {GLM5, "index_topk", "0", ERR_FORMAT, "index_topk is 0"},
    {GLM5, "index_n_heads", "-1", ERR_FORMAT, "index_n_heads"},
    {GLM5, "index_head_dim", "34", ERR_FORMAT, "index_head_dim is 34, expected a multiple of 4"},
    {GLM5, "index_head_dim", "12", ERR_FORMAT, "index_head_dim is 12, expected at least 16 rotary channels"},
    {GLM5, "indexer_types", "[\"shared\", \"full\", \"full\"]", ERR_FORMAT, "layer 0 uses the choice"},
    {GLM5, "indexer_types", "[\"full\", \"none\", \"full\"]", ERR_UNSUPPORTED,
     "indexer_types[1]: expected full or shared"},
    {GLM5, "indexer_types", "[\"full\", \"full\"]", ERR_UNSUPPORTED,
     "indexer_types[2]: expected full or shared"},
    {GLM5, "indexer_types", "3", ERR_UNSUPPORTED, "indexer_types[0]: expected full or shared"},
    {GLM5, "indexer_rope_interleave", "1", ERR_FORMAT, "indexer_rope_interleave"},
    {GLM5, "layer_types", "[\"indexed_attention\", \"full_attention\", \"indexed_attention\"]",
     ERR_UNSUPPORTED, "layer_types[1]: expected indexed_attention"},
    {GLM5, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
    {GLM5, "mlp_bias", "true", ERR_UNSUPPORTED, "mlp_bias"},
    {GLM5, "scoring_func", "\"softmax\"", ERR_UNSUPPORTED, "scoring_func"},
    {GLM5, "rope_parameters.rope_type", "\"llama3\"", ERR_UNSUPPORTED, "rope_type is llama3"},
    {DSV32, "topk_group", "5", ERR_FORMAT, "topk_group"},
};

static void every_bad_value_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        struct config c;
        struct moeflux_err e = {0};
        json_t *root = load(r->model);
        set(root, r->key, r->value);
        int rc = config_read(&c, root, "config.json", &e);
        json_decref(root);
        if (rc != r->code || !strstr(e.text, r->text) || strncmp(e.text, "config.json: ", 13) != 0)
            fail_msg("%s = %s: %d \"%s\", expected %d with \"%s\"", r->key, r->value ? r->value : "(none)",
                     rc, e.text, r->code, r->text);
        assert_null(c.layers);
    }
}

static void json_errors_name_the_file_and_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "f.json: line"},
        {"{\n\"a\": 1,\n}", "f.json: line 3: "},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"[1]", "f.json: expected a JSON object"},
        {"{\"a\": \"\xff\"}", "f.json: line 1: "},
        {"{} x", "f.json: line 1: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e;
        json_t *root = NULL;
        assert_int_equal(json_read(cases[i].text, strlen(cases[i].text), "f.json", JSON_MAX_SMALL, &root, &e),
                         ERR_FORMAT);
        if (!strstr(e.text, cases[i].expected))
            fail_msg("\"%s\" has no \"%s\"", e.text, cases[i].expected);
    }
}

static void deep_nesting_is_refused_and_brackets_in_strings_do_not_count(void **state)
{
    (void)state;
    char text[512];
    struct moeflux_err e;
    json_t *root = NULL;
    memset(text, '[', sizeof text);
    memcpy(text, "{\"a\": ", 6);
    assert_int_equal(json_read(text, sizeof text, "f.json", JSON_MAX_SMALL, &root, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "nested deeper than 64"));

    memcpy(text, "{\"a\": \"", 7);
    memcpy(text + sizeof text - 4, "\\\"\"}", 4);
    assert_int_equal(json_read(text, sizeof text, "f.json", JSON_MAX_SMALL, &root, &e), 0);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_larger_models_type_decides_the_family),
        cmocka_unit_test(dense_layers_are_the_first_ones_or_those_listed),
        cmocka_unit_test(further_published_models_are_read),
        cmocka_unit_test(indexers_over_latents_are_read_with_their_defaults),
        cmocka_unit_test(layers_without_an_indexer_are_listed_or_follow_from_a_period),
        cmocka_unit_test(qwen_dimensions_are_read_from_the_nested_form),
        cmocka_unit_test(deepseek_dimensions_are_read),
        cmocka_unit_test(qwen3_dimensions_are_read),
        cmocka_unit_test(qwen3_s_sparse_step_and_newer_keys_are_read),
        cmocka_unit_test(qwen3_without_dense_layers_needs_no_intermediate_size),
        cmocka_unit_test(flat_and_nested_forms_read_the_same),
        cmocka_unit_test(text_config_wins_over_the_top_level),
        cmocka_unit_test(an_interval_stands_in_for_layer_types),
        cmocka_unit_test(defaults_fill_what_may_be_absent),
        cmocka_unit_test(a_null_q_lora_rank_means_a_plain_projection),
        cmocka_unit_test(the_family_is_known_without_model_type),
        cmocka_unit_test(kimi_linear_is_read_with_its_lists_or_with_flat_keys),
        cmocka_unit_test(lings_layers_have_a_bound_gates_and_clamps),
        cmocka_unit_test(layers_of_gpt_oss_have_windows_in_turn_where_nothing_is_said),
        cmocka_unit_test(end_of_text_ids_are_the_union_of_all_places),
        cmocka_unit_test(every_bad_value_is_refused_by_its_name),
        cmocka_unit_test(json_errors_name_the_file_and_the_line),
        cmocka_unit_test(deep_nesting_is_refused_and_brackets_in_strings_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
