/* Conversion: results, sources of every form, interruptions, failures.
 *
 * suites: check fast asan tsan */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "convert/convert.h"
#include "disk_room.h"
#include "model/model_dir.h"
#include "sequence.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define QWEN_HF      "tests/models/sources/qwen/hf"
#define QWEN_MLX     "tests/models/sources/qwen/mlx"
#define DEEPSEEK_HF  "tests/models/sources/deepseek/hf"
#define DEEPSEEK_MLX "tests/models/sources/deepseek/mlx"
#define QWEN3_HF     "tests/models/qwen3-odd/hf"
#define QWEN3_MLX    "tests/models/qwen3-odd/mlx"
#define TINY         "tests/models/tiny"

enum { QWEN_LAYERS = 4 };

/* --- helpers --- */

static int run(const char *src, const char *dst, struct convert_result *r, struct moeflux_err *e)
{
    struct convert_options o = {.src = src, .dst = dst};
    struct convert_result ignored;
    *e = (struct moeflux_err){0};
    return convert_run(&o, r ? r : &ignored, e);
}

static void run_ok(const char *src, const char *dst)
{
    struct moeflux_err e;
    if (run(src, dst, NULL, &e) < 0)
        fail_msg("%s", e.text);
}

static void expect_refused(const char *src, const char *dst, int code, const char *text)
{
    struct moeflux_err e;
    int rc = run(src, dst, NULL, &e);
    if (rc != code || !strstr(e.text, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e.text, code, text);
}

/* The weights of two converted directories are the same bytes. */
static void expect_same_model(const char *a, const char *b, uint32_t first, uint32_t n_layers)
{
    tmp_tree_expect_same(a, b, "model_weights.bin");
    for (uint32_t i = first; i < n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "packed_experts/layer_%02u.bin", i);
        tmp_tree_expect_same(a, b, name);
    }
    tmp_tree_expect_same(a, b, "packed_experts/layout.json");
    struct model_dir m;
    struct moeflux_err e;
    if (model_dir_open(&m, b, &e) < 0)
        fail_msg("%s", e.text);
    model_dir_close(&m);
}

static json_t *load(const char *dir, const char *name)
{
    json_t *root = json_load_file(tmp_tree_path(dir, name), 0, NULL);
    assert_non_null(root);
    return root;
}

/* --- results --- */

static void a_bf16_source_gives_the_bytes_of_the_quantised_one(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "a"), *b = tmp_tree_path(tmp, "b");
    run_ok(QWEN_MLX, a);
    run_ok(QWEN_HF, b);
    expect_same_model(a, b, 0, QWEN_LAYERS);
    tmp_tree_expect_same(b, QWEN_MLX, "config.json");
    tmp_tree_remove(tmp);
}

static void a_bf16_deepseek_gives_the_bytes_of_the_quantised_one(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "a"), *b = tmp_tree_path(tmp, "b");
    run_ok(DEEPSEEK_MLX, a);
    run_ok(DEEPSEEK_HF, b);
    expect_same_model(a, b, 1, 3);
    tmp_tree_expect_same(b, DEEPSEEK_MLX, "config.json");
    assert_false(file_exists(tmp_tree_path(b, "packed_experts/layer_00.bin")));
    tmp_tree_remove(tmp);
}

/* Its layer 1 is dense, and matrices whose columns are no multiple of 64 stay as they are. */
static void a_bf16_qwen3_gives_the_bytes_of_the_quantised_one(void **state)
{
    (void)state;
    static const uint32_t layers[] = {0, 2};
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "a"), *b = tmp_tree_path(tmp, "b");
    run_ok(QWEN3_MLX, a);
    run_ok(QWEN3_HF, b);
    for (size_t i = 0; i < 2; i++)
        expect_same_model(a, b, layers[i], layers[i] + 1);
    tmp_tree_expect_same(b, QWEN3_MLX, "config.json");
    assert_false(file_exists(tmp_tree_path(b, "packed_experts/layer_01.bin")));
    tmp_tree_remove(tmp);
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *one = tmp_tree_path(tmp, "1"), *many = tmp_tree_path(tmp, "7");
    struct convert_options o = {.src = QWEN_HF, .dst = one, .n_threads = 1};
    struct convert_result r;
    struct moeflux_err e;
    assert_int_equal(convert_run(&o, &r, &e), 0);
    o.dst = many;
    o.n_threads = 7;
    assert_int_equal(convert_run(&o, &r, &e), 0);
    expect_same_model(one, many, 0, QWEN_LAYERS);
    tmp_tree_remove(tmp);
}

