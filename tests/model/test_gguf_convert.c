/* convert of GGUF files: logits of every family against mlx-lm's on the same numbers, formats, tokenizers,
 * refusals, memory.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "base/json.h"
#include "base/file.h"
#include "base/format.h"
#include "base/str.h"
#include "check.h"
#include "convert/convert.h"
#include "gguf_writer.h"
#include "golden.h"
#include "model/model_dir.h"
#include "peak.h"
#include "sequence.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"

#define MODELS "tests/models/gguf/"

/* Same order as golden.safetensors. */
static const char *const files[] = {
    "qwen3moe.gguf", "qwen35moe.gguf", "qwen3next.gguf", "deepseek2-00001-of-00002.gguf",
    "glm4moe.gguf",  "minimax.gguf",   "gptoss.gguf"};
enum { N_FILES = sizeof files / sizeof *files };

static int run(const char *src, const char *dst, struct convert_settings s, struct convert_result *r,
               struct moeflux_err *e)
{
    struct convert_result ignored;
    struct convert_options o = {.src = src, .dst = dst, .settings = s, .verify = true, .n_threads = 2};
    *e = (struct moeflux_err){0};
    return convert_run(&o, r ? r : &ignored, e);
}

/* Each of the files, converted once for all tests: to affine codes, and with its blocks. */
static const struct convert_settings AFFINE = {.mode = CONVERT_MODE_AFFINE};
static char *all;
static const char *models[N_FILES], *kept[N_FILES];

static int convert_all(void **state)
{
    (void)state;
    struct moeflux_err e;
    all = tmp_tree_new();
    for (int i = 0; i < N_FILES; i++) {
        char src[96], name[96];
        snprintf(src, sizeof src, MODELS "%s", files[i]);
        snprintf(name, sizeof name, "kept-%s", files[i]);
        models[i] = tmp_tree_path(all, files[i]);
        kept[i] = tmp_tree_path(all, name);
        check_ok(run(src, models[i], AFFINE, NULL, &e), &e);
        check_ok(run(src, kept[i], (struct convert_settings){0}, NULL, &e), &e);
    }
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    tmp_tree_remove(all);
    return 0;
}

/* ---- logits */

/* The largest difference of the logits after each token, in parts of the largest logit. */
static double distance(const char *dir, const char *device, const struct golden *g, uint32_t n)
{
    const struct golden_tensor *tokens = golden_find(g, n, "tokens"), *logits = golden_find(g, n, "logits");
    struct sequence q = sequence_open(dir, device, 4, 0, 64);
    const int32_t *ids = tokens->data;
    const float *want = logits->data;
    float got[512];
    double most = 0, apart = 0;
    assert_true(q.vocab == logits->shape[1] && q.vocab <= 512);
    for (uint32_t i = 0; i < tokens->shape[0]; i++, want += q.vocab) {
        sequence_eval(&q, &ids[i], 1, got);
        for (uint32_t k = 0; k < q.vocab; k++) {
            most = fmax(most, fabs((double)want[k]));
            apart = fmax(apart, fabs((double)got[k] - (double)want[k]));
        }
    }
    sequence_close(&q);
    return apart / most;
}

/* What two float32 programs differ by here is 3e-6; a head or a row in another's place is 1e-2 or more. */
static void logits_are_those_of_the_numbers_in_the_file(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, MODELS "golden.safetensors");
    for (uint32_t i = 0; i < N_FILES; i++) {
        static const char *const devices[] = {"reference", "cpu"};
        for (int k = 0; k < 4; k++) {
            const char *dir = k < 2 ? models[i] : kept[i], *as = k < 2 ? "affine" : "blocks";
            double x = distance(dir, devices[k % 2], &g, i);
            printf("%s as %s on %s: %.1e\n", files[i], as, devices[k % 2], x);
            if (!(x < 3e-5))
                fail_msg("%s as %s on %s: logits are off by %g of the largest", files[i], as, devices[k % 2],
                         x);
        }
    }
    golden_close(&g);
}

/* ---- formats */

