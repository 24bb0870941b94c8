#include "small_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/f16.h"
#include "check.h"
#include "convert/convert.h"
#include "fuzz.h"
#include "model/quant.h"
#include "st_writer.h"
#include "tmp_tree.h"

static const char CONFIG[] =
    "{\"model_type\": \"qwen3_5_moe\", \"text_config\": {\"model_type\": \"qwen3_5_moe_text\","
    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 1024, \"attention_bias\": false,"
    "\"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": false, \"linear_conv_kernel_dim\": 4,"
    "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 4, \"full_attention_interval\": 2,"
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32, \"linear_num_key_heads\": 1,"
    "\"linear_num_value_heads\": 2, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 32,"
    "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64,"
    "\"shared_expert_intermediate_size\": 64, \"rope_parameters\": {\"rope_type\": \"default\","
    "\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5}, \"eos_token_id\": [1]}}";

struct maker {
    struct st_writer w;
    struct fuzz random;
    uint32_t interval; /* every interval-th layer has attention */
};

/* Numbers evenly between -scale and scale around `mean`. */
static void add(struct maker *m, const char *name, const char *shape, uint32_t n, float mean, float scale)
{
    uint16_t *values = malloc(n * sizeof *values);
    assert_non_null(values);
    for (uint32_t i = 0; i < n; i++) {
        float unit = (float)fuzz_below(&m->random, 1 << 20) / (float)(1 << 19) - 1;
        values[i] = bf16_from_float(mean + scale * unit);
    }
    st_writer_add(&m->w, name, "BF16", shape, values, n * sizeof *values);
    free(values);
}

static void add_matrix(struct maker *m, uint32_t layer, const char *what, uint32_t rows, uint32_t cols)
{
    char name[96], shape[32];
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, what);
    snprintf(shape, sizeof shape, "[%u, %u]", rows, cols);
    add(m, name, shape, rows * cols, 0, 0.25f);
}

static void add_vector(struct maker *m, uint32_t layer, const char *what, const char *shape, uint32_t n,
                       float mean, float scale)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, what);
    add(m, name, shape, n, mean, scale);
}

static void add_delta(struct maker *m, uint32_t i)
{
    add_matrix(m, i, "linear_attn.in_proj_qkv", 96, 64);
    add_matrix(m, i, "linear_attn.in_proj_z", 64, 64);
    add_matrix(m, i, "linear_attn.in_proj_b", 2, 64);
    add_matrix(m, i, "linear_attn.in_proj_a", 2, 64);
    add_matrix(m, i, "linear_attn.out_proj", 64, 64);
    add_vector(m, i, "linear_attn.conv1d.weight", "[96, 1, 4]", 384, 0, 0.5f);
    /* Slow decay: what was long ago still shows. */
    add_vector(m, i, "linear_attn.A_log", "[2]", 2, -3, 0.5f);
    add_vector(m, i, "linear_attn.dt_bias", "[2]", 2, 0, 0.5f);
    add_vector(m, i, "linear_attn.norm.weight", "[32]", 32, 1, 0.1f);
}

static void add_attention(struct maker *m, uint32_t i)
{
    add_matrix(m, i, "self_attn.q_proj", 128, 64);
    add_matrix(m, i, "self_attn.k_proj", 32, 64);
    add_matrix(m, i, "self_attn.v_proj", 32, 64);
    add_matrix(m, i, "self_attn.o_proj", 64, 64);
    add_vector(m, i, "self_attn.q_norm.weight", "[32]", 32, 0, 0.1f);
    add_vector(m, i, "self_attn.k_norm.weight", "[32]", 32, 0, 0.1f);
}

static void add_layer(struct maker *m, uint32_t i)
{
    add_vector(m, i, "input_layernorm.weight", "[64]", 64, 0, 0.1f);
    add_vector(m, i, "post_attention_layernorm.weight", "[64]", 64, 0, 0.1f);
    if ((i + 1) % m->interval == 0)
        add_attention(m, i);
    else
        add_delta(m, i);
    add_matrix(m, i, "mlp.gate", 4, 64);
    add_matrix(m, i, "mlp.shared_expert_gate", 1, 64);
    add_matrix(m, i, "mlp.shared_expert.gate_proj", 64, 64);
    add_matrix(m, i, "mlp.shared_expert.up_proj", 64, 64);
    add_matrix(m, i, "mlp.shared_expert.down_proj", 64, 64);
    add_vector(m, i, "mlp.experts.gate_up_proj", "[4, 128, 64]", 4 * 128 * 64, 0, 0.25f);
    add_vector(m, i, "mlp.experts.down_proj", "[4, 64, 64]", 4 * 64 * 64, 0, 0.25f);
}

static const char *make(const char *dir, uint64_t seed, uint32_t interval)
{
    struct maker m = {.random = {seed}, .interval = interval};
    struct moeflux_err e = {0};
    struct convert_result r;
    const char *hf = tmp_tree_path(dir, "hf"), *packed = tmp_tree_path(dir, "packed");
    assert_int_equal(mkdir(hf, 0777), 0);
    tmp_tree_write_text(hf, "config.json", CONFIG);
    if (interval == 1)
        tmp_tree_replace(hf, "config.json", "\"full_attention_interval\": 2",
                         "\"full_attention_interval\": 1");
    add(&m, "model.embed_tokens.weight", "[64, 64]", 64 * 64, 0, 1);
    add(&m, "lm_head.weight", "[64, 64]", 64 * 64, 0, 0.25f);
    add(&m, "model.norm.weight", "[64]", 64, 0, 0.1f);
    for (uint32_t i = 0; i < SMALL_LAYERS; i++)
        add_layer(&m, i);
    st_writer_finish(&m.w, hf, "model.safetensors");
    check_ok(convert_run(&(struct convert_options){.src = hf, .dst = packed, .n_threads = 1}, &r, &e), &e);
    return packed;
}

const char *small_model_make(const char *dir, uint64_t seed)
{
    return make(dir, seed, 2);
}

const char *small_model_make_attention(const char *dir, uint64_t seed)
{
    return make(dir, seed, 1);
}