static void the_files_next_to_the_weights_come_along(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    static const char *const names[] = {
        "config.json",         "tokenizer.json",        "generation_config.json",
        "chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/tool_use.jinja"};
    tmp_tree_copy(TINY, src);
    assert_int_equal(mkdir(tmp_tree_path(src, "additional_chat_templates"), 0777), 0);
    tmp_tree_write_text(src, "additional_chat_templates/tool_use.jinja", "{{ tools }}");
    tmp_tree_write_text(src, "generation_config.json", "{\"eos_token_id\": 1930}");
    tmp_tree_write_text(src, "chat_template.jinja", "{{ messages }}");
    tmp_tree_write_text(src, "tokenizer_config.json", "{}");
    run_ok(src, dst);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        tmp_tree_expect_same(src, dst, names[i]);
    assert_false(file_exists(tmp_tree_path(dst, "convert.state")));
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial")));
    assert_false(file_exists(tmp_tree_path(dst, "merges.txt")));

    json_t *manifest = load(dst, "model_weights.json");
    json_t *eos = json_object_get(json_object_get(manifest, "config"), "eos_token_id");
    assert_int_equal(json_array_size(eos), 3);
    json_decref(manifest);
    tmp_tree_remove(tmp);
}

static void the_manifest_describes_the_published_layout(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    run_ok(QWEN_HF, dst);
    json_t *root = load(dst, "model_weights.json"), *tensors = json_object_get(root, "tensors");
    assert_int_equal(json_integer_value(json_object_get(root, "num_tensors")), 146);
    assert_int_equal(json_object_size(tensors), 146);
    const char *name;
    json_t *entry;
    json_object_foreach(tensors, name, entry)
    {
        assert_int_equal(json_integer_value(json_object_get(entry, "offset")) % 64, 0);
        bool codes = !strcmp(json_string_value(json_object_get(entry, "dtype")), "U32");
        assert_int_equal(codes, json_object_get(entry, "bits") != NULL);
    }
    entry = json_object_get(tensors, "model.layers.0.linear_attn.conv1d.weight");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(entry, "shape"), 1)), 4);
    entry = json_object_get(tensors, "model.layers.0.mlp.gate.weight");
    assert_int_equal(json_integer_value(json_object_get(entry, "bits")), 8);
    json_t *config = json_object_get(root, "config");
    assert_int_equal(json_integer_value(json_object_get(config, "hidden_size")), 192);
    assert_int_equal(json_integer_value(json_object_get(config, "default_bits")), 4);
    assert_int_equal(json_integer_value(json_object_get(config, "default_group_size")), 64);
    assert_null(json_object_get(config, "text_config"));
    json_decref(root);
    root = load(dst, "packed_experts/layout.json");
    assert_int_equal(json_integer_value(json_object_get(root, "expert_size")), 20736);
    assert_int_equal(json_array_size(json_object_get(root, "components")), 9);
    json_decref(root);
    tmp_tree_remove(tmp);
}

static void checksums_are_the_plain_xxh3_of_every_file(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    run_ok(TINY, dst);
    json_t *root = load(dst, "checksums.json"), *files = json_object_get(root, "files");
    assert_int_equal(json_object_size(files), 1 + 8 + 1 + 3);
    const char *name;
    json_t *entry;
    json_object_foreach(files, name, entry)
    {
        size_t n;
        char hex[17];
        uint8_t *bytes = tmp_tree_read(tmp_tree_path(dst, name), &n);
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(bytes, n));
        assert_string_equal(json_string_value(json_object_get(entry, "xxh3")), hex);
        assert_int_equal(json_integer_value(json_object_get(entry, "bytes")), n);
        free(bytes);
    }
    json_decref(root);
    tmp_tree_remove(tmp);
}

static void the_result_counts_what_was_done(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct convert_result r;
    struct moeflux_err e;
    assert_int_equal(run(QWEN_MLX, tmp_tree_path(tmp, "d/"), &r, &e), 0);
    assert_int_equal(r.n_tensors, 146);
    assert_int_equal(r.n_expert_layers, QWEN_LAYERS);
    assert_int_equal(r.n_layers_kept, 0);
    assert_int_equal(r.bytes_read, 407254 + 414720);
    assert_true(r.bytes_written > r.bytes_read);
    tmp_tree_remove(tmp);
}

/* --- projections with formats of their own --- */

