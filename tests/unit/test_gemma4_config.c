/* Gemma 4's configuration: the published one, each key left out or changed, and what is refused.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/family.h"

#define PLAIN "tests/models/families/gemma4-plain/config.json"
#define ODD   "tests/models/families/gemma4-odd/config.json"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

/* Sets "a.b.c" to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *object, const char *key, const char *value)
{
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(object, outer);
        assert_non_null(object);
    }
    json_object_del(object, key);
    if (value)
        assert_int_equal(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
}

static struct config read_with(const char *path, const char *key, const char *value)
{
    struct config c;
    struct moeflux_err e;
    json_t *root = load(path);
    if (key)
        set(root, key, value);
    int rc = config_read(&c, root, "config.json", &e);
    json_decref(root);
    if (rc < 0)
        fail_msg("%s = %s: %s", key ? key : "", value ? value : "(none)", e.text);
    return c;
}

static const struct gqa_config *gqa_of(const struct config *c, uint32_t layer)
{
    return &config_mixer(c, layer)->gqa;
}

static void the_published_options_are_read(void **state)
{
    (void)state;
    struct config c = read_with(PLAIN, NULL, NULL);
    const struct gqa_config *near = gqa_of(&c, 0), *full = gqa_of(&c, 1);
    assert_ptr_equal(c.family, &family_gemma4);
    assert_true(c.gelu && c.tied && c.softcap == 30 && c.embed_factor == 8);
    assert_true(near->head_dim == 256 && near->n_kv_heads == 2 && near->window == 40);
    assert_true(full->head_dim == 512 && full->n_kv_heads == 1 && full->window == 0);
    assert_true(!near->keys_are_values && full->keys_are_values);
    assert_true(near->norms_values && near->scale == 1 && near->norm == QK_NORM_HEADS);
    const struct rope_config *slow = &c.ropes[full->rope], *fast = &c.ropes[near->rope];
    assert_true(slow->dim == 512 && slow->n_pairs == 64 && slow->theta == 1e6);
    assert_true(fast->dim == 256 && fast->n_pairs == 0 && fast->theta == 1e4);
    assert_true(c.router.norm && c.router.own_norm && c.router.factors && !c.router.sigmoid);
    assert_true(c.n_experts == 6 && c.top_k == 3 && c.moe_inner == 64);
    assert_true(c.layers[0].n_blocks == 3 && c.layers[0].blocks[1].keeps && !c.layers[0].blocks[2].keeps);
    assert_int_equal(config_part(&c, 0, 1)->dense.inner, 128);
    config_free(&c);
}

static void heads_of_each_layer_and_the_nested_form_are_read(void **state)
{
    (void)state;
    struct config c = read_with(ODD, NULL, NULL);
    assert_true(gqa_of(&c, 0)->head_dim == 36 && gqa_of(&c, 0)->n_kv_heads == 2);
    assert_true(gqa_of(&c, 1)->head_dim == 20 && gqa_of(&c, 1)->window == 9);
    assert_true(!gqa_of(&c, 0)->keys_are_values && c.softcap == 0);
    assert_true(c.ropes[1].n_pairs == 5 && c.ropes[1].factor == 2 && c.n_eos == 2);
    assert_true(c.embed_factor == 11.3125f); /* sqrt(128) in bfloat16 */
    config_free(&c);
}

/* Returns the factor of a model of 128 channels. */
static float embed_factor(const char *type)
{
    struct config c = read_with(ODD, "dtype", type);
    float factor = c.embed_factor;
    config_free(&c);
    return factor;
}

/* transformers 5.24 writes "05" and "11" where there are more than ten layers. */
static void numbers_of_layers_may_begin_with_zeros(void **state)
{
    (void)state;
    json_t *root = load(ODD),
           *all = json_object_get(json_object_get(root, "text_config"), "per_layer_config");
    json_object_set(all, "00", json_object_get(all, "0"));
    json_object_set(all, "002", json_object_get(all, "2"));
    json_object_del(all, "0");
    json_object_del(all, "2");
    struct config c;
    struct moeflux_err e = {0};
    int rc = config_read(&c, root, "config.json", &e);
    json_decref(root);
    if (rc < 0)
        fail_msg("%s", e.text);
    assert_true(gqa_of(&c, 0)->head_dim == 36 && gqa_of(&c, 2)->head_dim == 36);
    assert_true(gqa_of(&c, 1)->head_dim == 20 && gqa_of(&c, 1)->window == 9);
    config_free(&c);
}

