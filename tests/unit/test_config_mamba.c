/* Configurations of Nemotron-3: what their keys mean, and every refusal with the key's name.
 *
 * suites: check fast asan */
#include <math.h>
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

#define PLAIN "tests/models/families/nemo-plain/config.json"
#define ODD   "tests/models/families/nemo-odd/config.json"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

/* Sets a key to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    if (value)
        assert_int_equal(json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        assert_int_equal(json_object_del(root, key), 0);
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

static const struct mamba_config *mamba_of(const struct config *c)
{
    return &config_first(c, PART_MAMBA)->mamba;
}

static void published_layers_are_single_parts(void **state)
{
    static const enum part_kind kinds[] = {PART_MAMBA, PART_ATTENTION, PART_EXPERTS};
    (void)state;
    struct config c = read_ok(load(PLAIN));
    const struct gqa_config *g = &config_first(&c, PART_ATTENTION)->gqa;
    assert_ptr_equal(c.family, &family_nemotronh);
    assert_int_equal(c.n_layers, 3);
    for (uint32_t i = 0; i < c.n_layers; i++)
        assert_true(c.layers[i].n_blocks == 1 && config_part(&c, i, 0)->kind == kinds[i]);
    assert_true(config_has_experts(&c, 2) && !config_has_experts(&c, 0));
    assert_true(mamba_of(&c)->n_heads == 8 && mamba_of(&c)->n_groups == 2 && mamba_of(&c)->head_dim == 16);
    assert_true(mamba_of(&c)->state_dim == 16 && mamba_of(&c)->conv_kernel == 4 && mamba_of(&c)->conv_biased);
    /* The file has Infinity, which is no JSON. */
    assert_true(mamba_of(&c)->low == 0 && isinf(mamba_of(&c)->high));
    assert_true(g->n_heads == 4 && g->n_kv_heads == 2 && g->head_dim == 16 && c.ropes[0].none);
    assert_true(c.gateless && c.router.sigmoid && c.router.scale == 2.5f && c.router.norm);
    assert_true(c.shared_inner == 128 && c.moe_inner == 64 && c.rms_eps == 1e-5f);
    config_free(&c);
}

static void lists_of_layers_have_new_and_older_names(void **state)
{
    static const enum part_kind kinds[] = {PART_EXPERTS, PART_MAMBA, PART_DENSE, PART_ATTENTION};
    (void)state;
    for (int older = 0; older < 2; older++) {
        json_t *root = load(ODD);
        if (older) {
            set(root, "layers_block_type", "[\"moe\", \"mamba\", \"mlp\", \"attention\"]");
            set(root, "time_step_limit", "[0.25, 8]");
        }
        struct config c = read_ok(root);
        assert_int_equal(c.n_layers, 4);
        for (uint32_t i = 0; i < c.n_layers; i++)
            assert_true(config_part(&c, i, 0)->kind == kinds[i]);
        assert_true(mamba_of(&c)->low == 0.25f &&
                    (older ? mamba_of(&c)->high == 8 : isinf(mamba_of(&c)->high)));
        assert_true(!mamba_of(&c)->conv_biased && config_first(&c, PART_DENSE)->dense.inner == 68);
        assert_true(c.router.n_groups == 2 && !c.router.norm && c.rms_eps == 1e-6f);
        config_free(&c);
    }
}