static const char *name_of(const struct model_dir *m, const char *base, uint32_t rows, uint32_t cols)
{
    struct matrix w;
    struct moeflux_err e = {0};
    check_ok(model_dir_matrix(m, base, rows, cols, &w, &e), &e);
    return format_of(w.format)->name;
}

static void what_a_format_holds_is_taken_exactly(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct model_dir m;
    struct moeflux_err e;
    struct convert_result r;
    const char *dst = tmp_tree_path(tmp, "q");
    check_ok(run(MODELS "qwen3moe.gguf", dst, AFFINE, &r, &e), &e);
    for (int i = 0; i < CONVERT_N_CLASSES; i++)
        assert_int_equal(r.errors.of[i].weights, 0);
    check_ok(model_dir_open(&m, dst, &e), &e);
    assert_string_equal(name_of(&m, "model.embed_tokens", 272, 256), "Q4 g32 f16");
    assert_string_equal(name_of(&m, "lm_head", 272, 256), "Q8 g32 f32");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.q_proj", 64, 256), "Q4 g32 f32");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.k_proj", 32, 256), "Q5 g32 f32");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.v_proj", 32, 256), "F16");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.o_proj", 256, 64), "Q8 g32 f16");
    assert_string_equal(name_of(&m, "model.layers.0.mlp.gate", 3, 256), "F32");
    /* Q4_K and Q5_K together. */
    assert_string_equal(format_of(m.experts[0].formats.up)->name, "Q5 g32 f32");
    assert_string_equal(format_of(m.experts[0].formats.down)->name, "Q8 g32 f16");
    model_dir_close(&m);
    check_ok(model_dir_open(&m, models[1], &e), &e);
    assert_string_equal(name_of(&m, "model.layers.0.linear_attn.in_proj_a", 6, 64), "BF16");
    model_dir_close(&m);
    check_ok(model_dir_open(&m, models[3], &e), &e);
    assert_string_equal(format_of(m.experts[1].formats.up)->name, "MXFP4");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.embed_q", 128, 32), "F32");
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* Returns the bytes of a model's experts in its files. */
static uint64_t expert_bytes(const char *path, struct model_dir *m)
{
    struct moeflux_err e = {0};
    check_ok(model_dir_open(m, path, &e), &e);
    return m->expert_bytes;
}

/* Returns whether a directory's config.json has the key for the order of value heads. */
static bool names_tiled_heads(const char *dir)
{
    char path[512];
    struct moeflux_err e = {0};
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    check_ok(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), &e);
    bool has = json_object_get(root, CONFIG_TILED_KEY) != NULL;
    json_decref(root);
    return has;
}

static void blocks_stay_if_nothing_else_is_requested(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, kept[0], &e), &e);
    assert_string_equal(name_of(&m, "model.embed_tokens", 272, 256), "Q4_0");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.q_proj", 64, 256), "Q4_K");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.v_proj", 32, 256), "F16");
    assert_string_equal(format_of(m.experts[0].formats.gate)->name, "Q4_K");
    assert_string_equal(format_of(m.experts[0].formats.up)->name, "Q5_K");
    assert_string_equal(format_of(m.experts[0].formats.down)->name, "Q8_0");
    model_dir_close(&m);
    /* A layer file has the bytes of the file's tensors, and value heads their order. */
    uint64_t was = expert_bytes(MODELS "qwen35moe.gguf", &m);
    assert_true(m.config.parts[1].delta.tiled);
    model_dir_close(&m);
    assert_int_equal(expert_bytes(kept[1], &m), was);
    assert_true(names_tiled_heads(kept[1]));
    assert_false(names_tiled_heads(tmp_tree_path(all, "kept-glm4moe.gguf")));
    assert_true(m.config.parts[1].kind == PART_DELTA_NET && m.config.parts[1].delta.tiled);
    model_dir_close(&m);
    expert_bytes(models[1], &m);
    assert_false(m.config.parts[1].delta.tiled);
    model_dir_close(&m);
}

