/* Configurations made of GGUF files' keys and tensors: the layers of multi-token prediction, angles.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "check.h"
#include "gguf_writer.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/gguf/config.h"
#include "text/tokenizer/gguf_vocab.h"
#include "tmp_tree.h"

struct key {
    const char *name;
    uint32_t n;
};

/* Keys of every architecture, and those of a list, up to one without a name. */
static void put_keys(struct gguf_writer *w, const char *arch, const struct key *keys)
{
    static const struct key common[] = {
        {"embedding_length", 64},
        {"attention.head_count", 4},
        {"attention.head_count_kv", 2},
        {"attention.key_length", 16},
        {"expert_count", 4},
        {"expert_used_count", 2},
        {"expert_feed_forward_length", 64},
        {"feed_forward_length", 64},
        {"rope.dimension_count", 8},
        {"context_length", 1024},
        {0},
    };
    const struct key *const lists[] = {common, keys};
    char name[96];
    gguf_writer_text(w, "general.architecture", arch);
    for (int k = 0; k < 2; k++)
        for (const struct key *i = lists[k]; i->name; i++) {
            snprintf(name, sizeof name, "%s.%s", arch, i->name);
            gguf_writer_whole(w, name, i->n);
        }
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_writer_real(w, name, 1e-6f);
    gguf_writer_tensor(w, "token_embd.weight", 0, 64, 32, 1);
}

/* Returns the configuration; NULL: it is refused with *e. */
static json_t *make(struct gguf_writer *w, struct moeflux_err *e)
{
    char *tmp = tmp_tree_new();
    struct gguf g;
    json_t *out = NULL;
    gguf_writer_finish(w, tmp, "m.gguf");
    check_ok(gguf_open(&g, tmp_tree_path(tmp, "m.gguf"), e), e);
    if (gguf_config_make(&g, &out, e) < 0)
        out = NULL;
    gguf_close(&g);
    tmp_tree_remove(tmp);
    return out;
}

static const struct key m3[] = {
    {"block_count", 4},
    {"leading_dense_block_count", 1},
    {"expert_gating_func", 2},
    {"expert_weights_norm", 1},
    {"expert_shared_count", 1},
    {"attention.indexer.head_count", 2},
    {"attention.indexer.key_length", 16},
    {"attention.indexer.top_k", 4},
    {"attention.indexer.block_size", 16},
    {"attention.indexer.local_blocks", 1},
    {"nextn_predict_layers", 1},
    {0},
};

static void put_m3(struct gguf_writer *w)
{
    put_keys(w, "minimax-m3", m3);
    gguf_writer_tensor(w, "blk.1.ffn_gate_inp.weight", 0, 64, 4, 1);
    gguf_writer_tensor(w, "blk.2.ffn_gate_inp.weight", 0, 64, 4, 1);
}

static void layers_of_multi_token_prediction_are_left_out_of_lists(void **state)
{
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    struct config c;
    (void)state;
    put_m3(&w);
    gguf_writer_tensor(&w, "blk.3.nextn.eh_proj.weight", 0, 128, 64, 1);
    json_t *root = make(&w, &e);
    if (!root)
        fail_msg("%s", e.text);
    assert_int_equal(json_array_size(json_object_get(root, "layer_types")), 3);
    check_ok(config_read(&c, root, "m.gguf", &e), &e);
    assert_int_equal(c.n_layers, 3);
    assert_true(!config_has_experts(&c, 0) && config_has_experts(&c, 2));
    /* llama.cpp's default where the file has no base; the model's own is another one. */
    assert_true(c.ropes[0].theta == 1e4);
    config_free(&c);
    json_decref(root);
}