static const struct refusal {
    const char *path, *key, *value;
    int code;
    const char *text;
} refusals[] = {
    {PLAIN, "moe_latent_size", "1000", ERR_FORMAT, "moe_latent_size is 1000, expected a multiple of"},
    {PLAIN, "hybrid_override_pattern", "\"M*\"", ERR_FORMAT, "hybrid_override_pattern"},
    {PLAIN, "hybrid_override_pattern", "\"MxE\"", ERR_UNSUPPORTED, "hybrid_override_pattern[1]"},
    {PLAIN, "hybrid_override_pattern", NULL, ERR_FORMAT, "hybrid_override_pattern"},
    {PLAIN, "hybrid_override_pattern", "\"M*M\"", ERR_UNSUPPORTED, "all 3 layers are dense"},
    {PLAIN, "mlp_hidden_act", "\"silu\"", ERR_UNSUPPORTED, "mlp_hidden_act is silu, expected relu2"},
    {PLAIN, "mamba_hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "mamba_hidden_act"},
    {PLAIN, "use_bias", "true", ERR_UNSUPPORTED, "use_bias"},
    {PLAIN, "mlp_bias", "true", ERR_UNSUPPORTED, "mlp_bias"},
    {PLAIN, "mamba_proj_bias", "true", ERR_UNSUPPORTED, "mamba_proj_bias"},
    {PLAIN, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias"},
    {PLAIN, "routed_scaling_factor", NULL, ERR_FORMAT, "key routed_scaling_factor is missing"},
    {PLAIN, "mamba_num_heads", "7", ERR_FORMAT, "mamba_num_heads is 7, expected a multiple of 2"},
    {PLAIN, "mamba_head_dim", NULL, ERR_FORMAT, "key mamba_head_dim is missing"},
    {PLAIN, "ssm_state_size", "0", ERR_FORMAT, "ssm_state_size"},
    {PLAIN, "conv_kernel", "1", ERR_FORMAT, "conv_kernel"},
    {PLAIN, "n_shared_experts", "2", ERR_FORMAT, "n_shared_experts"},
    {PLAIN, "moe_shared_expert_intermediate_size", "100", ERR_FORMAT, "moe_shared_expert_intermediate_size"},
    {PLAIN, "time_step_limit", "[2, 1]", ERR_FORMAT, "time_step_limit"},
    {PLAIN, "time_step_limit", "[0.5]", ERR_FORMAT, "time_step_limit has 1 entries, expected 2"},
    {PLAIN, "time_step_limit", "[\"x\", 1]", ERR_FORMAT, "time_step_limit[0]"},
    {ODD, "layers_block_type", "[\"moe\", \"conv\", \"mlp\", \"attention\"]", ERR_UNSUPPORTED,
     "layers_block_type[1]"},
    {ODD, "layers_block_type", "[]", ERR_FORMAT, "num_hidden_layers"},
    {ODD, "intermediate_size", "67", ERR_FORMAT, "intermediate_size is 67"},
};

static void every_bad_value_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        struct moeflux_err e;
        struct config c;
        json_t *root = load(r->path);
        set(root, r->key, r->value);
        int rc = config_read(&c, root, "config.json", &e);
        json_decref(root);
        if (rc != r->code || !strstr(e.text, r->text))
            fail_msg("%s = %s: %d \"%s\", expected %d with \"%s\"", r->key, r->value ? r->value : "(none)",
                     rc, rc < 0 ? e.text : "", r->code, r->text);
        assert_null(c.layers);
    }
}

static void infinity_is_a_large_number_outside_of_strings_only(void **state)
{
    static const char text[] = "{\"a\": [-Infinity, Infinity], \"Infinity\": \"Infinity\"}",
                      bad[] = "{\"a\": Infinitx}";
    struct moeflux_err e;
    json_t *root;
    (void)state;
    assert_int_equal(json_read(text, sizeof text - 1, "x", 10, &root, &e), 0);
    const json_t *list = json_object_get(root, "a");
    assert_true(json_real_value(json_array_get(list, 0)) < -1e308);
    assert_true(json_real_value(json_array_get(list, 1)) > 1e308);
    assert_string_equal(json_string_value(json_object_get(root, "Infinity")), "Infinity");
    json_decref(root);
    assert_int_equal(json_read(bad, sizeof bad - 1, "x", 10, &root, &e), ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_layers_are_single_parts),
        cmocka_unit_test(lists_of_layers_have_new_and_older_names),
        cmocka_unit_test(every_bad_value_is_refused_by_its_name),
        cmocka_unit_test(infinity_is_a_large_number_outside_of_strings_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