/* MXFP4, which the others have, gets the storage format's layout and kernels. */
static void kept_blocks_give_the_bits_of_the_file(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 40, 7, 23, 5};
    static const char *const same[] = {"qwen3moe.gguf",   "qwen3moe_even.gguf", "qwen35moe.gguf",
                                       "qwen3next.gguf",  "qwen4exp.gguf",      "glm4moe.gguf",
                                       "minimax.gguf",    "gemma4.gguf",        "glmdsa.gguf",
                                       "kimilinear.gguf", "bailingmoe3.gguf",   "nemotronh.gguf"};
    enum { N_IDS = sizeof ids / sizeof *ids, N_SAME = sizeof same / sizeof *same };
    char *tmp = tmp_tree_new();
    struct moeflux_err e = {0};
    for (int i = 0; i < N_SAME; i++) {
        char src[96];
        float logits[2][512] = {{0}};
        const char *dst = tmp_tree_path(tmp, same[i]);
        snprintf(src, sizeof src, MODELS "%s", same[i]);
        check_ok(run(src, dst, (struct convert_settings){0}, NULL, &e), &e);
        for (int k = 0; k < 2; k++) {
            struct sequence q = sequence_open(k ? dst : src, "cpu", 4, 0, 64);
            assert_true(q.vocab <= 512);
            sequence_eval(&q, ids, N_IDS, logits[k]);
            sequence_close(&q);
        }
        if (memcmp((const void *)logits[0], (const void *)logits[1], sizeof logits[0]) != 0)
            fail_msg("%s: converted, it has other logits", same[i]);
    }
    tmp_tree_remove(tmp);
}

/* The error of K-quants and IQ4_XS, whose scales are products; all other types are exact. */
static void scales_are_rounded_where_that_is_asked_for(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct model_dir m;
    struct golden g;
    struct moeflux_err e;
    struct convert_result r;
    const char *dst = tmp_tree_path(tmp, "q");
    check_ok(run(MODELS "qwen3moe.gguf", dst, (struct convert_settings){.half_scales = true}, &r, &e), &e);
    const struct convert_error *x = &r.errors.of[CONVERT_CLASS_EXPERTS];
    assert_int_equal(x->weights, 3 * 2 * 64 * 256); /* not down's, of Q8_0 */
    double lost = sqrt(x->stored / x->squares);
    assert_true(lost > 1e-5 && lost < 1e-3);
    assert_int_equal(r.errors.of[CONVERT_CLASS_EMBEDDING].weights, 0);
    check_ok(model_dir_open(&m, dst, &e), &e);
    assert_string_equal(name_of(&m, "lm_head", 272, 256), "Q8 g32 f16");
    assert_string_equal(name_of(&m, "model.layers.0.self_attn.q_proj", 64, 256), "Q4 g32 f16");
    assert_string_equal(format_of(m.experts[0].formats.up)->name, "Q5 g32 f16");
    model_dir_close(&m);
    golden_open(&g, MODELS "golden.safetensors");
    double apart = distance(dst, "reference", &g, 0);
    assert_true(apart > 3e-5 && apart < 3e-3);
    golden_close(&g);
    tmp_tree_remove(tmp);
}

static void bits_that_are_asked_for_are_made_of_the_numbers(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct model_dir m;
    struct moeflux_err e;
    const struct convert_settings three = {.expert_bits = 3, .expert_group = 32};
    struct convert_result r;
    const char *dst = tmp_tree_path(tmp, "q");
    check_ok(run(MODELS "glm4moe.gguf", dst, three, &r, &e), &e);
    const struct convert_error *x = &r.errors.of[CONVERT_CLASS_EXPERTS];
    assert_int_equal(x->weights, 3 * 3 * 64 * 64);
    double lost = sqrt(x->stored / x->squares);
    assert_true(lost > 0.05 && lost < 0.2);
    check_ok(model_dir_open(&m, dst, &e), &e);
    assert_string_equal(format_of(m.experts[1].formats.up)->name, "Q3 g32");
    assert_string_equal(name_of(&m, "model.layers.0.mlp.gate_proj", 128, 64), "Q4 g32 f16");
    model_dir_close(&m);
    /* All have fewer bits already. */
    assert_int_equal(run(MODELS "minimax.gguf", tmp_tree_path(tmp, "m"),
                         (struct convert_settings){.expert_bits = 6}, NULL, &e),
                     ERR_USAGE);
    assert_non_null(strstr(e.text, "4 bits, fewer than `expert_bits` asks for (6)"));
    tmp_tree_remove(tmp);
}

