/* GGUF files used as they lie: logits of every family against mlx-lm's or transformers' on the same numbers,
 * streamed experts, tokenizers, what convert makes of the same file, refusals.
 *
 * suites: gpu vulkan cpu fast asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/ggml_type.h"
#include "base/gguf.h"
#include "base/format.h"
#include "check.h"
#include "convert/convert.h"
#include "golden.h"
#include "gguf_writer.h"
#include "model/gguf/names.h"
#include "model/extent_rule.h"
#include "model/model_dir.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "selftest/random_blocks.h"
#include "sequence.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"

#define MODELS "tests/models/gguf/"

/* Same order as golden.safetensors. The first file's gate and up have different types. */
static const char *const files[] = {
    "qwen3moe.gguf", "qwen35moe.gguf", "qwen3next.gguf", "deepseek2-00001-of-00002.gguf",
    "glm4moe.gguf",  "minimax.gguf",   "gptoss.gguf",    "qwen3moe_even.gguf",
    "qwen4exp.gguf", "gemma4.gguf",    "glmdsa.gguf"};
enum { N_FILES = sizeof files / sizeof *files, MAX_VOCAB = 512 };
/* The files whose experts keep their codes in a conversion. */
enum { N_COMPARED = 10 };

static const char *path_of(uint32_t i)
{
    static char path[96];
    snprintf(path, sizeof path, MODELS "%s", files[i]);
    return path;
}

/* ---- logits */

/* The largest difference of the logits, in parts of the largest logit, after all tokens in one chunk or after
 * each. */
static double distance(const char *path, const struct golden *g, uint32_t n, bool at_once)
{
    const struct golden_tensor *tokens = golden_find(g, n, "tokens"), *logits = golden_find(g, n, "logits");
    struct sequence q = sequence_open(path, NULL, 64, 0, 64);
    const int32_t *ids = tokens->data;
    float got[MAX_VOCAB];
    double most = 0, apart = 0;
    uint32_t n_tokens = (uint32_t)tokens->shape[0];
    assert_true(q.vocab == logits->shape[1] && q.vocab <= MAX_VOCAB);
    for (uint32_t i = at_once ? n_tokens - 1 : 0; i < n_tokens; i++) {
        const float *want = (const float *)logits->data + (uint64_t)i * q.vocab;
        sequence_eval(&q, at_once ? ids : &ids[i], at_once ? n_tokens : 1, got);
        for (uint32_t k = 0; k < q.vocab; k++) {
            most = fmax(most, fabs((double)want[k]));
            apart = fmax(apart, fabs((double)got[k] - (double)want[k]));
        }
    }
    sequence_close(&q);
    return apart / most;
}

static void logits_are_those_of_the_numbers_in_the_file(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, MODELS "golden.safetensors");
    for (uint32_t i = 0; i < N_FILES; i++)
        for (int at_once = 0; at_once < 2; at_once++) {
            double x = distance(path_of(i), &g, i, at_once);
            printf("%s, %s: %.1e\n", files[i], at_once ? "a chunk" : "token by token", x);
            if (!(x < 1e-4))
                fail_msg("%s: logits are off by %g of the largest", files[i], x);
        }
    golden_close(&g);
}

/* ---- streaming */

/* Logits after a prompt and three more tokens. slots: of the cache of experts; 0: all are resident. */
static void evaluate(const char *path, uint32_t slots, float *out)
{
    struct sequence q = sequence_open(path, NULL, 16, slots, 64);
    int32_t ids[24];
    assert_true(q.vocab <= MAX_VOCAB);
    sequence_ids(&q, 1, ids, 24);
    sequence_eval(&q, ids, 21, out);
    for (uint32_t i = 0; i < 3; i++)
        sequence_eval(&q, &ids[21 + i], 1, out + (size_t)(1 + i) * MAX_VOCAB);
    sequence_close(&q);
}

static void streamed_experts_give_the_same_bits(void **state)
{
    (void)state;
    static float resident[4 * MAX_VOCAB], streamed[4 * MAX_VOCAB];
    for (uint32_t i = 0; i < N_FILES; i++) {
        memset(resident, 0, sizeof resident);
        memset(streamed, 0, sizeof streamed);
        evaluate(path_of(i), 0, resident);
        evaluate(path_of(i), 2, streamed);
        if (memcmp((const void *)resident, (const void *)streamed, sizeof resident) != 0)
            fail_msg("%s: streamed logits differ", files[i]);
    }
}

/* ---- types */

static uint32_t next_random(void *ctx)
{
    uint64_t *s = ctx;
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* What a file has: blocks, or their numbers as F32; with factors, as llama.cpp's converter writes NVFP4. */
enum form { AS_BLOCKS, AS_F32, WITH_FACTORS, WITH_FACTORS_AS_F32 };

/* Adds X.scale and X.input_scale of matrix X.weight, or multiplies its numbers. depth: number of matrices. */
static void add_factors(struct gguf_writer *w, const char *weight, uint64_t n, uint64_t depth, bool as_f32,
                        float *numbers)
{
    const float factors[] = {0.5f + (float)strlen(weight) / 16, 1.75f}, ones[] = {1, 1};
    char name[64];
    for (uint64_t i = 0; i < n && as_f32; i++)
        numbers[i] *= factors[i / (n / depth)];
    if (as_f32)
        return;
    snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(weight) - strlen(".weight")), weight);
    gguf_writer_bytes(w, name, GGML_TYPE_F32, depth, 1, 1, factors);
    snprintf(name, sizeof name, "%.*s.input_scale", (int)(strlen(weight) - strlen(".weight")), weight);
    gguf_writer_bytes(w, name, GGML_TYPE_F32, depth, 1, 1, ones);
}

/* Writes a model whose matrices are random blocks of a type, or the same numbers as F32. w: has what else the
 * file gets. */
