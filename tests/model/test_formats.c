/* Every way in which mlx stores numbers: the values of its codes, directories that mix them, tables that lie.
 *
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/open_file.h"
#include "check.h"
#include "convert/convert.h"
#include "convert/encode.h"
#include "golden.h"
#include "model/quant_config.h"
#include "model/safetensors.h"
#include "model/tensor.h"
#include "model_dirs.h"
#include "moeflux.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define MODELS "tests/models/formats/"

static const char *const recipes[] = {
    "q2-g32-f16", "q3-g32", "q5-g128-f32", "mixed-3-6",          "mxfp4",
    "mxfp8",      "nvfp4",  "every-f16",   "deepseek-mixed-2-6", "deepseek-nvfp4",
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes, N_LAYERS = 4, COLS = 256, ROWS = 2 };

/* A copy in `tmp` to spoil, of one of the models. */
static const char *copy_of(const char *model, const char *tmp)
{
    char src[64];
    const char *dir = tmp_tree_path(tmp, "m");
    snprintf(src, sizeof src, MODELS "%s", model);
    tmp_tree_copy(src, dir);
    return dir;
}

/* --- values --- */

struct rows {
    struct open_file *file;
    uint32_t n_files;
    struct tensor_list list;
};

/* A tensor's bytes, which the caller frees; NULL: there is none. */
static uint8_t *read_part(const struct rows *r, const char *key, const char *part)
{
    char name[64];
    struct moeflux_err e = {0};
    snprintf(name, sizeof name, "%s.%s", key, part);
    const struct tensor *t = tensor_find(r->list.items, r->list.n, name);
    if (!t)
        return NULL;
    uint8_t *bytes = malloc(t->bytes);
    check_ok(file_read_at(r->file->fd, name, bytes, t->bytes, t->off, &e), &e);
    return bytes;
}

static void expect_values(const struct rows *r, uint32_t number, const char *key)
{
    uint8_t *weight = read_part(r, key, "weight"), *scales = read_part(r, key, "scales");
    uint8_t *biases = read_part(r, key, "biases"), *values = read_part(r, key, "values");
    float found[ROWS * COLS];
    if (!weight || !scales || !values || !biases == format_of(number)->has_bias)
        fail_msg("%s is not in the file", key);
    /* A part may begin at any group, so the middle is tested too. */
    format_decode(format_of(number), weight, scales, biases, 0, COLS, found);
    format_decode(format_of(number), weight, scales, biases, COLS, COLS, found + COLS);
    if (memcmp((const void *)found, (const void *)values, sizeof found) != 0)
        fail_msg("%s differs", key);
    free(weight);
    free(scales);
    free(biases);
    free(values);
}

static void open_rows(struct rows *r, const char *path)
{
    struct moeflux_err e = {0};
    check_ok(open_file_add(&r->file, &r->n_files, path, &e), &e);
    check_ok(safetensors_read_header(r->file, 0, &r->list, &e), &e);
    check_ok(tensor_list_sort(&r->list, "rows", &e), &e);
}

static void close_rows(struct rows *r)
{
    tensor_list_free(&r->list);
    open_file_close_all(r->file, r->n_files);
}

static void every_format_has_the_values_of_mlx(void **state)
{
    (void)state;
    static const char *const scales[] = {[SCALE_BF16] = "BF16",
                                         [SCALE_F16] = "F16",
                                         [SCALE_F32] = "F32",
                                         [SCALE_E8M0] = "U8",
                                         [SCALE_E4M3] = "U8"};
    struct rows r = {0};
    uint32_t n = 0;
    open_rows(&r, MODELS "rows.safetensors");
    for (uint32_t i = 0; i < FORMAT_END; i++) {
        const struct format *f = format_of(i);
        char key[48], mode[16] = "affine";
        /* test_published.c, test_fp8.c and test_nvfp4.c have the values of published checkpoints. */
        bool is_published = i == FORMAT_FP8 || i == FORMAT_FP8_32 || i == FORMAT_NVFP4_FACTOR;
        bool is_of_mlx = f->scheme != SCHEME_PLAIN && f->scheme != SCHEME_BLOCK && !is_published;
        if (f->bits == 0 || !is_of_mlx)
            continue;
        for (enum quant_mode m = QUANT_MXFP4; m <= QUANT_NVFP4; m++)
            if (quant_config_mode_format(m) == i)
                snprintf(mode, sizeof mode, "%s", quant_config_mode_name(m));
        snprintf(key, sizeof key, "%s.%u.%u.%s", mode, f->bits, f->group, scales[f->scale]);
        expect_values(&r, i, key);
        n++;
    }
    assert_int_equal(n, 6 * 3 * 3 + 3);
    close_rows(&r);
}