/* ---- memory */

/* A file whose header is `w` and which goes on to 256 MiB, of zeros that are not stored. */
struct hostile {
    const char *path;
    const char *what;
};

static void convert_hostile(void *ctx)
{
    const struct hostile *h = ctx;
    struct moeflux_err e;
    char *tmp = tmp_tree_new();
    if (run(h->path, tmp_tree_path(tmp, "dst"), (struct convert_settings){0}, NULL, &e) == 0 ||
        !strstr(e.text, h->what))
        fail_msg("expected \"%s\", found \"%s\"", h->what, e.text);
    tmp_tree_remove(tmp);
}

static void expect_little_memory(struct gguf_writer *w, uint32_t last_kind, uint64_t n, const char *what)
{
    enum { MOST = 24 << 20, FILE_BYTES = 256 << 20 };
    char *tmp = tmp_tree_new();
    /* The last value's length; its content is what the file has not. */
    gguf_writer_put(&w->values, last_kind, 4);
    gguf_writer_put(&w->values, n, 8);
    w->n_values++;
    gguf_writer_finish(w, tmp, "x.gguf");
    struct hostile h = {tmp_tree_path(tmp, "x.gguf"), what};
    assert_int_equal(truncate(h.path, FILE_BYTES), 0);
    uint64_t bytes = peak_of(convert_hostile, &h);
    if (bytes > MOST)
        fail_msg("%s: %llu bytes", what, (unsigned long long)bytes);
    tmp_tree_remove(tmp);
}

static void hostile_files_take_little_memory(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    enum { TEXT = 8, LIST = 9 };
    gguf_writer_put_text(&w.values, "general.architecture");
    expect_little_memory(&w, TEXT, 200 << 20, "expected a text of at most");
    w.n_tensors = 1ull << 60;
    gguf_writer_put_text(&w.values, "x");
    expect_little_memory(&w, TEXT, 1, "a name of 0 bytes");
    gguf_writer_put_text(&w.values, "x");
    gguf_writer_put(&w.values, LIST, 4);
    expect_little_memory(&w, TEXT, 1ull << 30, "x.gguf: ends inside x");
    gguf_writer_text(&w, "general.architecture", "qwen3moe");
    gguf_writer_put_text(&w.values, "qwen3moe.attention.head_count");
    gguf_writer_put(&w.values, LIST, 4);
    expect_little_memory(&w, 0, 200 << 20, "tensor token_embd.weight is missing");
}

/* ---- what is lost */

static void what_loses_more_than_the_limit_needs_lossy(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct gguf_writer w = {0};
    struct moeflux_err e;
    struct convert_result r;
    const char *dst = tmp_tree_path(tmp, "dst"), *src = tmp_tree_path(tmp, "x.gguf");
    gguf_writer_model(&w, 256, 256, 10);
    gguf_writer_finish(&w, tmp, "x.gguf");
    assert_int_equal(run(src, dst, AFFINE, &r, &e), ERR_UNSUPPORTED);
    assert_non_null(
        strstr(e.text, "tensor blk.0.ffn_gate_exps.weight: Q2_K becomes Q4 g32, which changes it by"));
    assert_non_null(strstr(e.text, "`lossy` takes it"));
    /* It goes on where it stopped. */
    const struct convert_settings lossy = {.mode = CONVERT_MODE_AFFINE, .lossy = true};
    check_ok(run(src, dst, lossy, &r, &e), &e);
    const struct convert_error *x = &r.errors.of[CONVERT_CLASS_EXPERTS];
    assert_true(x->weights == 3 * 2 * 256 * 256 && sqrt(x->stored / x->squares) > CONVERT_MAX_LOSS);
    /* Bits that are asked for are no accident. */
    check_ok(run(src, tmp_tree_path(tmp, "six"), (struct convert_settings){.expert_bits = 6}, &r, &e), &e);
    assert_true(sqrt(x->stored / x->squares) < CONVERT_MAX_LOSS);
    assert_int_equal(run("tests/models/qwen3-odd/hf", tmp_tree_path(tmp, "s"),
                         (struct convert_settings){.lossy = true}, &r, &e),
                     ERR_USAGE);
    assert_non_null(strstr(e.text, "`lossy`: tests/models/qwen3-odd/hf is no GGUF file"));
    tmp_tree_remove(tmp);
}