static void write_model(struct gguf_writer w, uint32_t type, enum form form, const char *dir,
                        const char *name)
{
    static const struct {
        const char *name;
        uint64_t cols, rows, depth;
    } matrices[] = {{"token_embd.weight", 256, 32, 1},           {"blk.0.attn_q.weight", 256, 64, 1},
                    {"blk.0.attn_k.weight", 256, 64, 1},         {"blk.0.attn_v.weight", 256, 64, 1},
                    {"blk.0.ffn_gate_exps.weight", 256, 256, 2}, {"blk.0.ffn_up_exps.weight", 256, 256, 2},
                    {"blk.0.ffn_down_exps.weight", 256, 256, 2}};
    static const struct {
        const char *name;
        uint64_t cols, rows;
        float middle;
    } plain[] = {{"output_norm.weight", 256, 1, 1},       {"blk.0.attn_norm.weight", 256, 1, 1},
                 {"blk.0.ffn_norm.weight", 256, 1, 1},    {"blk.0.attn_q_norm.weight", 64, 1, 1},
                 {"blk.0.attn_k_norm.weight", 64, 1, 1},  {"blk.0.attn_output.weight", 64, 256, 0},
                 {"blk.0.ffn_gate_inp.weight", 256, 2, 0}};
    const struct ggml_type *t = ggml_type_find(type);
    bool as_f32 = form == AS_F32 || form == WITH_FACTORS_AS_F32;
    uint64_t seed = type + 1;
    gguf_writer_values(&w, 256, 256);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        uint64_t cols = matrices[i].cols, rows = matrices[i].rows, depth = matrices[i].depth,
                 n = cols * rows * depth;
        uint8_t *blocks = malloc(n / t->block * t->bytes);
        float *numbers = malloc(n * sizeof *numbers);
        assert_true(blocks && numbers);
        random_blocks_fill(t->format, n / t->block, 0.06f, next_random, &seed, blocks);
        format_decode(format_of(t->format), blocks, NULL, NULL, 0, n, numbers);
        if (form >= WITH_FACTORS)
            add_factors(&w, matrices[i].name, n, depth, as_f32, numbers);
        gguf_writer_bytes(&w, matrices[i].name, as_f32 ? GGML_TYPE_F32 : type, cols, rows, depth,
                          as_f32 ? (const void *)numbers : blocks);
        free(blocks);
        free(numbers);
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        uint64_t n = plain[i].cols * plain[i].rows;
        float *numbers = malloc(n * sizeof *numbers);
        assert_non_null(numbers);
        for (uint64_t k = 0; k < n; k++)
            numbers[k] = plain[i].middle + ((float)(next_random(&seed) % 1024) / 512 - 1) * 0.1f;
        gguf_writer_bytes(&w, plain[i].name, GGML_TYPE_F32, plain[i].cols, plain[i].rows, 1, numbers);
        free(numbers);
    }
    gguf_writer_finish(&w, dir, name);
}

static void every_type_gives_the_logits_of_its_numbers(void **state)
{
    (void)state;
    static float blocks[4 * MAX_VOCAB], numbers[4 * MAX_VOCAB];
    char *tmp = tmp_tree_new();
    uint32_t n_types = 0;
    for (uint32_t type = 0; type < 64; type++) {
        const struct ggml_type *t = ggml_type_find(type);
        double most = 0, apart = 0;
        if (!t || t->block < 2)
            continue;
        n_types++;
        write_model((struct gguf_writer){0}, type, AS_BLOCKS, tmp, "blocks.gguf");
        write_model((struct gguf_writer){0}, type, AS_F32, tmp, "numbers.gguf");
        evaluate(tmp_tree_path(tmp, "blocks.gguf"), 0, blocks);
        evaluate(tmp_tree_path(tmp, "numbers.gguf"), 0, numbers);
        for (size_t i = 0; i < 4 * (size_t)MAX_VOCAB; i++) {
            most = fmax(most, fabs((double)numbers[i]));
            apart = fmax(apart, fabs((double)numbers[i] - (double)blocks[i]));
        }
        if (!(most > 0 && apart < 1e-4 * most))
            fail_msg("%s: logits are off by %g of %g", t->name, apart, most);
    }
    assert_int_equal(n_types, 23);
    tmp_tree_remove(tmp);
}

enum { NVFP4 = 40 };

static void expect_near(const float *got, const float *want, const char *what)
{
    double most = 0, apart = 0;
    for (size_t i = 0; i < 4 * (size_t)MAX_VOCAB; i++) {
        most = fmax(most, fabs((double)want[i]));
        apart = fmax(apart, fabs((double)want[i] - (double)got[i]));
    }
    if (!(most > 0 && apart < 1e-4 * most))
        fail_msg("%s: logits are off by %g of %g", what, apart, most);
}

static void factors_of_nvfp4_multiply_its_numbers(void **state)
{
    (void)state;
    static float want[4 * MAX_VOCAB], got[4 * MAX_VOCAB], plain[4 * MAX_VOCAB];
    char *tmp = tmp_tree_new();
    const char *blocks = tmp_tree_path(tmp, "blocks.gguf"), *copy = tmp_tree_path(tmp, "copy");
    struct moeflux_err e = {0};
    struct convert_result r;
    struct moeflux_needs needs;
    const struct convert_options o = {.src = blocks, .dst = copy, .verify = true, .n_threads = 2};
    write_model((struct gguf_writer){0}, NVFP4, WITH_FACTORS_AS_F32, tmp, "numbers.gguf");
    evaluate(tmp_tree_path(tmp, "numbers.gguf"), 0, want);
    write_model((struct gguf_writer){0}, NVFP4, AS_BLOCKS, tmp, "blocks.gguf");
    evaluate(blocks, 0, plain);
    assert_memory_not_equal(plain, want, sizeof want);
    write_model((struct gguf_writer){0}, NVFP4, WITH_FACTORS, tmp, "blocks.gguf");
    evaluate(blocks, 0, got);
    expect_near(got, want, "as it lies");
    evaluate(blocks, 2, plain);
    assert_memory_equal(plain, got, sizeof got);
    check_ok(convert_run(&o, &r, &e), &e);
    evaluate(copy, 0, plain);
    assert_memory_equal(plain, got, sizeof got);
    check_ok(moeflux_get_needs(blocks, &needs, &e), &e);
    assert_string_equal(needs.expert_formats, "NVFP4");
    check_ok(moeflux_get_needs(copy, &needs, &e), &e);
    assert_string_equal(needs.expert_formats, "nvfp4");
    tmp_tree_remove(tmp);
}

