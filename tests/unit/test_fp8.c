/* Checkpoints with 8-bit floats: a conversion gives the bytes of the one from the same values in BF16.
 *
 * suites: check fast asan tsan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "check.h"
#include "convert/convert.h"
#include "convert/plan.h"
#include "model/fp8.h"
#include "model/model_dir.h"
#include "model/quant.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define HF "tests/models/sources/deepseek/hf"

#define BLOCK(rows, cols)                                                                                    \
    ",\n \"quantization_config\": {\n  \"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\",\n"             \
    "  \"quant_method\": \"fp8\", \"weight_block_size\": [" rows ", " cols "],\n"                            \
    "  \"modules\": [\"a \\\"quantization_config\\\": {,}\", {\"b\": []}]\n },\n \"hidden_act\""

/* What the two maps below make, and how they spoil it. */
static struct {
    size_t rows, cols;  /* size of a block */
    const char *spoilt; /* the matrix that is damaged; NULL: none */
    enum damage { NAN_CODE, NAN_SCALE, HUGE_SCALE, NO_SCALES, FEW_SCALES, INTEGER_SCALES } damage;
} plan;

/* --- the format --- */

static void every_code_has_its_value(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        int exponent = code / 8 % 16, mantissa = code % 8;
        double sign = code < 128 ? 1 : -1;
        double x = exponent ? (1 + mantissa / 8.0) * pow(2, exponent - 7) : mantissa / 8.0 * pow(2, -6);
        float found = e4m3_to_float((uint8_t)code);
        if (exponent == 15 && mantissa == 7)
            assert_true(isnan(found));
        else
            assert_true((double)found == sign * x && (signbit(found) != 0) == (code >= 128));
    }
    assert_true(e4m3_to_float(0x7e) == 448.0F && e4m3_to_float(0x01) == 0.001953125F &&
                e4m3_to_float(0x38) == 1.0F);
}

/* --- checkpoints --- */

/* Some code that depends on the value: its sign, the last bits of its exponent, the first of its mantissa. */
static uint8_t code_of(const uint8_t *bf16)
{
    uint8_t code = (uint8_t)((bf16[1] & 0x80) | (bf16[1] & 7) << 4 | bf16[0] >> 4);
    return (code & 0x7f) == 0x7f ? code - 1 : code;
}

/* A matrix [rows][cols] of BF16 as codes and scales. The first codes of each are the format's extremes. */
static void encode(const uint8_t *bf16, size_t rows, size_t cols, uint8_t *codes, float *scales)
{
    static const uint8_t extremes[] = {0x7e, 0xfe, 0x01, 0x81, 0x07, 0x08, 0x80, 0x77};
    size_t wide = (cols + plan.cols - 1) / plan.cols;
    for (size_t i = 0; i < (rows + plan.rows - 1) / plan.rows * wide; i++)
        scales[i] = (1.0F + (float)(i % 7) / 8.1F) / 4096;
    for (size_t i = 0; i < rows * cols; i++)
        codes[i] = i < sizeof extremes ? extremes[i] : code_of(bf16 + 2 * i);
}

static void decode(const uint8_t *codes, const float *scales, size_t rows, size_t cols, uint16_t *out)
{
    size_t wide = (cols + plan.cols - 1) / plan.cols;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            out[r * cols + c] = bf16_from_float(e4m3_to_float(codes[r * cols + c]) *
                                                scales[r / plan.rows * wide + c / plan.cols]);
}

static void write_scales(struct st_writer *w, const char *name, float *scales, size_t high, size_t wide)
{
    bool spoil = plan.spoilt && strstr(name, plan.spoilt);
    char full[256], shape[64];
    if (spoil && plan.damage == NO_SCALES)
        return;
    if (spoil && plan.damage == NAN_SCALE)
        scales[high * wide - 1] = NAN;
    if (spoil && plan.damage == HUGE_SCALE)
        scales[high * wide - 1] = 3e38F;
    if (spoil && plan.damage == FEW_SCALES)
        high--;
    snprintf(full, sizeof full, "%s_scale_inv", name);
    snprintf(shape, sizeof shape, "[%zu,%zu]", high, wide);
    st_writer_add(w, full, spoil && plan.damage == INTEGER_SCALES ? "I32" : "F32", shape, scales,
                  high * wide * sizeof *scales);
}