enum { SMALL_N = 48 * 32 };

/* Quantises x, stored as `dtype`, which has its numbers exactly. */
static void expect_bytes(const struct rows *r, const float *x, enum quant_mode mode, enum dtype dtype)
{
    const struct format *f = format_of(quant_config_mode_format(mode));
    uint8_t codes[SMALL_N], scales[SMALL_N / 16];
    const struct convert_codes to = {codes, scales, NULL};
    float stored[SMALL_N];
    uint16_t *half = (uint16_t *)(void *)stored;
    for (uint32_t i = 0; i < SMALL_N && dtype != DTYPE_F32; i++)
        half[i] = dtype == DTYPE_BF16 ? bf16_from_float(x[i]) : f16_from_float(x[i]);
    if (dtype == DTYPE_F32)
        memcpy(stored, x, sizeof stored);
    assert_true(convert_encode(dtype, stored, SMALL_N, f, CONVERT_SCALES_MINMAX, &to, NULL));
    char key[48];
    snprintf(key, sizeof key, "%s.%s", quant_config_mode_name(mode), tensor_dtype_name(dtype));
    uint8_t *weight = read_part(r, key, "weight"), *of_mlx = read_part(r, key, "scales");
    assert_true(weight && of_mlx);
    if (memcmp(scales, of_mlx, format_scale_bytes(f, SMALL_N)) != 0)
        fail_msg("%s: scales differ", key);
    if (memcmp(codes, weight, format_code_bytes(f, SMALL_N)) != 0)
        fail_msg("%s: codes differ", key);
    free(weight);
    free(of_mlx);
}

static void small_floats_are_made_with_the_bytes_of_mlx(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct rows r = {0};
    open_rows(&r, MODELS "small-floats.safetensors");
    uint8_t *x = read_part(&r, "rows", "values");
    assert_non_null(x);
    for (enum quant_mode m = QUANT_MXFP4; m <= QUANT_NVFP4; m++)
        for (int i = 0; i < 3; i++)
            expect_bytes(&r, (const float *)(const void *)x, m, types[i]);
    free(x);
    close_rows(&r);
}

/* --- directories --- */

static uint32_t affine(uint32_t bits, uint32_t group, uint32_t scale)
{
    uint32_t format = format_find_affine(bits, group, scale);
    assert_int_not_equal(format, FORMAT_NONE);
    return format;
}

static void expect_format(const struct model_dir *m, const char *name, uint32_t format)
{
    const struct tensor *t = model_dir_find(m, name);
    assert_non_null(t);
    assert_int_equal(t->format, format);
}

static void expect_experts(const struct model_dir *m, uint32_t layer, uint32_t up, uint32_t down)
{
    assert_int_equal(m->experts[layer].formats.gate, up);
    assert_int_equal(m->experts[layer].formats.up, up);
    assert_int_equal(m->experts[layer].formats.down, down);
}