/* Blocks are read in pieces that begin anywhere within one. */
static void pieces_of_nvfp4_are_those_of_the_whole(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct model_dir m;
    struct moeflux_err e = {0};
    write_model((struct gguf_writer){0}, NVFP4, WITH_FACTORS, tmp, "blocks.gguf");
    check_ok(model_dir_open(&m, tmp_tree_path(tmp, "blocks.gguf"), &e), &e);
    assert_int_equal(m.experts[0].formats.up, FORMAT_NVFP4_FACTOR);
    assert_int_equal(m.experts[0].bytes, 3 * (256 * 256 * 9 / 16 + FORMAT_FACTOR_BYTES));
    static const char *const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.q_proj.scales"};
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = model_dir_find(&m, names[i]);
        assert_non_null(t);
        uint8_t *whole = malloc(t->bytes), *part = malloc(t->bytes);
        assert_true(whole && part);
        check_ok(model_dir_read(&m, t, 0, t->bytes, whole, &e), &e);
        for (uint64_t from = 0; from < t->bytes; from += 13) {
            uint64_t n = t->bytes - from < 71 ? t->bytes - from : 71;
            check_ok(model_dir_read(&m, t, from, n, part, &e), &e);
            assert_memory_equal(part, whole + from, n);
        }
        free(whole);
        free(part);
    }
    struct extent x[EXPERT_MAX_EXTENTS];
    assert_int_equal(model_dir_expert(&m, 0, 1, x), 3);
    uint8_t *bytes = malloc(x[0].bytes), *slot = malloc(m.experts[0].bytes),
            *want = malloc(m.experts[0].bytes);
    assert_true(bytes && slot && want);
    memset(bytes, 0x35, x[0].bytes);
    for (uint64_t i = 0; i < x[0].bytes; i += 5)
        bytes[i] = (uint8_t)(i % 113);
    memset(slot, 1, m.experts[0].bytes);
    memset(want, 1, m.experts[0].bytes);
    assert_true(extent_rule_place(x[0].rule, &x[0].factor, 0, bytes, x[0].bytes, want));
    for (uint64_t from = 0, n; from < x[0].bytes; from += n) {
        n = x[0].bytes - from < 100 ? x[0].bytes - from : 100;
        assert_true(extent_rule_place(x[0].rule, &x[0].factor, from, bytes + from, n, slot));
    }
    assert_memory_equal(slot, want, m.experts[0].bytes);
    free(bytes);
    free(slot);
    free(want);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void tensors_at_any_byte_give_the_same_bits(void **state)
{
    (void)state;
    enum { Q4_0 = 2, Q8_0 = 8 };
    static const uint32_t types[] = {Q8_0, Q8_0, Q4_0, GGML_TYPE_MXFP4}; /* the first one as F32 */
    static float even[4 * MAX_VOCAB], odd[4 * MAX_VOCAB];
    char *tmp = tmp_tree_new();
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        enum form form = i == 0 ? AS_F32 : AS_BLOCKS;
        write_model((struct gguf_writer){0}, types[i], form, tmp, "even.gguf");
        evaluate(tmp_tree_path(tmp, "even.gguf"), 0, even);
        for (uint32_t more = 0; more < 4; more++) {
            struct gguf_writer w = {.align = 1};
            gguf_writer_text(&w, "general.name", &"123"[3 - more]);
            write_model(w, types[i], form, tmp, "odd.gguf");
            for (uint32_t slots = 0; slots <= 2; slots += 2) {
                evaluate(tmp_tree_path(tmp, "odd.gguf"), slots, odd);
                if (even[0] == even[1] || memcmp((const void *)even, (const void *)odd, sizeof even) != 0)
                    fail_msg("types[%u], %u slots, %u more bytes: other logits", i, slots, more);
            }
        }
    }
    tmp_tree_remove(tmp);
}

/* ---- convert */

static void expect_equal_tokenizers(const char *gguf, const char *dir)
{
    static const char text[] = "hello the <think>12<|end|> ~ \xc3\xa9 [PAD270]";
    struct moeflux_err e = {0};
    char json[256];
    snprintf(json, sizeof json, "%s/tokenizer.json", dir);
    struct tokenizer *a = tokenizer_open(gguf, &e), *b = tokenizer_open(json, &e);
    assert_true(a && b);
    struct token_list x = {0}, y = {0};
    check_ok(tokenizer_encode(a, text, strlen(text), SPECIALS_AS_TOKENS, &x, NULL, &e), &e);
    check_ok(tokenizer_encode(b, text, strlen(text), SPECIALS_AS_TOKENS, &y, NULL, &e), &e);
    assert_true(x.n > 8 && x.n == y.n && !memcmp(x.ids, y.ids, x.n * sizeof *x.ids));
    assert_string_equal(tokenizer_chat_template(a), tokenizer_chat_template(b));
    assert_true(tokenizer_bos(a) == tokenizer_bos(b) && tokenizer_n_ids(a) == tokenizer_n_ids(b));
    token_list_free(&x);
    token_list_free(&y);
    tokenizer_free(a);
    tokenizer_free(b);
}