/* Projections `what` in 8 bits: the same codes with the same scales, so the same numbers. */
static void widen(struct st_writer *w, const struct tensor *t, const uint8_t *bytes, const char *what)
{
    if (!t || !strstr(t->name, what)) {
        if (t)
            st_writer_add_like(w, t->name, t, bytes);
        return;
    }
    char shape[64];
    uint8_t *codes = malloc(2 * t->bytes);
    assert_non_null(codes);
    for (uint64_t i = 0; i < 2 * t->bytes; i++)
        codes[i] = bytes[i / 2] >> (4 * (i % 2)) & 15;
    snprintf(shape, sizeof shape, "[%u, %u, %u]", (unsigned)t->shape[0], (unsigned)t->shape[1],
             2 * (unsigned)t->shape[2]);
    st_writer_add(w, t->name, "U32", shape, codes, 2 * t->bytes);
    free(codes);
}

static void widen_down(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    widen(w, t, bytes, "switch_mlp.down_proj.weight");
}

static void widen_up(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    widen(w, t, bytes, "switch_mlp.up_proj.weight");
}

static void declare(const char *dir, const char *what)
{
    for (int i = 0; i < QWEN_LAYERS; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "\"mode\": \"affine\", \"language_model.model.layers.%d.mlp.switch_mlp.%s\": {\"bits\": 8},",
                 i, what);
        tmp_tree_replace(dir, "config.json", "\"mode\": \"affine\",", text);
    }
}

static void expect_logits(const char *dir, const float *want, const int32_t *ids, uint32_t n)
{
    float got[128];
    struct sequence q = sequence_open(dir, "reference", n, 0, 64);
    assert_true(q.vocab <= 128);
    sequence_eval(&q, ids, n, got);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    sequence_close(&q);
}

/* A projection with other bits than the rest keeps them, in a copy too. dst: the copy. */
static void expect_kept(void (*widened)(struct st_writer *, const struct tensor *, const uint8_t *),
                        const char *what, const struct expert_formats *formats, char *tmp, const char *dst)
{
    enum { N = 5 };
    const char *mlx = tmp_tree_path(tmp, "mlx");
    int32_t ids[N];
    float want[128];
    struct model_dir m;
    struct moeflux_err e;
    st_writer_rewrite(QWEN_MLX, mlx, widened);
    declare(mlx, what);
    run_ok(mlx, dst);
    assert_int_equal(model_dir_open(&m, dst, &e), 0);
    assert_memory_equal(&m.experts[0].formats, formats, sizeof *formats);
    assert_int_equal(m.max_expert_bytes, 20736 + 64 * 192 / 2);
    model_dir_close(&m);
    struct sequence q = sequence_open(QWEN_MLX, "reference", N, 0, 64);
    sequence_ids(&q, 1, ids, N);
    sequence_eval(&q, ids, N, want);
    sequence_close(&q);
    expect_logits(mlx, want, ids, N);
    expect_logits(dst, want, ids, N);
}

static void down_projections_with_other_bits_than_the_rest_keep_them(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *packed = tmp_tree_path(tmp, "packed");
    expect_kept(widen_down, "down_proj", &(struct expert_formats){FORMAT_Q4, FORMAT_Q4, FORMAT_Q8}, tmp,
                packed);
    json_t *root = load(packed, "model_weights.json"), *config = json_object_get(root, "config");
    assert_int_equal(json_integer_value(json_object_get(config, "expert_bits")), 4);
    assert_int_equal(json_integer_value(json_object_get(config, "expert_down_bits")), 8);
    json_decref(root);
    tmp_tree_remove(tmp);
}

static void up_projections_with_other_bits_than_gate_keep_them(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    expect_kept(widen_up, "up_proj", &(struct expert_formats){FORMAT_Q4, FORMAT_Q8, FORMAT_Q4}, tmp,
                tmp_tree_path(tmp, "packed"));
    tmp_tree_remove(tmp);
}

/* --- other forms of the same source --- */

static const char *in_vision_class(const char *name, char out[256])
{
    bool inner = !strncmp(name, "model.", 6);
    snprintf(out, 256, "%s%s", inner ? "model.language_model." : "", inner ? name + 6 : name);
    return out;
}

static void vision_class(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const float junk[8] = {0};
    char name[256];
    if (t) {
        st_writer_add_like(w, in_vision_class(t->name, name), t, bytes);
        return;
    }
    st_writer_add(w, "model.visual.patch_embed.proj.weight", "F32", "[1,2,1,2,2]", junk, 32);
    st_writer_add(w, "model.visual.position_ids", "I64", "[4]", junk, 32);
    st_writer_add(w, "mtp.layers.0.input_layernorm.weight", "F32", "[8]", junk, 32);
    st_writer_add(w, "model.language_model.layers.4.input_layernorm.weight", "F32", "[8]", junk, 32);
    st_writer_add(w, "model.language_model.rotary_emb.inv_freq", "F32", "[8]", junk, 32);
}

