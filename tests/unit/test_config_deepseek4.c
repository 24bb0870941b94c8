/* Configurations of DeepSeek-V4: the published one and transformers' form of it are the same model; each key
 * is obeyed or refused with its name.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/family.h"

/* Published values, cut to six layers and one of multi-token prediction. */
static const char published[] =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"bos_token_id\": 0, \"eos_token_id\": 1, \"expert_dtype\": \"fp4\", \"hc_eps\": 1e-06, \"hc_mult\": 4, "
    "\"hc_sinkhorn_iters\": 20, \"head_dim\": 512, \"hidden_act\": \"silu\", \"hidden_size\": 4096, "
    "\"index_head_dim\": 128, \"index_n_heads\": 64, \"index_topk\": 512, \"max_position_embeddings\": "
    "1048576, \"model_type\": \"deepseek_v4\", \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, "
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 64, "
    "\"num_experts_per_tok\": "
    "6, \"num_hidden_layers\": 6, \"num_hash_layers\": 3, \"num_key_value_heads\": 1, "
    "\"num_nextn_predict_layers\": 1, \"o_groups\": 8, \"o_lora_rank\": 1024, \"q_lora_rank\": 1024, "
    "\"qk_rope_head_dim\": 64, \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": "
    "\"e4m3\", \"quant_method\": \"fp8\", \"scale_fmt\": \"ue8m0\", \"weight_block_size\": [128, 128]}, "
    "\"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 16, "
    "\"original_max_position_embeddings\": 65536, \"type\": \"yarn\"}, \"rope_theta\": 10000, "
    "\"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\", \"sliding_window\": 128, "
    "\"swiglu_limit\": 10.0, \"tie_word_embeddings\": false, \"topk_method\": \"noaux_tc\", \"vocab_size\": "
    "129280, \"compress_rope_theta\": 160000, \"compress_ratios\": [0, 0, 4, 128, 4, 128, 0]}";

/* Keys of transformers' form that the published one has otherwise. */
static const char *const rewritten[][2] = {
    {"compress_ratios", NULL},
    {"num_hash_layers", NULL},
    {"qk_rope_head_dim", NULL},
    {"rope_scaling", NULL},
    {"compress_rates", "{\"compressed_sparse_attention\": 4, \"heavily_compressed_attention\": 128}"},
    {"layer_types",
     "[\"sliding_attention\", \"sliding_attention\", \"compressed_sparse_attention\", "
     "\"heavily_compressed_attention\", \"compressed_sparse_attention\", \"heavily_compressed_attention\"]"},
    {"mlp_layer_types", "[\"hash_moe\", \"hash_moe\", \"hash_moe\", \"moe\", \"moe\", \"moe\"]"},
    {"partial_rotary_factor", "0.125"},
    {"rope_parameters",
     "{\"main\": {\"rope_type\": \"default\", \"rope_theta\": 10000, \"partial_rotary_factor\": 0.125}, "
     "\"compress\": {\"rope_type\": \"yarn\", \"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 16, "
     "\"original_max_position_embeddings\": 65536, \"rope_theta\": 160000, \"partial_rotary_factor\": 0.125, "
     "\"attention_factor\": 1.0}}"},
};
enum { N_REWRITTEN = sizeof rewritten / sizeof *rewritten };

static json_t *parse(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);
    if (!value)
        fail_msg("%s: %s", text, why.text);
    return value;
}

/* Sets a key to JSON text; NULL: removes it. */
static void set(json_t *root, const char *key, const char *text)
{
    assert_int_equal(text ? json_object_set_new(root, key, parse(text)) : json_object_del(root, key), 0);
}

