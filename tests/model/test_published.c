/* Published checkpoints as they lie: 8-bit floats, chunks of any size, streamed experts, batched decode,
 * snapshots, and what is refused. The logits of those with reference outputs are test_golden.c's.
 *
 * suites: nightly vulkan cpu asan-nightly */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "convert/convert.h"
#include "device.h"
#include "model_dirs.h"
#include "publish.h"
#include "sequence.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { CONTEXT = 400, TOKENS = 90, CHUNK = 64, MOST_VOCAB = 2048 };

static void publish(const char *tmp, const char *name, const char *model, const struct publish_form *form,
                    const char **out)
{
    char from[96];
    snprintf(from, sizeof from, "tests/models/%s", model);
    *out = tmp_tree_path(tmp, name);
    publish_model(from, *out, form);
}

/* The logits after a prompt and some tokens. */
static void run(const char *dir, const char *device, uint32_t chunk, uint32_t n_slots, float *logits)
{
    int32_t ids[TOKENS];
    struct sequence q = sequence_open(dir, device, chunk, n_slots, CONTEXT);
    assert_true(q.vocab <= MOST_VOCAB);
    sequence_ids(&q, 1, ids, TOKENS);
    memset(logits, 0, MOST_VOCAB * sizeof *logits);
    sequence_eval(&q, ids, TOKENS, NULL);
    for (int i = 0; i < 3; i++)
        sequence_eval(&q, ids + i, 1, logits);
    sequence_close(&q);
}

static float largest_difference(const float *a, const float *b)
{
    float worst = 0;
    for (int i = 0; i < MOST_VOCAB; i++) {
        float d = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
        assert_true(d == d);
        worst = d > worst ? d : worst;
    }
    return worst;
}

/* --- 8-bit floats --- */

static const struct {
    const char *model;
    unsigned block;
    bool less_one;
    enum publish_scales scales;
    const char *scale_dtype;
} fp8_models[] = {
    {"qwen3-odd/mlx", 128, false, PUBLISH_FOR_BLOCKS, NULL},
    {"deepseek-odd/mlx", 32, false, PUBLISH_FOR_BLOCKS, NULL},
    {"qwen-odd/mlx", 128, true, PUBLISH_FOR_BLOCKS, NULL},
    {"families/glm-odd", 128, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/minimax-odd", 32, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/kimi-odd", 128, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/glmlite-odd", 32, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/glm5-mlx", 32, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/next-odd", 32, true, PUBLISH_FOR_BLOCKS, NULL}, /* has in_proj_qkvz */
    {"qwen3-odd/mlx", 32, false, PUBLISH_FOR_BLOCKS, "F8_E8M0"},
    {"families/glm-odd", 32, false, PUBLISH_FOR_BLOCKS, "BF16"},
    {"qwen3-odd/mlx", 1, false, PUBLISH_FOR_ROWS, "BF16"},
    {"families/glmlite-odd", 1, false, PUBLISH_FOR_ALL, NULL},
    {"families/m3-odd", 128, false, PUBLISH_FOR_BLOCKS, NULL},
    {"families/step-plain", 128, false, PUBLISH_FOR_BLOCKS, NULL}, /* experts are stacks */
    {"families/step-plain", 32, false, PUBLISH_FOR_BLOCKS, "BF16"},
    {"families/mimo-plain", 128, false, PUBLISH_FOR_BLOCKS, NULL},
};

/* Codes with a scale for each block give what the numbers that they stand for give. */
static void fp8_gives_what_its_numbers_give(const char *device, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        char *tmp = tmp_tree_new();
        const char *codes, *numbers;
        float a[MOST_VOCAB], b[MOST_VOCAB], c[MOST_VOCAB];
        struct publish_form form = {.dtype = "F32",
                                    .less_one = fp8_models[i].less_one,
                                    .sharded = i % 2,
                                    .block = fp8_models[i].block,
                                    .scales = fp8_models[i].scales,
                                    .scale_dtype = fp8_models[i].scale_dtype};
        publish(tmp, "codes", fp8_models[i].model, &form, &codes);
        form.widened = true;
        publish(tmp, "numbers", fp8_models[i].model, &form, &numbers);
        run(numbers, "reference", CHUNK, 0, a);
        run(codes, device, CHUNK, 0, b);
        printf("%zu. %s: %.1e\n", i, fp8_models[i].model, (double)largest_difference(a, b));
        assert_true(largest_difference(a, b) < 1e-4F);
        run(codes, device, CHUNK, 5, c);
        assert_memory_equal(b, c, sizeof b);
        tmp_tree_remove(tmp);
    }
}

