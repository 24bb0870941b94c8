/* The quantiser against committed checkpoints that exist both in bf16 and quantised, and its edges.
 *
 * suites: check fast asan */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "fuzz.h"
#include "model/quant.h"
#include "model/safetensors.h"
#include "ops/ref.h"

static uint8_t *read_tensor(const struct safetensors *s, const struct tensor *t)
{
    struct moeflux_err e;
    uint8_t *bytes = malloc(t->bytes + 1);
    assert_non_null(bytes);
    assert_int_equal(file_read_at(s->files[t->file].fd, "tensor", bytes, t->bytes, t->off, &e), 0);
    return bytes;
}

static const struct tensor *need(const struct safetensors *s, const char *base, const char *tail)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", base, tail);
    const struct tensor *t = tensor_find(s->tensors.items, s->tensors.n, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

/* An affine format, whether or not it has a row in the table. */
static struct format affine(uint32_t bits, uint32_t group)
{
    struct format f = *format_of(FORMAT_Q4);
    f.bits = bits;
    f.group = group;
    return f;
}

/* Whether bytes equal those of tensor base.tail from element row `row0` on. */
static void expect_equal(const struct safetensors *s, const char *base, const char *tail, const void *bytes)
{
    const struct tensor *t = need(s, base, tail);
    uint8_t *want = read_tensor(s, t);
    if (memcmp(want, bytes, t->bytes) != 0)
        fail_msg("%s%s differs", base, tail);
    free(want);
}

/* Quantises w [n] and compares with base.{weight,scales,biases} of the quantised checkpoint. */
static void expect_quantised(const struct safetensors *mlx, const char *base, const uint16_t *w, uint64_t n)
{
    const struct tensor *codes = need(mlx, base, ".weight");
    const struct format *f = format_of(format_find_affine((uint32_t)(codes->bytes * 8 / n), 64, SCALE_BF16));
    uint8_t *c = malloc(codes->bytes);
    uint16_t *s = malloc(n / 64 * 2), *b = malloc(n / 64 * 2);
    assert_true(c && s && b);
    assert_true(quant_encode_bf16(w, n / 64, f, c, s, b));
    expect_equal(mlx, base, ".weight", c);
    expect_equal(mlx, base, ".scales", s);
    expect_equal(mlx, base, ".biases", b);
    free(c);
    free(s);
    free(b);
}

/* Fused [E, 2I, H]: the halves are gathered into two stacks. */
static void compare_fused(const struct safetensors *mlx, const char *prefix, const struct tensor *t,
                          const uint16_t *w)
{
    uint64_t half = t->shape[1] / 2 * t->shape[2], n = t->shape[0] * half;
    static const char *const names[] = {"switch_mlp.gate_proj", "switch_mlp.up_proj"};
    uint16_t *part = malloc(n * 2);
    assert_non_null(part);
    for (uint64_t k = 0; k < 2; k++) {
        char base[256];
        for (uint64_t i = 0; i < t->shape[0]; i++)
            memcpy(part + i * half, w + (2 * i + k) * half, half * 2);
        snprintf(base, sizeof base, "%s%s", prefix, names[k]);
        expect_quantised(mlx, base, part, n);
    }
    free(part);
}

static unsigned compare_checkpoints(const char *hf_dir, const char *mlx_dir, const char *mlx_prefix)
{
    struct safetensors hf, mlx;
    struct moeflux_err e;
    unsigned n = 0;
    assert_int_equal(safetensors_open(&hf, hf_dir, &e), 0);
    assert_int_equal(safetensors_open(&mlx, mlx_dir, &e), 0);
    for (size_t i = 0; i < hf.tensors.n; i++) {
        const struct tensor *t = &hf.tensors.items[i];
        char base[256];
        snprintf(base, sizeof base, "%s%s", mlx_prefix, t->name);
        char *experts = strstr(base, "experts."), *weight = strstr(base, ".weight");
        uint16_t *w = (uint16_t *)read_tensor(&hf, t);
        if (experts && t->n_dims == 3 && strstr(experts, "gate_up")) {
            *experts = '\0';
            compare_fused(&mlx, base, t, w);
            n += 2;
        } else if (experts && t->n_dims == 3) {
            strcpy(experts, "switch_mlp.down_proj");
            expect_quantised(&mlx, base, w, t->bytes / 2);
            n++;
        } else if (weight && t->n_dims == 2 && need(&mlx, base, "")->dtype == DTYPE_U32) {
            *weight = '\0';
            expect_quantised(&mlx, base, w, t->bytes / 2);
            n++;
        }
        free(w);
    }
    safetensors_close(&hf);
    safetensors_close(&mlx);
    return n;
}

static void the_85_quantised_matrices_of_both_models_are_reproduced_bit_for_bit(void **state)
{
    (void)state;
    unsigned qwen = compare_checkpoints("tests/models/sources/qwen/hf", "tests/models/sources/qwen/mlx",
                                        "language_model.");
    unsigned deepseek =
        compare_checkpoints("tests/models/sources/deepseek/hf", "tests/models/sources/deepseek/mlx", "");
    assert_int_equal(qwen + deepseek, 85);
}

static void f32_and_bf16_sources_of_the_same_values_give_the_same_codes(void **state)
{
    (void)state;
    struct fuzz f = {7};
    uint16_t w[640], s1[10], s2[10], b1[10], b2[10];
    uint8_t c1[640], c2[640];
    float x[640];
    for (int i = 0; i < 640; i++) {
        w[i] = (uint16_t)(fuzz_below(&f, 2) << 15 | (0x3c00 + fuzz_below(&f, 0x400)));
        x[i] = bf16_to_float(w[i]);
    }
    for (uint32_t bits = 2; bits <= 8; bits++) {
        const struct format f64 = affine(bits, 64);
        assert_true(quant_encode_bf16(w, 10, &f64, c1, s1, b1));
        assert_true(quant_encode_f32(x, 10, &f64, c2, s2, b2));
        assert_memory_equal(c1, c2, (size_t)80 * bits);
        assert_memory_equal(s1, s2, sizeof s1);
        assert_memory_equal(b1, b2, sizeof b1);
    }
}

/* The scale is stretched so that the larger end is a whole number of steps (at least half of all levels),
 * which can push the other end outside by just under a step. To that comes the rounding of scale and bias to
 * bf16. */
static void decoded_values_stay_within_a_step_of_the_source(void **state)
{
    (void)state;
    struct fuzz f = {11};
    static const uint32_t groups[] = {32, 64, 128};
    float x[QUANT_MAX_GROUP], y[QUANT_MAX_GROUP];
    uint8_t codes[QUANT_MAX_GROUP];
    uint16_t s, b;
    for (int round = 0; round < 4000; round++) {
        const struct format how = affine(2 + (uint32_t)fuzz_below(&f, 7), groups[fuzz_below(&f, 3)]);
        float size = ldexpf(1, (int)fuzz_below(&f, 20) - 10), shift = size * (float)fuzz_below(&f, 5) / 4;
        for (uint32_t i = 0; i < how.group; i++)
            x[i] = size * ((float)fuzz_below(&f, 1 << 20) / (1 << 19) - 1) + shift;
        assert_true(quant_encode_f32(x, 1, &how, codes, &s, &b));
        quant_decode(codes, &s, &b, 1, &how, y);
        float step = fabsf(bf16_to_float(s)), top = fabsf(bf16_to_float(b));
        float levels = (float)((1 << how.bits) - 1);
        for (uint32_t i = 0; i < how.group; i++)
            assert_true(fabsf(x[i] - y[i]) <= step + (step * levels + top) / 256 + 1e-6f * top);
    }
}

static void groups_of_one_value_come_back_exactly(void **state)
{
    (void)state;
    static const float values[] = {0, -0.0f, 1, -1, 1000, -3.5f, 1e-20f, 1e20f};
    float x[64], y[64];
    uint8_t codes[64];
    uint16_t s, b;
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        for (int i = 0; i < 64; i++)
            x[i] = bf16_to_float(bf16_from_float(values[k]));
        assert_true(quant_encode_f32(x, 1, format_of(FORMAT_Q4), codes, &s, &b));
        quant_decode(codes, &s, &b, 1, format_of(FORMAT_Q4), y);
        for (int i = 0; i < 64; i++)
            assert_true(fabsf(y[i] - x[i]) <= 1e-7f);
    }
}