static void keys_that_are_left_out_have_transformers_defaults(void **state)
{
    (void)state;
    struct config c = read_with(PLAIN, "final_logit_softcapping", NULL);
    assert_true(c.softcap == 0);
    config_free(&c);
    c = read_with(PLAIN, "tie_word_embeddings", NULL);
    assert_true(c.tied);
    config_free(&c);
    c = read_with(PLAIN, "tie_word_embeddings", "false");
    assert_true(!c.tied);
    config_free(&c);
    c = read_with(PLAIN, "global_head_dim", NULL);
    assert_true(gqa_of(&c, 1)->head_dim == 512);
    config_free(&c);
    c = read_with(PLAIN, "head_dim", NULL);
    assert_true(gqa_of(&c, 0)->head_dim == 256);
    config_free(&c);
    c = read_with(PLAIN, "num_global_key_value_heads", NULL);
    assert_true(gqa_of(&c, 1)->n_kv_heads == 2);
    config_free(&c);
    c = read_with(PLAIN, "attention_k_eq_v", NULL); /* then the layers' own number of heads is not used */
    assert_true(gqa_of(&c, 1)->n_kv_heads == 2 && !gqa_of(&c, 1)->keys_are_values);
    config_free(&c);
    c = read_with(PLAIN, "sliding_window", NULL);
    assert_true(gqa_of(&c, 0)->window == 512);
    config_free(&c);
    c = read_with(PLAIN, "rope_parameters", NULL);
    assert_true(c.ropes[0].theta == 1e4 && c.ropes[1].theta == 1e6 && c.ropes[1].n_pairs == 64);
    config_free(&c);
    c = read_with(PLAIN, "rope_parameters.full_attention.partial_rotary_factor", NULL);
    assert_true(c.ropes[1].n_pairs == 256);
    config_free(&c);
    c = read_with(PLAIN, "use_bidirectional_attention", NULL);
    config_free(&c);
    assert_true(embed_factor("\"float32\"") == 11.31370849898476f);
    assert_true(embed_factor("\"float16\"") == 11.3125f);
    assert_true(embed_factor(NULL) == 11.3125f);
}