static void a_layer_that_is_none_of_multi_token_prediction_is_not_lost(void **state)
{
    static const struct key v4[] = {
        {"block_count", 4},
        {"nextn_predict_layers", 1},
        {"expert_gating_func", 4},
        {"expert_shared_count", 1},
        {"attention.q_lora_rank", 32},
        {"attention.sliding_window", 8},
        {"attention.output_group_count", 2},
        {"attention.output_lora_rank", 16},
        {"attention.indexer.head_count", 2},
        {"attention.indexer.key_length", 16},
        {"attention.indexer.top_k", 4},
        {"hyper_connection.count", 2},
        {"hyper_connection.sinkhorn_iterations", 4},
        {"hash_layer_count", 0},
        {0},
    };
    static const uint32_t ratios[] = {0, 4, 128, 4};
    static const float clamps[] = {10, 10, 10, 10};
    static const char *const reals[] = {"deepseek4.expert_weights_scale",
                                        "deepseek4.attention.compress_rope_freq_base",
                                        "deepseek4.hyper_connection.epsilon"};
    (void)state;
    for (int has_nextn = 0; has_nextn < 2; has_nextn++) {
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        put_keys(&w, "deepseek4", v4);
        for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
            gguf_writer_real(&w, reals[i], 1);
        gguf_writer_wholes(&w, "deepseek4.attention.compress_ratios", ratios, 4);
        gguf_writer_floats(&w, "deepseek4.swiglu_clamp_exp", clamps, 4);
        gguf_writer_tensor(&w, "blk.3.attn_norm.weight", 0, 64, 1, 1);
        if (has_nextn)
            gguf_writer_tensor(&w, "blk.3.nextn.eh_proj.weight", 0, 128, 64, 1);
        json_t *root = make(&w, &e);
        if (!root)
            fail_msg("%s", e.text);
        assert_int_equal(json_integer_value(json_object_get(root, "num_hidden_layers")), has_nextn ? 3 : 4);
        json_decref(root);
    }
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    put_m3(&w);
    gguf_writer_tensor(&w, "blk.3.attn_norm.weight", 0, 64, 1, 1);
    assert_null(make(&w, &e));
    assert_true(e.code == ERR_FORMAT);
    assert_non_null(
        strstr(e.text, "key minimax-m3.nextn_predict_layers: layer 3 has no tensor blk.3.nextn."));
}

static const struct key qwen3[] = {{"block_count", 3}, {0}};

/* The configuration of a small Qwen3-MoE; the caller has put more into `w`. */
static json_t *make_qwen3(struct gguf_writer *w, struct moeflux_err *e)
{
    put_keys(w, "qwen3moe", qwen3);
    return make(w, e);
}

static void expect_ids(const json_t *root, const char *key, const json_int_t *ids, size_t n)
{
    const json_t *list = json_object_get(root, key);
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        bool is_there = false;
        for (size_t k = 0; k < n; k++)
            is_there |= json_integer_value(json_array_get(list, k)) == ids[i];
        if (!is_there)
            fail_msg("%s lacks %d", key, (int)ids[i]);
    }
}

static void texts_that_llama_cpp_knows_end_an_answer(void **state)
{
    static const char *const kimi[] = {"a", "[EOS]", "[EOT]", "[PAD]", "<|im_end|>", "</s>"},
                             *const harmony[] = {"<|end|>", "<|return|>", "<|call|>", "<|channel|>", "a"},
                             *const phi[] = {"<|end|>", "a", "</s>"};
    static const uint32_t types[] = {1, 1, 3};
    (void)state;
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", kimi, 6);
    json_t *root = make_qwen3(&w, &e);
    expect_ids(root, "eos_token_id", (const json_int_t[]){1, 2, 3, 4}, 4);
    json_decref(root);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", harmony, 5);
    root = make_qwen3(&w, &e);
    expect_ids(root, "eos_token_id", (const json_int_t[]){1, 2}, 2);
    json_decref(root);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", phi, 3);
    gguf_writer_wholes(&w, "tokenizer.ggml.token_type", types, 3);
    root = make_qwen3(&w, &e);
    expect_ids(root, "eos_token_id", (const json_int_t[]){0, 2}, 2);
    json_decref(root);
}

/* The file says nothing about BOS: llama.cpp's default depends on the kind of tokenizer. */
static void bos_is_added_by_the_kind_of_tokenizer(void **state)
{
    static const char *const tokens[] = {"a", "<s>"}, *const merges[] = {"a a"};
    static const struct {
        const char *pre;
        bool adds;
    } cases[] = {{"llama-bpe", true}, {"tekken", true},   {"pixtral", true},     {"qwen2", false},
                 {"gpt-4o", false},   {"kimi-k2", false}, {"deepseek-v3", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        struct str text = {0};
        struct gguf g;
        char *tmp = tmp_tree_new();
        gguf_writer_text(&w, "tokenizer.ggml.model", "gpt2");
        gguf_writer_text(&w, "tokenizer.ggml.pre", cases[i].pre);
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, 2);
        gguf_writer_texts(&w, "tokenizer.ggml.merges", merges, 1);
        gguf_writer_whole(&w, "tokenizer.ggml.bos_token_id", 1);
        gguf_writer_finish(&w, tmp, "m.gguf");
        check_ok(gguf_open(&g, tmp_tree_path(tmp, "m.gguf"), &e), &e);
        check_ok(gguf_vocab_config(&g, &text, &e), &e);
        if (!strstr(str_text(&text), cases[i].adds ? "\"add_bos_token\": true" : "\"add_bos_token\": false"))
            fail_msg("%s: %s", cases[i].pre, str_text(&text));
        str_free(&text);
        gguf_close(&g);
        tmp_tree_remove(tmp);
    }
}