/* Value heads in another order and affine codes make sums of another order. */
static void convert_gives_the_same_numbers(void **state)
{
    (void)state;
    static float lying[4 * MAX_VOCAB], converted[4 * MAX_VOCAB];
    char *tmp = tmp_tree_new();
    struct moeflux_err e = {0};
    struct convert_result r;
    uint32_t n_compared = 0;
    for (uint32_t i = 0; i < N_FILES; i++) {
        const char *dst = tmp_tree_path(tmp, files[i]);
        const struct convert_options o = {
            .src = path_of(i), .dst = dst, .settings.mode = CONVERT_MODE_AFFINE, .n_threads = 2};
        double most = 0, apart = 0;
        check_ok(convert_run(&o, &r, &e), &e);
        expect_equal_tokenizers(path_of(i), dst);
        if (r.errors.of[CONVERT_CLASS_EXPERTS].weights) /* K-quants are quantised anew */
            continue;
        n_compared++;
        memset(lying, 0, sizeof lying);
        memset(converted, 0, sizeof converted);
        evaluate(path_of(i), 0, lying);
        evaluate(dst, 0, converted);
        for (size_t k = 0; k < 4 * (size_t)MAX_VOCAB; k++) {
            most = fmax(most, fabs((double)converted[k]));
            apart = fmax(apart, fabs((double)lying[k] - (double)converted[k]));
        }
        if (!(most > 0 && apart < 1e-4 * most))
            fail_msg("%s: logits are off by %g of %g", files[i], apart, most);
    }
    assert_int_equal(n_compared, N_COMPARED);
    tmp_tree_remove(tmp);
}

/* ---- tokenizers */

/* Sets a number of 32 bits in the file's metadata: item i of a list, or the number itself. */
static void patch(const struct gguf *g, char *bytes, const char *key, uint32_t i, uint32_t n)
{
    const struct gguf_value *v = gguf_find(g, key);
    assert_non_null(v);
    /* A number is the end of its entry, after the key and its kind. */
    char *at = v->is_list ? bytes + v->off + 4 * (size_t)i : NULL;
    for (size_t k = 0; !at; k++)
        if (!memcmp(bytes + k, key, strlen(key)))
            at = bytes + k + strlen(key) + 4;
    memcpy(at, &n, sizeof n);
}

static void control_tokens_that_are_marked_as_normal_act_as_control_tokens(void **state)
{
    (void)state;
    enum { HE = 256, END = 262, PAD = 271, NORMAL = 1 };
    struct gguf g;
    struct moeflux_err e = {0};
    char *bytes, *tmp = tmp_tree_new();
    size_t len;
    check_ok(file_read_text(path_of(N_FILES - 1), 1 << 20, &bytes, &len, &e), &e);
    check_ok(gguf_open(&g, path_of(N_FILES - 1), &e), &e);
    /* <|end|> looks like a control token, and the key of the end of text names [PAD271]. */
    patch(&g, bytes, "tokenizer.ggml.token_type", END, NORMAL);
    patch(&g, bytes, "tokenizer.ggml.token_type", PAD, NORMAL);
    patch(&g, bytes, "tokenizer.ggml.eos_token_id", 0, PAD);
    gguf_close(&g);
    tmp_tree_write(tmp, "t.gguf", bytes, len);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "t.gguf"), &e);
    if (!t)
        fail_msg("%s", e.text);
    assert_true(tokenizer_is_special(t, END) && tokenizer_is_special(t, PAD) && !tokenizer_is_special(t, HE));
    tokenizer_free(t);
    free(bytes);
    tmp_tree_remove(tmp);
}

/* ---- what is refused */

static void expect_error(int rc, const struct moeflux_err *e, int code, const char *what)
{
    if (rc != code || !strstr(e->text, what) || !strstr(e->text, "x.gguf") || strchr(e->text, '\n'))
        fail_msg("expected %d \"%s\", found %d \"%s\"", code, what, rc, e->text);
}

/* Expects one error, whether dir/x.gguf is opened or converted. */
static void expect_file_refused(const char *dir, int code, const char *what)
{
    struct model_dir m;
    struct convert_result r;
    struct moeflux_err e = {0};
    const char *src = tmp_tree_path(dir, "x.gguf");
    const struct convert_options o = {.src = src, .dst = tmp_tree_path(dir, "converted"), .n_threads = 1};
    expect_error(model_dir_open(&m, src, &e), &e, code, what);
    e = (struct moeflux_err){0};
    expect_error(convert_run(&o, &r, &e), &e, code, what);
}

static void expect_refused(struct gguf_writer *w, int code, const char *what)
{
    char *tmp = tmp_tree_new();
    gguf_writer_finish(w, tmp, "x.gguf");
    expect_file_refused(tmp, code, what);
    tmp_tree_remove(tmp);
}

enum { Q8_0 = 8 };

static void models_that_do_not_run_are_refused_by_name(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    gguf_writer_text(&w, "general.architecture", "llama");
    expect_refused(&w, ERR_UNSUPPORTED, "llama without experts, a dense model: llama.cpp or mlx-lm run it");
    gguf_writer_text(&w, "general.architecture", "qwen3");
    gguf_writer_whole(&w, "qwen3.expert_count", 0);
    expect_refused(&w, ERR_UNSUPPORTED, "a dense model");
    gguf_writer_text(&w, "general.architecture", "grok");
    gguf_writer_whole(&w, "grok.expert_count", 8);
    expect_refused(&w, ERR_UNSUPPORTED, "general.architecture is grok, expected qwen3moe, qwen3next");
    gguf_writer_text(&w, "general.architecture", "clip");
    expect_refused(&w, ERR_UNSUPPORTED, "the vision part of a model: name the file of its text part");
    gguf_writer_text(&w, "general.architecture", "qwen3moe");
    gguf_writer_tensor(&w, "token_embd.weight", Q8_0, 256, 8, 1);
    gguf_writer_whole(&w, "qwen3moe.expert_count", 2);
    expect_refused(&w, ERR_FORMAT, "key qwen3moe.embedding_length: is missing");
}

