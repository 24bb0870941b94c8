/* Checkpoints in NVFP4 as ModelOpt and compressed-tensors publish them: as they lie, converted, and what is
 * refused.
 *
 * suites: nightly vulkan cpu asan-nightly */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/f16.h"
#include "base/format.h"
#include "check.h"
#include "convert/convert.h"
#include "device.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model_dirs.h"
#include "publish.h"
#include "sequence.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { CONTEXT = 400, TOKENS = 90, CHUNK = 64, MOST_VOCAB = 2048 };

static const char *publish(const char *tmp, const char *name, const char *model,
                           const struct publish_form *form)
{
    char from[96];
    snprintf(from, sizeof from, "tests/models/%s", model);
    const char *out = tmp_tree_path(tmp, name);
    publish_model(from, out, form);
    return out;
}

/* The logits after a prompt, and after some tokens: two rows. */
static void run(const char *dir, const char *device, uint32_t chunk, uint32_t n_slots,
                float logits[2 * MOST_VOCAB])
{
    int32_t ids[TOKENS];
    struct sequence q = sequence_open(dir, device, chunk, n_slots, CONTEXT);
    assert_true(q.vocab <= MOST_VOCAB);
    sequence_ids(&q, 1, ids, TOKENS);
    memset(logits, 0, 2 * MOST_VOCAB * sizeof *logits);
    sequence_eval(&q, ids, TOKENS, logits);
    for (int i = 0; i < 3; i++)
        sequence_eval(&q, ids + i, 1, logits + MOST_VOCAB);
    sequence_close(&q);
}

static float largest_difference(const float *a, const float *b)
{
    float worst = 0;
    for (int i = 0; i < 2 * MOST_VOCAB; i++) {
        float d = fabsf(a[i] - b[i]);
        assert_true(d == d);
        worst = fmaxf(worst, d);
    }
    return worst;
}

/* --- numbers --- */

/* Every code of a scale: the number of a 1 (code 2) with it is the library's formula. */
static void scales_are_multiplied_by_the_factor(void **state)
{
    (void)state;
    enum { GROUP = 16 };
    const struct format *f = format_of(FORMAT_NVFP4_FACTOR);
    const float factor = 0.0137F;
    uint8_t codes[GROUP / 2], scale;
    float numbers[GROUP];
    memset(codes, 0x22, sizeof codes);
    for (int i = 0; i < 256; i++) {
        scale = (uint8_t)i;
        bool is_number = (i & 0x7f) != 0x7f;
        assert_int_equal(format_scales_are_finite(f->scale, &scale, 1), is_number);
        format_decode(f, codes, &scale, &factor, 0, GROUP, numbers);
        for (int k = 0; k < GROUP && is_number; k++)
            assert_true(numbers[k] == e4m3_to_float(scale) * factor);
    }
}

/* --- models --- */

