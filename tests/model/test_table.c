/* Forms of n-gram tables in checkpoints: 8-bit floats with a scale for all, for a shard or for a row, of
 * several dtypes, and mlx-vlm's. All have the numbers of one model, so its logits are expected. Rows of
 * GGUF's block formats.
 *
 * suites: check asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/f16.h"
#include "base/format.h"
#include "base/ggml_type.h"
#include "check.h"
#include "convert/convert.h"
#include "model/model_dir.h"
#include "model/table.h"
#include "selftest/random_blocks.h"
#include "sequence.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { VOCAB = 103, TOKENS = 40, CONTEXT = 64 };
static const char PLAIN[] = "tests/models/families/qw4-plain", MLX[] = "tests/models/families/qw4-mlx";
static const char TABLE[] = ".ple_embedding.ngram_embedding.";

/* What the scales of 8-bit floats are for. */
enum form {
    FOR_ALL,
    FOR_SHARDS,
    FOR_ROWS,
    FOR_ROWS_E8M0,
    FOR_ROWS_APART, /* a file without shards has them */
    FORMS,          /* the others are refused */
    FOR_NONE = FORMS,
    FOR_NUMBERS,
    OF_ANOTHER_SHAPE,
    NAN_CODE
};
static enum form form;         /* the model that write_fp8 makes */
static struct st_writer apart; /* the second file */

static uint8_t code_of(float x)
{
    for (int i = 0; i < 256; i++)
        if (e4m3_to_float((uint8_t)i) == x)
            return (uint8_t)i;
    fail_msg("%g is no e4m3", (double)x);
    return 0;
}

static bool has_rows(void)
{
    return form >= FOR_ROWS && form <= FOR_ROWS_APART;
}

/* Returns the power of two that row r's codes are multiplied with. */
static float scale_of(uint64_t row)
{
    return has_rows() ? (row % 2 ? 0.0625f : 0.25f) : 0.125f;
}

static void add_scales(struct st_writer *w, const struct tensor *t)
{
    char name[256], shape[32];
    bool is_e8m0 = form == FOR_ROWS_E8M0;
    uint64_t cols = form == FOR_NUMBERS ? tensor_cols(t) : 1,
             n = cols * (has_rows() || cols > 1     ? tensor_rows(t)
                         : form == OF_ANOTHER_SHAPE ? 3
                                                    : 1);
    float *scales = malloc(n * sizeof *scales);
    uint8_t *exponents = malloc(n);
    for (uint64_t i = 0; i < n; i++) {
        scales[i] = scale_of(i);
        exponents[i] = (uint8_t)(127 + ilogbf(scales[i]));
    }
    snprintf(name, sizeof name, "%s_scale", t->name);
    if (has_rows() || cols > 1)
        snprintf(shape, sizeof shape, "[%d, %d]", (int)(n / cols), (int)cols);
    else
        snprintf(shape, sizeof shape, "[%d]", (int)n);
    st_writer_add(form == FOR_ROWS_APART ? &apart : w, name, is_e8m0 ? "F8_E8M0" : "F32", shape,
                  is_e8m0 ? (const void *)exponents : scales, n * (is_e8m0 ? 1 : sizeof *scales));
    free(scales);
    free(exponents);
}

static void write_fp8(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const uint16_t all = 0x3e00; /* 0.125 in bfloat16 */
    if (!t) {
        if (form == FOR_ALL || form == NAN_CODE)
            st_writer_add(w, "model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale", "BF16", "[1]",
                          &all, sizeof all);
        return;
    }
    if (!tensor_is_float(t->dtype)) /* integers, which nobody reads */
        return;
    if (!strstr(t->name, TABLE)) {
        st_writer_add_like(w, t->name, t, bytes);
        return;
    }
    uint64_t n = t->bytes / 2, cols = tensor_cols(t);
    uint8_t *codes = malloc(n);
    char shape[TENSOR_SHAPE_TEXT];
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half);
        codes[i] = code_of(bf16_to_float(half) / scale_of(i / cols));
    }
    if (form == NAN_CODE)
        memset(codes, 0x7f, n);
    tensor_shape_text(t, shape);
    st_writer_add(w, t->name, "F8_E4M3", shape, codes, n);
    if (form == FOR_SHARDS || has_rows() || form == FOR_NUMBERS || form == OF_ANOTHER_SHAPE)
        add_scales(w, t);
    free(codes);
}

