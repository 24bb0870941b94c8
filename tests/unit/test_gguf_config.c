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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_multi_token_prediction_are_left_out_of_lists),
        cmocka_unit_test(a_layer_that_is_none_of_multi_token_prediction_is_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