static void a_table_of_one_kind_is_that_of_all_tensors(void **state)
{
    (void)state;
    const struct {
        const char *dir;
        uint32_t format, gate; /* the router's: Qwen's have 8 bits in groups of 64 */
        uint32_t n_parts;
    } cases[] = {
        {MODELS "q2-g32-f16", affine(2, 32, SCALE_F16), affine(8, 64, SCALE_F16), 9},
        {MODELS "q3-g32", affine(3, 32, SCALE_BF16), affine(8, 64, SCALE_BF16), 9},
        {MODELS "q5-g128-f32", affine(5, 128, SCALE_F32), affine(8, 64, SCALE_F32), 9},
        {MODELS "mxfp4", FORMAT_MXFP4, affine(8, 64, SCALE_BF16), 6},
        {MODELS "mxfp8", FORMAT_MXFP8, affine(8, 64, SCALE_BF16), 6},
        {MODELS "nvfp4", FORMAT_NVFP4, affine(8, 64, SCALE_BF16), 6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_dir m = model_dirs_open(cases[i].dir);
        struct extent x[EXPERT_MAX_EXTENTS];
        struct matrix w;
        struct moeflux_err e = {0};
        expect_format(&m, "model.embed_tokens.weight", cases[i].format);
        expect_format(&m, "lm_head.scales", cases[i].format);
        expect_format(&m, "model.layers.1.mlp.gate.weight", cases[i].gate);
        check_ok(model_dir_matrix(&m, "lm_head", 259, 128, &w, &e), &e);
        assert_int_equal(w.format, cases[i].format);
        assert_int_equal(w.biases != NULL, cases[i].n_parts == 9);
        for (uint32_t k = 0; k < N_LAYERS; k++)
            expect_experts(&m, k, cases[i].format, cases[i].format);
        assert_int_equal(model_dir_expert(&m, 2, 1, x), cases[i].n_parts);
        assert_int_equal(m.max_expert_bytes, 3 * format_all_bytes(format_of(cases[i].format), 128 * 128));
        model_dir_close(&m);
    }
}

/* mixed_3_6 gives v_proj and down_proj of some layers 6 bits. */
static void experts_may_differ_from_layer_to_layer(void **state)
{
    (void)state;
    struct model_dir m = model_dirs_open(MODELS "mixed-3-6");
    for (uint32_t i = 0; i < N_LAYERS; i++)
        expect_experts(&m, i, FORMAT_Q3, i < 2 ? FORMAT_Q3 : FORMAT_Q6);
    expect_format(&m, "model.layers.1.self_attn.v_proj.weight", FORMAT_Q3);
    expect_format(&m, "model.layers.3.self_attn.v_proj.weight", FORMAT_Q6);
    expect_format(&m, "lm_head.weight", FORMAT_Q6);
    uint64_t three = format_all_bytes(format_of(FORMAT_Q3), 128 * 128),
             six = format_all_bytes(format_of(FORMAT_Q6), 128 * 128);
    assert_int_equal(m.experts[0].bytes, 3 * three);
    assert_int_equal(m.experts[3].bytes, 2 * three + six);
    assert_int_equal(m.max_expert_bytes, 2 * three + six);
    assert_int_equal(m.expert_bytes, 4 * (2 * (3 * three) + 2 * (2 * three + six)));
    model_dir_close(&m);
}

static void tensors_of_float16_and_without_codes_are_plain(void **state)
{
    (void)state;
    struct model_dir m = model_dirs_open(MODELS "every-f16");
    struct matrix w;
    struct moeflux_err e = {0};
    const struct tensor *t;
    float norm[128];
    uint16_t bits[128];
    check_ok(model_dir_matrix(&m, "model.layers.1.self_attn.q_proj", 256, 128, &w, &e), &e);
    assert_int_equal(w.format, FORMAT_F16);
    assert_null(w.scales);
    check_ok(model_dir_vector(&m, "model.norm.weight", 128, &t, &e), &e);
    assert_int_equal(t->dtype, DTYPE_F16);
    check_ok(model_dir_read_f32(&m, t, norm, &e), &e);
    check_ok(model_dir_read(&m, t, 0, sizeof bits, bits, &e), &e);
    for (int i = 0; i < 128; i++) {
        float want;
        format_decode(format_of(FORMAT_F16), bits, NULL, NULL, (uint64_t)i, 1, &want);
        assert_memory_equal(&norm[i], &want, sizeof want);
    }
    model_dir_close(&m);
}

static uint64_t fingerprint_of(const char *dir)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    uint64_t out = 0;
    const struct moeflux_options o = {.dir = dir, .device = "reference"};
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    check_ok(moeflux_model_fingerprint(m, &out, &e), &e);
    moeflux_model_close(m);
    return out;
}

static void read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint8_t *slot)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    struct moeflux_err e = {0};
    uint32_t n = model_dir_expert(m, layer, expert, x);
    for (uint32_t i = 0; i < n; i++)
        check_ok(file_read_at(m->files[x[i].file].fd, "f", slot + x[i].at, x[i].bytes, x[i].off, &e), &e);
    check_ok(model_dir_check_expert(m, layer, expert, slot, &e), &e);
}