static void files_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.1.attn_norm.weight", 0, 256, 1, 1);
    expect_refused(&w, ERR_FORMAT, "tensor blk.1.attn_norm.weight: block_count is 1");
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.0.attn_sinks.weight", 0, 1, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "nothing reads it; Qwen3-MoE has none in this layer");
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.0.attn_q.scale", 0, 1, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "tensor blk.0.attn_q.scale: not one that Qwen3-MoE has");
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.0.ffn_down_exps.scale", 0, 2, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "tensor blk.0.ffn_down_exps.scale: nothing reads it");
    gguf_writer_model(&w, 256, 256, NVFP4);
    gguf_writer_tensor(&w, "blk.0.ffn_down_exps.scale", 0, 1, 1, 1);
    expect_refused(&w, ERR_FORMAT,
                   "tensor blk.0.ffn_down_exps.scale: F32, 4 bytes, expected F32, 8 bytes of factors");
    static const float factors[] = {1, INFINITY};
    gguf_writer_model(&w, 256, 256, NVFP4);
    gguf_writer_bytes(&w, "blk.0.ffn_up_exps.scale", 0, 2, 1, 1, factors);
    expect_refused(&w, ERR_FORMAT, "tensor blk.0.ffn_up_exps.scale: ");
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "rope_freqs.weight", 0, 32, 1, 1);
    expect_refused(&w, ERR_UNSUPPORTED, "tensor rope_freqs.weight: not one that Qwen3-MoE has");
    gguf_writer_model(&w, 256, 256, Q8_0);
    w.values.data[w.values.len - 12 - 6] = '6'; /* changes the last key's name */
    expect_refused(&w, ERR_FORMAT, "attention.layer_norm_rms_epsilon: is missing");
    gguf_writer_values(&w, 256, 256);
    gguf_writer_tensor(&w, "token_embd.weight", Q8_0, 256, 8, 1);
    expect_refused(&w, ERR_FORMAT, "tensor output_norm.weight is missing");
    static const char *const tokens[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, 9);
    expect_refused(&w, ERR_FORMAT, "tokenizer.ggml.tokens has 9 tokens, token_embd.weight 8 rows");
}

/* What expert and head sizes say is checked against the tensors' shapes. */
static void sizes_that_contradict_the_tensors_are_refused(void **state)
{
    (void)state;
    struct gguf_writer w = {0}, tensors = {0};
    gguf_writer_model(&tensors, 256, 256, Q8_0);
    gguf_writer_values(&w, 256, 128);
    str_free(&tensors.values);
    tensors.values = w.values;
    expect_refused(&tensors, ERR_FORMAT,
                   "blk.0.ffn_gate_exps.weight: shape [2, 256, 256], expected [2, 128, 256]");
    w = tensors = (struct gguf_writer){0};
    gguf_writer_model(&tensors, 256, 256, Q8_0);
    gguf_writer_values(&w, 128, 256);
    str_free(&tensors.values);
    tensors.values = w.values;
    expect_refused(&tensors, ERR_FORMAT, "tensor token_embd.weight: shape [8, 256], expected [8, 128]");
}

/* JSON, which the configuration passes through, has neither. */
static void numbers_that_are_not_finite_are_refused_by_key(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        struct gguf_writer w = {0};
        gguf_writer_model(&w, 256, 256, Q8_0);
        /* The last value is the epsilon. */
        memcpy(w.values.data + w.values.len - sizeof(float), &values[i], sizeof(float));
        expect_refused(&w, ERR_FORMAT,
                       "key qwen3moe.attention.layer_norm_rms_epsilon: expected a finite number");
    }
}

static void experts_in_two_forms_are_refused_by_both_names(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.0.ffn_gate_up_exps.weight", Q8_0, 256, 512, 2);
    expect_refused(&w, ERR_FORMAT,
                   "tensors blk.0.ffn_gate_up_exps.weight and blk.0.ffn_gate_exps.weight: expected one");
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "blk.0.post_attention_norm.weight", 0, 256, 1, 1);
    expect_refused(&w, ERR_FORMAT, ": expected one of them");
}

/* Replaces a text in a copy of a published file by one of the same length. */
static void replace(char *bytes, size_t len, const char *from, const char *to)
{
    size_t n = strlen(from), found = 0;
    assert_int_equal(strlen(to), n);
    for (size_t i = 0; i + n <= len; i++)
        if (!memcmp(bytes + i, from, n)) {
            memcpy(bytes + i, to, n);
            found++;
        }
    assert_int_equal(found, 1);
}

static char *read_model(const char *path, size_t *len)
{
    char *bytes;
    struct moeflux_err e = {0};
    check_ok(file_read_text(path, 1 << 24, &bytes, len, &e), &e);
    return bytes;
}

/* Expects a file of these bytes, which are freed, to be refused. */
static void expect_bytes_refused(char *bytes, size_t len, int code, const char *what)
{
    char *tmp = tmp_tree_new();
    tmp_tree_write(tmp, "x.gguf", bytes, len);
    expect_file_refused(tmp, code, what);
    free(bytes);
    tmp_tree_remove(tmp);
}

/* Expects a copy of a file to be refused in which a name is another of the same length. */
static void expect_renamed_refused(const char *path, const char *from, const char *to, int code,
                                   const char *what)
{
    size_t len;
    char *bytes = read_model(path, &len);
    replace(bytes, len, from, to);
    expect_bytes_refused(bytes, len, code, what);
}

/* Expects copies of a file without one of its keys to be refused. The last one is NULL. */
static void expect_keys_needed(const char *path, const char *arch, const char *const *keys)
{
    for (; *keys; keys++) {
        char from[96], to[96], what[128];
        snprintf(from, sizeof from, "%s.%s", arch, *keys);
        snprintf(to, sizeof to, "%s", from);
        to[strlen(to) - 1] = '?';
        snprintf(what, sizeof what, "key %s: is missing", from);
        expect_renamed_refused(path, from, to, ERR_FORMAT, what);
    }
}

