/* Configurations of Kimi-K3: what their keys mean, and every refusal with the key's name.
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

#define PLAIN "tests/models/families/k3-plain/config.json"
#define ODD   "tests/models/families/k3-odd/config.json"
/* The published lists. */
#define MANY_FULL "[4,8,12,16,20,24,28,32,36,40,44,48,52,56,60,64,68,72,76,80,84,88,92,93]"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

/* Sets a key of the text part to JSON `value`, or deletes it when that is NULL. A key with a dot is one of
 * linear_attn_config. */
static void set(json_t *root, const char *key, const char *value)
{
    json_t *text = json_object_get(root, "text_config");
    const char *dot = strchr(key, '.');
    if (dot)
        text = json_object_get(text, "linear_attn_config");
    key = dot ? dot + 1 : key;
    if (value)
        assert_int_equal(json_object_set_new(text, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        assert_int_equal(json_object_del(text, key), 0);
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

static const struct delta_config *delta_of(const struct config *c)
{
    return &config_first(c, PART_DELTA_NET)->delta;
}

static const struct latent_config *latent_of(const struct config *c)
{
    return &config_first(c, PART_LATENT)->latent;
}

static void published_options_are_read(void **state)
{
    (void)state;
    struct config c = read_ok(load(PLAIN));
    const struct delta_config *d = delta_of(&c);
    const struct latent_config *m = latent_of(&c);
    assert_ptr_equal(c.family, &family_kimik3);
    assert_true(d->n_v_heads == 2 && d->k_head_dim == 32 && d->conv_kernel == 4 && d->lower == -5);
    assert_true(d->by_channel && d->sigmoid && d->z_full && d->gate_rank == 32);
    assert_true(m->gated && m->gates_channels && config_latent_gates(m) == 64 && m->q_lora_rank == 48);
    assert_true(c.ropes[0].none && m->rope_dim == 16);
    assert_true(c.situ_beta == 4 && c.situ_linear == 25);
    assert_true(c.moe_latent == 64 && c.latent_normed && c.shared_inner == 128);
    assert_true(c.router.sigmoid && c.router.norm && c.router.scale == 2.5f && c.top_k == 3);
    assert_true(c.streams.block == 2 && c.streams.n == 3 && config_width(&c) == 192);
    assert_string_equal(c.layers[0].blocks[0].mix, "self_attention_res");
    assert_string_equal(c.layers[2].blocks[1].mix, "mlp_res");
    assert_true(!config_has_experts(&c, 1) && config_has_experts(&c, 2));
    assert_int_equal(config_mixer(&c, 1)->kind, PART_DELTA_NET);
    assert_int_equal(config_mixer(&c, 2)->kind, PART_LATENT);
    assert_int_equal(c.max_context, 1048576);
    config_free(&c);
}

static void the_published_model_has_eight_blocks(void **state)
{
    (void)state;
    json_t *root = load(PLAIN);
    char kda[512] = "[";
    for (int i = 1; i <= 92; i++)
        if (i % 4 != 0)
            snprintf(kda + strlen(kda), sizeof kda - strlen(kda), "%s%d", i > 1 ? "," : "", i);
    strcat(kda, "]");
    set(root, "num_hidden_layers", "93");
    set(root, "attn_res_block_size", "12");
    set(root, "linear_attn_config.kda_layers", kda);
    set(root, "linear_attn_config.full_attn_layers", MANY_FULL);
    struct config c = read_ok(root);
    assert_int_equal(c.streams.n, 9);
    assert_int_equal(config_blocks_before(&c.streams, 12), 1);
    assert_int_equal(config_blocks_before(&c.streams, 13), 2);
    config_free(&c);
}

/* What a configuration leaves out is what mlx-lm's class has. */
static void what_is_left_out_is_off(void **state)
{
    static const char *const keys[] = {"activation_situ_beta",
                                       "activation_situ_linear_beta",
                                       "attn_res_block_size",
                                       "latent_moe_use_norm",
                                       "mla_use_output_gate",
                                       "q_lora_rank",
                                       "routed_expert_hidden_size",
                                       "rms_norm_eps",
                                       "linear_attn_config.gate_lower_bound",
                                       "hidden_act",
                                       "mla_use_nope",
                                       "linear_attn_config.use_full_rank_gate",
                                       "moe_renormalize",
                                       "num_expert_group",
                                       "linear_attn_config.full_attn_layers",
                                       "topk_group",
                                       "moe_layer_freq",
                                       "moe_router_activation_func",
                                       "tie_word_embeddings"};
    (void)state;
    json_t *root = load(PLAIN);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        set(root, keys[i], NULL);
    struct config c = read_ok(root);
    assert_true(c.situ_beta == 1 && c.situ_linear == 0);
    assert_true(c.streams.n == 0 && c.streams.block == 0 && !c.layers[0].blocks[0].mix);
    assert_true(c.moe_latent == 0 && !c.latent_normed && !latent_of(&c)->gated);
    assert_true(config_latent_gates(latent_of(&c)) == 0 && latent_of(&c)->q_lora_rank == 0);
    assert_true(delta_of(&c)->lower == 0 && !delta_of(&c)->z_full && config_z_rank(delta_of(&c)) == 32);
    assert_true(c.rms_eps == 1e-5f && c.router.norm && c.router.n_groups == 1 && !c.tied);
    config_free(&c);
    /* A configuration of the text part alone. */
    root = load(ODD);
    json_t *text = json_incref(json_object_get(root, "text_config"));
    json_object_set_new(text, "model_type", json_string("kimi_k3"));
    json_decref(root);
    c = read_ok(text);
    assert_true(c.family == &family_kimik3 && c.streams.n == 3 && c.situ_beta == 0.75f);
    config_free(&c);
}

static const struct refusal {
    const char *path, *key, *value;
    int code;
    const char *text;
} refusals[] = {
    {PLAIN, "hidden_act", "\"silu\"", ERR_UNSUPPORTED, "hidden_act is silu, expected situ"},
    {PLAIN, "hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act is gelu"},
    {PLAIN, "activation_situ_beta", "0.1", ERR_UNSUPPORTED, "activation_situ_beta is 0.1, expected a number"},
    {PLAIN, "activation_situ_beta", "0", ERR_UNSUPPORTED, "activation_situ_beta is 0,"},
    {PLAIN, "activation_situ_linear_beta", "1025", ERR_UNSUPPORTED, "activation_situ_linear_beta is 1025"},
    {PLAIN, "activation_situ_linear_beta", "-1", ERR_FORMAT, "activation_situ_linear_beta"},
    {PLAIN, "attn_res_block_size", "0", ERR_FORMAT, "attn_res_block_size"},
    {PLAIN, "mla_use_nope", "false", ERR_UNSUPPORTED, "mla_use_nope is false"},
    {PLAIN, "use_grouped_topk", "false", ERR_UNSUPPORTED, "use_grouped_topk is false"},
    {PLAIN, "moe_router_activation_func", "\"softmax\"", ERR_UNSUPPORTED, "moe_router_activation_func"},
    {PLAIN, "num_shared_experts", NULL, ERR_FORMAT, "n_shared_experts is missing"},
    {PLAIN, "num_experts_per_token", NULL, ERR_FORMAT, "num_experts_per_tok is missing"},
    {PLAIN, "routed_scaling_factor", NULL, ERR_FORMAT, "routed_scaling_factor is missing"},
    {PLAIN, "first_k_dense_replace", NULL, ERR_FORMAT, "first_k_dense_replace is missing"},
    {PLAIN, "num_experts_per_token", "5", ERR_FORMAT, "num_experts_per_tok is 5"},
    {PLAIN, "num_expert_group", "3", ERR_FORMAT, "n_routed_experts is 4, expected a multiple of 3"},
    {PLAIN, "routed_expert_hidden_size", "100", ERR_FORMAT, "routed_expert_hidden_size is 100"},
    {PLAIN, "routed_expert_hidden_size", "null", ERR_UNSUPPORTED, "latent_moe_use_norm is true without"},
    {PLAIN, "qk_rope_head_dim", "6", ERR_FORMAT, "qk_rope_head_dim is 6"},
    {PLAIN, "linear_attn_config", NULL, ERR_FORMAT, "key linear_attn_config is missing"},
    {PLAIN, "linear_attn_config.kda_layers", NULL, ERR_FORMAT, "key kda_layers is missing"},
    {PLAIN, "linear_attn_config.kda_layers", "[1, 2, 3]", ERR_FORMAT, "layer 3 is in both of kda_layers"},
    {PLAIN, "linear_attn_config.kda_layers", "[1]", ERR_FORMAT, "layer 2 is in none of kda_layers"},
    {PLAIN, "linear_attn_config.head_dim", "30", ERR_FORMAT, "head_dim is 30"},
    {PLAIN, "linear_attn_config.num_heads", NULL, ERR_FORMAT, "num_heads"},
    {PLAIN, "linear_attn_config.short_conv_kernel_size", NULL, ERR_FORMAT, "short_conv_kernel_size"},
    {PLAIN, "linear_attn_config.gate_lower_bound", "0", ERR_FORMAT, "gate_lower_bound is 0"},
    {PLAIN, "linear_attn_config.use_full_rank_gate", "1", ERR_FORMAT, "use_full_rank_gate"},
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

static void too_many_blocks_are_refused(void **state)
{
    struct moeflux_err e;
    struct config c;
    (void)state;
    json_t *root = load(PLAIN), *list = json_array(),
           *linear = json_object_get(json_object_get(root, "text_config"), "linear_attn_config");
    for (int i = 1; i <= 64; i++)
        json_array_append_new(list, json_integer(i));
    set(root, "num_hidden_layers", "65");
    set(root, "attn_res_block_size", "1");
    json_object_set_new(linear, "kda_layers", list);
    set(root, "linear_attn_config.full_attn_layers", "[65]");
    assert_int_equal(config_read(&c, root, "config.json", &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text,
                        "config.json: attn_res_block_size is 1, 65 blocks of 65 layers, expected at most 31");
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_options_are_read),
        cmocka_unit_test(the_published_model_has_eight_blocks),
        cmocka_unit_test(what_is_left_out_is_off),
        cmocka_unit_test(every_bad_value_is_refused_by_its_name),
        cmocka_unit_test(too_many_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
