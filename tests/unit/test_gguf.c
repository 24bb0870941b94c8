/* The reader of GGUF files: numbers of every type against the gguf package's, and every way that a file can
 * be bad.
 *
 * suites: check fast asan */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/file.h"
#include "base/format.h"
#include "base/format_blocks.h"
#include "base/ggml_type.h"
#include "base/str.h"
#include "check.h"
#include "gguf_writer.h"
#include "golden.h"
#include "base/gguf.h"
#include "convert/gguf/blocks.h"
#include "tmp_tree.h"

#define MODELS "tests/models/gguf/"

/* ---- types */

enum { N_NUMBERS = 512 };

static const float *numbers_of(const struct golden *g, const char *name)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (!strcmp(g->tensors[i].name, name))
            return g->tensors[i].data;
    fail_msg("no numbers of %s", name);
    return NULL;
}

static void check_tensor(const struct gguf *g, const struct gguf_tensor *t, const float *want)
{
    const struct ggml_type *blocks = ggml_type_find(t->type);
    const struct gguf_type *type = gguf_type_find(blocks->format);
    struct moeflux_err e = {0};
    float got[FORMAT_MAX_BLOCK];
    struct gguf_group groups[FORMAT_MAX_BLOCK / GGUF_GROUP];
    uint8_t *bytes = malloc(t->bytes);
    assert_non_null(bytes);
    assert_string_equal(blocks->name, t->name);
    assert_true(blocks->block == 1 || type->format == blocks->format);
    assert_int_equal(t->bytes, (uint64_t)N_NUMBERS / blocks->block * blocks->bytes);
    check_ok(file_read_at(g->files[0].fd, "types.gguf", bytes, t->bytes, t->off, &e), &e);
    for (uint32_t b = 0; b < N_NUMBERS / blocks->block; b++, want += blocks->block) {
        format_decode(format_of(blocks->format), bytes + (size_t)b * blocks->bytes, NULL, NULL, 0,
                      blocks->block, got);
        for (uint32_t i = 0; i < blocks->block; i++)
            if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i])))
                fail_msg("%s block %u number %u: %.9g, expected %.9g", t->name, b, i, (double)got[i],
                         (double)want[i]);
        if (type->bits == 0)
            continue;
        gguf_type_groups(type, bytes + (size_t)b * blocks->bytes, groups);
        for (uint32_t i = 0; i < blocks->block; i++) {
            const struct gguf_group *x = &groups[i / GGUF_GROUP];
            assert_true(x->codes[i % GGUF_GROUP] < 1u << type->bits);
            assert_true((float)x->codes[i % GGUF_GROUP] * x->scale + x->bias == got[i]);
        }
    }
    free(bytes);
}

static void numbers_of_every_type_are_those_of_the_gguf_package(void **state)
{
    (void)state;
    struct golden golden;
    struct gguf g;
    struct moeflux_err e = {0};
    golden_open(&golden, MODELS "types.safetensors");
    check_ok(gguf_open(&g, MODELS "types.gguf", &e), &e);
    assert_int_equal(g.n_tensors, golden.n);
    for (size_t i = 0; i < g.n_tensors; i++)
        check_tensor(&g, &g.tensors[i], numbers_of(&golden, g.tensors[i].name));
    gguf_close(&g);
    golden_close(&golden);
}

static void values_and_lists_are_read_by_their_kinds(void **state)
{
    (void)state;
    struct gguf g;
    struct gguf_texts texts;
    struct str text = {0};
    struct moeflux_err e = {0};
    uint64_t whole = 0;
    double real = 0;
    char *arch = NULL;
    uint32_t *types = NULL;
    check_ok(gguf_open(&g, MODELS "glm4moe.gguf", &e), &e);
    assert_true(gguf_whole(gguf_find(&g, "glm4moe.block_count"), &whole) && whole == 3);
    assert_true(gguf_real(gguf_find(&g, "glm4moe.expert_weights_scale"), &real) && real == 1.5);
    assert_false(gguf_whole(gguf_find(&g, "glm4moe.expert_weights_scale"), &whole));
    assert_true(gguf_whole(gguf_find(&g, "glm4moe.expert_weights_norm"), &whole) && whole == 1);
    check_ok(gguf_text(&g, gguf_find(&g, "general.architecture"), 64, &arch, &e), &e);
    assert_string_equal(arch, "glm4moe");
    free(arch);
    assert_int_equal(gguf_text(&g, gguf_find(&g, "general.architecture"), 3, &arch, &e), ERR_FORMAT);
    const struct gguf_value *tokens = gguf_find(&g, "tokenizer.ggml.tokens");
    check_ok(gguf_texts_open(&texts, &g, tokens, &e), &e);
    uint64_t n = 0;
    for (; gguf_texts_next(&texts, &text, &e) > 0; n++)
        if (n == 262)
            assert_string_equal(str_text(&text), "<|end|>");
    assert_int_equal(n, 272);
    gguf_texts_close(&texts);
    check_ok(gguf_u32_list(&g, gguf_find(&g, "tokenizer.ggml.token_type"), &types, &e), &e);
    assert_int_equal(types[262], 3);
    assert_int_equal(types[264], 4);
    free(types);
    assert_int_equal(gguf_u32_list(&g, tokens, &types, &e), ERR_FORMAT);
    assert_null(gguf_find(&g, "no.such.key"));
    gguf_close(&g);
    str_free(&text);
}