static const char QWEN4[] = MODELS "qwen4exp.gguf", KIMI_LINEAR[] = MODELS "kimilinear.gguf",
                  LING[] = MODELS "bailingmoe3.gguf", GLM53F[] = MODELS "glm5next.gguf";

static void keys_that_streams_indexers_and_tables_need_are_named(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "attention.indexer.top_k",
        "attention.indexer.head_count",
        "attention.compress_ratios",
        "attention.indexer.key_length",
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
        "ple.eos_token_id",
        "embedding_length_per_layer_input",
        NULL,
    };
    expect_keys_needed(QWEN4, "qwen4exp", keys);
    expect_renamed_refused(QWEN4, "per_layer_token_embd.weight", "per_layer_token_embd.weighs", ERR_FORMAT,
                           "tensor per_layer_token_embd.weight is missing");
    expect_renamed_refused(QWEN4, "qwen4exp.ple.layers", "qwen4exp.ple.layer?", ERR_UNSUPPORTED,
                           "tensor per_layer_token_embd.weight: not one that Qwen3.8-Flash-Next has");
}

/* Expects a copy of Qwen3.8's file to be refused whose list has another number in word i. */
static void expect_patched_refused(const char *key, uint32_t i, uint32_t n, int code, const char *what)
{
    size_t len;
    char *bytes = read_model(QWEN4, &len);
    struct gguf g;
    struct moeflux_err e = {0};
    check_ok(gguf_open(&g, QWEN4, &e), &e);
    patch(&g, bytes, key, i, n);
    gguf_close(&g);
    expect_bytes_refused(bytes, len, code, what);
}

static void indexers_and_tables_that_are_not_computed_are_refused(void **state)
{
    (void)state;
    enum { HIGH_WORD = 1, SECOND = 2 };
    expect_patched_refused("qwen4exp.attention.compress_ratios", 0, 4, ERR_UNSUPPORTED,
                           "compress_ratios: 2 in layer 1, expected 4 in all layers with attention");
    expect_patched_refused("qwen4exp.attention.compress_ratios", 1, 0, ERR_FORMAT,
                           "indexer_compress_ratio is 0");
    expect_patched_refused("qwen4exp.block_count", 0, 2000000000, ERR_UNSUPPORTED,
                           "key qwen4exp.block_count: 2000000000, expected 1 to 4096");
    expect_patched_refused("qwen4exp.ple.layers", 0, 1, ERR_UNSUPPORTED, "layer 2 has attention");
    expect_patched_refused("qwen4exp.ple.head_offsets", SECOND, 600, ERR_FORMAT,
                           "ple_head_offsets[1]: rows up to 911, expected 620");
    expect_patched_refused("qwen4exp.ple.head_vocab_sizes", 0, 0, ERR_FORMAT, "ple_head_vocab_sizes[0]");
    expect_patched_refused("qwen4exp.ple.layer_multipliers", HIGH_WORD, UINT32_MAX, ERR_FORMAT,
                           "ple_layer_multipliers[0]");
    expect_patched_refused("qwen4exp.ple.ngram_size", 0, 5, ERR_FORMAT, "ple.ngram_size: expected 2 to 4");
}

/* Without the list, the layers' tensors say which of them have an indexer. */
static void indexers_of_latents_are_those_of_a_list_or_of_tensors(void **state)
{
    (void)state;
    char *bytes, *tmp = tmp_tree_new();
    size_t len;
    struct golden g;
    struct moeflux_err e = {0};
    check_ok(file_read_text(MODELS "glmdsa.gguf", 1 << 24, &bytes, &len, &e), &e);
    replace(bytes, len, "glm-dsa.attention.indexer.types", "glm-dsa.attention.indexer.type?");
    tmp_tree_write(tmp, "x.gguf", bytes, len);
    golden_open(&g, MODELS "golden.safetensors");
    assert_true(distance(tmp_tree_path(tmp, "x.gguf"), &g, N_FILES - 1, true) < 1e-4);
    golden_close(&g);
    replace(bytes, len, "blk.2.indexer.proj.weight", "blk.1.indexer.proj.weight");
    tmp_tree_write(tmp, "x.gguf", bytes, len);
    expect_file_refused(tmp, ERR_FORMAT, "tensor blk.2.indexer.proj.weight is missing");
    replace(bytes, len, "glm-dsa.attention.indexer.top_k", "glm-dsa.attention.indexer.top_?");
    tmp_tree_write(tmp, "x.gguf", bytes, len);
    expect_file_refused(tmp, ERR_FORMAT, "key glm-dsa.attention.indexer.top_k: is missing");
    free(bytes);
    tmp_tree_remove(tmp);
}

static void keys_that_decays_of_channels_need_are_named(void **state)
{
    (void)state;
    static const char *const kimi[] =
        {"kda.head_dim",         "ssm.conv_kernel",     "attention.kv_lora_rank",    "rope.dimension_count",
         "expert_weights_scale", "expert_shared_count", "leading_dense_block_count", NULL},
                             *const ling[] = {"kda.head_dim",
                                              "ssm.conv_kernel",
                                              "kda.gate_lower_bound",
                                              "expert_group_count",
                                              "expert_group_used_count",
                                              "rope.freq_base",
                                              "expert_shared_count",
                                              NULL};
    expect_keys_needed(KIMI_LINEAR, "kimi-linear", kimi);
    expect_keys_needed(LING, "bailingmoe3", ling);
    expect_renamed_refused(KIMI_LINEAR, "kimi-linear.attention.head_count_kv",
                           "kimi-linear.attention.head_count_k?", ERR_FORMAT,
                           "attention.head_count_kv: expected a number for each layer");
    expect_renamed_refused(KIMI_LINEAR, "blk.0.ssm_f_a.weight", "blk.0.ssm_f_q.weight", ERR_UNSUPPORTED,
                           "tensor blk.0.ssm_f_q.weight: not one that Kimi-Linear has");
}