static void suppressed_tokens_are_those_of_the_file(void **state)
{
    static const uint32_t ids[] = {7, 4000000, 3};
    (void)state;
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    struct config c;
    gguf_writer_wholes(&w, "tokenizer.ggml.suppress_tokens", ids, 3);
    json_t *root = make_qwen3(&w, &e);
    check_ok(config_read(&c, root, "m.gguf", &e), &e);
    json_decref(root);
    assert_int_equal(c.n_suppressed, 3);
    assert_true(c.suppressed[0] == 7 && c.suppressed[2] == 3);
    config_free(&c);
}

static void a_factor_of_angles_without_a_type_is_linear(void **state)
{
    static const struct {
        const char *type; /* NULL: none */
        float factor;     /* 0: none */
        bool is_refused;
    } cases[] = {{NULL, 4, true},    {NULL, 1, false},      {"linear", 4, true}, {"linear", 0, false},
                 {"none", 4, false}, {"longrope", 1, true}, {NULL, 0, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        if (cases[i].type)
            gguf_writer_text(&w, "qwen3moe.rope.scaling.type", cases[i].type);
        if (cases[i].factor > 0)
            gguf_writer_real(&w, "qwen3moe.rope.scaling.factor", cases[i].factor);
        json_t *root = make_qwen3(&w, &e);
        if (!root != cases[i].is_refused)
            fail_msg("%s %g: %s", cases[i].type ? cases[i].type : "no type", (double)cases[i].factor, e.text);
        if (!root)
            assert_true(e.code == ERR_UNSUPPORTED && strstr(e.text, "qwen3moe.rope.scaling.type"));
        json_decref(root);
    }
}

static void layers_with_experts_use_the_same_number_of_them(void **state)
{
    static const uint32_t same[] = {0, 2, 2}, other[] = {0, 2, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        gguf_writer_text(&w, "general.architecture", "qwen3moe");
        gguf_writer_wholes(&w, "qwen3moe.expert_used_count", i ? other : same, 3);
        gguf_writer_whole(&w, "qwen3moe.block_count", 3);
        static const struct key more[] = {{"embedding_length", 64},
                                          {"attention.head_count", 4},
                                          {"expert_count", 4},
                                          {"expert_feed_forward_length", 64},
                                          {0}};
        for (const struct key *k = more; k->name; k++) {
            char name[96];
            snprintf(name, sizeof name, "qwen3moe.%s", k->name);
            gguf_writer_whole(&w, name, k->n);
        }
        gguf_writer_real(&w, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
        gguf_writer_tensor(&w, "token_embd.weight", 0, 64, 32, 1);
        json_t *root = make(&w, &e);
        if (!root != (i == 1))
            fail_msg("%d: %s", i, e.text);
        if (root)
            assert_int_equal(json_integer_value(json_object_get(root, "num_experts_per_tok")), 2);
        else
            assert_true(e.code == ERR_UNSUPPORTED && strstr(e.text, "qwen3moe.expert_used_count[1]: 2"));
        json_decref(root);
    }
}

/* If expert_gating_func is missing, GLM-4.5 has sigmoid scores, as in llama.cpp. */
static void the_router_s_scores_are_those_of_the_file(void **state)
{
    static const struct {
        const char *arch;
        uint32_t scores; /* 0: no key */
        const char *expected;
    } cases[] = {{"glm4moe", 0, "sigmoid"},
                 {"glm4moe", 1, "softmax"},
                 {"minimax-m2", 2, "sigmoid"},
                 {"minimax-m2", 1, "softmax"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        struct key keys[] = {{"block_count", 3},
                             {"expert_shared_count", 1},
                             {cases[i].scores ? "expert_gating_func" : NULL, cases[i].scores},
                             {0}};
        put_keys(&w, cases[i].arch, keys);
        json_t *root = make(&w, &e);
        if (!root)
            fail_msg("%s", e.text);
        assert_string_equal(json_string_value(json_object_get(root, "scoring_func")), cases[i].expected);
        struct config c;
        int rc = config_read(&c, root, "m.gguf", &e);
        json_decref(root);
        if (strcmp(cases[i].expected, "sigmoid") == 0)
            check_ok(rc, &e);
        else
            assert_true(rc == ERR_UNSUPPORTED && strstr(e.text, "scoring_func"));
        if (rc == 0)
            config_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_multi_token_prediction_are_left_out_of_lists),
        cmocka_unit_test(a_layer_that_is_none_of_multi_token_prediction_is_not_lost),
        cmocka_unit_test(texts_that_llama_cpp_knows_end_an_answer),
        cmocka_unit_test(bos_is_added_by_the_kind_of_tokenizer),
        cmocka_unit_test(suppressed_tokens_are_those_of_the_file),
        cmocka_unit_test(a_factor_of_angles_without_a_type_is_linear),
        cmocka_unit_test(layers_with_experts_use_the_same_number_of_them),
        cmocka_unit_test(the_router_s_scores_are_those_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
