/* Experts that compressed-tensors has packed, as Kimi-K2.5 was published: conversion keeps every number bit
 * for bit. That the converted model computes what mlx-lm computes is test_golden.c's.
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

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/str.h"
#include "check.h"
#include "convert/convert.h"
#include "model/model_dir.h"
#include "model/packed.h"
#include "model/safetensors.h"
#include "model/tensor.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define KIMI "tests/models/sources/kimi/hf"

enum {
    SIDE = 64,
    WEIGHTS = SIDE * SIDE,
    GROUP = 32,
    CODE_BYTES = WEIGHTS / 2,
    SCALE_BYTES = WEIGHTS / GROUP * 2
};
enum { FIRST = 1, LAYERS = 3, EXPERTS = 7, EXPERT_BYTES = 3 * (CODE_BYTES + 2 * SCALE_BYTES) };

static int convert(const char *src, const char *dst, struct convert_settings settings,
                   struct convert_result *r, struct moeflux_err *e)
{
    const struct convert_options o = {.src = src, .dst = dst, .settings = settings, .verify = true};
    *e = (struct moeflux_err){0};
    return convert_run(&o, r, e);
}

static void read_source(const struct safetensors *s, uint32_t layer, uint32_t expert, const char *tail,
                        uint8_t *out, uint64_t n)
{
    char name[128];
    struct moeflux_err e = {0};
    snprintf(name, sizeof name, "language_model.model.layers.%u.mlp.experts.%u.%s", layer, expert, tail);
    const struct tensor *t = tensor_find(s->tensors.items, s->tensors.n, name);
    assert_non_null(t);
    assert_int_equal(t->bytes, n);
    check_ok(file_read_at(s->files[0].fd, name, out, n, t->off, &e), &e);
}

/* A matrix of the source and the same one in a converted expert at so many bytes. */
static void expect_equal(const struct safetensors *s, uint32_t layer, uint32_t expert, const char *proj,
                         const uint8_t *w, const uint8_t *scales, const uint8_t *biases)
{
    uint8_t codes[CODE_BYTES], theirs[SCALE_BYTES];
    static float values[WEIGHTS];
    char tail[64];
    snprintf(tail, sizeof tail, "%s.weight_packed", proj);
    read_source(s, layer, expert, tail, codes, sizeof codes);
    snprintf(tail, sizeof tail, "%s.weight_scale", proj);
    read_source(s, layer, expert, tail, theirs, sizeof theirs);
    assert_memory_equal(w, codes, sizeof codes);
    assert_memory_equal(scales, theirs, sizeof theirs);
    format_decode(format_of(format_find_affine(4, GROUP, SCALE_BF16)), w, scales, biases, 0, WEIGHTS, values);
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        uint16_t scale;
        memcpy(&scale, theirs + 2 * (i / GROUP), sizeof scale);
        float want = (float)((codes[i / 2] >> (i % 2 * 4) & 15) - 8) * bf16_to_float(scale);
        assert_true(values[i] == want);
    }
}

static void packed_experts_keep_their_numbers(void **state)
{
    (void)state;
    struct model_dir m;
    struct safetensors s;
    struct convert_result r;
    struct moeflux_err e = {0};
    uint8_t bytes[EXPERT_BYTES];
    char *tmp = tmp_tree_new();
    check_ok(convert(KIMI, tmp_tree_path(tmp, "a"), (struct convert_settings){0}, &r, &e), &e);
    assert_int_equal(r.n_left_out, 2);
    check_ok(model_dir_open(&m, tmp_tree_path(tmp, "a"), &e), &e);
    check_ok(safetensors_open(&s, KIMI, &e), &e);
    for (uint32_t layer = FIRST; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < EXPERTS; i++) {
            const struct expert_layout *l = &m.experts[layer];
            assert_int_equal(l->bytes, EXPERT_BYTES);
            check_ok(model_dir_read_expert(&m, layer, i, 0, EXPERT_BYTES, bytes, &e), &e);
            expect_equal(&s, layer, i, "gate_proj", bytes + l->gate_w, bytes + l->gate_s, bytes + l->gate_b);
            expect_equal(&s, layer, i, "up_proj", bytes + l->up_w, bytes + l->up_s, bytes + l->up_b);
            expect_equal(&s, layer, i, "down_proj", bytes + l->down_w, bytes + l->down_s, bytes + l->down_b);
        }
    assert_int_equal(model_dir_find(&m, "model.layers.0.mlp.up_proj.weight")->dtype, DTYPE_BF16);
    safetensors_close(&s);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* Each scale that bf16 has, with each code: what the device computes is the number. */
static void a_bias_is_exact_for_every_scale_that_is_not_too_large(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t scale = (uint16_t)bits, bias;
        float s = bf16_to_float(scale);
        bool ok = packed_biases((const uint8_t *)&scale, 1, (uint8_t *)&bias);
        assert_int_equal(ok, s * 15 - s * 15 == 0);
        float b = ok ? bf16_to_float(bias) : 0;
        assert_true(!ok || b == -8 * s);
        for (int code = 0; ok && code < 16; code++)
            assert_true((float)code * s + b == (float)(code - 8) * s);
    }
}