static void expect_same(const struct model_dir *a, const struct model_dir *b)
{
    uint8_t *x = malloc(a->max_expert_bytes), *y = malloc(a->max_expert_bytes);
    assert_int_equal(a->expert_bytes, b->expert_bytes);
    assert_int_equal(a->dense_bytes, b->dense_bytes);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct tensor *t = &a->tensors[i], *u = model_dir_find(b, t->name);
        assert_non_null(u);
        assert_true(t->format == u->format && t->dtype == u->dtype && t->bytes == u->bytes);
    }
    for (uint32_t k = 0; k < a->config.n_layers; k++) {
        if (!config_has_experts(&a->config, k))
            continue;
        assert_memory_equal(&a->experts[k], &b->experts[k], sizeof a->experts[k]);
        for (uint32_t i = 0; i < a->config.n_experts; i++) {
            read_expert(a, k, i, x);
            read_expert(b, k, i, y);
            assert_memory_equal(x, y, a->experts[k].bytes);
        }
    }
    free(x);
    free(y);
}

static void converted_recipes_hold_the_same_experts_and_formats(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES; i++) {
        char src[64];
        char *tmp = tmp_tree_new();
        struct convert_result r;
        struct moeflux_err e = {0};
        snprintf(src, sizeof src, MODELS "%s", recipes[i]);
        const char *dst = tmp_tree_path(tmp, "m");
        const struct convert_options o = {.src = src, .dst = dst, .verify = true};
        check_ok(convert_run(&o, &r, &e), &e);
        struct model_dir plain = model_dirs_open(src), packed = model_dirs_open(dst);
        assert_true(packed.packed);
        expect_same(&packed, &plain);
        model_dir_close(&plain);
        model_dir_close(&packed);
        assert_true(fingerprint_of(src) == fingerprint_of(dst));
        tmp_tree_remove(tmp);
    }
}

/* --- scales that are no numbers --- */

static void spoil(const char *path, uint64_t off, const void *value, size_t n)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
    assert_int_equal(fwrite(value, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void scales_of_every_type_must_be_finite(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        uint32_t n;
        uint8_t value[4];
        bool is_number;
    } cases[] = {
        {"q2-g32-f16", 2, {0x00, 0x7c}, false},
        {"q2-g32-f16", 2, {0x80, 0x7f}, false},
        {"q2-g32-f16", 2, {0xff, 0x7b}, true},
        {"q3-g32", 2, {0x80, 0x7f}, false},
        {"q3-g32", 2, {0x00, 0x7c}, true},
        {"q5-g128-f32", 4, {0, 0, 0x80, 0x7f}, false},
        {"q5-g128-f32", 4, {0, 0, 0xc0, 0xff}, false},
        {"mxfp4", 1, {0xff}, false},
        {"mxfp4", 1, {0x7f}, true},
        {"mxfp8", 1, {0xff}, false},
        {"nvfp4", 1, {0x7f}, false},
        {"nvfp4", 1, {0xff}, false},
        {"nvfp4", 1, {0x7e}, true},
    };
    static const char name[] = "lm_head.scales";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        const char *dir = copy_of(cases[i].dir, tmp);
        struct moeflux_err e = {0};
        struct model_dir m = model_dirs_open(dir);
        const struct tensor *t = model_dir_find(&m, name);
        uint8_t *bytes = malloc(t->bytes), *slot = malloc(m.max_expert_bytes);
        uint64_t last = t->bytes - cases[i].n;
        spoil(m.files[t->file].path, t->off + last, cases[i].value, cases[i].n);
        int rc = model_dir_read(&m, t, 0, t->bytes, bytes, &e);
        assert_int_equal(rc, cases[i].is_number ? 0 : ERR_FORMAT);
        assert_true(cases[i].is_number || strstr(e.text, name));
        assert_int_equal(model_dir_read(&m, t, 0, last, bytes, &e), 0);
        read_expert(&m, 1, 2, slot);
        memcpy(slot + m.experts[1].down_s, cases[i].value, cases[i].n);
        rc = model_dir_check_expert(&m, 1, 2, slot, &e);
        assert_int_equal(rc, cases[i].is_number ? 0 : ERR_FORMAT);
        assert_true(cases[i].is_number || strstr(e.text, "layer 1 expert 2: down_proj.scales"));
        free(slot);
        free(bytes);
        model_dir_close(&m);
        tmp_tree_remove(tmp);
    }
}

/* --- tables that lie --- */