static const struct {
    const char *model;
    struct publish_form form;
} models[] = {
    {"qwen3-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT, .sharded = true}},
    {"qwen3-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED}},
    {"deepseek-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT}},
    {"qwen-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED, .less_one = true}},
    {"families/minimax-odd", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT, .sharded = true}},
    {"families/next-odd", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT, .less_one = true}}, /* in_proj_qkvz */
    {"families/glm-odd", {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED}},
    /* The rest has 8-bit floats: quant_algo MIXED_PRECISION. */
    {"qwen3-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT, .block = 1, .scales = PUBLISH_FOR_ALL}},
    /* The same of compressed-tensors: a group of each. */
    {"qwen3-odd/mlx", {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED, .block = 1, .scales = PUBLISH_FOR_ROWS}},
    /* All of them: quant_algo FP8. */
    {"qwen3-odd/mlx", {.dtype = "F32", .block = 1, .scales = PUBLISH_FOR_ALL, .modelopt_fp8 = true}},
};

/* Codes with their scales and factors give what the numbers that they stand for give. */
static void codes_give_what_their_numbers_give(const char *device, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *tmp = tmp_tree_new();
        static float a[2 * MOST_VOCAB], b[2 * MOST_VOCAB], c[2 * MOST_VOCAB];
        struct publish_form form = models[i].form;
        const char *codes = publish(tmp, "codes", models[i].model, &form);
        form.widened = true;
        const char *numbers = publish(tmp, "numbers", models[i].model, &form);
        run(numbers, "reference", CHUNK, 0, a);
        run(codes, device, CHUNK, 0, b);
        printf("%zu. %s: %.1e\n", i, models[i].model, (double)largest_difference(a, b));
        assert_true(largest_difference(a, b) < 1e-4F);
        run(codes, device, CHUNK, 5, c);
        assert_memory_equal(b, c, sizeof b);
        tmp_tree_remove(tmp);
    }
}

static void nvfp4_agrees_with_its_numbers(void **state)
{
    (void)state;
    codes_give_what_their_numbers_give(NULL, device_is_software() ? 1 : sizeof models / sizeof *models);
}

static void nvfp4_agrees_with_its_numbers_on_the_reference_backend(void **state)
{
    (void)state;
    codes_give_what_their_numbers_give("reference", sizeof models / sizeof *models);
}

static void a_converted_copy_has_the_same_logits(void **state)
{
    (void)state;
    for (enum publish_nvfp4 how = PUBLISH_MODELOPT; how <= PUBLISH_COMPRESSED; how++) {
        char *tmp = tmp_tree_new();
        static float a[2 * MOST_VOCAB], b[2 * MOST_VOCAB];
        struct convert_result r;
        struct moeflux_err e = {0};
        const struct publish_form form = {.dtype = "F32", .nvfp4 = how};
        const char *dir = publish(tmp, "codes", "qwen3-odd/mlx", &form), *copy = tmp_tree_path(tmp, "copy");
        const struct convert_options o = {.src = dir, .dst = copy, .verify = true};
        check_ok(convert_run(&o, &r, &e), &e);
        run(dir, NULL, CHUNK, 0, a);
        run(copy, NULL, CHUNK, 0, b);
        assert_memory_equal(a, b, sizeof a);
        struct moeflux_needs needs;
        check_ok(moeflux_get_needs(dir, &needs, &e), &e);
        assert_string_equal(needs.expert_formats, "nvfp4");
        assert_non_null(strstr(needs.dense_formats, "nvfp4 "));
        check_ok(moeflux_get_needs(copy, &needs, &e), &e);
        assert_string_equal(needs.expert_formats, "nvfp4");
        assert_non_null(strstr(needs.dense_formats, "nvfp4 "));
        tmp_tree_remove(tmp);
    }
}

static void conversion_takes_fewer_bits(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct convert_result r;
    struct moeflux_err e = {0};
    const struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *dir = publish(tmp, "codes", "qwen3-odd/mlx", &form), *copy = tmp_tree_path(tmp, "copy");
    const struct convert_options o = {.src = dir, .dst = copy, .settings = {.bits = 4, .expert_bits = 3}};
    check_ok(convert_run(&o, &r, &e), &e);
    struct model_dir m = model_dirs_open(copy);
    assert_int_equal(m.experts[0].formats.up, format_find_affine(3, 64, SCALE_BF16));
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void convert_to(const char *src, const char *dst, uint32_t bits)
{
    struct convert_result r;
    struct moeflux_err e = {0};
    const struct convert_options o = {.src = src, .dst = dst, .settings = {.bits = bits}};
    check_ok(convert_run(&o, &r, &e), &e);
}

/* The two models have the same bytes in this tensor. */
static void expect_same_bytes(const struct model_dir *a, const struct model_dir *b, const char *name)
{
    const struct tensor *t = model_dir_find(a, name), *u = model_dir_find(b, name);
    struct moeflux_err e = {0};
    assert_true(t && u && t->bytes == u->bytes && t->dtype == u->dtype);
    uint8_t *x = malloc(t->bytes), *y = malloc(u->bytes);
    assert_true(x && y);
    check_ok(model_dir_read(a, t, 0, t->bytes, x, &e), &e);
    check_ok(model_dir_read(b, u, 0, u->bytes, y, &e), &e);
    assert_memory_equal(x, y, t->bytes);
    free(x);
    free(y);
}

/* NVFP4 stays; 8-bit floats become what they become without NVFP4 next to them, and bf16 if their rows fit no
 * format. */
static void eight_bit_floats_next_to_nvfp4_are_quantised(void **state)
{
    (void)state;
    static const struct publish_form forms[] = {
        {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT, .block = 1, .scales = PUBLISH_FOR_ALL},
        {.dtype = "F32",
         .nvfp4 = PUBLISH_COMPRESSED,
         .block = 1,
         .scales = PUBLISH_FOR_ROWS,
         .fp8_experts = "layers.2."},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char *tmp = tmp_tree_new();
        static float logits[2 * MOST_VOCAB];
        struct publish_form form = forms[i];
        const uint32_t bits = i ? 8 : 0; /* 0: 4 bits, without a search of scales */
        const char *copy = tmp_tree_path(tmp, "copy"), *other = tmp_tree_path(tmp, "other");
        convert_to(publish(tmp, "codes", "qwen3-odd/mlx", &form), copy, bits);
        form.nvfp4 = PUBLISH_NO_NVFP4;
        convert_to(publish(tmp, "floats", "qwen3-odd/mlx", &form), other, bits);
        struct model_dir m = model_dirs_open(copy), n = model_dirs_open(other);
        expect_same_bytes(&m, &n, "model.layers.0.self_attn.q_proj.weight");
        expect_same_bytes(&m, &n, "model.layers.0.self_attn.q_proj.scales");
        expect_same_bytes(&m, &n, "model.layers.0.self_attn.o_proj.weight");
        const struct tensor *plain = model_dir_find(&m, "model.layers.0.self_attn.o_proj.weight");
        assert_int_equal(plain->dtype, DTYPE_BF16);
        assert_int_equal(m.experts[0].formats.up, FORMAT_NVFP4_FACTOR);
        assert_int_equal(m.experts[2].formats.up,
                         i ? format_find_affine(8, 64, SCALE_BF16) : FORMAT_NVFP4_FACTOR);
        if (i)
            assert_int_equal(m.experts[2].formats.up, n.experts[2].formats.up);
        model_dir_close(&m);
        model_dir_close(&n);
        run(copy, NULL, CHUNK, 0, logits);
        tmp_tree_remove(tmp);
    }
}

/* A published expert is read and held as its file's bytes: a scale of 16 columns is one byte. */
static void bytes_are_counted_as_they_lie(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    struct model_dir m = model_dirs_open(publish(tmp, "codes", "qwen3-odd/mlx", &form));
    uint64_t n = 0;
    for (uint32_t i = 0; i < m.config.n_layers; i++)
        if (config_has_experts(&m.config, i))
            n += 3ull * m.config.moe_inner * m.config.hidden * m.config.n_experts;
    assert_int_equal(m.experts[0].formats.up, FORMAT_NVFP4_FACTOR);
    assert_int_equal(m.expert_bytes, n / 2 + n / 16);
    /* The memory also has a float32 for each matrix, in 16 bytes. */
    uint64_t of_each = 3ull * m.config.moe_inner * m.config.hidden;
    assert_int_equal(m.experts[0].bytes, of_each / 2 + of_each / 16 + (uint64_t)3 * FORMAT_FACTOR_BYTES);
    assert_null(model_dir_find(&m, "model.layers.0.self_attn.k_proj.k_scale"));
    assert_null(model_dir_find(&m, "model.layers.0.self_attn.q_proj.input_scale"));
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* A configuration alone says what its groups and lists say. */
static void formats_follow_from_a_configuration_alone(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new(), config[256];
    struct moeflux_err e = {0};
    struct moeflux_needs needs;
    static const struct {
        const char *name, *dense;
        struct publish_form form;
    } cases[] = {
        {"groups", "nvfp4", {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED}},
        {"mixed",
         "fp8",
         {.dtype = "F32", .nvfp4 = PUBLISH_COMPRESSED, .block = 1, .scales = PUBLISH_FOR_ROWS}},
        {"lists", "nvfp4", {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dir = publish(tmp, cases[i].name, "qwen3-odd/mlx", &cases[i].form);
        struct model_dir m = model_dirs_open(dir);
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < m.config.n_layers; k++)
            bytes += m.experts[k].bytes * m.config.n_experts;
        model_dir_close(&m);
        snprintf(config, sizeof config, "%s/config.json", dir);
        check_ok(moeflux_get_needs(config, &needs, &e), &e);
        assert_true(needs.is_sketch && !needs.is_assumed);
        assert_string_equal(needs.expert_formats, "nvfp4");
        assert_non_null(strstr(needs.dense_formats, cases[i].dense));
        assert_non_null(strstr(needs.dense_formats, "bf16"));
        assert_int_equal(needs.expert_bytes, bytes);
    }
    tmp_tree_remove(tmp);
}

/* --- what is refused --- */

static void a_module_that_lacks_something_is_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    static const char FILE_NAME[] = "model.safetensors";
    struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *modelopt = publish(tmp, "a", "qwen3-odd/mlx", &form);
    form.nvfp4 = PUBLISH_COMPRESSED;
    const char *packed = publish(tmp, "b", "qwen3-odd/mlx", &form);
    model_dirs_refuse_copy(modelopt, FILE_NAME, "experts.3.up_proj.weight_scale_2\"",
                           "experts.3.up_proj.weight_skale_2\"", ERR_FORMAT,
                           "experts.3.up_proj.weight is U8, but there is no "
                           "model.layers.0.mlp.experts.3.up_proj.weight_scale_2");
    model_dirs_refuse_copy(modelopt, FILE_NAME, "experts.3.up_proj.weight_scale\"",
                           "experts.3.up_proj.weight_skale\"", ERR_FORMAT, "experts.3.up_proj.weight_scale");
    model_dirs_refuse_copy(
        packed, FILE_NAME, "q_proj.weight_global_scale\"", "q_proj.weight_global_skale\"", ERR_FORMAT,
        "q_proj.weight_packed is U8, but there is no model.layers.0.self_attn.q_proj.weight_global_scale");
    tmp_tree_remove(tmp);
}

static enum {
    TWO_FACTORS,
    OTHER_DTYPE,
    OTHER_SHAPE,
    NOT_FINITE,
    ALSO_SCALED,
    ALSO_ORDERED,
    NAN_SCALE
} change;

static void make_change(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const float zeros[1024];
    const float infinite = INFINITY;
    char name[128];
    const char *q = t ? strstr(t->name, "layers.0.self_attn.q_proj.") : NULL;
    const char *tail = q ? q + strlen("layers.0.self_attn.q_proj.") : "";
    bool is_scales = !strcmp(tail, "weight_scale"), is_factor = !strcmp(tail, "weight_scale_2");
    if (!t)
        return;
    if (is_factor && change == NOT_FINITE)
        st_writer_add(w, t->name, "F32", "[1]", &infinite, sizeof infinite);
    else if (is_factor && change == OTHER_DTYPE)
        st_writer_add(w, t->name, "BF16", "[1]", zeros, 2);
    else if (is_scales && change == OTHER_SHAPE)
        st_writer_add(w, t->name, "F8_E4M3", "[2, 8]", zeros, 16);
    else if (is_scales && change == NAN_SCALE) {
        uint8_t *other = malloc(t->bytes);
        assert_non_null(other);
        memcpy(other, bytes, t->bytes);
        other[t->bytes / 2] = 0x7f;
        st_writer_add_like(w, t->name, t, other);
        free(other);
    } else
        st_writer_add_like(w, t->name, t, bytes);
    const char *more = change == TWO_FACTORS    ? "weight_global_scale"
                       : change == ALSO_SCALED  ? "pre_quant_scale"
                       : change == ALSO_ORDERED ? "weight_g_idx"
                                                : NULL;
    if (is_factor && more) {
        snprintf(name, sizeof name, "%.*s%s", (int)(strlen(t->name) - strlen("weight_scale_2")), t->name,
                 more);
        st_writer_add(w, name, "F32", "[1]", zeros, sizeof *zeros);
    }
}

static void a_module_of_another_form_is_refused(void **state)
{
    (void)state;
    static const struct {
        int change, code;
        const char *text;
    } cases[] = {
        {TWO_FACTORS, ERR_FORMAT, "q_proj.weight_global_scale: expected .weight_scale_2 for "},
        {OTHER_DTYPE, ERR_FORMAT, "q_proj.weight_scale_2: BF16, 2 bytes, expected F32, 4 bytes of factors"},
        {OTHER_SHAPE, ERR_FORMAT,
         "q_proj.weight_scale: shape [2, 8], expected two dimensions and a scale for"},
        {NOT_FINITE, ERR_FORMAT, "q_proj.weight_scale_2: inf, expected a finite number"},
        {ALSO_SCALED, ERR_UNSUPPORTED, "q_proj.pre_quant_scale: expected NVFP4 without it"},
        {ALSO_ORDERED, ERR_UNSUPPORTED, "q_proj.weight_g_idx: expected NVFP4 without it"},
    };
    char *tmp = tmp_tree_new();
    const struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *dir = publish(tmp, "a", "qwen3-odd/mlx", &form);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        change = cases[i].change;
        snprintf(name, sizeof name, "changed-%zu", i);
        st_writer_rewrite(dir, tmp_tree_path(tmp, name), make_change);
        model_dirs_refuse(tmp_tree_path(tmp, name), cases[i].code, cases[i].text);
    }
    tmp_tree_remove(tmp);
}

static void a_scale_that_is_no_number_is_found_when_it_is_read(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct moeflux_err e = {0};
    const struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *dir = publish(tmp, "a", "qwen3-odd/mlx", &form), *changed = tmp_tree_path(tmp, "b");
    change = NAN_SCALE;
    st_writer_rewrite(dir, changed, make_change);
    struct model_dir m = model_dirs_open(changed);
    const struct tensor *t = model_dir_find(&m, "model.layers.0.self_attn.q_proj.scales");
    assert_non_null(t);
    uint8_t *to = malloc(t->bytes);
    assert_non_null(to);
    assert_int_equal(model_dir_read(&m, t, 0, t->bytes, to, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "q_proj.weight_scale: a value is not finite"));
    free(to);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void configurations_of_other_algorithms_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *modelopt = publish(tmp, "a", "qwen3-odd/mlx", &form);
    form.nvfp4 = PUBLISH_COMPRESSED;
    const char *packed = publish(tmp, "b", "qwen3-odd/mlx", &form);
    model_dirs_refuse_copy(modelopt, "config.json", "\"NVFP4\"", "\"NVFP4_AWQ\"", ERR_UNSUPPORTED,
                           "quant_algo is NVFP4_AWQ, expected NVFP4, W4A16_NVFP4, FP8 or MIXED_PRECISION");
    model_dirs_refuse_copy(modelopt, "config.json", "\"quant_algo\"", "\"quant_argo\"", ERR_UNSUPPORTED,
                           "quant_algo is none");
    model_dirs_refuse_copy(packed, "config.json", "\"group_size\": 16", "\"group_size\": 32", ERR_UNSUPPORTED,
                           "group_0: format nvfp4-pack-quantized, type float, 4 bits, group of 32");
    model_dirs_refuse_copy(packed, "config.json", "\"config_groups\"",
                           "\"transform_config\": {\"u\": 1}, \"config_groups\"", ERR_UNSUPPORTED,
                           "a transform_config");
    model_dirs_refuse_copy(
        packed, "config.json", "nvfp4-pack-quantized", "mxfp4-pack-quantized", ERR_UNSUPPORTED,
        "mxfp4-pack-quantized, 1 config_groups, type float, 4 bits, group of 16; expected");
    form.block = 1;
    form.scales = PUBLISH_FOR_ALL;
    const char *mixed = publish(tmp, "c", "qwen3-odd/mlx", &form);
    model_dirs_refuse_copy(mixed, "config.json", "\"float-quantized\"", "\"int-quantized\"", ERR_UNSUPPORTED,
                           "group_1: format int-quantized, type float, 8 bits");
    model_dirs_refuse_copy(mixed, "config.json", "\"tensor\"", "\"block\"", ERR_UNSUPPORTED,
                           "group_1: format float-quantized, type float, 8 bits, group of 0, strategy block");
    tmp_tree_remove(tmp);
}

static void groups_of_8_bit_floats_are_read(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct publish_form form = {.dtype = "F32", .block = 1, .scales = PUBLISH_FOR_ALL, .modelopt_fp8 = true};
    const char *all = publish(tmp, "all", "qwen3-odd/mlx", &form);
    tmp_tree_replace(all, "config.json", "\"modelopt\"", "\"compressed-tensors\"");
    tmp_tree_replace(all, "config.json", "\"quant_algo\": \"FP8\"", "\"format\": \"float-quantized\"");
    struct model_dir m = model_dirs_open(all);
    assert_int_equal(m.experts[0].formats.up, FORMAT_FP8);
    model_dir_close(&m);
    form.nvfp4 = PUBLISH_COMPRESSED;
    const char *mixed = publish(tmp, "mixed", "qwen3-odd/mlx", &form);
    tmp_tree_replace(mixed, "config.json", "\"tensor\"", "\"block\", \"block_structure\": [128, 64]");
    m = model_dirs_open(mixed);
    assert_true(m.fp8.rows == 128 && m.fp8.cols == 64);
    assert_int_equal(m.experts[0].formats.up, FORMAT_NVFP4_FACTOR);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void put_codes_for_numbers(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    char shape[64];
    if (!t)
        return;
    if (!strstr(t->name, ".experts.gate_up_proj")) {
        st_writer_add_like(w, t->name, t, bytes);
        return;
    }
    uint8_t *codes = calloc(t->bytes, 1);
    assert_non_null(codes);
    snprintf(shape, sizeof shape, "[%u, %u, %u]", (unsigned)t->shape[0], (unsigned)t->shape[1],
             (unsigned)t->shape[2] / 2);
    st_writer_add(w, t->name, "U8", shape, codes, t->bytes / sizeof(float) / 2);
    free(codes);
}

/* Nothing says how two codes lie in a byte of such a stack, nor where their scales are. */
static void a_stack_of_bytes_is_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const struct publish_form form = {.dtype = "F32", .fused = true};
    const char *dir = publish(tmp, "a", "qwen3-odd/mlx", &form), *changed = tmp_tree_path(tmp, "b");
    struct convert_result r;
    struct moeflux_err e = {0};
    const struct convert_options o = {.src = changed, .dst = tmp_tree_path(tmp, "c")};
    st_writer_rewrite(dir, changed, put_codes_for_numbers);
    static const char text[] =
        "mlp.experts.gate_up_proj: U8, expected NVFP4 with a tensor for each expert, BF16";
    model_dirs_refuse(changed, ERR_FORMAT, text);
    assert_int_equal(convert_run(&o, &r, &e), ERR_FORMAT);
    assert_true(strstr(e.text, text) && !strchr(e.text, '\n'));
    tmp_tree_remove(tmp);
}

/* Early checkpoints of ModelOpt say it in hf_quant_config.json alone; the tensors say it, too. */
static void the_configuration_may_say_nothing(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    static float a[2 * MOST_VOCAB], b[2 * MOST_VOCAB];
    const struct publish_form form = {.dtype = "F32", .nvfp4 = PUBLISH_MODELOPT};
    const char *dir = publish(tmp, "a", "qwen3-odd/mlx", &form);
    run(dir, NULL, CHUNK, 0, a);
    tmp_tree_replace(dir, "config.json", "\"quantization_config\"", "\"of_another_file\"");
    run(dir, NULL, CHUNK, 0, b);
    assert_memory_equal(a, b, sizeof a);
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(scales_are_multiplied_by_the_factor),
    };
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(nvfp4_agrees_with_its_numbers),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(nvfp4_agrees_with_its_numbers),
        cmocka_unit_test(nvfp4_agrees_with_its_numbers_on_the_reference_backend),
        cmocka_unit_test(a_converted_copy_has_the_same_logits),
        cmocka_unit_test(conversion_takes_fewer_bits),
        cmocka_unit_test(eight_bit_floats_next_to_nvfp4_are_quantised),
        cmocka_unit_test(bytes_are_counted_as_they_lie),
        cmocka_unit_test(formats_follow_from_a_configuration_alone),
        cmocka_unit_test(a_module_that_lacks_something_is_refused),
        cmocka_unit_test(a_module_of_another_form_is_refused),
        cmocka_unit_test(a_scale_that_is_no_number_is_found_when_it_is_read),
        cmocka_unit_test(configurations_of_other_algorithms_are_refused),
        cmocka_unit_test(groups_of_8_bit_floats_are_read),
        cmocka_unit_test(a_stack_of_bytes_is_refused),
        cmocka_unit_test(the_configuration_may_say_nothing),
    };
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