static void fp8_agrees_with_its_numbers(void **state)
{
    (void)state;
    size_t n = sizeof fp8_models / sizeof *fp8_models;
    fp8_gives_what_its_numbers_give(NULL, 0, device_is_software() ? 1 : n);
}

static void fp8_agrees_with_its_numbers_on_the_reference_backend(void **state)
{
    (void)state;
    fp8_gives_what_its_numbers_give("reference", 0, sizeof fp8_models / sizeof *fp8_models);
}

/* Scales are powers of two, so that each number is one of bfloat16, to which convert rounds. */
static void stacks_of_fp8_convert_to_what_their_numbers_give(void **state)
{
    (void)state;
    static const char *const files[] = {"packed_experts/layer_01.bin", "packed_experts/layer_02.bin"};
    char *tmp = tmp_tree_new();
    const char *dir[2], *out[2] = {tmp_tree_path(tmp, "a"), tmp_tree_path(tmp, "b")};
    struct publish_form form = {.dtype = "F32", .block = 32, .scale_dtype = "F8_E8M0"};
    publish(tmp, "codes", "families/step-plain", &form, &dir[0]);
    form.widened = true;
    publish(tmp, "numbers", "families/step-plain", &form, &dir[1]);
    for (int i = 0; i < 2; i++) {
        struct convert_result r;
        struct moeflux_err e = {0};
        const struct convert_options o = {.src = dir[i], .dst = out[i], .settings = {.bits = 4}};
        check_ok(convert_run(&o, &r, &e), &e);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        tmp_tree_expect_same(out[0], out[1], files[i]);
    tmp_tree_remove(tmp);
}

/* --- bfloat16, float32, 4 bits --- */

/* Two fused stacks, tensors of one expert each, interleaved rows, packed codes. */
static const char *const as_they_lie[] = {"tests/models/sources/qwen/hf", "tests/models/sources/deepseek/hf",
                                          "tests/models/gptoss/mxfp4", "tests/models/sources/kimi/hf"};
enum { N_AS_THEY_LIE = sizeof as_they_lie / sizeof *as_they_lie };

static void chunks_of_any_size_agree(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {64, 7, 1};
    for (int i = 0; i < N_AS_THEY_LIE; i++) {
        float first[MOST_VOCAB], rows[MOST_VOCAB];
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            run(as_they_lie[i], NULL, sizes[k], 0, k ? rows : first);
            if (k > 0)
                assert_true(largest_difference(first, rows) < 1e-3F);
        }
    }
}

static void streamed_experts_give_the_same_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_AS_THEY_LIE; i++) {
        float all[MOST_VOCAB], few[MOST_VOCAB];
        run(as_they_lie[i], NULL, CHUNK, 0, all);
        run(as_they_lie[i], NULL, CHUNK, 4, few);
        assert_memory_equal(all, few, sizeof all);
    }
}

static void the_device_agrees_with_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < N_AS_THEY_LIE; i++) {
        float a[MOST_VOCAB], b[MOST_VOCAB];
        run(as_they_lie[i], "reference", CHUNK, 0, a);
        run(as_they_lie[i], NULL, CHUNK, 0, b);
        assert_true(largest_difference(a, b) < 1e-4F);
    }
}