static void the_last_of_six_layers_sees_everything_where_nothing_is_said(void **state)
{
    (void)state;
    json_t *root = load(PLAIN);
    struct moeflux_err e;
    struct config c;
    set(root, "layer_types", NULL);
    set(root, "num_hidden_layers", "8");
    assert_int_equal(config_read(&c, root, "config.json", &e), 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(config_window(&c, i), i == 5 || i == 7 ? 0 : 40);
    json_decref(root);
    config_free(&c);
}

static void what_changes_the_mathematics_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *key, *value;
        int code;
        const char *text;
    } refusals[] = {
        {PLAIN, "enable_moe_block", "false", ERR_UNSUPPORTED, "gemma4_text, a dense model"},
        {PLAIN, "enable_moe_block", NULL, ERR_UNSUPPORTED, "a dense model"},
        {PLAIN, "hidden_activation", "\"silu\"", ERR_UNSUPPORTED,
         "hidden_activation is silu, expected gelu_pytorch_tanh"},
        {PLAIN, "hidden_size_per_layer_input", "32", ERR_UNSUPPORTED,
         "hidden_size_per_layer_input is 32, expected 0"},
        {PLAIN, "hidden_size_per_layer_input", NULL, ERR_UNSUPPORTED,
         "hidden_size_per_layer_input is 256, expected 0"},
        {PLAIN, "num_kv_shared_layers", "1", ERR_UNSUPPORTED, "num_kv_shared_layers is 1, expected 0"},
        {PLAIN, "use_double_wide_mlp", "true", ERR_UNSUPPORTED, "use_double_wide_mlp is true"},
        {PLAIN, "use_bidirectional_attention", "\"all\"", ERR_UNSUPPORTED,
         "use_bidirectional_attention is all, expected vision"},
        {PLAIN, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias is true"},
        {PLAIN, "rope_scaling", "{\"type\": \"linear\"}", ERR_UNSUPPORTED, "rope_scaling is an object"},
        {PLAIN, "rope_traditional", "true", ERR_UNSUPPORTED, "rope_traditional is true"},
        {PLAIN, "attn_logit_softcapping", "50.0", ERR_UNSUPPORTED, "attn_logit_softcapping"},
        {PLAIN, "query_pre_attn_scalar", "256", ERR_UNSUPPORTED, "query_pre_attn_scalar is 256, expected 1"},
        {PLAIN, "dtype", "\"int8\"", ERR_UNSUPPORTED, "dtype is int8, expected bfloat16"},
        {PLAIN, "layer_types", "[\"full_attention\", \"sliding_attention\"]", ERR_UNSUPPORTED,
         "expected full_attention"},
        {PLAIN, "layer_types", "[\"linear_attention\", \"full_attention\"]", ERR_UNSUPPORTED,
         "layer_types[0] is linear_attention"},
        {PLAIN, "rope_parameters.full_attention", NULL, ERR_FORMAT, "rope_parameters.full_attention"},
        {PLAIN, "rope_parameters.full_attention.rope_type", "\"yarn\"", ERR_UNSUPPORTED,
         "rope_type is yarn, expected default or proportional"},
        {PLAIN, "rope_parameters.full_attention.rope_type", "\"default\"", ERR_UNSUPPORTED,
         "rope_type default with partial_rotary_factor"},
        {PLAIN, "rope_parameters.full_attention.partial_rotary_factor", "0.001", ERR_UNSUPPORTED,
         "partial_rotary_factor is 0.001 of 512 channels"},
        {PLAIN, "head_dim", "250", ERR_FORMAT, "head_dim is 250, expected a multiple of 4"},
        {PLAIN, "num_global_key_value_heads", "3", ERR_FORMAT, "num_attention_heads is 2"},
        {PLAIN, "num_key_value_heads", NULL, ERR_FORMAT, "key num_key_value_heads is missing"},
        {PLAIN, "intermediate_size", "130", ERR_FORMAT, "intermediate_size is 130"},
        {PLAIN, "intermediate_size", NULL, ERR_FORMAT, "key intermediate_size is missing"},
        {PLAIN, "moe_intermediate_size", NULL, ERR_FORMAT, "key moe_intermediate_size is missing"},
        {PLAIN, "num_experts", NULL, ERR_FORMAT, "key num_experts is missing"},
        {PLAIN, "top_k_experts", "7", ERR_FORMAT, "top_k_experts is 7, expected 1 to 6"},
        {PLAIN, "final_logit_softcapping", "-30", ERR_FORMAT, "final_logit_softcapping is -30"},
        {PLAIN, "sliding_window", "0", ERR_FORMAT, "sliding_window is 0"},
        {ODD, "text_config.per_layer_config.0.head_dim", "40", ERR_UNSUPPORTED,
         "layer 2 has 2 heads of 36, expected 2 of 40"},
        {ODD, "text_config.per_layer_config.0.sliding_window", "4", ERR_UNSUPPORTED,
         "per_layer_config.0.sliding_window"},
        {ODD, "text_config.per_layer_config.3", "{}", ERR_FORMAT, "expected numbers of layers below 3"},
        {ODD, "text_config.per_layer_config.00", "{}", ERR_FORMAT, "expected numbers of layers below 3"},
        {ODD, "text_config.per_layer_config.x", "{}", ERR_FORMAT, "expected numbers of layers below 3"},
        {ODD, "text_config.per_layer_config.0", "7", ERR_FORMAT, "per_layer_config.0 is not an object"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct config c;
        struct moeflux_err e = {0};
        json_t *root = load(refusals[i].path);
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
        cmocka_unit_test(the_published_options_are_read),
        cmocka_unit_test(heads_of_each_layer_and_the_nested_form_are_read),
        cmocka_unit_test(numbers_of_layers_may_begin_with_zeros),
        cmocka_unit_test(keys_that_are_left_out_have_transformers_defaults),
        cmocka_unit_test(the_last_of_six_layers_sees_everything_where_nothing_is_said),
        cmocka_unit_test(what_changes_the_mathematics_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