static void tables_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *file, *old, *with, *text;
        int code;
    } cases[] = {
        {"mxfp4", "config.json", "\"mxfp4\"", "\"mxfp6\"",
         "quantization: mode is mxfp6, expected affine, mxfp4, mxfp8 or nvfp4", ERR_UNSUPPORTED},
        {"mxfp4", "config.json", "\"bits\": 4,\n        \"mode\": \"mxfp4\"",
         "\"bits\": 5, \"mode\": \"mxfp4\"",
         "quantization: 5 bits and group_size 32, expected 4 and 32 for mode mxfp4", ERR_UNSUPPORTED},
        {"mxfp4", "config.json", "\"mode\": \"mxfp4\"", "\"mode\": \"affine\"",
         "scales are U8, expected BF16, F16 or F32", ERR_FORMAT},
        {"q3-g32", "config.json", "\"bits\": 3", "\"bits\": 7", "bits is 7, expected 2, 3, 4, 5, 6 or 8",
         ERR_UNSUPPORTED},
        {"q3-g32", "config.json", "\"group_size\": 32", "\"group_size\": 48",
         "group_size is 48, expected 32, 64 or 128", ERR_UNSUPPORTED},
        {"q3-g32", "config.json", "\"bits\": 3", "\"bits\": 2", "declared with 2 bits", ERR_FORMAT},
        {"q3-g32", "config.json", "\"group_size\": 32", "\"group_size\": 64", "(1.5 bits)", ERR_FORMAT},
        {"q3-g32", "config.json", "\"bits\": 3,", "", "bits is missing", ERR_FORMAT},
        {"mixed-3-6", "config.json",
         "layers.3.mlp.switch_mlp.down_proj\": {\n            \"group_size\": 64,\n"
         "            \"bits\": 6",
         "layers.3.mlp.switch_mlp.down_proj\": {\n            \"group_size\": 64,\n"
         "            \"bits\": 3",
         "layers.3.mlp.switch_mlp.down_proj.weight: declared with 3 bits", ERR_FORMAT},
        {"mixed-3-6", "config.json", "\"language_model.model.embed_tokens\": {",
         "\"language_model.model.embed_tokens\": false, \"x\": {",
         "language_model.model.embed_tokens.weight is U32, but the quantization table has false", ERR_FORMAT},
        {"mixed-3-6", "config.json", "\"language_model.model.embed_tokens\": {",
         "\"language_model.model.embed_tokens\": 4, \"x\": {", "expected an object, true or false",
         ERR_FORMAT},
        {"every-f16", "config.json", "layers.1.self_attn.q_proj\": false",
         "layers.1.self_attn.q_proj\": {\"bits\": 4, \"group_size\": 64}",
         "q_proj.weight is F16, but the quantization table has bits for it", ERR_FORMAT},
        {"nvfp4", "config.json", "\"mode\": \"nvfp4\"", "\"mode\": \"nvfp4\", \"global_scale\": true",
         "a global_scale, expected none", ERR_UNSUPPORTED},
        {"nvfp4", "model.safetensors", "lm_head.scales", "lm_head.skales", "there are no scales to it",
         ERR_FORMAT},
        {"q5-g128-f32", "model.safetensors", "lm_head.biases", "lm_head.biasez", "there are no biases to it",
         ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        const char *dir = copy_of(cases[i].dir, tmp);
        tmp_tree_replace(dir, cases[i].file, cases[i].old, cases[i].with);
        model_dirs_refuse(dir, cases[i].code, cases[i].text);
        tmp_tree_remove(tmp);
    }
}

static void add_biases(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const uint8_t zeros[259 * 8];
    if (t)
        st_writer_add_like(w, t->name, t, bytes);
    else
        st_writer_add(w, "language_model.lm_head.biases", "U8", "[259, 8]", zeros, sizeof zeros);
}

static void up_of_another_width(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && strstr(t->name, "layers.2.mlp.switch_mlp.up_proj.weight"))
        st_writer_add(w, t->name, "U32", "[4, 128, 8]", bytes, 4 * 128 * 8 * 4);
    else if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void parts_that_do_not_belong_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "a");
    st_writer_rewrite(MODELS "mxfp4", dir, add_biases);
    model_dirs_refuse(dir, ERR_FORMAT, "lm_head.biases: biases, expected none for mode mxfp4");
    tmp_tree_remove(tmp);
}

