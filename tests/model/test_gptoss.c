/* gpt-oss checkpoints as they are published: experts in mxfp4 with the gates' and the up rows in turn, or
 * plain with rows as columns. That the converted model computes what mlx-lm computes is test_golden.c's.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/str.h"
#include "check.h"
#include "convert/convert.h"
#include "convert/plan.h"
#include "model/model_dir.h"
#include "model/tensor.h"
#include "sequence.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define PUBLISHED "tests/models/gptoss/mxfp4"
#define PLAIN     "tests/models/gptoss/bf16"

enum { LAYERS = 2, EXPERTS = 4, SIDE = 64, WEIGHTS = SIDE * SIDE, EXPERT_BYTES = 3 * WEIGHTS * 17 / 32 };

static void convert_ok(const char *src, const char *dst, struct convert_settings settings)
{
    struct moeflux_err e = {0};
    struct convert_result r;
    const struct convert_options o = {.src = src, .dst = dst, .settings = settings};
    check_ok(convert_run(&o, &r, &e), &e);
}

/* The numbers of an expert's gate, up and down. */
static void read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, float out[3 * WEIGHTS])
{
    uint8_t bytes[EXPERT_BYTES];
    struct moeflux_err e = {0};
    const struct expert_layout *l = &m->experts[layer];
    const uint64_t at[3][2] = {{l->gate_w, l->gate_s}, {l->up_w, l->up_s}, {l->down_w, l->down_s}};
    assert_int_equal(l->bytes, EXPERT_BYTES);
    assert_int_equal(l->formats.up, FORMAT_MXFP4);
    assert_int_equal(l->formats.down, FORMAT_MXFP4);
    check_ok(model_dir_read_expert(m, layer, expert, 0, EXPERT_BYTES, bytes, &e), &e);
    for (int i = 0; i < 3; i++)
        format_decode(format_of(FORMAT_MXFP4), bytes + at[i][0], bytes + at[i][1], NULL, 0, WEIGHTS,
                      out + (size_t)i * WEIGHTS);
}

/* Numbers that mxfp4 has are the same after a search for scales. */
static void plain_experts_are_turned_into_the_published_numbers(void **state)
{
    (void)state;
    static float a[3 * WEIGHTS], b[3 * WEIGHTS];
    struct model_dir published, plain;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    convert_ok(PUBLISHED, tmp_tree_path(tmp, "a"), (struct convert_settings){0});
    convert_ok(PLAIN, tmp_tree_path(tmp, "b"), (struct convert_settings){.expert_mode = CONVERT_MODE_MXFP4});
    check_ok(model_dir_open(&published, tmp_tree_path(tmp, "a"), &e), &e);
    check_ok(model_dir_open(&plain, tmp_tree_path(tmp, "b"), &e), &e);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < EXPERTS; i++) {
            read_expert(&published, layer, i, a);
            read_expert(&plain, layer, i, b);
            for (int k = 0; k < 3 * WEIGHTS; k++)
                assert_true(a[k] == b[k]);
        }
    model_dir_close(&published);
    model_dir_close(&plain);
    tmp_tree_remove(tmp);
}