static void mlx_text_only(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const float junk[8] = {0};
    if (t)
        st_writer_add_like(w, t->name + strlen("language_model."), t, bytes);
    else
        st_writer_add(w, "vision_tower.blocks.0.weight", "F32", "[8]", junk, 32);
}

/* Fused stacks become mlp.experts.N.{gate,up,down}_proj.weight. */
static void split_experts(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    const char *at = t ? strstr(t->name, "experts.gate_up_proj") : NULL;
    bool down = t && strstr(t->name, "mlp.experts.down_proj");
    if (t && !at && !down)
        st_writer_add_like(w, t->name, t, bytes);
    if (!at && !down)
        return;
    int prefix = (int)(strstr(t->name, "experts.") - t->name);
    uint64_t parts = down ? 1 : 2, n = t->bytes / t->shape[0] / parts;
    for (uint64_t i = 0; i < t->shape[0] * parts; i++) {
        char name[256], shape[64];
        snprintf(name, sizeof name, "%.*sexperts.%d.%s.weight", prefix, t->name, (int)(i / parts),
                 down    ? "down_proj"
                 : i % 2 ? "up_proj"
                         : "gate_proj");
        snprintf(shape, sizeof shape, "[%d,%d]", (int)(t->shape[1] / parts), (int)t->shape[2]);
        st_writer_add(w, name, "BF16", shape, bytes + i * n, n);
    }
}

static void expect_equal_conversion(const char *src,
                                    void (*map)(struct st_writer *, const struct tensor *, const uint8_t *),
                                    uint32_t first, uint32_t n_layers)
{
    char *tmp = tmp_tree_new();
    const char *other = tmp_tree_path(tmp, "other");
    st_writer_rewrite(src, other, map);
    run_ok(src, tmp_tree_path(tmp, "a"));
    run_ok(other, tmp_tree_path(tmp, "b"));
    expect_same_model(tmp_tree_path(tmp, "a"), tmp_tree_path(tmp, "b"), first, n_layers);
    tmp_tree_remove(tmp);
}

static void names_of_the_vision_class_convert_to_the_same_without_vision_and_mtp(void **state)
{
    (void)state;
    expect_equal_conversion(QWEN_HF, vision_class, 0, QWEN_LAYERS);
}

static void experts_one_by_one_convert_as_fused_ones(void **state)
{
    (void)state;
    expect_equal_conversion(QWEN_HF, split_experts, 0, QWEN_LAYERS);
    expect_equal_conversion(DEEPSEEK_HF, split_experts, 1, 3);
}

static void mlx_names_without_a_prefix_convert_to_the_same(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *other = tmp_tree_path(tmp, "other");
    st_writer_rewrite(QWEN_MLX, other, mlx_text_only);
    /* The quantization block goes by the names of its own checkpoint. */
    for (int i = 0; i < 2 * QWEN_LAYERS; i++)
        tmp_tree_replace(other, "config.json", "\"language_model.model.", "\"model.");
    run_ok(QWEN_MLX, tmp_tree_path(tmp, "a"));
    run_ok(other, tmp_tree_path(tmp, "b"));
    expect_same_model(tmp_tree_path(tmp, "a"), tmp_tree_path(tmp, "b"), 0, QWEN_LAYERS);
    tmp_tree_remove(tmp);
}

/* A_log as BF16, which keeps its first 16 bits. */
static void narrow_a_log(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && strstr(t->name, "A_log")) {
        uint16_t half[3];
        for (size_t i = 0; i < 3; i++)
            memcpy(&half[i], bytes + 4 * i + 2, 2);
        st_writer_add(w, t->name, "BF16", "[3]", half, sizeof half);
    } else if (t) {
        st_writer_add_like(w, t->name, t, bytes);
    }
}

static void a_bf16_decay_is_widened(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    st_writer_rewrite(QWEN_MLX, src, narrow_a_log);
    run_ok(src, dst);
    struct model_dir m, original;
    struct moeflux_err e;
    float a[3], b[3];
    assert_int_equal(model_dir_open(&m, dst, &e), 0);
    assert_int_equal(model_dir_open(&original, QWEN_MLX, &e), 0);
    const struct tensor *t = model_dir_find(&m, "model.layers.0.linear_attn.A_log");
    assert_int_equal(t->dtype, DTYPE_F32);
    assert_int_equal(model_dir_read_f32(&m, t, a, &e), 0);
    t = model_dir_find(&original, "model.layers.0.linear_attn.A_log");
    assert_int_equal(model_dir_read_f32(&original, t, b, &e), 0);
    for (int i = 0; i < 3; i++) {
        uint32_t u;
        memcpy(&u, &b[i], 4);
        u &= 0xffff0000u;
        assert_memory_equal(&u, &a[i], 4);
    }
    model_dir_close(&m);
    model_dir_close(&original);
    tmp_tree_remove(tmp);
}