static void packed_experts_take_other_formats(void **state)
{
    (void)state;
    struct model_dir m;
    struct convert_result r;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const struct convert_settings fewer = {.bits = 8, .expert_bits = 3};
    check_ok(convert(KIMI, tmp_tree_path(tmp, "a"), fewer, &r, &e), &e);
    check_ok(model_dir_open(&m, tmp_tree_path(tmp, "a"), &e), &e);
    assert_int_equal(m.experts[1].formats.up, format_find_affine(3, GROUP, SCALE_BF16));
    assert_int_equal(model_dir_find(&m, "model.layers.0.mlp.up_proj.weight")->bits, 8);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void other_schemes_are_refused(void **state)
{
    static const struct {
        const char *old, *with, *text;
    } cases[] = {
        {"\"num_bits\": 4", "\"num_bits\": 8", "pack-quantized, 1 config_groups, type int, 8 bits"},
        {"\"symmetric\": true", "\"symmetric\": false", "4 bits, not symmetric"},
        {"\"strategy\": \"group\"", "\"strategy\": \"channel\"", "strategy channel of 0; expected"},
        {"\"group_size\": 32", "\"group_size\": 16", "strategy group of 16; expected"},
        {"\"type\": \"int\"", "\"type\": \"float\"", "type float"},
        {"\"actorder\": null", "\"actorder\": \"group\"", "without actorder"},
        {"\"input_activations\": null", "\"input_activations\": {}", "and input_activations"},
        {"\"config_groups\"", "\"transform_config\": {\"u\": 1}, \"config_groups\"", "a transform_config"},
        {"\"pack-quantized\"", "\"naive-quantized\"", "format naive-quantized"},
        {"\"compressed-tensors\"", "\"awq\"",
         "expected MLX's, fp8, mxfp4, modelopt, compressed-tensors or none"},
    };
    (void)state;
    struct convert_result r;
    struct model_dir m;
    struct moeflux_err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        const char *src = tmp_tree_path(tmp, "src");
        tmp_tree_copy(KIMI, src);
        tmp_tree_replace(src, "config.json", cases[i].old, cases[i].with);
        int rc = convert(src, tmp_tree_path(tmp, "d"), (struct convert_settings){0}, &r, &e);
        if (rc != ERR_UNSUPPORTED || !strstr(e.text, cases[i].text))
            fail_msg("%s: %d \"%s\"", cases[i].with, rc, e.text);
        tmp_tree_remove(tmp);
    }
    /* It opens as it lies. */
    check_ok(model_dir_open(&m, KIMI, &e), &e);
    assert_true(m.has_rules);
    model_dir_close(&m);
}

/* What becomes of the source's tensors, and the refusal. */
static const struct change {
    const char *tensor, *name, *dtype;
    int scale; /* -1: as it is */
    int code;
    const char *text;
} changes[] = {
    {".1.mlp.experts.3.up_proj.weight_scale", "weight_zero_point", "BF16", -1, ERR_UNSUPPORTED,
     "weight_zero_point: expected packed experts without it"},
    {".1.mlp.experts.3.up_proj.weight_scale", "weight_scale", "F16", -1, ERR_FORMAT, "F16, expected BF16"},
    {".1.mlp.experts.3.up_proj.weight_scale", "weight_scale", "BF16", 0x7f, ERR_FORMAT,
     "a value is not finite"},
    {".1.mlp.experts.3.up_proj.weight_scale", "other", "BF16", -1, ERR_FORMAT, "there are no scales to it"},
    {".1.mlp.experts.3.up_proj.weight_packed", "weight_packed", "F32", -1, ERR_FORMAT,
     "F32, expected I32 of two dimensions"},
    {".0.mlp.up_proj.weight", "weight_packed", "BF16", -1, ERR_UNSUPPORTED, "expected only experts to be"},
};
static const struct change *change;

static void make_change(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    char text[TENSOR_SHAPE_TEXT], name[160];
    if (!t || str_ends_with(t->name, "weight_shape"))
        return;
    if (!str_ends_with(t->name, change->tensor)) {
        st_writer_add_like(w, t->name, t, bytes);
        return;
    }
    uint8_t *own = malloc(t->bytes);
    assert_non_null(own);
    memcpy(own, bytes, t->bytes);
    if (change->scale >= 0)
        own[1] = (uint8_t)change->scale; /* the high half of the first scale */
    tensor_shape_text(t, text);
    snprintf(name, sizeof name, "%.*s%s", (int)(strrchr(t->name, '.') + 1 - t->name), t->name, change->name);
    st_writer_add(w, name, change->dtype, text, own, t->bytes);
    free(own);
}

static void tensors_of_another_form_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct convert_result r;
        struct moeflux_err e = {0};
        char *tmp = tmp_tree_new();
        const char *src = tmp_tree_path(tmp, "src");
        change = &changes[i];
        st_writer_rewrite(KIMI, src, make_change);
        int rc = convert(src, tmp_tree_path(tmp, "d"), (struct convert_settings){0}, &r, &e);
        if (rc != change->code || !strstr(e.text, change->text))
            fail_msg("%s as %s: %d \"%s\"", change->tensor, change->name, rc, e.text);
        tmp_tree_remove(tmp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_experts_keep_their_numbers),
        cmocka_unit_test(a_bias_is_exact_for_every_scale_that_is_not_too_large),
        cmocka_unit_test(packed_experts_take_other_formats),
        cmocka_unit_test(other_schemes_are_refused),
        cmocka_unit_test(tensors_of_another_form_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
