/* Configurations of DeepSeek-V4.1: what the published one's layers share, and each key is obeyed or refused
 * with its name.
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

#define TWOS "2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, "
#define ONES "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "

/* Published values of the text model. */
static const char published[] =
    "{\"model_type\": \"deepseek_v41_text\", \"vocab_size\": 129280, \"hidden_size\": 5120, "
    "\"moe_intermediate_size\": 2304, \"num_hidden_layers\": 40, \"num_attention_heads\": 64, "
    "\"num_key_value_heads\": 1, \"head_dim\": 512, \"qk_rope_head_dim\": 64, \"q_lora_rank\": 1280, "
    "\"o_lora_rank\": 1024, \"o_groups\": 8, \"hidden_act\": \"silu\", \"swiglu_limit\": 10.0, "
    "\"rms_norm_eps\": 1e-20, \"attention_bias\": false, \"tie_word_embeddings\": false, "
    "\"max_position_embeddings\": 1048576, \"rope_theta\": 10000, \"rope_scaling\": {\"rope_type\": "
    "\"yarn\", "
    "\"factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1, \"original_max_position_embeddings\": 65536}, "
    "\"n_routed_experts\": 384, \"n_shared_experts\": 1, \"num_experts_per_tok\": 6, \"scoring_func\": "
    "\"sqrtsoftplus\", \"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true, \"routed_scaling_factor\": "
    "1.5, "
    "\"sliding_window\": 128, \"compress_ratios\": [0, 0, " TWOS ONES
    "0, 0, 0], \"compress_rope_theta\": 160000, "
    "\"kv_source_layer_ids\": [2, 8, 14, 20], \"index_source_layer_ids\": [2, 8, 14, 20, 24, 28, 32, 36], "
    "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 512, \"candidate_source_layer_id\": 20, "
    "\"candidate_topk_blocks\": 2048, \"candidate_block_size\": 8, \"hc_mult\": 4, \"hc_sinkhorn_iters\": "
    "20, "
    "\"hc_eps\": 1e-06, \"engram_layer_ids\": [1, 14], \"engram_num_embeddings\": [384006168, 384016682], "
    "\"engram_max_ngram_size\": 4, \"engram_vocab_size\": 16000000, \"engram_n_heads\": 8, "
    "\"engram_head_dim\": 256, "
    "\"engram_pad_token_id\": 2, \"engram_compressed_vocab_size\": 99092, \"num_nextn_predict_layers\": 3, "
    "\"dspark_block_size\": 5, \"dspark_target_layer_ids\": [37, 38, 39]}";

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

static void expect_attention(const struct config *c, uint32_t i)
{
    uint32_t ratio = i < 2 ? 0 : i < 20 ? 2 : 1, rows = i < 20 ? 2 + (i - 2) / 6 * 6 : 20;
    bool chooses = i >= 2 && (i < 20 ? i == rows : i % 4 == 0), has_blocks = chooses && i >= 20;
    const struct compressed_config *a = attention(c, i);
    const struct index_config *x = &a->index;
    assert_true(a->n_heads == 64 && a->head_dim == 512 && a->rope_dim == 64 && a->q_lora_rank == 1280);
    assert_true(a->window == 128 && a->out_groups == 8 && a->out_rank == 1024 && a->ratio == ratio);
    assert_true(a->projects_keys && !a->overlaps && !a->norms_heads && a->rope == (ratio > 0));
    assert_true(a->borrows == (ratio && i != rows) && x->ratio == ratio);
    assert_int_equal(config_rows_of(c, i), ratio ? rows : UINT32_MAX);
    assert_true(x->n_heads == (chooses ? 32 : 0) && x->dim == (chooses ? 128 : 0));
    assert_true(x->budget == (ratio ? 512 : 0) && x->weighted == chooses && x->interleaved == chooses);
    assert_true(x->blocks == (has_blocks ? 2048 : 0) && x->block_rows == (has_blocks ? 8 : 0));
    assert_true(x->finds == (i == 20));
}