static void without_head(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && !strstr(t->name, "lm_head"))
        st_writer_add_like(w, t->name, t, bytes);
}

static void a_tied_model_needs_no_head(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    st_writer_rewrite(QWEN_HF, src, without_head);
    expect_refused(src, dst, ERR_FORMAT, "tensor lm_head.weight is missing");
    tmp_tree_replace(src, "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    run_ok(src, dst);
    struct model_dir m;
    struct moeflux_err e;
    assert_int_equal(model_dir_open(&m, dst, &e), 0);
    assert_true(m.config.tied);
    assert_int_equal(m.n_tensors, 143);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* --- refusals --- */

static void a_destination_that_exists_is_left_alone(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    expect_refused(QWEN_MLX, tmp, ERR_USAGE, "exists already");
    expect_refused(QWEN_MLX, QWEN_MLX, ERR_USAGE, "exists already");
    expect_refused(QWEN_MLX, "", ERR_USAGE, "empty");
    tmp_tree_write_text(tmp, "file", "x");
    expect_refused(QWEN_MLX, tmp_tree_path(tmp, "file"), ERR_USAGE, "exists already");
    tmp_tree_remove(tmp);
}

static void a_destination_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    expect_refused(QWEN_MLX, tmp_tree_path(tmp, "no/dst"), ERR_IO, "No such file or directory");
    tmp_tree_write_text(tmp, "file", "x");
    expect_refused(QWEN_MLX, tmp_tree_path(tmp, "file/dst"), ERR_IO, "Not a directory");
    tmp_tree_remove(tmp);
}

static void a_foreign_partial_directory_is_left_alone(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *partial = tmp_tree_path(tmp, "dst.partial");
    assert_int_equal(mkdir(partial, 0777), 0);
    tmp_tree_write_text(partial, "thesis.txt", "x");
    expect_refused(QWEN_MLX, tmp_tree_path(tmp, "dst"), ERR_USAGE, "not an unfinished conversion");
    tmp_tree_write_text(partial, "convert.state", "hello");
    expect_refused(QWEN_MLX, tmp_tree_path(tmp, "dst"), ERR_USAGE, "not the state of a conversion");
    assert_true(file_exists(tmp_tree_path(partial, "thesis.txt")));
    tmp_tree_remove(tmp);
}

static void sources_that_cannot_be_converted_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *src = tmp_tree_path(tmp, "src");
    expect_refused("/nonexistent", dst, ERR_IO, "/nonexistent: No such file");
    run_ok(QWEN_MLX, tmp_tree_path(tmp, "done"));
    expect_refused(tmp_tree_path(tmp, "done"), dst, ERR_USAGE, "converted already");
    tmp_tree_copy(DEEPSEEK_HF, src);
    tmp_tree_replace(
        src, "config.json", "\"hidden_act\"",
        "\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, "
        "\"desc_act\": false, \"sym\": true}, \"hidden_act\"");
    expect_refused(
        src, dst, ERR_UNSUPPORTED,
        "quantization method gptq, expected MLX's, fp8, mxfp4, modelopt, compressed-tensors or none");
    tmp_tree_replace(src, "config.json", "\"gptq\"", "\"awq\"");
    expect_refused(src, dst, ERR_UNSUPPORTED, "quantization method awq");
    tmp_tree_replace(src, "config.json", ", \"group_size\": 128", "");
    expect_refused(src, dst, ERR_UNSUPPORTED, "quantization method awq");
    assert_false(file_exists(dst));
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial")));
    tmp_tree_remove(tmp);
}

static void drop_one_expert(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && strstr(t->name, "layers.3.mlp.experts.down_proj"))
        return;
    if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void reshape_experts(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && strstr(t->name, "layers.3.mlp.experts.down_proj"))
        st_writer_add(w, t->name, "BF16", "[5,64,192]", bytes, t->bytes);
    else if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void experts_that_are_missing_or_misshapen_are_refused_before_writing(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    st_writer_rewrite(QWEN_HF, tmp_tree_path(tmp, "a"), drop_one_expert);
    expect_refused(tmp_tree_path(tmp, "a"), dst, ERR_FORMAT,
                   "layer 3 expert 0: no tensor with its down_proj");
    st_writer_rewrite(QWEN_HF, tmp_tree_path(tmp, "b"), reshape_experts);
    expect_refused(tmp_tree_path(tmp, "b"), dst, ERR_FORMAT, "shape [5, 64, 192], expected [5, 192, 64]");
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial")));
    tmp_tree_remove(tmp);
}

