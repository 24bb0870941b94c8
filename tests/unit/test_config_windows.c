/* Configurations of MiniMax-M3, Step-3.5 and MiMo-V2: what their keys mean, and every refusal with the key's
 * name.
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
#include "model/rope.h"

#define M3        "tests/models/families/m3-plain/config.json"
#define M3_FLAT   "tests/models/families/m3-odd/config.json"
#define STEP      "tests/models/families/step-plain/config.json"
#define STEP_FLAT "tests/models/families/step-odd/config.json"
#define MIMO      "tests/models/families/mimo-plain/config.json"
#define MIMO_FLAT "tests/models/families/mimo-odd/config.json"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

/* Sets "a.b.c" to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    json_t *object = root;
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(object, outer);
        assert_non_null(object);
    }
    if (value)
        assert_int_equal(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        assert_int_equal(json_object_del(object, key), 0);
}

static struct config read_ok(json_t *root)
{
    struct config c;
    struct moeflux_err e;
    if (config_read(&c, root, "config.json", &e) < 0)
        fail_msg("%s", e.text);
    json_decref(root);
    return c;
}

static const struct gqa_config *mixer_of(const struct config *c, uint32_t layer)
{
    return &config_mixer(c, layer)->gqa;
}

static void minimax_m3_has_lists_of_key_heads_in_some_layers(void **state)
{
    (void)state;
    json_t *root = load(M3);
    set(root, "text_config.sparse_attention_config.sparse_topk_blocks", "5");
    set(root, "text_config.partial_rotary_factor", NULL);
    set(root, "text_config.rotary_dim", "12");
    set(root, "text_config.swiglu_limit", "3.5");
    set(root, "text_config.routed_scaling_factor", NULL);
    struct config c = read_ok(root);
    const struct index_config *x = &mixer_of(&c, 1)->index;
    assert_ptr_equal(c.family, &family_minimaxm3);
    assert_true(mixer_of(&c, 0)->index.n_heads == 0 && !config_has_experts(&c, 0) &&
                config_has_experts(&c, 1));
    assert_true(x->by_head && x->n_heads == 4 && x->dim == 16 && x->ratio == 128 && x->budget == 4);
    assert_true(x->rotary_dim == 12 && c.ropes[0].dim == 12 && c.ropes[0].theta == 5e6);
    assert_true(c.swiglu_limit == 3.5f && c.router.scale == 2 && c.shared_inner == 64);
    config_free(&c);
    root = load(M3);
    set(root, "text_config.rope_theta", NULL);
    c = read_ok(root);
    assert_true(c.ropes[0].theta == 5e6);
    config_free(&c);
    c = read_ok(load(M3_FLAT));
    assert_true(mixer_of(&c, 0)->index.by_head && mixer_of(&c, 1)->index.n_heads == 0);
    assert_true(mixer_of(&c, 2)->index.ratio == 8 && mixer_of(&c, 2)->index.budget == 3);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 1) && c.shared_inner == 128);
    config_free(&c);
}

static void step_3_5_has_two_kinds_of_layers_and_gates_of_heads(void **state)
{
    (void)state;
    struct config c = read_ok(load(STEP));
    assert_ptr_equal(c.family, &family_step35);
    assert_true(mixer_of(&c, 0)->n_heads == 4 && mixer_of(&c, 0)->window == 0 && mixer_of(&c, 0)->rope == 1);
    assert_true(mixer_of(&c, 1)->n_heads == 6 && mixer_of(&c, 1)->window == 40 && mixer_of(&c, 1)->rope == 0);
    assert_true(mixer_of(&c, 0)->head_gated && mixer_of(&c, 1)->n_kv_heads == 2);
    assert_true(c.ropes[0].dim == 16 && c.ropes[0].theta == 1e4 && c.ropes[1].dim == 8 &&
                c.ropes[1].theta == 5e6);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 1) && c.top_k == 3 &&
                c.router.scale == 3);
    assert_true(c.layers[1].clamp == 0 && c.layers[2].clamp == 0.7f && c.layers[2].shared_clamp == 1.6f);
    /* 1,024 positions are 163 turns of the first pair, 3.4 of the second and fewer than one of the others. */
    assert_true(c.ropes[0].n_divisors == 0 && c.ropes[1].n_divisors == 4 && c.ropes[1].divisors[0] == 1);
    assert_true(c.ropes[1].divisors[1] > 1.8 && c.ropes[1].divisors[1] < 1.9 && c.ropes[1].divisors[2] == 2 &&
                c.ropes[1].divisors[3] == 2);
    float plain[4], divided[4];
    rope_frequencies(&c.ropes[1], divided);
    c.ropes[1].n_divisors = 0;
    rope_frequencies(&c.ropes[1], plain);
    assert_true(divided[0] == plain[0] && divided[3] == plain[3] / 2);
    config_free(&c);
    json_t *root = load(STEP);
    set(root, "use_head_wise_attn_gate", "false");
    set(root, "norm_expert_weight", "false");
    set(root, "moe_layers_enum", "[2, 1]");
    set(root, "attention_other_setting", NULL);
    c = read_ok(root);
    assert_true(!mixer_of(&c, 0)->head_gated && !c.router.norm && config_has_experts(&c, 1));
    assert_true(mixer_of(&c, 1)->n_heads == 4);
    config_free(&c);
    c = read_ok(load(STEP_FLAT));
    assert_true(mixer_of(&c, 0)->n_heads == 3 && mixer_of(&c, 1)->n_heads == 6 && c.shared_inner == 128);
    config_free(&c);
}