static void keys_that_blocks_of_layers_need_are_named(void **state)
{
    (void)state;
    static const char kimi[] = MODELS "kimik3.gguf";
    static const char *const keys[] = {"kda.head_dim",
                                       "ssm.conv_kernel",
                                       "attention.kv_lora_rank",
                                       "expert_shared_count",
                                       "rope.dimension_count",
                                       "expert_weights_scale",
                                       NULL};
    expect_keys_needed(kimi, "kimi-k3", keys);
    expect_renamed_refused(kimi, "kimi-k3.activation.situ_beta", "kimi-k3.activation.situ_bet?", ERR_FORMAT,
                           "activation.situ_beta: expected a number");
    /* Without the blocks, nothing reads their scores. */
    expect_renamed_refused(kimi, "kimi-k3.attn_res.block_size", "kimi-k3.attn_res.block_siz?",
                           ERR_UNSUPPORTED, "res_score.weight: nothing reads it");
    expect_renamed_refused(kimi, "blk.0.ssm_g.weight", "blk.0.ssm_q.weight", ERR_UNSUPPORTED,
                           "tensor blk.0.ssm_q.weight: not one that Kimi-K3 has");
    expect_renamed_refused(kimi, "blk.1.ffn_res_score.weight", "blk.1.ffn_res_scora.weight", ERR_UNSUPPORTED,
                           "tensor blk.1.ffn_res_scora.weight: not one that Kimi-K3 has");
}

static void keys_that_mamba_2_needs_are_named(void **state)
{
    (void)state;
    static const char nemotron[] = MODELS "nemotronh.gguf";
    static const char *const keys[] = {"ssm.time_step_rank",
                                       "ssm.group_count",
                                       "ssm.state_size",
                                       "ssm.conv_kernel",
                                       "ssm.inner_size",
                                       "attention.key_length",
                                       "expert_weights_scale",
                                       "expert_shared_feed_forward_length",
                                       NULL};
    expect_keys_needed(nemotron, "nemotron_h_moe", keys);
    expect_renamed_refused(nemotron, "blk.0.ssm_conv1d.bias", "blk.0.ssm_conv1d.bia?", ERR_UNSUPPORTED,
                           "tensor blk.0.ssm_conv1d.bia?: not one that Nemotron-3 has");
    expect_renamed_refused(nemotron, "blk.0.ssm_norm.weight", "blk.0.ssm_norn.weight", ERR_UNSUPPORTED,
                           "tensor blk.0.ssm_norn.weight");
}

static void keys_that_joined_streams_and_pools_need_are_named(void **state)
{
    (void)state;
    static const char *const keys[] = {"hyper_connection.count",
                                       "hyper_connection.sinkhorn_iterations",
                                       "hyper_connection.epsilon",
                                       "attention.indexer.top_k",
                                       "kda.head_dim",
                                       "rope.dimension_count",
                                       NULL};
    expect_keys_needed(GLM53F, "glm5-next", keys);
    expect_renamed_refused(GLM53F, "glm5-next.swiglu_clamp_exp", "glm5-next.swiglu_clamp_ex?", ERR_FORMAT,
                           "swiglu_clamp_exp: expected a number for each layer");
    expect_renamed_refused(GLM53F, "blk.0.hc_attn_fn.weight", "blk.0.hc_attn_fm.weight", ERR_UNSUPPORTED,
                           "tensor blk.0.hc_attn_fm.weight: not one that GLM-5.3-Flash has");
}

static void experts_in_a_dense_layer_are_refused(void **state)
{
    (void)state;
    char *bytes, *tmp = tmp_tree_new();
    size_t len;
    struct moeflux_err e = {0};
    check_ok(file_read_text(MODELS "glm4moe.gguf", 1 << 24, &bytes, &len, &e), &e);
    replace(bytes, len, "blk.1.ffn_up_exps.weight", "blk.0.ffn_up_exps.weight");
    tmp_tree_write(tmp, "x.gguf", bytes, len);
    expect_file_refused(tmp, ERR_UNSUPPORTED, "tensor blk.0.ffn_up_exps.weight: nothing reads it; GLM");
    free(bytes);
    tmp_tree_remove(tmp);
}

/* The file has -exp(A_log). */
static void decays_that_have_no_logarithm_are_refused(void **state)
{
    (void)state;
    static const float values[] = {0, 1};
    for (int i = 0; i < 2; i++) {
        char *bytes, *tmp = tmp_tree_new();
        size_t len;
        struct gguf g;
        struct model_dir m;
        struct convert_result r;
        struct moeflux_err e = {0};
        float numbers[64];
        const char *src = tmp_tree_path(tmp, "x.gguf");
        const struct convert_options o = {.src = src, .dst = tmp_tree_path(tmp, "converted"), .n_threads = 1};
        check_ok(file_read_text(path_of(1), 1 << 24, &bytes, &len, &e), &e);
        check_ok(gguf_open(&g, path_of(1), &e), &e);
        const struct gguf_tensor *decay = gguf_find_tensor(&g, "blk.0.ssm_a");
        assert_non_null(decay);
        memcpy(bytes + decay->off, &values[i], sizeof(float));
        gguf_close(&g);
        tmp_tree_write(tmp, "x.gguf", bytes, len);
        check_ok(model_dir_open(&m, src, &e), &e);
        const struct tensor *t = model_dir_find(&m, "model.layers.0.linear_attn.A_log");
        assert_true(t && t->bytes <= sizeof numbers);
        expect_error(model_dir_read_f32(&m, t, numbers, &e), &e, ERR_FORMAT,
                     "tensor blk.0.ssm_a: element 0 is not finite");
        model_dir_close(&m);
        expect_error(convert_run(&o, &r, &e), &e, ERR_FORMAT, "tensor blk.0.ssm_a: a value is not finite");
        free(bytes);
        tmp_tree_remove(tmp);
    }
}