static const char *nan_in; /* the tensor that spoil_tensor spoils */

static void spoil_tensor(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (!t)
        return;
    /* A quiet NaN in the middle of a BF16 tensor, or as the first value of an F32 one. */
    uint8_t *values = (uint8_t *)(uintptr_t)bytes;
    if (strstr(t->name, nan_in) && t->dtype == DTYPE_F32)
        memcpy(values, "\x00\x00\xc0\x7f", 4);
    else if (strstr(t->name, nan_in))
        memcpy(values + t->bytes / 4 * 2, "\xc0\x7f", 2);
    st_writer_add_like(w, t->name, t, bytes);
}

static void values_that_are_not_finite_end_the_conversion(void **state)
{
    (void)state;
    static const struct {
        const char *src, *tensor, *text;
    } cases[] = {
        {QWEN_HF, "layers.3.mlp.experts.down_proj",
         "model.layers.3.mlp.experts.down_proj: a value is not finite"},
        {QWEN_HF, "layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.q_proj.weight: a value"},
        {QWEN_HF, "layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weight: a value"},
        {QWEN_HF, "layers.0.linear_attn.A_log", "model.layers.0.linear_attn.A_log: a value"},
        {QWEN_MLX, "lm_head.scales", "lm_head.scales: a value is not finite"},
        {QWEN_MLX, "layers.3.mlp.switch_mlp.up_proj.biases", "layer 3 expert 2: up_proj.biases"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        nan_in = cases[i].tensor;
        st_writer_rewrite(cases[i].src, tmp_tree_path(tmp, "src"), spoil_tensor);
        expect_refused(tmp_tree_path(tmp, "src"), tmp_tree_path(tmp, "dst"), ERR_FORMAT, cases[i].text);
        assert_false(file_exists(tmp_tree_path(tmp, "dst")));
        tmp_tree_remove(tmp);
    }
}

static void a_disk_without_room_is_said_with_both_numbers(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct moeflux_err e;
    disk_room_pretend(1000000);
    int rc = run(QWEN_MLX, tmp_tree_path(tmp, "dst"), NULL, &e);
    disk_room_pretend(UINT64_MAX);
    assert_int_equal(rc, ERR_NO_FIT);
    assert_non_null(strstr(e.text, "0.068 GB (67"));
    assert_non_null(strstr(e.text, "0.001 GB (1000000)"));
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial")));
    tmp_tree_remove(tmp);
}

static void a_write_that_fails_leaves_nothing_under_the_name_and_can_go_on(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    struct rlimit old, low;
    struct moeflux_err e;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 200000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    /* model_weights.bin is longer than the limit; what fits is written first. */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int rc = run(QWEN_MLX, dst, NULL, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, "dst.partial/model_weights.bin: "));
    assert_non_null(strstr(e.text, "File too large"));
    assert_false(file_exists(dst));
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial/model_weights.bin.moeflux-part0")));
    run_ok(QWEN_MLX, dst);
    run_ok(QWEN_MLX, tmp_tree_path(tmp, "whole"));
    expect_same_model(tmp_tree_path(tmp, "whole"), dst, 0, QWEN_LAYERS);
    tmp_tree_remove(tmp);
}

/* --- interruptions --- */

struct stop {
    uint64_t after; /* stop when this much is done */
    bool kill;
    const char *spoil_file; /* change it when verifying begins */
};

static bool report(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct stop *s = ctx;
    assert_string_equal(unit, "B");
    assert_true(done <= total);
    if (s->spoil_file && !strcmp(what, "verifying")) {
        FILE *f = fopen(s->spoil_file, "r+b");
        s->spoil_file = NULL;
        if (f && fseek(f, 100000, SEEK_SET) == 0)
            fputs("spoilt", f);
        if (f)
            fclose(f);
    }
    if (done >= s->after && s->kill)
        raise(SIGKILL);
    return done < s->after;
}

static int run_stopped(const char *src, const char *dst, struct stop stop, bool verify,
                       struct convert_result *r, struct moeflux_err *e)
{
    struct convert_options o = {
        .src = src, .dst = dst, .verify = verify, .n_threads = 2, .progress = {report, &stop}};
    *e = (struct moeflux_err){0};
    return convert_run(&o, r, e);
}