static void infinities_and_nan_anywhere_are_refused(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81};
    uint8_t codes[128];
    uint16_t s[2], b[2];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        for (int at = 0; at < 128; at++) {
            uint16_t w[128] = {0};
            w[5] = 0x3f80;
            w[at] = bad[k];
            assert_false(quant_encode_bf16(w, 2, format_of(FORMAT_Q4), codes, s, b));
        }
}

static void a_range_whose_width_overflows_is_refused(void **state)
{
    (void)state;
    uint16_t w[64] = {0x7f7f, 0xff7f}, s, b;
    uint8_t codes[64];
    assert_false(quant_encode_bf16(w, 1, format_of(FORMAT_Q4), codes, &s, &b));
}

/* --- what MLX writes in every width and group (mlx_affine.py) --- */

enum { MLX_COLS = 256 };

struct mlx_row {
    uint32_t bits, group;
    uint32_t codes[MLX_COLS / 4], scales[MLX_COLS / 32], biases[MLX_COLS / 32], values[MLX_COLS];
};

/* "1f,2e" */
static void read_words(char *text, uint32_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, text++)
        out[i] = (uint32_t)strtoul(text, &text, 16);
    assert_int_equal(text[-1], '\0');
}

/* false: the file has ended. */
static bool read_row(FILE *in, struct mlx_row *r)
{
    char codes[1024], scales[128], biases[128], values[4096];
    if (fscanf(in, "%u %u %1023s %127s %127s %4095s", &r->bits, &r->group, codes, scales, biases, values) !=
        6)
        return false;
    assert_true(r->bits <= 8 && r->group >= 32);
    read_words(codes, r->codes, MLX_COLS * r->bits / 32);
    read_words(scales, r->scales, MLX_COLS / r->group);
    read_words(biases, r->biases, MLX_COLS / r->group);
    read_words(values, r->values, MLX_COLS);
    return true;
}