static void gate_and_up_of_different_types_stay_as_they_are(void **state)
{
    (void)state;
    static float lying[4 * MAX_VOCAB], converted[4 * MAX_VOCAB];
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "copied");
    struct model_dir m;
    struct moeflux_err e = {0};
    struct convert_result r;
    check_ok(convert_run(&(struct convert_options){.src = path_of(0), .dst = dst, .n_threads = 2}, &r, &e),
             &e);
    for (int i = 0; i < 2; i++) {
        check_ok(model_dir_open(&m, i ? dst : path_of(0), &e), &e);
        assert_string_equal(format_of(m.experts[0].formats.gate)->name, "Q4_K");
        assert_string_equal(format_of(m.experts[0].formats.up)->name, "Q5_K");
        model_dir_close(&m);
    }
    evaluate(path_of(0), 2, lying);
    evaluate(dst, 2, converted);
    assert_true(lying[0] != lying[1] && !memcmp((const void *)lying, (const void *)converted, sizeof lying));
    tmp_tree_remove(tmp);
}

static void a_missing_tensor_has_the_name_that_a_file_gives_it(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_FILES; i++) {
        struct model_dir m;
        struct gguf g;
        struct moeflux_err e = {0};
        check_ok(model_dir_open(&m, path_of(i), &e), &e);
        check_ok(gguf_open(&g, path_of(i), &e), &e);
        for (size_t k = 0; k < g.n_tensors; k++) {
            char ours[GGUF_NAMES_LENGTH], theirs[GGUF_NAMES_LENGTH], expected[GGUF_NAMES_LENGTH];
            unsigned layer;
            if (gguf_names_find(&m.config, g.tensors[k].name, ours) != GGUF_NAMES_OURS)
                continue;
            /* The tensor that has two names. */
            snprintf(expected, sizeof expected, "%s", g.tensors[k].name);
            if (strstr(expected, "post_attention_norm") && sscanf(expected, "blk.%9u.", &layer) == 1)
                snprintf(expected, sizeof expected, "blk.%u.ffn_norm.weight", layer);
            assert_string_equal(gguf_names_of(&m.config, ours, theirs), expected);
            n++;
        }
        gguf_close(&g);
        model_dir_close(&m);
    }
    assert_true(n > 100);
}

/* ---- what is left out */

static void vision_and_multi_token_prediction_are_left_out_and_counted(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    struct gguf_writer w = {0};
    char *tmp = tmp_tree_new();
    gguf_writer_model(&w, 256, 256, Q8_0);
    gguf_writer_tensor(&w, "v.blk.0.attn_q.weight", Q8_0, 256, 8, 1);
    gguf_writer_tensor(&w, "mm.0.weight", Q8_0, 256, 8, 1);
    gguf_writer_finish(&w, tmp, "x.gguf");
    check_ok(model_dir_open(&m, tmp_tree_path(tmp, "x.gguf"), &e), &e);
    assert_int_equal(m.n_left_out, 2);
    assert_true(m.is_gguf && !m.tokenizer_path);
    model_dir_close(&m);
    check_ok(model_dir_open(&m, MODELS "glm4moe.gguf", &e), &e);
    assert_true(m.n_left_out > 0 && m.config.n_layers == 2);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* ---- a saved state */

static void fingerprints_tell_files_apart(void **state)
{
    (void)state;
    uint64_t prints[N_FILES];
    for (uint32_t i = 0; i < N_FILES; i++) {
        struct sequence q = sequence_open(path_of(i), NULL, 16, 0, 64);
        struct moeflux_err e = {0};
        check_ok(moeflux_model_fingerprint(q.m, &prints[i], &e), &e);
        for (uint32_t k = 1; k < i; k++)
            assert_true(prints[k] != prints[i]);
        sequence_close(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_numbers_in_the_file),
        cmocka_unit_test(streamed_experts_give_the_same_bits),
        cmocka_unit_test(every_type_gives_the_logits_of_its_numbers),
        cmocka_unit_test(factors_of_nvfp4_multiply_its_numbers),
        cmocka_unit_test(pieces_of_nvfp4_are_those_of_the_whole),
        cmocka_unit_test(tensors_at_any_byte_give_the_same_bits),
        cmocka_unit_test(convert_gives_the_same_numbers),
        cmocka_unit_test(control_tokens_that_are_marked_as_normal_act_as_control_tokens),
        cmocka_unit_test(models_that_do_not_run_are_refused_by_name),
        cmocka_unit_test(files_that_contradict_themselves_are_refused),
        cmocka_unit_test(sizes_that_contradict_the_tensors_are_refused),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused_by_key),
        cmocka_unit_test(experts_in_two_forms_are_refused_by_both_names),
        cmocka_unit_test(keys_that_streams_indexers_and_tables_need_are_named),
        cmocka_unit_test(keys_that_decays_of_channels_need_are_named),
        cmocka_unit_test(keys_that_blocks_of_layers_need_are_named),
        cmocka_unit_test(keys_that_mamba_2_needs_are_named),
        cmocka_unit_test(keys_that_joined_streams_and_pools_need_are_named),
        cmocka_unit_test(indexers_and_tables_that_are_not_computed_are_refused),
        cmocka_unit_test(indexers_of_latents_are_those_of_a_list_or_of_tensors),
        cmocka_unit_test(experts_in_a_dense_layer_are_refused),
        cmocka_unit_test(decays_that_have_no_logarithm_are_refused),
        cmocka_unit_test(gate_and_up_of_different_types_stay_as_they_are),
        cmocka_unit_test(a_missing_tensor_has_the_name_that_a_file_gives_it),
        cmocka_unit_test(vision_and_multi_token_prediction_are_left_out_and_counted),
        cmocka_unit_test(fingerprints_tell_files_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