static void a_stopped_run_keeps_its_finished_layers_for_the_next(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *whole = tmp_tree_path(tmp, "whole");
    struct convert_result r;
    struct moeflux_err e;
    run_ok(TINY, whole);
    uint32_t kept = 0;
    /* 10.3 MB in all, of which 3.2 are dense and 0.88 each layer. */
    for (uint64_t after = 1000000; after < 10000000; after += 2100000) {
        assert_int_equal(run_stopped(TINY, dst, (struct stop){.after = after}, false, &r, &e),
                         ERR_INTERRUPTED);
        assert_non_null(strstr(e.text, "dst.partial keeps"));
        assert_false(file_exists(dst));
        assert_true(r.n_layers_kept >= kept);
        kept = r.n_layers_kept;
    }
    assert_int_equal(run(TINY, dst, &r, &e), 0);
    assert_true(r.n_layers_kept >= 5);
    assert_true(r.bytes_read < 3 * 884736 + 100);
    expect_same_model(whole, dst, 0, 8);
    tmp_tree_expect_same(whole, dst, "checksums.json");
    tmp_tree_expect_same(whole, dst, "model_weights.json");
    tmp_tree_remove(tmp);
}

static void a_killed_run_is_taken_up_again(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *whole = tmp_tree_path(tmp, "whole");
    struct convert_result r;
    struct moeflux_err e;
    run_ok(QWEN_HF, whole);
    for (uint64_t after = 0; after < 2880000; after += 390000) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            run_stopped(QWEN_HF, dst, (struct stop){.after = after, .kill = true}, false, &r, &e);
            _exit(1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_false(file_exists(dst));
    }
    assert_int_equal(run(QWEN_HF, dst, &r, &e), 0);
    assert_int_equal(r.n_layers_kept, 3);
    expect_same_model(whole, dst, 0, QWEN_LAYERS);
    assert_false(file_exists(tmp_tree_path(dst, "packed_experts/layer_03.bin.tmp")));
    tmp_tree_remove(tmp);
}

static void a_layer_that_was_cut_after_it_was_finished_is_written_again(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *partial = tmp_tree_path(tmp, "dst.partial");
    struct convert_result r;
    struct moeflux_err e;
    assert_int_equal(run_stopped(TINY, dst, (struct stop){.after = 8000000}, false, &r, &e), ERR_INTERRUPTED);
    assert_int_equal(truncate(tmp_tree_path(partial, "packed_experts/layer_01.bin"), 1000), 0);
    assert_int_equal(unlink(tmp_tree_path(partial, "packed_experts/layer_02.bin")), 0);
    /* A line torn by a power failure. */
    FILE *f = fopen(tmp_tree_path(partial, "convert.state"), "a");
    assert_non_null(f);
    fputs("packed_experts/lay", f);
    fclose(f);
    run_ok(TINY, tmp_tree_path(tmp, "whole"));
    assert_int_equal(run(TINY, dst, &r, &e), 0);
    assert_int_equal(r.n_layers_kept, 3);
    expect_same_model(tmp_tree_path(tmp, "whole"), dst, 0, 8);
    tmp_tree_remove(tmp);
}

/* A write that fails half-way leaves a line without its end, which may look like a whole one with a shorter
 * sum. */
static void a_state_that_was_torn_anywhere_is_gone_on_with(void **state)
{
    static const off_t cuts[] = {1, 2, 9, 16, 17, 18, 40};
    (void)state;
    char *tmp = tmp_tree_new();
    const char *whole = tmp_tree_path(tmp, "whole");
    run_ok(TINY, whole);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char name[16], partial[48];
        struct convert_result r;
        struct moeflux_err e;
        size_t n;
        snprintf(name, sizeof name, "dst%zu", i);
        snprintf(partial, sizeof partial, "%s.partial/convert.state", name);
        const char *dst = tmp_tree_path(tmp, name), *path = tmp_tree_path(tmp, partial);
        assert_int_equal(run_stopped(TINY, dst, (struct stop){.after = 5000000}, false, &r, &e),
                         ERR_INTERRUPTED);
        free(tmp_tree_read(path, &n));
        assert_int_equal(truncate(path, (off_t)n - cuts[i]), 0);
        assert_int_equal(run_stopped(TINY, dst, (struct stop){.after = 8000000}, false, &r, &e),
                         ERR_INTERRUPTED);
        assert_int_equal(run(TINY, dst, &r, &e), 0);
        expect_same_model(whole, dst, 0, 8);
        tmp_tree_expect_same(whole, dst, "checksums.json");
    }
    tmp_tree_remove(tmp);
}