static void batched_decode_is_batch_invariant(void **state)
{
    (void)state;
    enum { N = 3 };
    for (int i = 0; i < N_AS_THEY_LIE; i++) {
        int32_t ids[TOKENS];
        float want[N][MOST_VOCAB] = {{0}}, rows[N][MOST_VOCAB] = {{0}};
        float *to[N] = {rows[0], rows[1], rows[2]};
        struct moeflux_session *list[N];
        struct moeflux_err e = {0};
        struct sequence q = sequence_open(as_they_lie[i], NULL, CHUNK, 0, CONTEXT);
        sequence_ids(&q, 1, ids, TOKENS);
        for (int k = 0; k < N; k++) {
            check_ok(moeflux_session_clear(q.s, &e), &e);
            sequence_eval(&q, ids + k, 20 + (uint32_t)k, NULL);
            sequence_eval(&q, ids + 10 * k, 1, want[k]);
            check_ok(moeflux_session_new(&list[k], q.m, CONTEXT, &e), &e);
            check_ok(
                moeflux_session_eval(list[k], ids + k, 20 + (uint32_t)k, &(struct moeflux_outputs){0}, &e),
                &e);
        }
        const int32_t next[N] = {ids[0], ids[10], ids[20]};
        check_ok(moeflux_eval_batched(list, next, N, to, &e), &e);
        assert_memory_equal(rows, want, sizeof want);
        for (int k = 0; k < N; k++)
            moeflux_session_free(list[k]);
        sequence_close(&q);
    }
}

static void a_snapshot_continues_byte_for_byte(void **state)
{
    (void)state;
    for (int i = 0; i < N_AS_THEY_LIE; i++) {
        int32_t ids[TOKENS];
        float want[MOST_VOCAB] = {0}, rows[MOST_VOCAB] = {0};
        struct moeflux_err e = {0};
        char *tmp = tmp_tree_new();
        const char *path = tmp_tree_path(tmp, "state");
        struct sequence q = sequence_open(as_they_lie[i], NULL, CHUNK, 0, CONTEXT);
        sequence_ids(&q, 1, ids, TOKENS);
        sequence_eval(&q, ids, 30, NULL);
        check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
        sequence_eval(&q, ids + 30, 9, want);
        sequence_close(&q);
        q = sequence_open(as_they_lie[i], NULL, CHUNK, 4, CONTEXT);
        check_ok(moeflux_session_load(q.s, path, &e), &e);
        sequence_eval(&q, ids + 30, 9, rows);
        assert_memory_equal(rows, want, sizeof want);
        sequence_close(&q);
        tmp_tree_remove(tmp);
    }
}

/* --- what is refused --- */

static void a_checkpoint_that_lacks_or_contradicts_something_is_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *bf16, *fp8, *cut = tmp_tree_path(tmp, "cut");
    static const char FILE_NAME[] = "model.safetensors";
    publish(tmp, "bf16", "qwen3-odd/mlx", &(struct publish_form){.dtype = "F32", .sharded = true}, &bf16);
    publish(tmp, "fp8", "qwen3-odd/mlx", &(struct publish_form){.dtype = "F32", .block = 128}, &fp8);
    tmp_tree_copy(bf16, cut);
    assert_int_equal(unlink(tmp_tree_path(cut, "model-00002-of-00003.safetensors")), 0);
    model_dirs_refuse(cut, ERR_IO, "model-00002-of-00003.safetensors: No such file");
    model_dirs_refuse_copy(fp8, FILE_NAME, "layers.0.mlp.experts.3.up_proj.weight\"",
                           "layers.0.mlp.experts.9.up_proj.weight\"", ERR_FORMAT,
                           "layer 0 expert 3: no tensor with its up_proj");
    model_dirs_refuse_copy(fp8, FILE_NAME, "layers.0.mlp.experts.3.up_proj.weight_scale_inv",
                           "layers.0.mlp.experts.3.up_proj.weight_skale_inv", ERR_FORMAT, "_scale_inv");
    model_dirs_refuse_copy(fp8, "config.json", "\"moe_intermediate_size\": 64",
                           "\"moe_intermediate_size\": 128", ERR_FORMAT, "expected [128, 128]");
    model_dirs_refuse_copy(fp8, "config.json", "\"quant_method\": \"fp8\"", "\"quant_method\": \"fp9\"",
                           ERR_UNSUPPORTED, "fp9");
    model_dirs_refuse("tests/models/gptoss/bf16", ERR_UNSUPPORTED, "run `moeflux convert` first");
    tmp_tree_remove(tmp);
}