static void lists_of_64_bits_keep_them(void **state)
{
    (void)state;
    struct gguf g;
    struct moeflux_err e = {0};
    uint64_t *list;
    uint32_t *narrow;
    check_ok(gguf_open(&g, MODELS "qwen4exp.gguf", &e), &e);
    const struct gguf_value *wide = gguf_find(&g, "qwen4exp.ple.layer_multipliers"),
                            *flags = gguf_find(&g, "qwen4exp.attention.recurrent_layers");
    check_ok(gguf_u64_list(&g, wide, &list, &e), &e);
    assert_true(wide->n == 3 && list[0] == 15043728800142169u && list[2] == 10969815540964775u);
    free(list);
    assert_int_equal(gguf_u32_list(&g, wide, &narrow, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "whole numbers of 32 bits"));
    check_ok(gguf_u64_list(&g, flags, &list, &e), &e);
    assert_true(flags->n == 3 && list[0] == 1 && list[1] == 0 && list[2] == 1);
    free(list);
    gguf_close(&g);
}

/* ---- bad files */

static void put_head(struct str *s, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    str_add_text(s, "GGUF");
    gguf_writer_put(s, version, 4);
    gguf_writer_put(s, n_tensors, 8);
    gguf_writer_put(s, n_values, 8);
}

static void put_tensor(struct str *s, const char *name, uint64_t rows, uint64_t cols, uint32_t type,
                       uint64_t off)
{
    gguf_writer_put_text(s, name);
    gguf_writer_put(s, 2, 4);
    gguf_writer_put(s, cols, 8);
    gguf_writer_put(s, rows, 8);
    gguf_writer_put(s, type, 4);
    gguf_writer_put(s, off, 8);
}

/* Two values and a tensor with its 64 bytes. */
static void put_whole(struct str *s)
{
    put_head(s, 3, 1, 2);
    gguf_writer_put_text(s, "a.text");
    gguf_writer_put(s, GGUF_TEXT, 4);
    gguf_writer_put_text(s, "hello");
    gguf_writer_put_text(s, "a.list");
    gguf_writer_put(s, GGUF_LIST, 4);
    gguf_writer_put(s, GGUF_TEXT, 4);
    gguf_writer_put(s, 2, 8);
    gguf_writer_put_text(s, "x");
    gguf_writer_put_text(s, "yz");
    put_tensor(s, "t", 4, 4, GGML_TYPE_F32, 0);
    while (s->len % 32)
        gguf_writer_put(s, 0, 1);
    for (int i = 0; i < 16; i++)
        gguf_writer_put(s, 0x3f800000, 4);
}

static char *dir;

static int make_dir(void **state)
{
    (void)state;
    dir = tmp_tree_new();
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    tmp_tree_remove(dir);
    return 0;
}

/* Opens the bytes as a file: its code; the text has `what` in it. Empties `s`. */
static int open_bytes(struct str *s, const char *what)
{
    struct gguf g;
    struct moeflux_err e = {0};
    tmp_tree_write(dir, "x.gguf", s->data, s->len);
    int rc = gguf_open(&g, tmp_tree_path(dir, "x.gguf"), &e);
    gguf_close(&g);
    if (what && !strstr(e.text, what))
        fail_msg("expected \"%s\", found \"%s\"", what, e.text);
    assert_null(strchr(e.text, '\n'));
    str_free(s);
    *s = (struct str){0};
    return rc;
}