static char *make_fp8(enum form which, char **tmp)
{
    form = which;
    *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(*tmp, "model");
    st_writer_rewrite(PLAIN, dir, write_fp8);
    if (form == FOR_ROWS_APART)
        st_writer_finish(&apart, dir, "scales.safetensors");
    if (form == FOR_NUMBERS)
        tmp_tree_replace(
            dir, "config.json", "{",
            "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [1, 1]},");
    return (char *)dir;
}

static void eval(const char *dir, float *rows)
{
    int32_t ids[TOKENS];
    struct sequence q = sequence_open(dir, "reference", 16, 0, CONTEXT);
    sequence_ids(&q, 1, ids, TOKENS);
    sequence_eval(&q, ids, TOKENS, rows);
    sequence_close(&q);
}

static void convert(const char *src, const char *dst, uint32_t bits)
{
    struct moeflux_err e = {0};
    struct convert_result r;
    const struct convert_options o = {.src = src, .dst = dst, .settings.bits = bits};
    check_ok(convert_run(&o, &r, &e), &e);
}

static uint64_t table_bytes(const char *dir)
{
    struct model_dir m;
    struct moeflux_err e;
    check_ok(model_dir_open(&m, dir, &e), &e);
    uint64_t bytes = m.table_bytes;
    model_dir_close(&m);
    return bytes;
}

/* The same numbers are stored as other codes: products are added up with other roundings. */
static void expect_near(const float *rows, const float *want)
{
    for (int i = 0; i < VOCAB; i++)
        assert_float_equal(rows[i], want[i], 1e-5f);
}

static void floats_of_8_bits_have_the_same_logits_with_every_form_of_scales(void **state)
{
    (void)state;
    float want[VOCAB], rows[VOCAB];
    eval(PLAIN, want);
    for (enum form which = FOR_ALL; which < FORMS; which++) {
        char *tmp, *dir = make_fp8(which, &tmp);
        eval(dir, rows);
        assert_memory_equal(rows, want, sizeof want);
        assert_true(table_bytes(dir) < table_bytes(PLAIN));
        tmp_tree_remove(tmp);
    }
}

/* Without a number of bits the table stays as it is; all else gets 4 bits, of which this model's numbers
 * are. */
static void conversion_keeps_floats_of_8_bits_or_quantises_them(void **state)
{
    (void)state;
    float want[VOCAB], rows[VOCAB];
    for (enum form which = FOR_ALL; which < FORMS; which++) {
        char *tmp = tmp_tree_new(), *src_tmp, *src = make_fp8(which, &src_tmp);
        const char *plain = tmp_tree_path(tmp, "plain"), *kept = tmp_tree_path(tmp, "kept"),
                   *quantised = tmp_tree_path(tmp, "quantised");
        convert(PLAIN, plain, 4);
        eval(plain, want);
        convert(src, kept, 0);
        convert(src, quantised, 4);
        assert_int_equal(table_bytes(kept), table_bytes(src));
        assert_int_equal(table_bytes(quantised), table_bytes(plain));
        eval(kept, rows);
        expect_near(rows, want);
        eval(quantised, rows);
        assert_memory_equal(rows, want, sizeof want);
        tmp_tree_remove(src_tmp);
        tmp_tree_remove(tmp);
    }
}

static void a_conversion_by_mlx_has_the_same_logits(void **state)
{
    (void)state;
    float want[VOCAB], rows[VOCAB];
    char *tmp = tmp_tree_new();
    const char *plain = tmp_tree_path(tmp, "plain"), *again = tmp_tree_path(tmp, "again");
    convert(PLAIN, plain, 4);
    eval(plain, want);
    eval(MLX, rows);
    expect_near(rows, want);
    convert(MLX, again, 0);
    eval(again, rows);
    expect_near(rows, want);
    tmp_tree_remove(tmp);
}

static void tables_with_other_scales_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        enum form form;
        const char *says;
    } cases[] = {{FOR_NONE, "shard_0.weight_scale"},
                 {FOR_NUMBERS, "shard_0.weight: a row has 160 bytes with its scales, expected at most 128"},
                 {OF_ANOTHER_SHAPE, "without quant_method fp8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_dir m;
        struct moeflux_err e;
        char *tmp, *dir = make_fp8(cases[i].form, &tmp);
        assert_true(model_dir_open(&m, dir, &e) < 0);
        assert_non_null(strstr(e.text, cases[i].says));
        tmp_tree_remove(tmp);
    }
}