/* Scales of a column in one expert, of all weights in the others. */
static void change_scales(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const float zeros[64];
    if (t && strstr(t->name, "layers.0.mlp.experts.3.up_proj.weight_scale"))
        st_writer_add(w, t->name, "F32", "[64, 1]", zeros, sizeof zeros);
    else if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void fp8_experts_that_do_not_run_as_they_lie_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir, *changed = tmp_tree_path(tmp, "changed");
    struct publish_form form = {.dtype = "F32", .block = 16};
    publish(tmp, "16", "qwen3-odd/mlx", &form, &dir);
    model_dirs_refuse(dir, ERR_UNSUPPORTED,
                      "layers.0.mlp.experts.0.gate_proj.weight: F8_E4M3 experts of 128 columns in blocks of "
                      "16 do not run as they lie; run `moeflux convert` first");
    form.block = 48;
    publish(tmp, "48", "qwen3-odd/mlx", &form, &dir);
    model_dirs_refuse(dir, ERR_UNSUPPORTED, "in blocks of 48 do not run as they lie");
    form.scales = PUBLISH_FOR_ALL;
    publish(tmp, "one", "qwen3-odd/mlx", &form, &dir);
    st_writer_rewrite(dir, changed, change_scales);
    model_dirs_refuse(changed, ERR_UNSUPPORTED,
                      "model.safetensors: tensor model.layers.0.mlp.experts.3.up_proj.weight_scale: shape "
                      "[64, 1], expected [1] as in the layer's other experts");
    tmp_tree_remove(tmp);
}

static void fp8_is_described_by_its_blocks_if_it_has_some(void **state)
{
    (void)state;
    for (enum publish_scales scales = PUBLISH_FOR_BLOCKS; scales <= PUBLISH_FOR_ALL; scales++) {
        char *tmp = tmp_tree_new();
        const char *dir, *expected = scales == PUBLISH_FOR_BLOCKS ? "fp8 32x32" : "fp8";
        publish(tmp, "model", "qwen3-odd/mlx",
                &(struct publish_form){.dtype = "F32", .block = 32, .scales = scales}, &dir);
        struct moeflux_needs needs;
        struct moeflux_err e = {0};
        check_ok(moeflux_get_needs(dir, &needs, &e), &e);
        assert_string_equal(needs.expert_formats, expected);
        char share[32];
        snprintf(share, sizeof share, "%s ", expected);
        assert_non_null(strstr(needs.dense_formats, share));
        assert_null(strstr(needs.dense_formats, "0x0"));
        tmp_tree_remove(tmp);
    }
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(fp8_agrees_with_its_numbers),
    };
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(the_device_agrees_with_the_reference),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(fp8_agrees_with_its_numbers_on_the_reference_backend),
        cmocka_unit_test(stacks_of_fp8_convert_to_what_their_numbers_give),
        cmocka_unit_test(the_device_agrees_with_the_reference),
        cmocka_unit_test(chunks_of_any_size_agree),
        cmocka_unit_test(streamed_experts_give_the_same_bytes),
        cmocka_unit_test(batched_decode_is_batch_invariant),
        cmocka_unit_test(a_snapshot_continues_byte_for_byte),
        cmocka_unit_test(a_checkpoint_that_lacks_or_contradicts_something_is_refused),
        cmocka_unit_test(fp8_experts_that_do_not_run_as_they_lie_are_refused),
        cmocka_unit_test(fp8_is_described_by_its_blocks_if_it_has_some),
    };
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
