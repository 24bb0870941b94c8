/* Configurations of GLM-5.3-Flash: what is published and what transformers writes, defaults, and every
 * refusal with the key's name.
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

#define GLM53F      "tests/models/families/glm53f-plain/config.json"
#define GLM53F_FLAT "tests/models/families/glm53f-odd/config.json"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

/* Sets text_config's key "a" or "a.b" to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    json_t *object = json_object_get(root, "text_config");
    const char *dot = strchr(key, '.');
    if (dot) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(object, outer);
        key = dot + 1;
    }
    assert_non_null(object);
    if (value)
        assert_int_equal(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        json_object_del(object, key);
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

static const struct delta_config *delta_of(const struct config *c)
{
    return &config_first(c, PART_DELTA_NET)->delta;
}

static const struct latent_config *latent_of(const struct config *c)
{
    return &config_first(c, PART_LATENT)->latent;
}

static void published_keys_flat_keys_and_defaults_are_read(void **state)
{
    (void)state;
    struct config c = read_ok(load(GLM53F));
    assert_ptr_equal(c.family, &family_glm5next);
    const struct index_config *x = &latent_of(&c)->index;
    assert_true(x->pooled && x->ratio == 16 && x->budget == 128 && x->n_heads == 4 && x->rotary_dim == 0);
    assert_true(delta_of(&c)->lower == -5 && delta_of(&c)->gate_rank == 32 && delta_of(&c)->by_channel);
    assert_true(c.streams.n == 4 && c.streams.iterations == 20 && c.streams.floor == 1e-6f);
    assert_true(c.streams.rank == 0 && c.streams.ends_in_mean && config_width(&c) == 256);
    assert_true(c.clamps_inputs && c.layers[3].clamp == 10 && c.layers[3].shared_clamp == 10);
    assert_true(config_first(&c, PART_DENSE)->dense.clamp == 10 && latent_of(&c)->eps == 1e-5f);
    assert_true(config_mixer(&c, 2)->kind == PART_DELTA_NET && config_mixer(&c, 3)->kind == PART_LATENT);
    assert_true(!config_has_experts(&c, 2) && config_has_experts(&c, 3) && !config_needs_choice(&c, 0));
    config_free(&c);
    static const char *const left_out[] = {"hc_mult",
                                           "hc_eps",
                                           "hc_sinkhorn_iters",
                                           "index_kpool",
                                           "index_topk",
                                           "layer_types",
                                           "rms_norm_eps",
                                           "index_kpool_always_select_tail",
                                           "swiglu_limit",
                                           "routed_scaling_factor",
                                           "first_k_dense_replace",
                                           "linear_attn_config.gate_lower_bound",
                                           "linear_attn_config.safe_gate",
                                           "mhc",
                                           "mla_use_nope"};
    json_t *root = load(GLM53F);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        set(root, left_out[i], NULL);
    c = read_ok(root);
    assert_true(latent_of(&c)->index.ratio == 16 && latent_of(&c)->index.budget == 128);
    assert_true(c.streams.n == 4 && c.streams.iterations == 20 && c.streams.floor == 1e-6f);
    assert_true(c.layers[0].clamp == 10 && c.router.scale == 2.5f && c.rms_eps == 1e-5f);
    assert_true(delta_of(&c)->lower == -5 && config_mixer(&c, 3)->kind == PART_LATENT);
    assert_true(!config_has_experts(&c, 2) && config_has_experts(&c, 3));
    config_free(&c);
    c = read_ok(load(GLM53F_FLAT));
    assert_true(delta_of(&c)->lower == 0 && delta_of(&c)->conv_kernel == 3 && delta_of(&c)->gate_rank == 20);
    assert_true(c.streams.n == 3 && c.streams.floor == 1e-3f && c.layers[0].clamp == 0.75f);
    assert_true(config_shares_choice(&c, 2) && !config_shares_choice(&c, 1) && !config_needs_choice(&c, 0));
    assert_true(config_needs_choice(&c, 2) && latent_of(&c)->index.budget == 6 && !c.router.norm);
    config_free(&c);
}

/* A bound that is null: none as a flat key, the default next to a switch that is not off. */
static void decays_have_a_bound_unless_it_is_off(void **state)
{
    (void)state;
    static const struct {
        const char *bound, *safe;
        float lower;
    } cases[] = {{"null", NULL, -5}, {"null", "true", -5}, {"null", "false", 0}, {"-2.5", "false", -2.5f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load(GLM53F);
        set(root, "linear_attn_config.gate_lower_bound", cases[i].bound);
        set(root, "linear_attn_config.safe_gate", cases[i].safe);
        struct config c = read_ok(root);
        assert_true(delta_of(&c)->lower == cases[i].lower);
        config_free(&c);
    }
    /* The flat key holds for an object without a bound. */
    json_t *root = load(GLM53F);
    set(root, "linear_attn_config.gate_lower_bound", NULL);
    set(root, "linear_lower_bound", "-3");
    struct config flat = read_ok(root);
    assert_true(delta_of(&flat)->lower == -3);
    config_free(&flat);
    root = load(GLM53F_FLAT);
    set(root, "linear_lower_bound", NULL);
    struct config c = read_ok(root);
    assert_true(delta_of(&c)->lower == -5);
    config_free(&c);
}

static const struct refusal {
    const char *model, *key, *value;
    int code;
    const char *text;
} refusals[] = {
    {GLM53F, "qk_rope_head_dim", "64", ERR_UNSUPPORTED, "qk_rope_head_dim is 64, expected 0"},
    {GLM53F, "mla_use_nope", "false", ERR_UNSUPPORTED, "mla_use_nope is false, expected true"},
    {GLM53F, "mhc", "false", ERR_UNSUPPORTED, "mhc is false, expected true"},
    {GLM53F, "index_kpool_always_select_tail", "false", ERR_UNSUPPORTED,
     "index_kpool_always_select_tail is false, expected true"},
    {GLM53F, "index_kpool", "12", ERR_FORMAT, "index_topk is 2048, expected a multiple of 12"},
    {GLM53F, "index_kpool", "512", ERR_FORMAT, "index_kpool is 512"},
    {GLM53F, "index_topk", "2040", ERR_FORMAT, "index_topk is 2040, expected a multiple of 16"},
    {GLM53F, "q_lora_rank", NULL, ERR_UNSUPPORTED, "key q_lora_rank is missing"},
    {GLM53F, "hc_mult", "9", ERR_FORMAT, "hc_mult is 9"},
    {GLM53F, "hc_sinkhorn_iters", "0", ERR_FORMAT, "hc_sinkhorn_iters is 0"},
    {GLM53F, "hc_eps", "-1", ERR_FORMAT, "hc_eps is -1"},
    {GLM53F, "swiglu_limit", "0", ERR_FORMAT, "swiglu_limit is 0"},
    {GLM53F, "linear_attn_config.gate_lower_bound", "0", ERR_FORMAT,
     "gate_lower_bound is 0, expected less than 0"},
    {GLM53F, "linear_attn_config.num_heads", NULL, ERR_FORMAT, "key num_heads is missing"},
    {GLM53F, "num_key_value_heads", "2", ERR_FORMAT, "num_key_value_heads is 2"},
    {GLM53F, "scoring_func", "\"softmax\"", ERR_UNSUPPORTED, "scoring_func"},
    {GLM53F, "mlp_bias", "true", ERR_UNSUPPORTED, "mlp_bias"},
    {GLM53F_FLAT, "indexer_types", "[\"full\", \"shared\", \"shared\"]", ERR_FORMAT,
     "layer 1 uses the choice of a layer before it"},
    {GLM53F_FLAT, "linear_num_heads", NULL, ERR_FORMAT, "key linear_num_heads is missing"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_keys_flat_keys_and_defaults_are_read),
        cmocka_unit_test(decays_have_a_bound_unless_it_is_off),
        cmocka_unit_test(every_bad_value_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