static json_t *load(bool is_rewritten)
{
    json_t *root = parse(published);
    for (int i = 0; is_rewritten && i < N_REWRITTEN; i++)
        set(root, rewritten[i][0], rewritten[i][1]);
    return root;
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

static const struct compressed_config *attention(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_mixer(c, layer);
    assert_int_equal(p->kind, PART_COMPRESSED);
    return &p->compressed;
}

static bool is_by_token(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_part(c, layer, 1);
    assert_int_equal(p->kind, PART_EXPERTS);
    return p->routed.by_token;
}

static void expect_published(const struct config *c)
{
    static const uint32_t ratios[] = {0, 0, 4, 128, 4, 128};
    assert_ptr_equal(c->family, &family_deepseek4);
    for (uint32_t i = 0; i < 6; i++) {
        const struct compressed_config *a = attention(c, i);
        assert_true(a->n_heads == 64 && a->head_dim == 512 && a->rope_dim == 64 && a->q_lora_rank == 1024);
        assert_true(a->window == 128 && a->out_groups == 8 && a->out_rank == 1024 && a->ratio == ratios[i]);
        assert_true(a->rope == (ratios[i] > 0) && a->overlaps == (ratios[i] == 4));
        assert_int_equal(a->index.n_heads, ratios[i] == 4 ? 64 : 0);
        assert_int_equal(config_window(c, i), ratios[i] ? 0 : 128); /* compressed rows are of all positions */
        assert_true(is_by_token(c, i) == (i < 3) && config_has_experts(c, i));
        assert_true(c->layers[i].clamp == 10 && c->layers[i].shared_clamp == 10);
        assert_string_equal(c->layers[i].blocks[0].mix, "hc_attn");
        assert_string_equal(c->layers[i].blocks[1].mix, "hc_ffn");
    }
    const struct index_config *x = &attention(c, 2)->index;
    assert_true(x->dim == 128 && x->budget == 512 && x->ratio == 4 && x->rotary_dim == 64 && x->weighted &&
                x->interleaved && !x->layer_norm);
    assert_true(c->n_ropes == 2 && c->ropes[0].dim == 64 && c->ropes[1].dim == 64 && !c->ropes[0].yarn);
    assert_true(c->ropes[0].theta == 1e4 && c->ropes[1].theta == 1.6e5 && c->ropes[1].yarn);
    assert_true(c->ropes[1].factor == 16 && c->ropes[1].original_context == 65536 &&
                c->ropes[1].attention_factor == 1 && c->max_context == 1048576);
    assert_true(c->streams.n == 4 && c->streams.iterations == 20 && c->streams.floor == 1e-6f);
    assert_true(c->router.sigmoid && c->router.softplus && c->router.norm && c->router.scale == 1.5f);
    assert_true(c->n_experts == 256 && c->top_k == 6 && c->shared_inner == 2048 && c->moe_inner == 2048);
    assert_true(c->router.n_groups == 1 && c->router.keep_groups == 1);
}

static void the_published_form_and_transformers_form_are_the_same_model(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct config c = read_ok(load(i));
        expect_published(&c);
        config_free(&c);
    }
}

static void absent_keys_have_the_published_values(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "attention_bias", "hc_eps",       "hc_mult",        "hc_sinkhorn_iters",     "head_dim",
        "index_head_dim", "index_topk",   "index_n_heads",  "num_hash_layers",       "num_key_value_heads",
        "o_groups",       "o_lora_rank",  "q_lora_rank",    "qk_rope_head_dim",      "rope_theta",
        "scoring_func",   "swiglu_limit", "sliding_window", "routed_scaling_factor", "compress_rope_theta",
        "topk_method",    "rms_norm_eps", "norm_topk_prob"};
    json_t *root = load(false);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        set(root, keys[i], NULL);
    struct config c = read_ok(root);
    expect_published(&c);
    config_free(&c);
    root = load(false);
    set(root, "compress_ratios", NULL);
    set(root, "rope_scaling", NULL);
    c = read_ok(root);
    static const uint32_t ratios[] = {128, 128, 128, 4, 128, 4};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(attention(&c, i)->ratio, ratios[i]);
    assert_true(!c.ropes[1].yarn && c.ropes[1].theta == 1.6e5);
    config_free(&c);
}

static void other_values_are_obeyed(void **state)
{
    (void)state;
    json_t *root = load(false);
    set(root, "qk_rope_head_dim", "32");
    set(root, "compress_rate_csa", "8");
    set(root, "compress_rates", "{\"compressed_sparse_attention\": 2, \"heavily_compressed_attention\": 16}");
    set(root, "num_hash_layers", "0");
    set(root, "rope_scaling",
        "{\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": 0.5, "
        "\"original_max_position_embeddings\": 512}");
    struct config c = read_ok(root);
    assert_true(attention(&c, 2)->ratio == 8 && attention(&c, 3)->ratio == 16 &&
                attention(&c, 2)->index.ratio == 8);
    assert_true(attention(&c, 0)->rope_dim == 32 && c.ropes[1].dim == 32);
    assert_true(c.ropes[1].attention_factor == 0.5 && c.ropes[1].factor == 4);
    assert_true(!is_by_token(&c, 0) && !config_routes_by_token(&c));
    config_free(&c);
    root = load(true);
    set(root, "mlp_layer_types", "[\"moe\", \"moe\", \"moe\", \"hash_moe\", \"moe\", \"moe\"]");
    set(root, "rope_parameters",
        "{\"main\": {\"rope_theta\": 300, \"rope_type\": \"yarn\", \"factor\": 2, "
        "\"original_max_position_embeddings\": 64}, \"compress\": {\"rope_theta\": 500}}");
    c = read_ok(root);
    assert_true(c.ropes[0].theta == 300 && c.ropes[0].yarn && c.ropes[1].theta == 500 && !c.ropes[1].yarn);
    assert_true(!is_by_token(&c, 0) && is_by_token(&c, 3) && config_routes_by_token(&c));
    struct moeflux_err e;
    assert_int_equal(config_set_active_experts(&c, 7, 0, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "`active_experts` 7, expected at most 6"));
    assert_int_equal(config_set_active_experts(&c, 5, 0, &e), 0);
    config_free(&c);
}