static void every_cut_is_reported(void **state)
{
    (void)state;
    struct str whole = {0}, s = {0};
    put_whole(&whole);
    for (size_t n = 0; n < whole.len; n++) {
        str_add(&s, whole.data, n);
        if (n == 0)
            str_add(&s, "", 0);
        int rc = open_bytes(&s, "x.gguf");
        if (rc != ERR_FORMAT)
            fail_msg("%zu of %zu bytes: %d", n, whole.len, rc);
    }
    str_add(&s, whole.data, whole.len);
    assert_int_equal(open_bytes(&s, NULL), 0);
    str_free(&whole);
}

static void heads_that_are_not_read_are_refused(void **state)
{
    (void)state;
    struct str s = {0};
    put_whole(&s);
    s.data[0] = 'X';
    assert_int_equal(open_bytes(&s, "begins with \"XGUF\", expected GGUF"), ERR_FORMAT);
    put_head(&s, 1, 0, 0);
    assert_int_equal(open_bytes(&s, "GGUF version 1, expected 2 or 3"), ERR_UNSUPPORTED);
    put_head(&s, 0x03000000, 0, 0);
    assert_int_equal(open_bytes(&s, "(big endian)"), ERR_UNSUPPORTED);
    put_head(&s, 3, UINT64_MAX, 0);
    assert_int_equal(open_bytes(&s, "ends inside the list of tensors"), ERR_FORMAT);
    put_head(&s, 3, 0, UINT64_MAX);
    assert_int_equal(open_bytes(&s, "ends inside the metadata"), ERR_FORMAT);
}

static void values_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t kind, of, n;
        const char *what;
    } lists[] = {
        {13, 0, 0, "kind 13, expected one below 13"},
        {GGUF_LIST, GGUF_LIST, 1, "a list of kind 9"},
        {GGUF_LIST, 99, 1, "a list of kind 99"},
        {GGUF_LIST, GGUF_U64, UINT64_MAX / 8 + 2, "ends inside k"},
        {GGUF_LIST, GGUF_U8, UINT64_MAX, "ends inside k"},
        {GGUF_LIST, GGUF_TEXT, UINT64_MAX, "ends inside k"},
    };
    struct str s = {0};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put_head(&s, 3, 0, 1);
        gguf_writer_put_text(&s, "k");
        gguf_writer_put(&s, lists[i].kind, 4);
        gguf_writer_put(&s, lists[i].of, 4);
        gguf_writer_put(&s, lists[i].n, 8);
        assert_int_equal(open_bytes(&s, lists[i].what), ERR_FORMAT);
    }
    put_head(&s, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        gguf_writer_put_text(&s, "k");
        gguf_writer_put(&s, GGUF_U8, 4);
        gguf_writer_put(&s, 1, 1);
    }
    assert_int_equal(open_bytes(&s, "key k is there twice"), ERR_FORMAT);
    put_head(&s, 3, 0, 1);
    gguf_writer_put(&s, 1 << 20, 8);
    gguf_writer_put(&s, 0, 8);
    assert_int_equal(open_bytes(&s, "a name of 1048576 bytes"), ERR_FORMAT);
    put_head(&s, 3, 0, 1);
    gguf_writer_put_text(&s, "general.alignment");
    gguf_writer_put(&s, GGUF_U32, 4);
    gguf_writer_put(&s, 48, 4);
    assert_int_equal(open_bytes(&s, "general.alignment: expected a power of two"), ERR_FORMAT);
}