static void write_matrix(struct st_writer *w, const char *name, const uint8_t *bf16, size_t rows, size_t cols,
                         bool as_fp8)
{
    size_t high = (rows + plan.rows - 1) / plan.rows, wide = (cols + plan.cols - 1) / plan.cols;
    uint8_t *codes = malloc(rows * cols);
    float *scales = malloc(high * wide * sizeof *scales);
    uint16_t *values = malloc(rows * cols * sizeof *values);
    char shape[64];
    assert_true(codes && scales && values);
    encode(bf16, rows, cols, codes, scales);
    decode(codes, scales, rows, cols, values);
    if (plan.spoilt && strstr(name, plan.spoilt) && plan.damage == NAN_CODE)
        codes[rows * cols - 1] = 0xff;
    snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    if (as_fp8) {
        st_writer_add(w, name, "F8_E4M3", shape, codes, rows * cols);
        write_scales(w, name, scales, high, wide);
    } else {
        st_writer_add(w, name, "BF16", shape, values, rows * cols * sizeof *values);
    }
    free(codes);
    free(scales);
    free(values);
}

/* Fused stacks become one matrix an expert, as DeepSeek's own files have them. */
static void write_experts(struct st_writer *w, const struct tensor *t, const uint8_t *bytes, bool as_fp8)
{
    bool down = strstr(t->name, "down_proj") != NULL;
    size_t parts = down ? 1 : 2, rows = t->shape[1] / parts, n = t->bytes / t->shape[0] / parts;
    for (size_t i = 0; i < t->shape[0] * parts; i++) {
        char name[256];
        snprintf(name, sizeof name, "%.*sexperts.%zu.%s.weight", (int)(strstr(t->name, "experts.") - t->name),
                 t->name, i / parts,
                 down    ? "down_proj"
                 : i % 2 ? "up_proj"
                         : "gate_proj");
        write_matrix(w, name, bytes + i * n, rows, t->shape[2], as_fp8);
    }
}

static void write_tensor(struct st_writer *w, const struct tensor *t, const uint8_t *bytes, bool as_fp8)
{
    if (!t) {
        /* Multi-token prediction, which is left out, whatever is in it. */
        static const uint8_t nan_codes[4] = {0x7f, 0x7f, 0xff, 0x7f};
        st_writer_add(w, "model.layers.3.self_attn.o_proj.weight", "F8_E4M3", "[2,2]", nan_codes, 4);
        st_writer_add(w, "model.layers.3.shared_head.head.weight", "F8_E4M3", "[2,2]", nan_codes, 4);
    } else if (t->n_dims == 3) {
        write_experts(w, t, bytes, as_fp8);
    } else if (strstr(t->name, "proj") && t->n_dims == 2) {
        write_matrix(w, t->name, bytes, t->shape[0], t->shape[1], as_fp8);
    } else {
        st_writer_add_like(w, t->name, t, bytes);
    }
}

static void as_fp8(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    write_tensor(w, t, bytes, true);
}

static void as_bf16(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    write_tensor(w, t, bytes, false);
}

/* --- conversions --- */

static int run(const char *src, const char *dst, bool verify, struct convert_settings s,
               struct moeflux_err *e)
{
    struct convert_result r;
    const struct convert_options o = {.src = src, .dst = dst, .verify = verify, .settings = s};
    *e = (struct moeflux_err){0};
    return convert_run(&o, &r, e);
}

static void check_blocks(size_t rows, size_t cols, const char *config, struct convert_settings s)
{
    static const char *const files[] = {"model_weights.bin", "packed_experts/layer_01.bin",
                                        "packed_experts/layer_02.bin", "config.json"};
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "fp8"), *b = tmp_tree_path(tmp, "bf16");
    const char *a_out = tmp_tree_path(tmp, "fp8.out"), *b_out = tmp_tree_path(tmp, "bf16.out");
    struct model_dir m;
    struct moeflux_err e;
    plan.rows = rows;
    plan.cols = cols;
    st_writer_rewrite(HF, a, as_fp8);
    st_writer_rewrite(HF, b, as_bf16);
    tmp_tree_replace(a, "config.json", ",\n \"hidden_act\"", config);
    check_ok(run(a, a_out, true, s, &e), &e);
    check_ok(run(b, b_out, false, s, &e), &e);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        tmp_tree_expect_same(a_out, b_out, files[i]);
    check_ok(model_dir_open(&m, a_out, &e), &e);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void fp8_converts_to_what_its_values_in_bf16_give(void **state)
{
    (void)state;
    check_blocks(128, 128, BLOCK("128", "128"), (struct convert_settings){0});
}