static const struct {
    const char *key, *value;
    int rc;
    const char *text;
} refused[] = {
    {"scoring_func", "\"sigmoid\"", ERR_UNSUPPORTED, "scoring_func is sigmoid, expected sqrtsoftplus"},
    {"norm_topk_prob", "false", ERR_UNSUPPORTED, "norm_topk_prob is false"},
    {"attention_bias", "true", ERR_UNSUPPORTED, "attention_bias is true"},
    {"mlp_bias", "true", ERR_UNSUPPORTED, "mlp_bias is true"},
    {"topk_method", "\"greedy\"", ERR_UNSUPPORTED, "topk_method is greedy"},
    {"n_shared_experts", "2", ERR_FORMAT, "n_shared_experts is 2"},
    {"num_key_value_heads", "2", ERR_FORMAT, "num_key_value_heads is 2"},
    {"n_group", "8", ERR_FORMAT, "n_group is 8"},
    {"topk_group", "4", ERR_FORMAT, "topk_group is 4"},
    {"moe_layer_freq", "2", ERR_FORMAT, "moe_layer_freq is 2"},
    {"first_k_dense_replace", "1", ERR_FORMAT, "first_k_dense_replace is 1"},
    {"hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act is gelu"},
    {"compress_ratios", "[0, 0, 4, 64, 4, 128]", ERR_UNSUPPORTED, "compress_ratios[3], expected 0, 4 or 128"},
    {"compress_ratios", "[0, 0, 4]", ERR_FORMAT, "compress_ratios has 3 entries, expected at least 6"},
    {"layer_types", "[1, 2, 3, 4, 5, 6]", ERR_UNSUPPORTED, "layer_types[0], expected sliding_attention"},
    {"mlp_layer_types", "[\"moe\", \"moe\", \"dense\", \"moe\", \"moe\", \"moe\"]", ERR_UNSUPPORTED,
     "mlp_layer_types[2], expected hash_moe or moe"},
    {"compress_rates", "{\"heavily_compressed_attention\": 100}", ERR_UNSUPPORTED,
     "heavily_compressed_attention is 100, expected a power of two"},
    {"compress_rates", "4", ERR_FORMAT, "compress_rates"},
    {"compress_rate_hca", "1024", ERR_FORMAT, "compress_rate_hca is 1024"},
    {"qk_rope_head_dim", "6", ERR_FORMAT, "6 rotary channels of a head"},
    {"qk_rope_head_dim", "256", ERR_FORMAT, "index_head_dim is 128, expected at least 256"},
    {"partial_rotary_factor", "1.5", ERR_FORMAT, "partial_rotary_factor"},
    {"rope_parameters", "{\"main\": {\"partial_rotary_factor\": 0.25}, \"compress\": {}}", ERR_UNSUPPORTED,
     "partial_rotary_factor is 0.25 and 0, expected equal"},
    {"rope_scaling", "{\"type\": \"linear\"}", ERR_UNSUPPORTED, "rope_type is linear"},
    {"rope_scaling", "{\"type\": \"yarn\"}", ERR_FORMAT, "key factor is missing"},
    {"compress_rope_theta", "\"x\"", ERR_FORMAT, "compress_rope_theta"},
    {"o_groups", "7", ERR_FORMAT, "num_attention_heads is 64, expected a multiple of 7"},
    {"o_lora_rank", "6", ERR_FORMAT, "o_lora_rank is 6"},
    {"q_lora_rank", "6", ERR_FORMAT, "q_lora_rank is 6"},
    {"head_dim", "510", ERR_FORMAT, "head_dim is 510"},
    {"index_head_dim", "126", ERR_FORMAT, "index_head_dim is 126"},
    {"index_topk", "0", ERR_FORMAT, "index_topk is 0"},
    {"sliding_window", "0", ERR_FORMAT, "sliding_window is 0"},
    {"swiglu_limit", "0", ERR_FORMAT, "swiglu_limit is 0"},
    {"hc_mult", "1", ERR_FORMAT, "hc_mult is 1"},
    {"hc_mult", "9", ERR_FORMAT, "hc_mult is 9"},
    {"hc_sinkhorn_iters", "0", ERR_FORMAT, "hc_sinkhorn_iters is 0"},
    {"hc_eps", "-1", ERR_FORMAT, "hc_eps"},
    {"num_hash_layers", "-1", ERR_FORMAT, "num_hash_layers"},
    {"routed_scaling_factor", "0", ERR_FORMAT, "routed_scaling_factor"},
    {"num_attention_heads", NULL, ERR_FORMAT, "key num_attention_heads is missing"},
    {"n_routed_experts", NULL, ERR_FORMAT, "key n_routed_experts is missing"},
};

static void other_mathematics_is_refused_with_the_keys_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *root = load(false);
        struct config c;
        struct moeflux_err e = {0};
        if (!strcmp(refused[i].key, "rope_parameters")) /* rope_scaling would win */
            set(root, "rope_scaling", NULL);
        set(root, refused[i].key, refused[i].value);
        int rc = config_read(&c, root, "config.json", &e);
        if (rc != refused[i].rc || !strstr(e.text, refused[i].text))
            fail_msg("%s %s: %d %s", refused[i].key, refused[i].value ? refused[i].value : "absent", rc,
                     e.text);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_form_and_transformers_form_are_the_same_model),
        cmocka_unit_test(absent_keys_have_the_published_values),
        cmocka_unit_test(other_values_are_obeyed),
        cmocka_unit_test(other_mathematics_is_refused_with_the_keys_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