static void mimo_v2_has_values_of_another_size_and_sinks_in_windows(void **state)
{
    (void)state;
    struct config c = read_ok(load(MIMO));
    const struct gqa_config *full = mixer_of(&c, 0), *near = mixer_of(&c, 1);
    assert_ptr_equal(c.family, &family_mimov2);
    assert_true(full->head_dim == 24 && full->value_dim == 16 && full->value_scale == 0.707f);
    assert_true(full->n_kv_heads == 2 && !full->sinks && full->window == 0 && full->rope == 1);
    assert_true(near->n_kv_heads == 4 && near->sinks && near->window == 40 && near->rope == 0);
    assert_true(c.ropes[0].dim == 8 && c.ropes[0].theta == 1e4 && c.ropes[1].theta == 5e6);
    assert_true(c.rms_eps == 1e-5f && !config_has_experts(&c, 0) && c.shared_inner == 0);
    config_free(&c);
    json_t *root = load(MIMO);
    set(root, "attention_value_scale", "null");
    set(root, "add_full_attention_sink_bias", "true");
    set(root, "sliding_window_size", "7");
    set(root, "swa_num_attention_heads", "4");
    c = read_ok(root);
    assert_true(mixer_of(&c, 0)->value_scale == 0 && mixer_of(&c, 0)->sinks);
    assert_true(mixer_of(&c, 1)->window == 7 && mixer_of(&c, 1)->n_heads == 4);
    config_free(&c);
    c = read_ok(load(MIMO_FLAT));
    assert_true(mixer_of(&c, 0)->n_kv_heads == 2 && mixer_of(&c, 1)->n_kv_heads == 1 && !c.router.norm);
    config_free(&c);
}