static void up_has_other_bits_than_gate_where_the_table_says_so(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "a");
    struct model_dir m;
    struct moeflux_err e;
    st_writer_rewrite(MODELS "q3-g32", dir, up_of_another_width);
    tmp_tree_replace(dir, "config.json", "\"mode\": \"affine\",",
                     "\"mode\": \"affine\", \"language_model.model.layers.2.mlp.switch_mlp.up_proj\": "
                     "{\"bits\": 2, \"group_size\": 32},");
    check_ok(model_dir_open(&m, dir, &e), &e);
    assert_string_equal(format_of(m.experts[2].formats.gate)->name, "Q3 g32");
    assert_string_equal(format_of(m.experts[2].formats.up)->name, "Q2 g32");
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void manifests_that_lie_about_experts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *old, *with, *text;
        int code;
    } cases[] = {
        {"\"experts\": [", "\"experts\": [null,", "experts of 5 layers, expected 4", ERR_FORMAT},
        {"\"gate_up\"", "\"gate_and_up\"", "experts of layer 0: gate_up is missing", ERR_FORMAT},
        {"\"experts\": [\n  {\n   \"gate_up\": {\n    \"bits\": 3",
         "\"experts\": [\n  {\n   \"gate_up\": {\n    \"bits\": 7", "experts of layer 0: gate_up: bits is 7",
         ERR_UNSUPPORTED},
        {"\"experts\": [\n  {\n   \"gate_up\": {\n    \"bits\": 3",
         "\"experts\": [\n  {\n   \"gate_up\": {\n    \"bits\": 4", "layer_00.bin", ERR_FORMAT},
        {"\"experts\": [\n  {\n   \"gate_up\": {\n",
         "\"experts\": [\n  {\n   \"gate_up\": {\n    \"scales\": \"U8\",",
         "scales are U8, expected BF16, F16 or F32", ERR_FORMAT},
        {"\"experts\": [\n  {\n   \"gate_up\": {\n",
         "\"experts\": [\n  {\n   \"gate_up\": {\n    \"mode\": \"mxfp4\",",
         "3 bits and group_size 32, expected 4 and 32 for mode mxfp4", ERR_UNSUPPORTED},
    };
    char *tmp = tmp_tree_new();
    struct convert_result r;
    struct moeflux_err e = {0};
    const char *good = tmp_tree_path(tmp, "good");
    const struct convert_options o = {.src = MODELS "mixed-3-6", .dst = good};
    check_ok(convert_run(&o, &r, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%zu", i);
        const char *dir = tmp_tree_path(tmp, name);
        tmp_tree_copy(good, dir);
        tmp_tree_replace(dir, "model_weights.json", cases[i].old, cases[i].with);
        model_dirs_refuse(dir, cases[i].code, cases[i].text);
    }
    tmp_tree_remove(tmp);
}

/* --- block formats --- */

/* FNV-1a of the numbers' words. */
static uint32_t hash_of(const float *numbers, uint32_t n)
{
    uint32_t h = 0x811c9dc5;
    for (uint32_t i = 0, word; i < n; i++) {
        memcpy(&word, &numbers[i], sizeof word);
        h = (h ^ word) * 0x01000193;
    }
    return h;
}

static const struct golden_tensor *blocks_find(const struct golden *g, const char *type, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%s", type, what);
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void blocks_have_the_numbers_of_the_gguf_package(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "tests/models/gguf/blocks.safetensors");
    for (uint32_t number = FORMAT_BLOCK_FIRST; number < FORMAT_END; number++) {
        const struct format *f = format_of(number);
        const struct golden_tensor *blocks = blocks_find(&g, f->name, "blocks");
        const uint32_t *hashes = blocks_find(&g, f->name, "hashes")->data;
        assert_int_equal(blocks->shape[1], f->block_bytes);
        assert_true(blocks->shape[0] >= 24);
        for (uint64_t b = 0; b < blocks->shape[0]; b++) {
            float numbers[COLS];
            format_decode(f, blocks->data, NULL, NULL, b * f->group, f->group, numbers);
            if (hash_of(numbers, f->group) != hashes[b])
                fail_msg("%s: block %u differs", f->name, (unsigned)b);
        }
    }
    golden_close(&g);
}