/* Fewer bits are made of the codes. */
static void published_experts_take_other_formats(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    convert_ok(PUBLISHED, tmp_tree_path(tmp, "a"), (struct convert_settings){.bits = 8, .expert_bits = 3});
    check_ok(model_dir_open(&m, tmp_tree_path(tmp, "a"), &e), &e);
    assert_int_equal(m.experts[1].formats.up, FORMAT_Q3);
    assert_int_equal(model_dir_find(&m, "model.layers.0.self_attn.q_proj.weight")->format, FORMAT_Q8);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static const char *widened; /* the layer whose plain experts `widen` stores as F32 */

static void widen(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    bool is_its = t && strstr(t->name, widened) &&
                  (str_ends_with(t->name, "gate_up_proj") || str_ends_with(t->name, "down_proj"));
    if (!is_its && t)
        st_writer_add_like(w, t->name, t, bytes);
    if (!is_its)
        return;
    uint8_t *wide = calloc(t->bytes, 2);
    char text[TENSOR_SHAPE_TEXT];
    assert_non_null(wide);
    for (uint64_t i = 0; i < t->bytes; i += 2)
        memcpy(wide + 2 * i + 2, bytes + i, 2);
    tensor_shape_text(t, text);
    st_writer_add(w, t->name, "F32", text, wide, 2 * t->bytes);
    free(wide);
}

static void expect_same_model(const char *a, const char *b)
{
    static const char *const files[] = {"model_weights.bin", "packed_experts/layer_00.bin",
                                        "packed_experts/layer_01.bin", "config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        tmp_tree_expect_same(a, b, files[i]);
}

/* An expert is made in room for itself and for what is read whole: the gates' and the up rows of the layer
 * that needs most. */
static void plain_experts_may_be_wider_in_one_layer(void **state)
{
    (void)state;
    static const char *const layers[] = {"layers.0.", "layers.1."};
    char *tmp = tmp_tree_new();
    const char *plain = tmp_tree_path(tmp, "plain");
    convert_ok(PLAIN, plain, (struct convert_settings){0});
    for (int i = 0; i < 2; i++) {
        struct convert_plan p;
        struct moeflux_err e = {0};
        const char *src = tmp_tree_path(tmp, i ? "src1" : "src0"), *dst = tmp_tree_path(tmp, i ? "b" : "a");
        widened = layers[i];
        st_writer_rewrite(PLAIN, src, widen);
        check_ok(convert_plan_open(&p, src, &(struct convert_settings){0}, &e), &e);
        assert_int_equal(p.expert_room, p.max_expert_bytes + sizeof(float) * 2 * WEIGHTS);
        assert_int_equal(p.expert_source_bytes, EXPERTS * 3 * WEIGHTS * (sizeof(float) + 2));
        convert_plan_close(&p);
        convert_ok(src, dst, (struct convert_settings){0});
        expect_same_model(plain, dst);
    }
    tmp_tree_remove(tmp);
}

static void say_mxfp4(const char *dir)
{
    tmp_tree_replace(dir, "config.json", "\"hidden_act\"",
                     "\"quantization_config\": {\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": "
                     "[\"lm_head\"]},\n    \"hidden_act\"");
}

/* The form that a fine-tune of the dequantised numbers has. */
static void plain_experts_under_a_block_of_mxfp4_are_plain(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *a = tmp_tree_path(tmp, "a"), *b = tmp_tree_path(tmp, "b");
    tmp_tree_copy(PLAIN, src);
    say_mxfp4(src);
    convert_ok(PLAIN, a, (struct convert_settings){0});
    convert_ok(src, b, (struct convert_settings){0});
    expect_same_model(a, b);
    tmp_tree_remove(tmp);
}

/* The second layer's experts without codes: plain stacks of zeros. */
static void make_plain(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const uint8_t zeros[EXPERTS * 2 * WEIGHTS * 2];
    bool is_its = t && strstr(t->name, "layers.1.mlp.experts.");
    if (t && (!is_its || str_ends_with(t->name, "_bias")))
        st_writer_add_like(w, t->name, t, bytes);
    else if (t && str_ends_with(t->name, "gate_up_proj_blocks"))
        st_writer_add(w, "model.layers.1.mlp.experts.gate_up_proj", "BF16", "[4,64,128]", zeros,
                      sizeof zeros);
    else if (t && str_ends_with(t->name, "down_proj_blocks"))
        st_writer_add(w, "model.layers.1.mlp.experts.down_proj", "BF16", "[4,64,64]", zeros,
                      sizeof zeros / 2);
}

static void plain_experts_next_to_published_ones_are_refused(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct convert_result r;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    st_writer_rewrite(PUBLISHED, src, make_plain);
    assert_int_equal(convert_run(&(struct convert_options){.src = src, .dst = dst}, &r, &e), ERR_FORMAT);
    assert_non_null(
        strstr(e.text, "tensor model.layers.1.mlp.switch_mlp.gate_up_proj: BF16, expected mxfp4"));
    assert_false(file_exists(dst));
    tmp_tree_remove(tmp);
}

/* MLX's key for the same codes, which stay as they are. */
static void published_experts_under_a_block_of_mlx_are_the_same_numbers(void **state)
{
    (void)state;
    static float a[3 * WEIGHTS], b[3 * WEIGHTS];
    struct model_dir published, converted;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src");
    tmp_tree_copy(PUBLISHED, src);
    tmp_tree_replace(src, "config.json", "\"quantization_config\": {",
                     "\"quantization_config\": {\"mode\": \"mxfp4\", \"group_size\": 32, ");
    convert_ok(src, tmp_tree_path(tmp, "a"), (struct convert_settings){0});
    check_ok(model_dir_open(&published, PUBLISHED, &e), &e);
    check_ok(model_dir_open(&converted, tmp_tree_path(tmp, "a"), &e), &e);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < EXPERTS; i++) {
            read_expert(&published, layer, i, a);
            read_expert(&converted, layer, i, b);
            assert_memory_equal(a, b, sizeof a);
        }
    model_dir_close(&published);
    model_dir_close(&converted);
    tmp_tree_remove(tmp);
}

/* The exponent of expert 2's first row of gate is NaN. */
static void spoil_scale(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (!t || !str_ends_with(t->name, "1.mlp.experts.gate_up_proj_scales")) {
        if (t)
            st_writer_add_like(w, t->name, t, bytes);
        return;
    }
    uint8_t *spoilt = malloc(t->bytes);
    assert_non_null(spoilt);
    memcpy(spoilt, bytes, t->bytes);
    spoilt[2 * t->bytes / EXPERTS] = 0xff;
    st_writer_add_like(w, t->name, t, spoilt);
    free(spoilt);
}

static void a_scale_that_is_no_number_is_refused_when_its_expert_is_read(void **state)
{
    (void)state;
    uint8_t bytes[EXPERT_BYTES];
    struct model_dir m;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "model");
    st_writer_rewrite(PUBLISHED, dir, spoil_scale);
    check_ok(model_dir_open(&m, dir, &e), &e);
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_int_equal(model_dir_read_expert(&m, 1, i, 0, EXPERT_BYTES, bytes, &e),
                         i == 2 ? ERR_FORMAT : 0);
    model_dir_close(&m);
    struct sequence q = sequence_open(dir, "cpu", 16, 4, 64);
    int32_t ids[16];
    sequence_ids(&q, 1, ids, 16);
    assert_int_equal(moeflux_session_eval(q.s, ids, 16, &(struct moeflux_outputs){0}, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "layer 1 expert 2"));
    assert_non_null(strstr(e.text, "is not finite"));
    sequence_close(&q);
    tmp_tree_remove(tmp);
}