/* ---- what is refused */

static void expect_refused(struct gguf_writer *w, int code, const char *what)
{
    char *tmp = tmp_tree_new();
    struct moeflux_err e;
    gguf_writer_finish(w, tmp, "x.gguf");
    assert_int_equal(
        run(tmp_tree_path(tmp, "x.gguf"), tmp_tree_path(tmp, "dst"), (struct convert_settings){0}, NULL, &e),
        code);
    if (!strstr(e.text, what) || strchr(e.text, '\n'))
        fail_msg("expected \"%s\", found \"%s\"", what, e.text);
    assert_false(file_exists(tmp_tree_path(tmp, "dst.partial")));
    tmp_tree_remove(tmp);
}

static void models_that_are_not_read_are_refused_by_name(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    expect_refused(&w, ERR_FORMAT, "key general.architecture is missing");
    gguf_writer_text(&w, "general.architecture", "llama4");
    gguf_writer_whole(&w, "llama4.expert_count", 16);
    expect_refused(
        &w, ERR_UNSUPPORTED,
        "general.architecture is llama4, expected qwen3moe, qwen3next, qwen35moe, qwen4exp, deepseek2, "
        "deepseek32, glm-dsa, glm4moe, minimax-m2, gpt-oss, gemma4, kimi-linear, kimi-k3, glm5-next, "
        "bailingmoe3, "
        "deepseek4, minimax-m3, step35, mimo2 or nemotron_h_moe");
    gguf_writer_text(&w, "general.architecture", "qwen3moe");
    expect_refused(&w, ERR_FORMAT, "tensor token_embd.weight is missing");
    gguf_writer_text(&w, "general.architecture", "qwen3moe");
    gguf_writer_tensor(&w, "token_embd.weight", 0, 256, 8, 1);
    expect_refused(&w, ERR_FORMAT, "key qwen3moe.embedding_length: is missing");
    gguf_writer_model(&w, 256, 256, 8);
    gguf_writer_text(&w, "qwen3moe.rope.scaling.type", "longrope");
    expect_refused(&w, ERR_UNSUPPORTED, "rope.scaling.type: longrope, expected none or yarn");
    gguf_writer_model(&w, 256, 256, 8);
    gguf_writer_tensor(&w, "blk.0.attn_q.scale", 0, 256, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "tensor blk.0.attn_q.scale: not one that Qwen3-MoE has");
    gguf_writer_values(&w, 256, 256);
    gguf_writer_tensor(&w, "token_embd.weight", 0, 256, 8, 1);
    expect_refused(&w, ERR_FORMAT, "tensor output_norm.weight is missing");
    gguf_writer_model(&w, 256, 256, 8);
    gguf_writer_tensor(&w, "blk.0.attn_k.bias", 0, 64, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "projections with a bias are not supported");
}

static void tokenizers_that_are_not_read_are_refused_by_name(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    gguf_writer_model(&w, 256, 256, 0);
    gguf_writer_text(&w, "tokenizer.ggml.model", "bert");
    expect_refused(&w, ERR_UNSUPPORTED,
                   "tokenizer.ggml.model is bert, expected gpt2 (byte-level BPE), llama or gemma4");
    gguf_writer_model(&w, 256, 256, 0);
    gguf_writer_text(&w, "tokenizer.ggml.model", "gemma4");
    expect_refused(&w, ERR_FORMAT, "key tokenizer.ggml.tokens is missing");
    gguf_writer_model(&w, 256, 256, 0);
    gguf_writer_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_text(&w, "tokenizer.ggml.pre", "falcon");
    expect_refused(&w, ERR_UNSUPPORTED, "tokenizer.ggml.pre is falcon, expected qwen2, qwen35, deepseek-v3");
    gguf_writer_model(&w, 256, 256, 0);
    gguf_writer_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_text(&w, "tokenizer.ggml.pre", "qwen2");
    expect_refused(&w, ERR_FORMAT, "key tokenizer.ggml.tokens is missing");
}