static void a_code_that_is_no_number_ends_the_evaluation(void **state)
{
    (void)state;
    int32_t ids[TOKENS];
    struct moeflux_err e;
    char *tmp, *dir = make_fp8(NAN_CODE, &tmp);
    struct sequence q = sequence_open(dir, "reference", 16, 0, CONTEXT);
    sequence_ids(&q, 1, ids, TOKENS);
    sequence_refused(moeflux_session_eval(q.s, ids, TOKENS, &(struct moeflux_outputs){0}, &e), &e, ERR_FORMAT,
                     "is not finite");
    sequence_close(&q);
    tmp_tree_remove(tmp);
}

/* What is known when the rows are opened: the configuration's number of words, the tokenizer. */
static void words_that_are_not_the_tokenizers_are_refused(void **state)
{
    (void)state;
    static const char WORDS[] = "\"engram_compressed_vocab_size\": ";
    static const struct {
        const char *from, *to, *says;
    } cases[] = {{"243", "242", "tokenizer.json: 243 different words, expected 242"},
                 {"243", "243", "no tokenizer, n-gram rows need the tokens' texts"}};
    for (int i = 0; i < 2; i++) {
        char *tmp = tmp_tree_new(), from[64], to[64];
        const char *dir = tmp_tree_path(tmp, "model");
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        tmp_tree_copy("tests/models/sources/v41/hf", dir);
        snprintf(from, sizeof from, "%s%s", WORDS, cases[i].from);
        snprintf(to, sizeof to, "%s%s", WORDS, cases[i].to);
        tmp_tree_replace(dir, "config.json", from, to);
        if (i == 1)
            remove(tmp_tree_path(dir, "tokenizer.json"));
        const struct moeflux_options o = {.dir = dir, .device = "reference"};
        assert_true(moeflux_model_open(&m, &o, &e) < 0);
        if (!strstr(e.text, cases[i].says))
            fail_msg("%s", e.text);
        tmp_tree_remove(tmp);
    }
}

static uint32_t next_random(void *ctx)
{
    uint64_t *s = ctx;
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* GGUF's types: a row is whole blocks, of any number. */
static void rows_of_every_block_format_are_found_and_decoded(void **state)
{
    (void)state;
    enum { ROWS = 5, MOST = 3 * 256 };
    uint32_t n_types = 0;
    for (uint32_t type = 0; type < 64; type++) {
        const struct ggml_type *k = ggml_type_find(type);
        if (!k || k->block < 2)
            continue;
        n_types++;
        uint32_t cols = 3 * k->block, row_bytes = 3 * k->bytes;
        uint8_t *bytes = malloc((size_t)ROWS * row_bytes);
        float want[MOST], got[MOST];
        uint64_t seed = type + 1;
        struct moeflux_err e = {0};
        struct tensor w = {.name = "rows", .dtype = DTYPE_BLOCKS, .format = k->format, .off = 7};
        struct table_shard shard = {
            .matrix = {.weight = &w, .format = k->format, .rows = ROWS, .cols = cols}};
        struct table t = {.cols = cols, .row_bytes = row_bytes, .n_shards = 1, .shards = &shard};
        struct model_dir m = {0};
        random_blocks_fill(k->format, ROWS * 3, 0.5f, next_random, &seed, bytes);
        for (uint32_t row = 0; row < ROWS; row++) {
            struct table_run runs[TABLE_RUNS];
            assert_int_equal(table_find_row(&t, row, runs), 1);
            assert_true(runs[0].bytes == row_bytes && runs[0].off == 7 + (uint64_t)row * row_bytes);
            format_decode(format_of(k->format), bytes + (size_t)row * row_bytes, NULL, NULL, 0, cols, want);
            check_ok(table_decode(&t, &m, row, bytes + runs[0].off - 7, got, &e), &e);
            assert_memory_equal(got, want, cols * sizeof *got);
        }
        free(bytes);
    }
    assert_int_equal(n_types, 23);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_of_8_bits_have_the_same_logits_with_every_form_of_scales),
        cmocka_unit_test(conversion_keeps_floats_of_8_bits_or_quantises_them),
        cmocka_unit_test(a_conversion_by_mlx_has_the_same_logits),
        cmocka_unit_test(tables_with_other_scales_are_refused_by_name),
        cmocka_unit_test(a_code_that_is_no_number_ends_the_evaluation),
        cmocka_unit_test(words_that_are_not_the_tokenizers_are_refused),
        cmocka_unit_test(rows_of_every_block_format_are_found_and_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