static void numbers_inside_of_blocks_are_those_of_whole_blocks(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "tests/models/gguf/blocks.safetensors");
    for (uint32_t number = FORMAT_BLOCK_FIRST; number < FORMAT_END; number++) {
        const struct format *f = format_of(number);
        const void *blocks = blocks_find(&g, f->name, "blocks")->data;
        float all[3 * COLS], some[3 * COLS];
        format_decode(f, blocks, NULL, NULL, 0, (uint64_t)3 * f->group, all);
        for (uint32_t first = 0; first < 2 * f->group; first += 7) {
            uint32_t n = 3 * f->group - first - 5;
            format_decode(f, blocks, NULL, NULL, first, n, some);
            assert_memory_equal(some, all + first, n * sizeof *some);
        }
    }
    golden_close(&g);
}

/* --- sets, as kernels know them --- */

static void a_format_alone_is_one_part_and_its_constant_tells_it(void **state)
{
    (void)state;
    for (uint32_t number = 0; number < FORMAT_END; number++) {
        const struct format *f = format_of(number);
        uint64_t set = format_set(number);
        uint32_t constant;
        if (!f->bits)
            continue;
        assert_int_equal(format_set_part(set, 0), set);
        assert_int_equal(format_set_part(set, 1), 0);
        constant = format_constant(set);
        assert_true(format_is_basic(number) == (constant < 1u << FORMAT_SET_EXTENDED));
        if (format_is_basic(number)) {
            assert_int_equal(constant, 1u << number);
            continue;
        }
        assert_int_equal(FORMAT_WORD_SCHEME(constant), f->scheme);
        assert_true(format_part_is_block(set) == format_is_block(number));
        assert_true(format_part_is_extended(set) == !format_is_block(number));
        if (format_is_block(number)) {
            assert_int_equal(FORMAT_WORD_NUMBER(constant), number);
            continue;
        }
        assert_int_equal(FORMAT_WORD_BITS(constant), f->bits);
        assert_int_equal(1u << FORMAT_WORD_GROUP_SHIFT(constant), f->group);
        assert_int_equal(FORMAT_WORD_SCALE(constant), f->scale);
    }
}

static void a_united_set_has_a_part_for_each_of_its_formats(void **state)
{
    (void)state;
    static const uint32_t formats[] = {
        FORMAT_Q4,    FORMAT_BF16,   FORMAT_Q3,     FORMAT_Q6 + FORMAT_GROUP_32, FORMAT_Q4 + FORMAT_SCALE_F16,
        FORMAT_MXFP4, FORMAT_G_Q4_0, FORMAT_G_NVFP4};
    enum { N = sizeof formats / sizeof *formats };
    uint64_t set = 0, usual = format_set(FORMAT_Q4) | format_set(FORMAT_BF16);
    for (int i = 0; i < N; i++)
        set |= format_set(formats[i]);
    assert_int_equal(format_set_part(set, 0), usual);
    for (int i = 2; i < N; i++) {
        uint32_t part = 1;
        while (format_set_part(set, part) && format_set_part(set, part) != format_set(formats[i]))
            part++;
        assert_int_equal(format_set_part(set, part), format_set(formats[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_format_alone_is_one_part_and_its_constant_tells_it),
        cmocka_unit_test(blocks_have_the_numbers_of_the_gguf_package),
        cmocka_unit_test(numbers_inside_of_blocks_are_those_of_whole_blocks),
        cmocka_unit_test(a_united_set_has_a_part_for_each_of_its_formats),
        cmocka_unit_test(every_format_has_the_values_of_mlx),
        cmocka_unit_test(small_floats_are_made_with_the_bytes_of_mlx),
        cmocka_unit_test(a_table_of_one_kind_is_that_of_all_tensors),
        cmocka_unit_test(experts_may_differ_from_layer_to_layer),
        cmocka_unit_test(tensors_of_float16_and_without_codes_are_plain),
        cmocka_unit_test(converted_recipes_hold_the_same_experts_and_formats),
        cmocka_unit_test(scales_of_every_type_must_be_finite),
        cmocka_unit_test(tables_that_lie_are_refused),
        cmocka_unit_test(parts_that_do_not_belong_are_refused),
        cmocka_unit_test(up_has_other_bits_than_gate_where_the_table_says_so),
        cmocka_unit_test(manifests_that_lie_about_experts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