static void expect_published(const struct config *c)
{
    assert_ptr_equal(c->family, &family_deepseek41);
    for (uint32_t i = 0; i < 40; i++) {
        const struct config_layer *y = &c->layers[i];
        uint32_t first = i == 1 || i == 14;
        expect_attention(c, i);
        assert_true(y->n_blocks == 2 + first && config_has_experts(c, i) && y->clamp == 10 &&
                    y->shared_clamp == 10);
        assert_string_equal(y->blocks[first].mix, "hc_attn");
        assert_string_equal(y->blocks[first + 1].mix, "hc_ffn");
        if (!first)
            continue;
        const struct ngram_config *n = &config_part(c, i, 0)->ngrams;
        assert_true(config_part(c, i, 0)->kind == PART_NGRAMS && !y->blocks[0].mix && n->fused &&
                    n->taps == 0);
        assert_true(n->inner == 6144 && n->width == 20480 && n->table.index == (i == 14) &&
                    n->table.size == 4);
        assert_true(n->table.seed == 10007 * i && n->table.n_words == 99092 && n->table.end_of_text == 2);
    }
    assert_true(c->n_ropes == 2 && c->ropes[0].dim == 64 && c->ropes[1].dim == 64 && !c->ropes[0].yarn);
    assert_true(c->ropes[0].theta == 1e4 && c->ropes[1].theta == 1.6e5 && c->ropes[1].yarn);
    assert_true(c->ropes[1].factor == 16 && c->ropes[1].original_context == 65536 &&
                c->ropes[1].attention_factor == 1 && c->max_context == 1048576);
    assert_true(c->streams.n == 4 && c->streams.iterations == 20 && c->streams.floor == 1e-6f &&
                c->streams.lagged);
    assert_true(c->router.sigmoid && c->router.softplus && c->router.norm && c->router.scale == 1.5f);
    assert_true(c->n_experts == 384 && c->top_k == 6 && c->shared_inner == 2304 && c->moe_inner == 2304);
    assert_true(c->rms_eps == 1e-20f && c->clamps_inputs);
}

static void the_published_layers_share_rows_and_choices(void **state)
{
    (void)state;
    struct config c = read_ok(parse(published));
    expect_published(&c);
    config_free(&c);
}

static void absent_keys_have_the_published_values(void **state)
{
    (void)state;
    static const char *const keys[] = {"attention_bias",
                                       "hc_eps",
                                       "hc_mult",
                                       "hc_sinkhorn_iters",
                                       "head_dim",
                                       "index_head_dim",
                                       "index_topk",
                                       "index_n_heads",
                                       "num_key_value_heads",
                                       "o_groups",
                                       "o_lora_rank",
                                       "q_lora_rank",
                                       "qk_rope_head_dim",
                                       "rope_theta",
                                       "scoring_func",
                                       "swiglu_limit",
                                       "sliding_window",
                                       "topk_method",
                                       "rms_norm_eps",
                                       "norm_topk_prob",
                                       "routed_scaling_factor",
                                       "hidden_act",
                                       "n_shared_experts",
                                       "compress_rope_theta",
                                       "candidate_topk_blocks",
                                       "engram_n_heads",
                                       "engram_head_dim",
                                       "candidate_block_size",
                                       "engram_pad_token_id",
                                       "tie_word_embeddings"};
    json_t *root = parse(published);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        set(root, keys[i], NULL);
    struct config c = read_ok(root);
    expect_published(&c);
    config_free(&c);
}

static void lists_may_be_absent(void **state)
{
    (void)state;
    static const char *const keys[] = {"engram_layer_ids", "candidate_source_layer_id"};
    json_t *root = parse(published);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        set(root, keys[i], NULL);
    struct config c = read_ok(root);
    for (uint32_t i = 0; i < 40; i++)
        assert_true(c.layers[i].n_blocks == 2 && attention(&c, i)->index.blocks == 0);
    config_free(&c);
    root = parse(published);
    set(root, "compress_ratios", NULL);
    set(root, "kv_source_layer_ids", "[]");
    set(root, "index_source_layer_ids", "[]");
    set(root, "candidate_source_layer_id", "-1");
    c = read_ok(root);
    for (uint32_t i = 0; i < 40; i++)
        assert_true(attention(&c, i)->ratio == 0 && config_window(&c, i) == 128);
    config_free(&c);
}