static void a_published_checkpoint_opens_as_it_lies(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, PUBLISHED, &e), &e);
    assert_true(m.has_rules);
    model_dir_close(&m);
}

static const char *changed, *shape; /* the tensor that `reshape` gives another shape */

static void reshape(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && str_ends_with(t->name, changed))
        st_writer_add(w, t->name, t->dtype == DTYPE_U8 ? "U8" : "BF16", shape, bytes, t->bytes);
    else if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void stacks_of_another_shape_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *src, *changed, *shape, *text;
    } cases[] = {
        {PUBLISHED, "1.mlp.experts.gate_up_proj_blocks", "[4,128,4,8]", "expected U8, blocks of 16 bytes"},
        {PUBLISHED, "1.mlp.experts.gate_up_proj_blocks", "[4,256,1,16]", "does not fit the weight's"},
        {PUBLISHED, "0.mlp.experts.down_proj_blocks", "[4,128,1,16]", "does not fit the weight's"},
        {PUBLISHED, "0.mlp.experts.gate_up_proj_bias", "[512]", "expected numbers of 2 dimensions"},
        {PUBLISHED, "0.mlp.experts.down_proj_scales", "[4,64,2,1]", "expected U8 of 3 dimensions"},
        {PLAIN, "0.mlp.experts.gate_up_proj", "[4,128,64]", "shape [4, 128, 64], expected [4, 64, 128]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        struct moeflux_err e = {0};
        struct convert_result r;
        const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
        changed = cases[i].changed;
        shape = cases[i].shape;
        st_writer_rewrite(cases[i].src, src, reshape);
        int rc = convert_run(&(struct convert_options){.src = src, .dst = dst}, &r, &e);
        if (rc != ERR_FORMAT || !strstr(e.text, cases[i].text))
            fail_msg("%d \"%s\", expected \"%s\"", rc, e.text, cases[i].text);
        assert_false(file_exists(dst));
        tmp_tree_remove(tmp);
    }
}

/* Windows of 5 and of 40 positions, over chunks of all kinds. */
static void any_chunk_gives_the_same_logits(void **state)
{
    (void)state;
    enum { N = 150, VOCAB = 103 };
    static const char *const models[] = {"tests/models/families/gptoss-odd",
                                         "tests/models/families/gptoss-plain"};
    static const uint32_t chunks[] = {16, 37, 1};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct sequence whole = sequence_open(models[i], "cpu", 512, 0, 256);
        int32_t ids[N];
        float want[VOCAB], got[VOCAB];
        sequence_ids(&whole, 1, ids, N);
        sequence_eval(&whole, ids, N, want);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            struct sequence parts = sequence_open(models[i], "cpu", chunks[k], 0, 256);
            sequence_eval(&parts, ids, N, got);
            assert_true(sequence_distance(&parts, got, want) <= sequence_tolerance(&parts));
            sequence_close(&parts);
        }
        sequence_close(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_experts_are_turned_into_the_published_numbers),
        cmocka_unit_test(published_experts_take_other_formats),
        cmocka_unit_test(plain_experts_may_be_wider_in_one_layer),
        cmocka_unit_test(plain_experts_under_a_block_of_mxfp4_are_plain),
        cmocka_unit_test(plain_experts_next_to_published_ones_are_refused),
        cmocka_unit_test(published_experts_under_a_block_of_mlx_are_the_same_numbers),
        cmocka_unit_test(a_scale_that_is_no_number_is_refused_when_its_expert_is_read),
        cmocka_unit_test(a_published_checkpoint_opens_as_it_lies),
        cmocka_unit_test(stacks_of_another_shape_are_refused),
        cmocka_unit_test(any_chunk_gives_the_same_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