static void another_source_is_not_mixed_in(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *src = tmp_tree_path(tmp, "src");
    struct convert_result r;
    struct moeflux_err e;
    tmp_tree_copy(QWEN_MLX, src);
    assert_int_equal(run_stopped(src, dst, (struct stop){.after = 700000}, false, &r, &e), ERR_INTERRUPTED);
    expect_refused(QWEN_HF, dst, ERR_USAGE, "dst.partial holds an unfinished conversion of another source");
    /* The same names and lengths, written at another time. */
    tmp_tree_replace(src, "model.safetensors", "x", "x");
    expect_refused(src, dst, ERR_USAGE, "another source");
    tmp_tree_remove(tmp);
}

/* --- verifying --- */

static void a_good_conversion_verifies(void **state)
{
    (void)state;
    static const char *const sources[] = {TINY, QWEN_HF, DEEPSEEK_MLX, DEEPSEEK_HF, QWEN3_HF};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char *tmp = tmp_tree_new();
        struct convert_result r;
        struct moeflux_err e;
        struct convert_options o = {.src = sources[i], .dst = tmp_tree_path(tmp, "d"), .verify = true};
        if (convert_run(&o, &r, &e) < 0)
            fail_msg("%s", e.text);
        assert_true(file_is_dir(o.dst));
        tmp_tree_remove(tmp);
    }
}

static void a_layer_that_changed_on_the_disk_is_found_and_made_again(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    struct stop stop = {.after = UINT64_MAX,
                        .spoil_file = tmp_tree_path(tmp, "dst.partial/packed_experts/layer_07.bin")};
    struct convert_result r;
    struct moeflux_err e = {0};
    struct convert_options o = {
        .src = TINY, .dst = dst, .verify = true, .n_threads = 1, .progress = {report, &stop}};
    assert_int_equal(convert_run(&o, &r, &e), ERR_IO);
    assert_non_null(strstr(e.text, "layer_07.bin: checksum "));
    assert_false(file_exists(dst));
    assert_int_equal(convert_run(&o, &r, &e), 0);
    assert_int_equal(r.n_layers_kept, 7);
    run_ok(TINY, tmp_tree_path(tmp, "whole"));
    expect_same_model(tmp_tree_path(tmp, "whole"), dst, 0, 8);
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bf16_source_gives_the_bytes_of_the_quantised_one),
        cmocka_unit_test(a_bf16_deepseek_gives_the_bytes_of_the_quantised_one),
        cmocka_unit_test(a_bf16_qwen3_gives_the_bytes_of_the_quantised_one),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(the_files_next_to_the_weights_come_along),
        cmocka_unit_test(the_manifest_describes_the_published_layout),
        cmocka_unit_test(checksums_are_the_plain_xxh3_of_every_file),
        cmocka_unit_test(the_result_counts_what_was_done),
        cmocka_unit_test(down_projections_with_other_bits_than_the_rest_keep_them),
        cmocka_unit_test(up_projections_with_other_bits_than_gate_keep_them),
        cmocka_unit_test(names_of_the_vision_class_convert_to_the_same_without_vision_and_mtp),
        cmocka_unit_test(experts_one_by_one_convert_as_fused_ones),
        cmocka_unit_test(mlx_names_without_a_prefix_convert_to_the_same),
        cmocka_unit_test(a_bf16_decay_is_widened),
        cmocka_unit_test(a_tied_model_needs_no_head),
        cmocka_unit_test(a_destination_that_exists_is_left_alone),
        cmocka_unit_test(a_destination_that_cannot_be_made_is_named),
        cmocka_unit_test(a_foreign_partial_directory_is_left_alone),
        cmocka_unit_test(sources_that_cannot_be_converted_are_refused),
        cmocka_unit_test(experts_that_are_missing_or_misshapen_are_refused_before_writing),
        cmocka_unit_test(values_that_are_not_finite_end_the_conversion),
        cmocka_unit_test(a_disk_without_room_is_said_with_both_numbers),
        cmocka_unit_test(a_write_that_fails_leaves_nothing_under_the_name_and_can_go_on),
        cmocka_unit_test(a_stopped_run_keeps_its_finished_layers_for_the_next),
        cmocka_unit_test(a_killed_run_is_taken_up_again),
        cmocka_unit_test(a_layer_that_was_cut_after_it_was_finished_is_written_again),
        cmocka_unit_test(a_state_that_was_torn_anywhere_is_gone_on_with),
        cmocka_unit_test(another_source_is_not_mixed_in),
        cmocka_unit_test(a_good_conversion_verifies),
        cmocka_unit_test(a_layer_that_changed_on_the_disk_is_found_and_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