static void blocks_of_other_sizes_convert_too(void **state)
{
    (void)state;
    check_blocks(48, 96, BLOCK("48", "96"), (struct convert_settings){0});
}

/* The block of MiniMax-M2. What it leaves out of the conversion is plain, and quantised as all plain matrices
 * are. */
static void the_other_name_of_the_format_is_taken_too(void **state)
{
    (void)state;
    check_blocks(
        128, 128,
        ",\n \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"float8_e4m3fn\","
        " \"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"modules_to_not_convert\": "
        "[\"gate\", \"e_score_correction_bias\", \"lm_head\"]},\n \"hidden_act\"",
        (struct convert_settings){0});
}

static void fp8_converts_to_other_widths_as_bf16_does(void **state)
{
    (void)state;
    check_blocks(128, 128, BLOCK("128", "128"), (struct convert_settings){.bits = 6, .expert_bits = 3});
}

/* Large matrices are read in parts, which begin and end anywhere. */
static void any_part_of_a_matrix_can_be_read(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src");
    struct convert_plan p;
    struct moeflux_err e = {0};
    plan.rows = plan.cols = 128;
    st_writer_rewrite(HF, src, as_fp8);
    tmp_tree_replace(src, "config.json", ",\n \"hidden_act\"", BLOCK("128", "128"));
    check_ok(convert_plan_open(&p, src, &(struct convert_settings){0}, &e), &e);
    const struct tensor *t = model_dir_find(&p.src, "model.layers.0.self_attn.q_b_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F8_E4M3);
    uint64_t n = t->bytes;
    uint8_t *all = malloc(4 * n), *part = malloc(4 * n);
    assert_true(all && part);
    check_ok(convert_plan_read(&p, t, 0, n, all, &e), &e);
    for (uint64_t from = 0; from < n; from += 7919)
        for (uint64_t k = 1; from + k <= n; k += 10007) {
            check_ok(convert_plan_read(&p, t, from, k, part, &e), &e);
            assert_memory_equal(part, all + 2 * from, 2 * k);
        }
    free(all);
    free(part);
    convert_plan_close(&p);
    tmp_tree_remove(tmp);
}

/* --- matrices that hold several --- */

/* A layer of Qwen3-Next with two key heads, each with contiguous rows of q, k, v and z. */
enum { NEXT_HIDDEN = 128, NEXT_INNER = 64, NEXT_VALUES = 4 * 32, NEXT_QKV = 2 * 2 * 32 + NEXT_VALUES };

static const char NEXT[] =
    "{\"model_type\": \"qwen3_next\",\n \"hidden_act\": \"silu\", \"hidden_size\": 128, "
    "\"num_hidden_layers\": 1,"
    "\"moe_intermediate_size\": 64, \"shared_expert_intermediate_size\": 64, \"vocab_size\": 32,"
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 64, \"num_experts\": 2,"
    "\"num_experts_per_tok\": 1, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"eos_token_id\": 2,"
    "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 32,"
    "\"linear_value_head_dim\": 32, \"max_position_embeddings\": 64, \"tie_word_embeddings\": false}";

static const struct next_tensor {
    const char *name;
    size_t rows, cols; /* rows 0: a vector */
    bool is_fp8;
} next_tensors[] = {
    {"model.embed_tokens.weight", 32, NEXT_HIDDEN, false},
    {"lm_head.weight", 32, NEXT_HIDDEN, false},
    {"model.norm.weight", 0, NEXT_HIDDEN, false},
    {"model.layers.0.input_layernorm.weight", 0, NEXT_HIDDEN, false},
    {"model.layers.0.post_attention_layernorm.weight", 0, NEXT_HIDDEN, false},
    {"model.layers.0.linear_attn.in_proj_qkvz.weight", NEXT_QKV + NEXT_VALUES, NEXT_HIDDEN, true},
    {"model.layers.0.linear_attn.in_proj_ba.weight", 8, NEXT_HIDDEN, false},
    {"model.layers.0.linear_attn.out_proj.weight", NEXT_HIDDEN, NEXT_VALUES, true},
    {"model.layers.0.linear_attn.A_log", 0, 4, false},
    {"model.layers.0.linear_attn.dt_bias", 0, 4, false},
    {"model.layers.0.linear_attn.norm.weight", 0, 32, false},
    {"model.layers.0.mlp.gate.weight", 2, NEXT_HIDDEN, false},
    {"model.layers.0.mlp.shared_expert_gate.weight", 1, NEXT_HIDDEN, false},
    {"model.layers.0.mlp.shared_expert.gate_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.shared_expert.up_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.shared_expert.down_proj.weight", NEXT_HIDDEN, NEXT_INNER, true},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.experts.0.up_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.experts.0.down_proj.weight", NEXT_HIDDEN, NEXT_INNER, true},
    {"model.layers.0.mlp.experts.1.gate_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.experts.1.up_proj.weight", NEXT_INNER, NEXT_HIDDEN, true},
    {"model.layers.0.mlp.experts.1.down_proj.weight", NEXT_HIDDEN, NEXT_INNER, true},
};

static void fill(uint16_t *values, size_t n)
{
    uint32_t random = 1;
    for (size_t i = 0; i < n; i++) {
        random = random * 1664525 + 1013904223;
        values[i] = (uint16_t)(0x3c00 | random >> 31 << 15 | (random >> 12 & 0x1ff));
    }
}

static void write_next(const char *dir, bool as_fp8)
{
    static uint16_t values[(NEXT_QKV + NEXT_VALUES) * NEXT_HIDDEN];
    struct st_writer w = {0};
    char shape[64];
    fill(values, sizeof values / sizeof *values);
    assert_int_equal(mkdir(dir, 0777), 0);
    tmp_tree_write_text(dir, "config.json", NEXT);
    for (size_t i = 0; i < sizeof next_tensors / sizeof *next_tensors; i++) {
        const struct next_tensor *t = &next_tensors[i];
        if (t->rows)
            snprintf(shape, sizeof shape, "[%zu,%zu]", t->rows, t->cols);
        else
            snprintf(shape, sizeof shape, "[%zu]", t->cols);
        if (t->is_fp8)
            write_matrix(&w, t->name, (const uint8_t *)values, t->rows, t->cols, as_fp8);
        else
            st_writer_add(&w, t->name, "BF16", shape, values,
                          (t->rows ? t->rows : 1) * t->cols * sizeof *values);
    }
    snprintf(shape, sizeof shape, "[%d,1,4]", NEXT_QKV);
    st_writer_add(&w, "model.layers.0.linear_attn.conv1d.weight", "BF16", shape, values,
                  NEXT_QKV * 4 * sizeof *values);
    st_writer_finish(&w, dir, "model.safetensors");
}

/* The rows of a block are those of one head's q, k, half a v or half a z; the scales lie in the order of the
 * file. */
static void scales_go_with_the_rows_of_a_split_matrix(void **state)
{
    (void)state;
    static const char *const files[] = {"model_weights.bin", "packed_experts/layer_00.bin", "config.json"};
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "fp8"), *b = tmp_tree_path(tmp, "bf16");
    const char *a_out = tmp_tree_path(tmp, "fp8.out"), *b_out = tmp_tree_path(tmp, "bf16.out");
    struct moeflux_err e;
    plan.rows = 32;
    plan.cols = 64;
    write_next(a, true);
    write_next(b, false);
    tmp_tree_replace(a, "config.json", ",\n \"hidden_act\"", BLOCK("32", "64"));
    check_ok(run(a, a_out, true, (struct convert_settings){0}, &e), &e);
    check_ok(run(b, b_out, false, (struct convert_settings){0}, &e), &e);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        tmp_tree_expect_same(a_out, b_out, files[i]);
    tmp_tree_remove(tmp);
}