static void tensors_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t rows, cols, off;
        uint32_t type;
        int code;
        const char *what;
    } bad[] = {
        {1, 256, 0, 31, ERR_UNSUPPORTED, "tensor t: type Q4_0_4_4, expected F32, F16"},
        {1, 256, 0, 4000, ERR_UNSUPPORTED, "tensor t: type 4000, expected F32, F16"},
        {1, 48, 0, 8, ERR_FORMAT, "rows of 48, expected a multiple of 32 for Q8_0"},
        {1, 128, 0, 12, ERR_FORMAT, "rows of 128, expected a multiple of 256 for Q4_K"},
        {1ull << 40, 1ull << 40, 0, 0, ERR_FORMAT, "is empty or overflows"},
        {0, 32, 0, 0, ERR_FORMAT, "is empty or overflows"},
        {1, 1, UINT64_MAX, 0, ERR_FORMAT, "reach past the end"},
        {1ull << 50, 4, 0, 0, ERR_FORMAT, "is the file cut off?"},
    };
    struct str s = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_head(&s, 3, 1, 0);
        put_tensor(&s, "t", bad[i].rows, bad[i].cols, bad[i].type, bad[i].off);
        assert_int_equal(open_bytes(&s, bad[i].what), bad[i].code);
    }
    put_head(&s, 3, 1, 0);
    gguf_writer_put_text(&s, "t");
    gguf_writer_put(&s, 5, 4);
    assert_int_equal(open_bytes(&s, "5 dimensions, expected 1 to 4"), ERR_FORMAT);
    put_head(&s, 3, 2, 0);
    for (int i = 0; i < 2; i++)
        put_tensor(&s, "t", 1, 1, 0, 0);
    for (int i = 0; i < 16; i++)
        gguf_writer_put(&s, 0, 4);
    assert_int_equal(open_bytes(&s, "tensor t is there twice"), ERR_FORMAT);
}

/* ---- split sets */

static void write_split(const char *name, uint16_t number, uint16_t count, uint32_t all)
{
    struct str s = {0};
    char tensor[8];
    put_head(&s, 3, 1, 3);
    gguf_writer_put_text(&s, "split.no");
    gguf_writer_put(&s, GGUF_U16, 4);
    gguf_writer_put(&s, number, 2);
    gguf_writer_put_text(&s, "split.count");
    gguf_writer_put(&s, GGUF_U16, 4);
    gguf_writer_put(&s, count, 2);
    gguf_writer_put_text(&s, "split.tensors.count");
    gguf_writer_put(&s, GGUF_I32, 4);
    gguf_writer_put(&s, all, 4);
    snprintf(tensor, sizeof tensor, "t%u", (unsigned)number);
    put_tensor(&s, tensor, 1, 8, 0, 0);
    for (int i = 0; i < 16; i++)
        gguf_writer_put(&s, 0, 4);
    tmp_tree_write(dir, name, s.data, s.len);
    str_free(&s);
}

static void expect_split(const char *name, int code, const char *what)
{
    struct gguf g;
    struct moeflux_err e = {0};
    assert_int_equal(gguf_open(&g, tmp_tree_path(dir, name), &e), code);
    if (code < 0 && !strstr(e.text, what))
        fail_msg("expected \"%s\", found \"%s\"", what, e.text);
    if (code == 0)
        assert_true(g.n_files == 2 && g.n_tensors == 2 && gguf_find_tensor(&g, "t1")->file == 1);
    gguf_close(&g);
}

static void split_sets_are_read_from_their_first_file(void **state)
{
    (void)state;
    write_split("m-00001-of-00002.gguf", 0, 2, 2);
    expect_split("m-00001-of-00002.gguf", ERR_IO, "m-00002-of-00002.gguf");
    write_split("m-00002-of-00002.gguf", 1, 2, 2);
    expect_split("m-00001-of-00002.gguf", 0, NULL);
    expect_split("m-00002-of-00002.gguf", ERR_USAGE, "file 2 of a split set: name the first");
    write_split("m-00002-of-00002.gguf", 0, 2, 2);
    expect_split("m-00001-of-00002.gguf", ERR_FORMAT, "expected file 2 of 2 of a split set");
    write_split("m-00002-of-00002.gguf", 1, 2, 2);
    write_split("m-00001-of-00002.gguf", 0, 2, 3);
    expect_split("m-00001-of-00002.gguf", ERR_FORMAT, "2 tensors in all files, expected 3");
    write_split("other.gguf", 0, 2, 2);
    expect_split("other.gguf", ERR_FORMAT, "expected a name that ends in -00001-of-00002.gguf");
    write_split("m-00001-of-00002.gguf", 0, 60000, 2);
    expect_split("m-00001-of-00002.gguf", ERR_FORMAT, "split.count 60000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_every_type_are_those_of_the_gguf_package),
        cmocka_unit_test(values_and_lists_are_read_by_their_kinds),
        cmocka_unit_test(lists_of_64_bits_keep_them),
        cmocka_unit_test(every_cut_is_reported),
        cmocka_unit_test(heads_that_are_not_read_are_refused),
        cmocka_unit_test(values_that_lie_are_refused),
        cmocka_unit_test(tensors_that_lie_are_refused),
        cmocka_unit_test(split_sets_are_read_from_their_first_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