static void a_file_without_a_tokenizer_makes_a_model_without_one(void **state)
{
    (void)state;
    static const char *const names[] = {"none", "no_vocab"};
    for (int i = 0; i < 2; i++) {
        char *tmp = tmp_tree_new();
        struct gguf_writer w = {0};
        struct moeflux_err e = {0};
        gguf_writer_model(&w, 256, 256, 8);
        gguf_writer_text(&w, "tokenizer.ggml.model", names[i]);
        gguf_writer_finish(&w, tmp, "x.gguf");
        check_ok(run(tmp_tree_path(tmp, "x.gguf"), tmp_tree_path(tmp, "dst"), (struct convert_settings){0},
                     NULL, &e),
                 &e);
        assert_true(file_exists(tmp_tree_path(tmp, "dst/config.json")));
        assert_false(file_exists(tmp_tree_path(tmp, "dst/tokenizer.json")));
        tmp_tree_remove(tmp);
    }
}

/* ---- tokenizers */

static void expect_tokens(const struct tokenizer *t, const char *text, const int32_t *ids, size_t n)
{
    struct token_list l = {0};
    struct moeflux_err e = {0};
    check_ok(tokenizer_encode(t, text, strlen(text), SPECIALS_AS_TOKENS, &l, NULL, &e), &e);
    assert_int_equal(l.n, n);
    assert_memory_equal(l.ids, ids, n * sizeof *ids);
    token_list_free(&l);
}

/* 256 tokens of a byte each, six merges, two control tokens and two of the user's. */
static void tokenizer_and_template_are_the_files(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < N_FILES; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/tokenizer.json", models[i]);
        struct tokenizer *t = tokenizer_open(path, &e);
        if (!t)
            fail_msg("%s: %s", files[i], e.text);
        /* h e ll o, " the" of " t", "he" */
        expect_tokens(t, "hello the", (const int32_t[]){256, 257, 'o', 259}, 4);
        expect_tokens(t, "<think>he<|end|>", (const int32_t[]){264, 256, 262}, 3);
        /* Qwen's digits stand alone. */
        bool is_qwen = i < 3;
        expect_tokens(t, "12", is_qwen ? (const int32_t[]){'1', '2'} : (const int32_t[]){261},
                      is_qwen ? 2 : 1);
        assert_true(tokenizer_is_special(t, 262) && !tokenizer_is_special(t, 264) &&
                    tokenizer_is_added(t, 264));
        assert_false(tokenizer_has(t, 271));
        assert_int_equal(tokenizer_bos(t), -1);
        assert_string_equal(tokenizer_chat_template(t),
                            "{% for m in messages %}{{ m.content }}<|eot|>{% endfor %}");
        tokenizer_free(t);
    }
    struct model_dir m;
    check_ok(model_dir_open(&m, models[0], &e), &e);
    assert_true(m.config.n_eos == 2 && m.config.eos[0] == 262 && m.config.eos[1] == 263);
    model_dir_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_numbers_in_the_file),
        cmocka_unit_test(what_a_format_holds_is_taken_exactly),
        cmocka_unit_test(blocks_stay_if_nothing_else_is_requested),
        cmocka_unit_test(kept_blocks_give_the_bits_of_the_file),
        cmocka_unit_test(scales_are_rounded_where_that_is_asked_for),
        cmocka_unit_test(bits_that_are_asked_for_are_made_of_the_numbers),
        cmocka_unit_test(hostile_files_take_little_memory),
        cmocka_unit_test(what_loses_more_than_the_limit_needs_lossy),
        cmocka_unit_test(models_that_are_not_read_are_refused_by_name),
        cmocka_unit_test(tokenizers_that_are_not_read_are_refused_by_name),
        cmocka_unit_test(a_file_without_a_tokenizer_makes_a_model_without_one),
        cmocka_unit_test(tokenizer_and_template_are_the_files),
    };
    return cmocka_run_group_tests(tests, convert_all, remove_all);
}