static void scales_across_two_parts_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src");
    struct moeflux_err e;
    plan.rows = plan.cols = 64;
    write_next(src, true);
    tmp_tree_replace(src, "config.json", ",\n \"hidden_act\"", BLOCK("64", "64"));
    assert_int_equal(run(src, tmp_tree_path(tmp, "dst"), false, (struct convert_settings){0}, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "linear_attn.in_proj_qkvz.weight_scale_inv: a scale is for 64 rows, "
                                   "expected one that divides the 32 of a part"));
    tmp_tree_remove(tmp);
}

static void expect_refused(const char *matrix, enum damage damage, int code, const char *text)
{
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    struct moeflux_err e;
    plan.rows = plan.cols = 128;
    plan.spoilt = matrix;
    plan.damage = damage;
    st_writer_rewrite(HF, src, as_fp8);
    plan.spoilt = NULL;
    tmp_tree_replace(src, "config.json", ",\n \"hidden_act\"", BLOCK("128", "128"));
    int rc = run(src, dst, false, (struct convert_settings){0}, &e);
    if (rc != code || !strstr(e.text, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e.text, code, text);
    assert_false(file_exists(dst));
    tmp_tree_remove(tmp);
}

static void values_that_are_none_are_refused_by_name(void **state)
{
    (void)state;
    expect_refused("layers.1.self_attn.q_b_proj", NAN_CODE, ERR_FORMAT,
                   "model.layers.1.self_attn.q_b_proj.weight: row 191 column 191 is NaN (code 0xff)");
    expect_refused("layers.2.mlp.experts.5.down_proj", NAN_CODE, ERR_FORMAT,
                   "model.layers.2.mlp.experts.5.down_proj.weight: row 191 column 63 is NaN (code 0xff)");
    expect_refused("layers.0.mlp.up_proj", NAN_SCALE, ERR_FORMAT,
                   "model.layers.0.mlp.up_proj.weight_scale_inv: element 5 is not finite");
    expect_refused("layers.2.self_attn.o_proj", HUGE_SCALE, ERR_FORMAT,
                   "model.layers.2.self_attn.o_proj.weight: row ");
}

static void scales_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    expect_refused(
        "layers.1.self_attn.kv_a_proj_with_mqa", NO_SCALES, ERR_FORMAT,
        "is F8_E4M3, but there is no model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
    expect_refused("layers.1.self_attn.kv_a_proj_with_mqa", FEW_SCALES, ERR_FORMAT,
                   "shape [1, 2], expected [2, 2]: blocks of 128 x 128 in the weight's [160, 192]");
    expect_refused("layers.2.mlp.experts.0.up_proj", INTEGER_SCALES, ERR_FORMAT,
                   "I32, expected F32, BF16 or F8_E8M0");
}

static void a_directory_of_fp8_opens_as_it_lies(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src");
    struct model_dir m;
    struct moeflux_err e = {0};
    plan.rows = plan.cols = 128;
    st_writer_rewrite(HF, src, as_fp8);
    assert_int_equal(run(src, tmp_tree_path(tmp, "dst"), false, (struct convert_settings){0}, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "F8_E4M3, expected one scale or one a row without quant_method fp8"));
    tmp_tree_replace(src, "config.json", ",\n \"hidden_act\"", BLOCK("128", "128"));
    check_ok(model_dir_open(&m, src, &e), &e);
    assert_int_equal(m.experts[1].formats.up, FORMAT_FP8_32);
    assert_true(m.has_rules);
    model_dir_close(&m);
    tmp_tree_replace(src, "config.json", "[128, 128]", "[128]");
    assert_int_equal(run(src, tmp_tree_path(tmp, "dst"), false, (struct convert_settings){0}, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "expected weight_block_size [rows, columns]"));
    tmp_tree_replace(src, "config.json", "\"fmt\": \"e4m3\"", "\"fmt\": \"e5m2\"");
    assert_int_equal(run(src, tmp_tree_path(tmp, "dst"), false, (struct convert_settings){0}, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "fmt is e5m2, expected e4m3 or float8_e4m3fn"));
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(fp8_converts_to_what_its_values_in_bf16_give),
        cmocka_unit_test(blocks_of_other_sizes_convert_too),
        cmocka_unit_test(the_other_name_of_the_format_is_taken_too),
        cmocka_unit_test(fp8_converts_to_other_widths_as_bf16_does),
        cmocka_unit_test(any_part_of_a_matrix_can_be_read),
        cmocka_unit_test(scales_go_with_the_rows_of_a_split_matrix),
        cmocka_unit_test(scales_across_two_parts_are_refused),
        cmocka_unit_test(values_that_are_none_are_refused_by_name),
        cmocka_unit_test(scales_that_do_not_fit_are_refused),
        cmocka_unit_test(a_directory_of_fp8_opens_as_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