static void narrow(const uint32_t *in, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint16_t)in[i];
}

static void every_width_and_group_of_mlx_is_read_bit_for_bit(void **state)
{
    (void)state;
    FILE *in = fopen("tests/data/mlx_affine.txt", "r");
    struct mlx_row r;
    uint32_t n = 0, n_rows = 0;
    assert_non_null(in);
    for (; read_row(in, &r); n++) {
        const struct format f = affine(r.bits, r.group);
        uint16_t scales[MLX_COLS / 32], biases[MLX_COLS / 32];
        float values[MLX_COLS], want[MLX_COLS];
        double row[MLX_COLS];
        narrow(r.scales, MLX_COLS / r.group, scales);
        narrow(r.biases, MLX_COLS / r.group, biases);
        memcpy(want, r.values, sizeof want);
        quant_decode((const uint8_t *)r.codes, scales, biases, MLX_COLS / r.group, &f, values);
        assert_memory_equal(values, want, sizeof want);
        assert_int_equal(format_all_bytes(&f, MLX_COLS), MLX_COLS * r.bits / 8 + MLX_COLS / r.group * 4);
        uint32_t format = format_find_affine(r.bits, r.group, SCALE_BF16);
        const struct weights w = {.weight = (uintptr_t)r.codes,
                                  .scales = (uintptr_t)scales,
                                  .biases = (uintptr_t)biases,
                                  .rows = 1,
                                  .cols = MLX_COLS,
                                  .format = format};
        ref_row(&w, 0, row);
        for (uint32_t c = 0; c < MLX_COLS; c++)
            assert_true(row[c] == (double)want[c]);
        n_rows++;
    }
    fclose(in);
    assert_int_equal(n, 18);
    assert_int_equal(n_rows, 18);
}

static void the_formats_of_the_table_are_found_by_bits_and_group(void **state)
{
    (void)state;
    char text[FORMAT_LIST_TEXT];
    assert_int_equal(format_find_affine(4, 64, SCALE_BF16), FORMAT_Q4);
    assert_int_equal(format_find_affine(8, 64, SCALE_BF16), FORMAT_Q8);
    assert_int_equal(format_find_affine(16, 1, SCALE_BF16), FORMAT_NONE);
    assert_int_equal(format_find_affine(4, 65, SCALE_BF16), FORMAT_NONE);
    assert_true(format_has_group(64) && !format_has_group(1));
    assert_string_equal(format_list_bits(text), "2, 3, 4, 5, 6 or 8");
    assert_string_equal(format_list_groups(text), "32, 64 or 128");
    assert_true(format_takes_cols(format_of(FORMAT_Q4), 128) && !format_takes_cols(format_of(FORMAT_Q4), 96));
    assert_int_equal(format_all_bytes(format_of(FORMAT_BF16), 33), 66);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_85_quantised_matrices_of_both_models_are_reproduced_bit_for_bit),
        cmocka_unit_test(f32_and_bf16_sources_of_the_same_values_give_the_same_codes),
        cmocka_unit_test(decoded_values_stay_within_a_step_of_the_source),
        cmocka_unit_test(groups_of_one_value_come_back_exactly),
        cmocka_unit_test(infinities_and_nan_anywhere_are_refused),
        cmocka_unit_test(a_range_whose_width_overflows_is_refused),
        cmocka_unit_test(every_width_and_group_of_mlx_is_read_bit_for_bit),
        cmocka_unit_test(the_formats_of_the_table_are_found_by_bits_and_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