static void other_values_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        int code;
        const char *said;
    } cases[] = {
        {"gate_temp", "2", ERR_UNSUPPORTED, "gate_temp"},
        {"hc_post_alpha", "1", ERR_UNSUPPORTED, "hc_post_alpha"},
        {"engram_gate_clamp", "0.1", ERR_UNSUPPORTED, "engram_gate_clamp"},
        {"scoring_func", "\"sigmoid\"", ERR_UNSUPPORTED, "scoring_func is sigmoid"},
        {"norm_topk_prob", "false", ERR_UNSUPPORTED, "norm_topk_prob"},
        {"n_shared_experts", "2", ERR_FORMAT, "n_shared_experts is 2"},
        {"compress_ratios", "[0, 1]", ERR_FORMAT, "compress_ratios has 2 entries"},
        {"compress_ratios", "[0, 0, 3, " TWOS ONES "0, 0, 0]", ERR_UNSUPPORTED, "compress_ratios[2]"},
        {"compress_ratios", "[0, 0, 4, " TWOS ONES "0, 0, 0]", ERR_UNSUPPORTED,
         "layer 3 has compress_ratios 2, expected a source of that ratio before it"},
        {"kv_source_layer_ids", "[8, 14, 20]", ERR_UNSUPPORTED,
         "layer 2 has compress_ratios 2, expected a source"},
        {"kv_source_layer_ids", "[1, 2, 8, 14, 20]", ERR_UNSUPPORTED, "layer 1, whose compress_ratios is 0"},
        {"kv_source_layer_ids", "[2, 40]", ERR_FORMAT, "kv_source_layer_ids[1]: expected a layer below 40"},
        {"index_source_layer_ids", "[2, 8, 20]", ERR_UNSUPPORTED, "layer 14 is missing"},
        {"index_source_layer_ids", "[2, 8, 14, 20.5]", ERR_FORMAT, "index_source_layer_ids[3]"},
        {"candidate_source_layer_id", "21", ERR_UNSUPPORTED,
         "layer 21 is missing, candidate_source_layer_id has it"},
        {"candidate_source_layer_id", "8", ERR_UNSUPPORTED, "layer 14 chooses among the rows of layer 14"},
        {"candidate_source_layer_id", "\"x\"", ERR_FORMAT,
         "candidate_source_layer_id: expected a layer or -1"},
        {"candidate_topk_blocks", "64", ERR_UNSUPPORTED, "candidate_topk_blocks is 64 with 8 rows each"},
        {"index_head_dim", "32", ERR_FORMAT, "index_head_dim is 32, expected at least 64"},
        {"index_head_dim", "130", ERR_FORMAT, "index_head_dim"},
        {"head_dim", "510", ERR_FORMAT, "head_dim"},
        {"engram_layer_ids", "[1, 40]", ERR_FORMAT, "engram_layer_ids[1]"},
        {"engram_layer_ids", "[14, 1]", ERR_UNSUPPORTED, "engram_layer_ids[1] is 1, expected rising numbers"},
        {"engram_num_embeddings", "[384006168]", ERR_FORMAT,
         "engram_num_embeddings[1] is 0, expected 384016682 rows"},
        {"engram_vocab_size", "16000058", ERR_FORMAT, "engram_num_embeddings[0] is 384006168"},
        {"engram_vocab_size", NULL, ERR_FORMAT, "key engram_vocab_size is missing"},
        {"engram_max_ngram_size", "5", ERR_FORMAT, "engram_max_ngram_size is 5"},
        {"engram_compressed_vocab_size", "129281", ERR_FORMAT, "engram_compressed_vocab_size is 129281"},
        {"engram_pad_token_id", "129280", ERR_FORMAT, "engram_pad_token_id is 129280"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2}", ERR_UNSUPPORTED,
         "rope_type is linear"},
        {"hc_mult", "9", ERR_FORMAT, "hc_mult is 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = parse(published);
        struct config c;
        struct moeflux_err e = {0};
        set(root, cases[i].key, cases[i].value);
        int rc = config_read(&c, root, "config.json", &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].said))
            fail_msg("%s %s: %d, %s", cases[i].key, cases[i].value, rc, e.text);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_layers_share_rows_and_choices),
        cmocka_unit_test(absent_keys_have_the_published_values),
        cmocka_unit_test(lists_may_be_absent),
        cmocka_unit_test(other_values_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