static const struct {
    const char *model, *key, *value;
    int code;
    const char *text; /* must be in the message */
} refusals[] = {
    {M3, "text_config.head_dim", NULL, ERR_FORMAT, "key head_dim is missing"},
    {M3, "text_config.hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act is gelu"},
    {M3, "text_config.swiglu_alpha", "1.5", ERR_UNSUPPORTED, "swiglu_alpha is 1.5, expected 1.702"},
    {M3, "text_config.swiglu_limit", "0", ERR_FORMAT, "swiglu_limit"},
    {M3, "text_config.rotary_dim", "12", ERR_UNSUPPORTED,
     "rotary_dim is 12, expected what partial_rotary_factor gives, 8"},
    {M3, "text_config.use_gemma_norm", "false", ERR_UNSUPPORTED, "use_gemma_norm"},
    {M3, "text_config.use_qk_norm", "false", ERR_UNSUPPORTED, "use_qk_norm"},
    {M3, "text_config.qk_norm_type", "\"per_layer\"", ERR_UNSUPPORTED, "qk_norm_type is per_layer"},
    {M3, "text_config.use_routing_bias", "false", ERR_UNSUPPORTED, "use_routing_bias"},
    {M3, "text_config.norm_topk_prob", "false", ERR_UNSUPPORTED, "norm_topk_prob"},
    {M3, "text_config.scoring_func", "\"softmax\"", ERR_UNSUPPORTED, "scoring_func"},
    {M3, "text_config.attention_output_gate", "true", ERR_UNSUPPORTED, "attention_output_gate"},
    {M3, "text_config.attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
    {M3, "text_config.n_shared_experts", "2", ERR_UNSUPPORTED, "n_shared_experts is 2"},
    {M3, "text_config.shared_intermediate_size", "96", ERR_FORMAT, "shared_intermediate_size is 96"},
    {M3, "text_config.dense_intermediate_size", NULL, ERR_FORMAT, "key dense_intermediate_size is missing"},
    {M3, "text_config.moe_layer_freq", "[0, 2]", ERR_FORMAT, "moe_layer_freq[1]"},
    {M3, "text_config.moe_layer_freq", "[0]", ERR_FORMAT, "moe_layer_freq has 1 entries"},
    {M3, "text_config.rope_scaling", "{\"rope_type\": \"yarn\"}", ERR_UNSUPPORTED, "rope_type is yarn"},
    {M3, "text_config.sparse_attention_config", NULL, ERR_FORMAT,
     "key layer_types or sparse_attention_config.sparse_attention_freq is missing"},
    {M3, "text_config.sparse_attention_config.sparse_attention_freq", "[0, 3]", ERR_FORMAT,
     "sparse_attention_freq[1]"},
    {M3, "text_config.sparse_attention_config.sparse_num_index_heads", "1", ERR_UNSUPPORTED,
     "sparse_num_index_heads is 1, expected num_key_value_heads = 4"},
    {M3, "text_config.sparse_attention_config.sparse_block_size", "96", ERR_UNSUPPORTED,
     "16 blocks of 96 positions"},
    {M3, "text_config.sparse_attention_config.sparse_topk_blocks", "1", ERR_UNSUPPORTED, "1 blocks of 128"},
    {M3, "text_config.sparse_attention_config.sparse_local_block", "2", ERR_UNSUPPORTED,
     "sparse_local_block is 2, expected 1"},
    {M3, "text_config.sparse_attention_config.sparse_init_block", "1", ERR_UNSUPPORTED,
     "sparse_init_block is 1, expected 0"},
    {M3, "text_config.sparse_attention_config.sparse_score_type", "\"mean\"", ERR_UNSUPPORTED,
     "sparse_score_type is mean, expected max"},
    {M3, "text_config.sparse_attention_config.use_sparse_attention", "false", ERR_UNSUPPORTED,
     "use_sparse_attention"},
    {M3, "text_config.sparse_attention_config.sparse_index_dim", "6", ERR_FORMAT, "sparse_index_dim is 6"},
    {M3_FLAT, "text_config.layer_types", "[\"full_attention\", \"x\", \"full_attention\"]", ERR_UNSUPPORTED,
     "layer_types[1] is x"},
    {M3_FLAT, "text_config.index_head_dim", "6", ERR_FORMAT, "index_head_dim is 6"},
    {M3_FLAT, "text_config.index_local_blocks", "0", ERR_UNSUPPORTED, "index_local_blocks is 0, expected 1"},
    {STEP, "layer_types", NULL, ERR_FORMAT, "key layer_types is missing"},
    {STEP, "layer_types", "[\"full_attention\"]", ERR_FORMAT,
     "layer_types has 1 entries, expected at least 3"},
    {STEP, "layer_types", "[\"full_attention\", \"x\", \"full_attention\"]", ERR_UNSUPPORTED,
     "layer_types[1]"},
    {STEP, "moe_layers_enum", NULL, ERR_FORMAT, "key moe_layers_enum is missing"},
    {STEP, "moe_layers_enum", "\"1,x\"", ERR_FORMAT, "moe_layers_enum"},
    {STEP, "moe_router_scaling_factor", NULL, ERR_FORMAT, "key moe_router_scaling_factor is missing"},
    {STEP, "moe_router_activation", "\"softmax\"", ERR_UNSUPPORTED, "moe_router_activation is softmax"},
    {STEP, "use_moe_router_bias", "false", ERR_UNSUPPORTED, "use_moe_router_bias"},
    {STEP, "use_qk_norm", "false", ERR_UNSUPPORTED, "use_qk_norm"},
    {STEP, "sink", "true", ERR_UNSUPPORTED, "sink is true"},
    {STEP, "sliding_window", NULL, ERR_FORMAT, "key sliding_window is missing"},
    {STEP, "rope_theta", "[5000000.0, 10000.0, 20000.0]", ERR_UNSUPPORTED, "rope_theta[2]"},
    {STEP, "partial_rotary_factors", "[0.5]", ERR_FORMAT, "partial_rotary_factors has 1 entries"},
    {STEP, "yarn_only_types", NULL, ERR_UNSUPPORTED, "yarn_only_types"},
    {STEP, "rope_scaling.rope_type", "\"yarn\"", ERR_UNSUPPORTED, "rope_type is yarn"},
    {STEP, "rope_scaling.low_freq_factor", "40", ERR_FORMAT, "rope_type llama3"},
    {STEP, "swiglu_limits", "[0]", ERR_FORMAT, "swiglu_limits has 1 entries, expected at least 3"},
    {STEP, "swiglu_limits", "[0, 0, -1]", ERR_FORMAT, "swiglu_limits[2]"},
    {STEP, "swiglu_limits_shared", "[1, 0, 0]", ERR_UNSUPPORTED, "swiglu_limits_shared[0]: layer 0 is dense"},
    {STEP, "attention_other_setting.num_attention_groups", "3", ERR_UNSUPPORTED, "attention_other_setting"},
    {STEP, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
    {STEP_FLAT, "text_config.query_pre_attn_scalar", "64", ERR_UNSUPPORTED, "query_pre_attn_scalar is 64"},
    {STEP_FLAT, "text_config.per_layer_config.0.num_attention_heads", "6", ERR_UNSUPPORTED,
     "per_layer_config.0.num_attention_heads"},
    {STEP_FLAT, "text_config.per_layer_config", "{\"00\": {\"num_attention_heads\": 6}}", ERR_UNSUPPORTED,
     "per_layer_config.0.num_attention_heads"},
    {STEP_FLAT, "text_config.per_layer_config", "{\"7\": {}}", ERR_FORMAT, "expected numbers of layers"},
    {STEP_FLAT, "text_config.rope_parameters.full_attention", NULL, ERR_FORMAT,
     "rope_parameters.full_attention is missing"},
    {STEP_FLAT, "text_config.rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", ERR_UNSUPPORTED,
     "rope_scaling is an object, expected null next to rope_parameters"},
    {STEP_FLAT, "text_config.mlp_layer_types", "[\"sparse\", \"x\", \"dense\"]", ERR_UNSUPPORTED,
     "mlp_layer_types[1]"},
    {MIMO, "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4}", ERR_FORMAT,
     "rope_parameters.sliding_attention is missing"},
    {MIMO, "attention_value_scale", NULL, ERR_FORMAT, "key attention_value_scale is missing"},
    {MIMO, "v_head_dim", NULL, ERR_FORMAT, "key v_head_dim is missing"},
    {MIMO, "v_head_dim", "28", ERR_UNSUPPORTED, "v_head_dim is 28, expected at most 24"},
    {MIMO, "swa_v_head_dim", "10", ERR_FORMAT, "swa_v_head_dim is 10"},
    {MIMO, "swa_num_key_value_heads", "3", ERR_FORMAT, "swa_num_attention_heads"},
    {MIMO, "hybrid_layer_pattern", NULL, ERR_FORMAT, "key hybrid_layer_pattern is missing"},
    {MIMO, "hybrid_layer_pattern", "[0, 2]", ERR_FORMAT, "hybrid_layer_pattern[1]"},
    {MIMO, "moe_layer_freq", NULL, ERR_FORMAT, "key moe_layer_freq is missing"},
    {MIMO, "attention_projection_layout", "\"fused_qkv\"", ERR_UNSUPPORTED, "attention_projection_layout"},
    {MIMO, "n_shared_experts", "1", ERR_UNSUPPORTED, "n_shared_experts"},
    {MIMO, "topk_method", "\"greedy\"", ERR_UNSUPPORTED, "topk_method"},
    {MIMO, "swa_rope_theta", NULL, ERR_FORMAT, "key swa_rope_theta is missing"},
    {MIMO, "partial_rotary_factor", "0.3", ERR_FORMAT, "7 rotary channels"},
    {MIMO, "rope_scaling", "{\"type\": \"yarn\"}", ERR_UNSUPPORTED, "rope_scaling"},
    {MIMO, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
};

static void every_bad_value_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct config c;
        struct moeflux_err e = {0};
        json_t *root = load(refusals[i].model);
        set(root, refusals[i].key, refusals[i].value);
        int rc = config_read(&c, root, "config.json", &e);
        json_decref(root);
        if (rc != refusals[i].code || !strstr(e.text, refusals[i].text))
            fail_msg("%s = %s: %d \"%s\", expected %d with \"%s\"", refusals[i].key,
                     refusals[i].value ? refusals[i].value : "(none)", rc, e.text, refusals[i].code,
                     refusals[i].text);
        assert_null(c.layers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minimax_m3_has_lists_of_key_heads_in_some_layers),
        cmocka_unit_test(step_3_5_has_two_kinds_of_layers_and_gates_of_heads),
        cmocka_unit_test(mimo_v2_has_values_of_another_size_and_sinks_in_windows),
        cmocka_unit_test(every_bad_value_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
