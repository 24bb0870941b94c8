/* Text to token ids and back, against golden cases; damaged files are refused.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/progress.h"
#include "base/str.h"
#include "peak.h"
#include "text/tokenizer/tokenizer.h"
#include "tokenizer_build.h"

#define TINY "tests/models/tiny/tokenizer.json"

static int open_tiny(void **state)
{
    struct moeflux_err e = {0};
    *state = tokenizer_open(TINY, &e);
    if (!*state)
        print_error("%s\n", e.text);
    return *state ? 0 : -1;
}

static int close_tiny(void **state)
{
    tokenizer_free(*state);
    return 0;
}

static struct token_list encode(const struct tokenizer *t, const char *text, size_t len,
                                enum token_specials specials)
{
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    assert_int_equal(tokenizer_encode(t, text, len, specials, &ids, NULL, &e), 0);
    return ids;
}

static struct str decode(const struct tokenizer *t, const struct token_list *ids)
{
    struct str text = {0};
    for (size_t i = 0; i < ids->n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(t, ids->ids[i], &bytes);
        str_add(&text, bytes, n);
    }
    assert_true(str_ok(&text));
    return text;
}

static void check_case(const struct tokenizer *t, const json_t *c)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "ids");
    const json_t *decoded = json_object_get(c, "decoded");
    struct token_list ids = encode(t, json_string_value(text), json_string_length(text), SPECIALS_AS_TOKENS);
    struct str back = decode(t, &ids);
    assert_int_equal(ids.n, json_array_size(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.ids[i], json_integer_value(json_array_get(want, i)));
    assert_int_equal(back.len, json_string_length(decoded));
    assert_memory_equal(str_text(&back), json_string_value(decoded), back.len);
    str_free(&back);
    token_list_free(&ids);
}

static void check_cases(const struct tokenizer *t, const char *path, size_t n)
{
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(cases);
    assert_int_equal(json_array_size(cases), n);
    for (size_t i = 0; i < n; i++)
        check_case(t, json_array_get(cases, i));
    json_decref(cases);
}

static void golden_cases_encode_and_decode_exactly(void **state)
{
    check_cases(*state, "tests/models/tiny/tokenizer_cases.json", 19);
}

static void random_texts_encode_and_decode_exactly(void **state)
{
    check_cases(*state, "tests/models/tiny/tokenizer_random.json", 300);
}

/* ---- what ids stand for ---- */

static void ids_without_a_token_decode_to_nothing(void **state)
{
    static const int32_t ids[] = {-1, INT32_MIN, 1935, 248319, INT32_MAX};
    const struct tokenizer *t = *state;
    assert_int_equal(tokenizer_n_ids(t), 1935);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *bytes = NULL;
        assert_int_equal(tokenizer_bytes(t, ids[i], &bytes), 0);
        assert_non_null(bytes);
        assert_false(tokenizer_has(t, ids[i]));
        assert_false(tokenizer_is_special(t, ids[i]));
    }
    for (int32_t id = 0; id < 1935; id++)
        assert_true(tokenizer_has(t, id));
}

static void holes_between_ids_are_no_tokens(void **state)
{
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    (void)state;
    tokenizer_build_added(root, "<far>", 1000, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    assert_int_equal(tokenizer_n_ids(t), 1001);
    assert_true(tokenizer_has(t, 1000));
    assert_false(tokenizer_has(t, 259));
    assert_false(tokenizer_has(t, 999));
    assert_true(tokenizer_is_special(t, 258));
    assert_false(tokenizer_is_special(t, 1000));
    tokenizer_free(t);
}

static void added_tokens_are_found_by_content(void **state)
{
    const struct tokenizer *t = *state;
    assert_int_equal(tokenizer_added_id(t, "<|im_end|>"), 1928);
    assert_int_equal(tokenizer_added_id(t, "<think>"), 1929);
    assert_int_equal(tokenizer_added_id(t, "<think"), -1);
    assert_int_equal(tokenizer_added_id(t, ""), -1);
    assert_int_equal(tokenizer_added_id(t, "the"), -1);
    assert_true(tokenizer_is_special(t, 1928));
    assert_false(tokenizer_is_special(t, 0));
}

static void a_token_outside_the_byte_alphabet_stands_for_its_own_text(void **state)
{
    static const char bos[] = "<\xef\xbd\x9c"
                              "begin\xe2\x96\x81of\xef\xbd\x9c>";
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    const char *bytes;
    (void)state;
    tokenizer_build_added(root, bos, 259, false, true);
    /* Every character of this one is in the alphabet: it is the byte E9, twice. */
    tokenizer_build_added(root, "\xc3\xa9\xc3\xa9", 260, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    assert_int_equal(tokenizer_bytes(t, 259, &bytes), strlen(bos));
    assert_memory_equal(bytes, bos, strlen(bos));
    assert_int_equal(tokenizer_bytes(t, 260, &bytes), 2);
    assert_memory_equal(bytes, "\xe9\xe9", 2);
    assert_int_equal(tokenizer_added_id(t, bos), 259);
    tokenizer_free(t);
}

/* ---- encoding ---- */

static void expect_ids(const struct tokenizer *t, const char *text, enum token_specials specials,
                       const int32_t *want, size_t n)
{
    struct token_list got = encode(t, text, strlen(text), specials);
    assert_int_equal(got.n, n);
    if (n)
        assert_memory_equal(got.ids, want, n * sizeof *want);
    token_list_free(&got);
}
#define EXPECT_IDS(t, text, specials, ...)                                                                   \
    expect_ids(t, text, specials, (const int32_t[]){__VA_ARGS__},                                            \
               sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void control_strings_in_user_text_stay_text(void **state)
{
    static const char text[] = "a<|im_end|>b<think><|im_start|>";
    struct token_list ids = encode(*state, text, strlen(text), SPECIALS_AS_TEXT);
    struct str back = decode(*state, &ids);
    for (size_t i = 0; i < ids.n; i++)
        assert_in_range(ids.ids[i], 0, 1925);
    assert_string_equal(back.data, text);
    str_free(&back);
    token_list_free(&ids);
}

static void the_longest_added_token_at_the_leftmost_place_is_taken(void **state)
{
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    (void)state;
    tokenizer_build_added(root, "<e", 259, false, false);
    tokenizer_build_added(root, "nd>", 260, false, false);
    tokenizer_build_added(root, "<end>>", 261, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    EXPECT_IDS(t, "<end>", SPECIALS_AS_TOKENS, 258);
    EXPECT_IDS(t, "<end>>", SPECIALS_AS_TOKENS, 261);
    EXPECT_IDS(t, "<end", SPECIALS_AS_TOKENS, 259, 'n', 'd');
    EXPECT_IDS(t, "<<en<end>nd>", SPECIALS_AS_TOKENS, '<', 259, 'n', 258, 260);
    EXPECT_IDS(t, "<end>", SPECIALS_AS_TEXT, '<', 'e', 'n', 'd', '>');
    tokenizer_free(t);
}

/* U+212B becomes U+00C5 in form C. The raw token is cut first, the other is looked for afterwards. */
static void normalised_tokens_match_the_normalised_text(void **state)
{
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    (void)state;
    tokenizer_build_added(root, "[\xe2\x84\xab]", 259, true, false);
    tokenizer_build_added(root, "{\xe2\x84\xab}", 260, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    EXPECT_IDS(t, "[\xe2\x84\xab]", SPECIALS_AS_TOKENS, 259);
    EXPECT_IDS(t, "[\xc3\x85]", SPECIALS_AS_TOKENS, 259);
    EXPECT_IDS(t, "[A\xcc\x8a]", SPECIALS_AS_TOKENS, 259);
    EXPECT_IDS(t, "{\xe2\x84\xab}", SPECIALS_AS_TOKENS, 260);
    EXPECT_IDS(t, "{\xc3\x85}", SPECIALS_AS_TOKENS, '{', 0xc3, 0x85, '}');
    tokenizer_free(t);
}

static void without_a_normalizer_text_is_kept(void **state)
{
    static const char *const forms[] = {"null", "{\"type\":\"Sequence\",\"normalizers\":[]}"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        json_t *root = tokenizer_build();
        struct moeflux_err e = {0};
        json_object_set_new(root, "normalizer", json_loads(forms[i], JSON_DECODE_ANY, NULL));
        struct tokenizer *t = tokenizer_build_open(root, &e);
        assert_non_null(t);
        EXPECT_IDS(t, "e\xcc\x81", SPECIALS_AS_TEXT, 'e', 0xcc, 0x81);
        tokenizer_free(t);
    }
}

static void invalid_utf8_is_replaced_and_counted(void **state)
{
    struct token_list ids = {0};
    size_t n_replaced = 5;
    assert_int_equal(tokenizer_encode(*state, "a\xff\xe4\xb8", 4, SPECIALS_AS_TEXT, &ids, &n_replaced, NULL),
                     0);
    assert_int_equal(n_replaced, 7);
    struct str back = decode(*state, &ids);
    assert_string_equal(back.data, "a\xef\xbf\xbd\xef\xbf\xbd");
    str_free(&back);
    token_list_free(&ids);
}

static void encode_appends(void **state)
{
    struct token_list ids = {0};
    assert_int_equal(token_list_add(&ids, 7, NULL), 0);
    assert_int_equal(tokenizer_encode(*state, " ", 1, SPECIALS_AS_TEXT, &ids, NULL, NULL), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 7);
    assert_int_equal(ids.ids[1], 220);
    token_list_free(&ids);
}

static void a_failed_encode_appends_nothing(void **state)
{
    json_t *root = tokenizer_build(), *patterns = json_pack("[s]", "(?:[a-f]+)+[xy]");
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    size_t n_replaced = 0;
    (void)state;
    tokenizer_build_splits(root, patterns);
    json_decref(patterns);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    static const char text[] = "\xff<end>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_int_equal(token_list_add(&ids, 7, NULL), 0);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), SPECIALS_AS_TOKENS, &ids, &n_replaced, &e),
                     ERR_UNSUPPORTED);
    assert_int_equal(ids.n, 1);
    assert_int_equal(n_replaced, 0);
    token_list_free(&ids);
    tokenizer_free(t);
}

static struct tokenizer *open_with_split(const char *pattern, const char *added)
{
    json_t *root = tokenizer_build(), *patterns = json_pack("[s]", pattern);
    struct moeflux_err e = {0};
    tokenizer_build_splits(root, patterns);
    json_decref(patterns);
    if (added)
        tokenizer_build_added(root, added, 259, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    if (!t)
        fail_msg("%s", e.text);
    return t;
}

static struct str times(const char *unit, size_t n)
{
    struct str text = {0};
    for (size_t i = 0; i < n; i++)
        str_add_text(&text, unit);
    assert_true(str_ok(&text));
    return text;
}

static void expect_encode_fails(const struct tokenizer *t, const struct str *text, int code, const char *part)
{
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    int rc = tokenizer_encode(t, text->data, text->len, SPECIALS_AS_TOKENS, &ids, NULL, &e);
    if (rc != code || !strstr(e.text, part))
        fail_msg("%d %s, expected %s", rc, rc < 0 ? e.text : "", part);
    assert_int_equal(ids.n, 0);
    token_list_free(&ids);
}

struct patience {
    uint32_t left, asked;
};

static bool ask(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct patience *p = ctx;
    (void)what;
    (void)unit;
    assert_true(done == 0 && total == 0);
    p->asked++;
    return p->left-- > 0;
}

/* One text for each thing that may take long: a run in a pattern, many starts, many pieces, a long piece,
 * added tokens. */
static void encoding_can_be_interrupted(void **state)
{
    static const struct {
        const char *pattern, *unit, *added;
        size_t n;
    } cases[] = {
        {"(?:[a-f]++|z)[xy]", "a", NULL, 100000},
        {"\\p{N}", "a", NULL, 1000000},
        {"\\s+|\\S+", "ab ", NULL, 300000},
        {"\\s+|\\S+", "ab", NULL, 100000},
        {"\\s+|\\S+", "<en", "<en<en<en<en<en<en!", 100000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = open_with_split(cases[i].pattern, cases[i].added);
        struct str text = times(cases[i].unit, cases[i].n);
        for (uint32_t left = 0; left < 3; left++) {
            struct patience p = {.left = left};
            tokenizer_set_progress(t, &(struct moeflux_progress){.report = ask, .ctx = &p});
            expect_encode_fails(t, &text, ERR_INTERRUPTED, "interrupted");
            assert_int_equal(p.asked, left + 1);
        }
        str_free(&text);
        tokenizer_free(t);
    }
}

/* Each place would be compared with thousands of bytes. */
static void added_tokens_that_a_text_almost_has_everywhere_are_an_error(void **state)
{
    (void)state;
    struct str text = times("a", 8000), token = times("a", 8000);
    str_add_text(&token, "b");
    struct tokenizer *t = open_with_split("\\s+|\\S+", str_text(&token));
    expect_encode_fails(t, &text, ERR_UNSUPPORTED, "added_tokens takes too many steps at byte ");
    tokenizer_free(t);
    str_free(&token);
    str_free(&text);
}

static void a_megabyte_of_one_letter_comes_back(void **state)
{
    struct str text = {0};
    for (int i = 0; i < 1 << 20; i++)
        str_add_text(&text, "e");
    struct token_list ids = encode(*state, text.data, text.len, SPECIALS_AS_TOKENS);
    struct str back = decode(*state, &ids);
    assert_int_equal(back.len, text.len);
    assert_memory_equal(back.data, text.data, text.len);
    str_free(&back);
    token_list_free(&ids);
    str_free(&text);
}

static void merges_may_be_strings_or_pairs(void **state)
{
    json_t *root = tokenizer_build();
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    struct moeflux_err e = {0};
    (void)state;
    json_array_set_new(merges, 1, json_string("ab c"));
    struct tokenizer *t = tokenizer_build_open(root, &e);
    assert_non_null(t);
    EXPECT_IDS(t, "abcab", SPECIALS_AS_TEXT, 257, 256);
    tokenizer_free(t);
}

static void ignore_merges_takes_a_piece_that_is_a_token_whole(void **state)
{
    (void)state;
    for (int ignore = 0; ignore < 2; ignore++) {
        json_t *root = tokenizer_build();
        struct moeflux_err e = {0};
        tokenizer_build_token(root, "cba", 3, 259);
        /* Typed as text, an added token's content is no token, whole piece or not. */
        tokenizer_build_token(root, "<end>", 5, 258);
        json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_boolean(ignore));
        struct tokenizer *t = tokenizer_build_open(root, &e);
        assert_non_null(t);
        if (ignore)
            EXPECT_IDS(t, "cba", SPECIALS_AS_TEXT, 259);
        else
            EXPECT_IDS(t, "cba", SPECIALS_AS_TEXT, 'c', 'b', 'a');
        EXPECT_IDS(t, "cbaa", SPECIALS_AS_TEXT, 'c', 'b', 'a', 'a');
        EXPECT_IDS(t, "<end>", SPECIALS_AS_TEXT, '<', 'e', 'n', 'd', '>');
        tokenizer_free(t);
    }
}

/* Every expected piece is a token here and ignore_merges takes pieces whole: the ids show the pieces. */
static struct tokenizer *open_pieces(const json_t *set, json_t *ids)
{
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    size_t i, k;
    json_t *pieces, *piece;
    int32_t next = 300;
    json_object_set_new(root, "normalizer", json_pack("{ss s[]}", "type", "Sequence", "normalizers"));
    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_true());
    tokenizer_build_splits(root, json_object_get(set, "patterns"));
    json_array_foreach(json_object_get(set, "cases"), i, pieces)
    {
        json_array_foreach(pieces, k, piece)
        {
            const char *text = json_string_value(piece);
            size_t len = json_string_length(piece);
            if (len < 2 || json_object_getn(ids, text, len))
                continue;
            if (strcmp(text, "ab") == 0 || strcmp(text, "abc") == 0)
                continue;
            tokenizer_build_token(root, text, len, next);
            json_object_setn_new(ids, text, len, json_integer(next++));
        }
    }
    struct tokenizer *t = tokenizer_build_open(root, &e);
    if (!t)
        fail_msg("%s", e.text);
    return t;
}

static void check_pieces(const struct tokenizer *t, const json_t *pieces)
{
    struct str text = {0};
    size_t i;
    json_t *piece;
    json_array_foreach(pieces, i, piece)
    {
        str_add(&text, json_string_value(piece), json_string_length(piece));
    }
    struct token_list ids = encode(t, text.data, text.len, SPECIALS_AS_TEXT);
    assert_int_equal(ids.n, json_array_size(pieces));
    json_array_foreach(pieces, i, piece)
    {
        const char *bytes;
        assert_int_equal(tokenizer_bytes(t, ids.ids[i], &bytes), json_string_length(piece));
        assert_memory_equal(bytes, json_string_value(piece), json_string_length(piece));
    }
    token_list_free(&ids);
    str_free(&text);
}

static void a_file_with_several_splits_cuts_as_deepseek_does(void **state)
{
    json_t *sets = json_load_file("tests/data/split_pieces.json", JSON_ALLOW_NUL, NULL), *ids = json_object();
    const json_t *set = json_array_get(sets, 1);
    size_t i;
    json_t *pieces;
    (void)state;
    assert_string_equal(json_string_value(json_object_get(set, "name")), "deepseek3");
    assert_int_equal(json_array_size(json_object_get(set, "patterns")), 3);
    struct tokenizer *t = open_pieces(set, ids);
    json_array_foreach(json_object_get(set, "cases"), i, pieces)
    {
        check_pieces(t, pieces);
    }
    tokenizer_free(t);
    json_decref(ids);
    json_decref(sets);
}

/* ---- bad files ---- */

struct bad_file {
    const char *path;  /* path of the member to change, keys separated by blanks */
    const char *value; /* JSON put there; NULL: the member is taken out */
    int code;
    const char *part; /* part of the error's text */
};

static const struct bad_file bad_files[] = {
    {"model", NULL, ERR_FORMAT, "model.vocab is missing"},
    {"model", "[]", ERR_FORMAT, "model.vocab is missing"},
    {"model type", "\"WordPiece\"", ERR_UNSUPPORTED, "WordPiece"},
    {"model type", "7", ERR_UNSUPPORTED, "only \"BPE\""},
    {"model byte_fallback", "true", ERR_UNSUPPORTED, "pre_tokenizer step"},
    {"model byte_fallback", "1", ERR_FORMAT, "byte_fallback"},
    {"model ignore_merges", "\"yes\"", ERR_FORMAT, "ignore_merges"},
    {"model dropout", "0.1", ERR_UNSUPPORTED, "dropout"},
    {"model continuing_subword_prefix", "\"##\"", ERR_UNSUPPORTED, "continuing_subword_prefix"},
    {"model end_of_word_suffix", "\"</w>\"", ERR_UNSUPPORTED, "end_of_word_suffix"},
    {"model merges", NULL, ERR_FORMAT, "model.merges is missing"},
    {"model merges", "{}", ERR_FORMAT, "model.merges is not an array"},
    {"model merges", "[7]", ERR_FORMAT, "expected a string"},
    {"model merges", "[\"ab\"]", ERR_FORMAT, "model.merges[0]: \"ab\" is not two tokens"},
    {"model merges", "[[\"a\"]]", ERR_FORMAT, "1 tokens, expected 2"},
    {"model merges", "[[\"a\",\"b\",\"c\"]]", ERR_FORMAT, "more than 2"},
    {"model merges", "[[\"a\",[\"b\"]]]", ERR_FORMAT, "expected a string"},
    {"model merges", "[\"a b\",\"a c\"]", ERR_FORMAT, "model.merges[1]: \"ac\" is not in model.vocab"},
    {"model merges", "[\"xyz b\"]", ERR_FORMAT, "model.merges[0]: \"xyz\" is not in model.vocab"},
    {"model merges", "[[\"a\",\"\\u4e2d\"]]", ERR_FORMAT, "\"\\xe4\\xb8\\xad\" is not in model.vocab"},
    {"model vocab", NULL, ERR_FORMAT, "model.vocab is missing"},
    {"model vocab", "[]", ERR_FORMAT, "model.vocab is not an object"},
    {"model vocab", "{}", ERR_FORMAT, "0x00"},
    {"model vocab a", NULL, ERR_FORMAT, "the byte 0x61"},
    {"model vocab a", "-1", ERR_FORMAT, "the id of \"a\" is -1"},
    {"model vocab a", "4194304", ERR_FORMAT, "4194304, expected 0 to 4194303"},
    {"model vocab a", "9999999999999999999999", ERR_FORMAT, "expected an integer"},
    {"model vocab a", "1e3", ERR_FORMAT, "expected an integer"},
    {"model vocab a", "97.0", ERR_FORMAT, "expected an integer"},
    {"model vocab a", "\"97\"", ERR_FORMAT, "expected an integer"},
    {"model vocab a", "98", ERR_FORMAT, "id 98 is given twice, to \"a\" and to \"b\""},
    {"model vocab new", "258", ERR_FORMAT, "id 258 is given twice, to \"new\" and to \"<end>\""},
    {"model vocab <end>", "259", ERR_FORMAT, "\"<end>\" has id 258, but 259 in model.vocab"},
    {"added_tokens", "{}", ERR_FORMAT, "added_tokens is not an array"},
    {"added_tokens", "[7]", ERR_FORMAT, "added_tokens[0]: expected an object"},
    {"added_tokens 0 content", "\"\"", ERR_FORMAT, "added_tokens[0]: content"},
    {"added_tokens 0 id", NULL, ERR_FORMAT, "id is missing"},
    {"added_tokens 0 id", "-3", ERR_FORMAT, "\"<end>\" is -3"},
    {"added_tokens 0 id", "99999999", ERR_FORMAT, "99999999"},
    {"added_tokens 0 id", "97", ERR_FORMAT, "id 97 is given twice"},
    {"added_tokens 0 lstrip", "true", ERR_UNSUPPORTED, "added_tokens[0]: lstrip"},
    {"added_tokens 0 rstrip", "true", ERR_UNSUPPORTED, "added_tokens[0]: rstrip"},
    {"added_tokens 0 single_word", "true", ERR_UNSUPPORTED, "added_tokens[0]: single_word"},
    {"added_tokens 0 normalized", NULL, ERR_FORMAT, "normalized is missing"},
    {"added_tokens 0 special", "1", ERR_FORMAT, "special is a whole number, expected true"},
    {"normalizer", "{\"type\":\"NFKC\"}", ERR_UNSUPPORTED, "NFKC"},
    {"normalizer", "7", ERR_UNSUPPORTED, "expected NFC"},
    {"normalizer", "{\"type\":\"Sequence\"}", ERR_FORMAT, "normalizers is missing"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
     ERR_UNSUPPORTED, "Lowercase"},
    {"pre_tokenizer", NULL, ERR_UNSUPPORTED, "pre_tokenizer is missing"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", ERR_UNSUPPORTED, "Whitespace"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", ERR_UNSUPPORTED, "add_prefix_space"},
    {"pre_tokenizer pretokenizers", "[]", ERR_FORMAT, "pretokenizers"},
    {"pre_tokenizer pretokenizers 0 type", "\"Metaspace\"", ERR_UNSUPPORTED,
     "step 1 of 2: type \"Metaspace\""},
    {"pre_tokenizer pretokenizers 0 type", "\"Digits\"", ERR_FORMAT, "individual_digits is missing"},
    {"post_processor", "{\"type\":[1,2,{}]}", ERR_UNSUPPORTED, "expected ByteLevel or TemplateProcessing"},
    {"pre_tokenizer pretokenizers 0 type", "\"ByteLevel\"", ERR_UNSUPPORTED, "step 1 of 2"},
    {"pre_tokenizer pretokenizers 0 behavior", "\"Merged\"", ERR_UNSUPPORTED,
     "behavior \"Merged\", expected"},
    {"pre_tokenizer pretokenizers 0 invert", "1", ERR_FORMAT, "invert"},
    {"pre_tokenizer pretokenizers 0 pattern", "{}", ERR_FORMAT, "neither a Regex nor a String"},
    {"pre_tokenizer pretokenizers 0 pattern Regex", "7", ERR_FORMAT, "neither a Regex nor a String"},
    {"pre_tokenizer pretokenizers 0 pattern Regex", "\"(a\"", ERR_FORMAT, "parenthes"},
    {"pre_tokenizer pretokenizers 0 pattern Regex", "\"\\\\w+\"", ERR_UNSUPPORTED, "\\w+"},
    {"pre_tokenizer pretokenizers 1", NULL, ERR_UNSUPPORTED, "step 1 of 1"},
    {"pre_tokenizer pretokenizers 1 use_regex", "true", ERR_UNSUPPORTED, "use_regex"},
    {"pre_tokenizer pretokenizers 1 use_regex", NULL, ERR_UNSUPPORTED, "use_regex"},
    {"pre_tokenizer pretokenizers 1 add_prefix_space", "true", ERR_UNSUPPORTED, "add_prefix_space"},
};

/* Puts a marker where the value belongs: some of the values are no JSON that a tree could hold. */
#define MARKER "\x01"
static void change(json_t *root, const char *path, bool take_out)
{
    char keys[96], *rest = NULL;
    json_t *at = root;
    snprintf(keys, sizeof keys, "%s", path);
    char *key = strtok_r(keys, " ", &rest);
    for (char *next; (next = strtok_r(NULL, " ", &rest)); key = next) {
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        assert_non_null(at);
    }
    if (json_is_array(at) && take_out)
        json_array_remove(at, (size_t)atoi(key));
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), json_string(MARKER));
    else if (take_out)
        assert_int_equal(json_object_del(at, key), 0);
    else
        json_object_set_new(at, key, json_string(MARKER));
}

static struct tokenizer *open_changed(const struct bad_file *bad, struct moeflux_err *e)
{
    json_t *root = tokenizer_build();
    struct str text = {0};
    change(root, bad->path, !bad->value);
    char *json = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    char *marker = strstr(json, "\"\\u0001\"");
    assert_true(!bad->value == !marker);
    str_add(&text, json, marker ? (size_t)(marker - json) : strlen(json));
    if (marker) {
        str_add_text(&text, bad->value);
        str_add_text(&text, marker + strlen("\"\\u0001\""));
    }
    struct tokenizer *t = tokenizer_build_open_text(text.data, text.len, e);
    str_free(&text);
    free(json);
    return t;
}

static void what_cannot_be_done_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        const struct bad_file *bad = &bad_files[i];
        struct moeflux_err e = {0};
        struct tokenizer *t = open_changed(bad, &e);
        if (t)
            fail_msg("%s = %s was taken", bad->path, bad->value ? bad->value : "(nothing)");
        if (e.code != bad->code || !strstr(e.text, bad->part) || strncmp(e.text, "/proc/self/fd/", 14) != 0)
            fail_msg("%s = %s: %d %s", bad->path, bad->value ? bad->value : "(nothing)", (int)e.code, e.text);
    }
}

static void what_is_not_used_may_be_anything(void **state)
{
    static const struct bad_file fine[] = {
        {"post_processor", "{\"type\":\"ByteLevel\",\"more\":[1,2,{}]}", 0, ""},
        {"decoder", "null", 0, ""},
        {"model unk_token", "\"<unk>\"", 0, ""},
        {"added_tokens", NULL, 0, ""},
        {"model byte_fallback", NULL, 0, ""},
        {"model ignore_merges", "null", 0, ""},
        {"model continuing_subword_prefix", "\"\"", 0, ""},
        {"model merges", "[]", 0, ""},
        {"model vocab <end>", "258", 0, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct moeflux_err e = {0};
        struct tokenizer *t = open_changed(&fine[i], &e);
        if (!t)
            fail_msg("%s: %s", fine[i].path, e.text);
        tokenizer_free(t);
    }
}

static void duplicates_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        static const char *const parts[] = {"id 258 is given twice", "\"<end>\""};
        json_t *root = tokenizer_build();
        struct moeflux_err e = {0};
        if (i == 0)
            tokenizer_build_added(root, "<other>", 258, false, false);
        if (i == 1)
            tokenizer_build_added(root, "<end>", 259, false, false);
        assert_null(tokenizer_build_open(root, &e));
        assert_int_equal(e.code, ERR_FORMAT);
        if (!strstr(e.text, parts[i]))
            fail_msg("%s", e.text);
    }
}

static void refused_text(const char *text, const char *part)
{
    struct moeflux_err e = {0};
    assert_null(tokenizer_build_open_text(text, strlen(text), &e));
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.text, part))
        fail_msg("%s", e.text);
}

/* A file up to the first of the two lists. */
#define HEAD                                                                                                 \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false},"            \
    "\"model\":{\"type\":\"BPE\","

static void members_that_are_there_twice_are_refused(void **state)
{
    (void)state;
    refused_text(HEAD "\"vocab\":{},\"vocab\":{}}}", "model.vocab is there twice");
    refused_text("{\"model\":{\"merges\":[]},\"model\":{\"merges\":[]}}", "model.merges is there twice");
    refused_text(HEAD "\"vocab\":{},\"merges\":[],\"type\":1}}", "duplicate");
    refused_text(HEAD "\"vocab\":{\"a\":0,\"\\u0061\":1},\"merges\":[]}}",
                 "\"a\" is there twice, with ids 0 and 1");
}

static void malformed_json_is_refused_with_its_line(void **state)
{
    (void)state;
    refused_text("", "expected an object");
    refused_text("[]", "expected an object");
    refused_text(HEAD "\n\"vocab\":{\"a\":0,\n\"b\" 1},\n\"merges\":[]}}", "expected ':' (line 3)");
    refused_text(HEAD "\n\"vocab\":{\"a\":0\n\"b\":1},\n\"merges\":[]}}", "expected ',' or '}' (line 3)");
    refused_text(HEAD "\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "surrogate");
    refused_text(HEAD "\"vocab\":{\"\\u0000\":0},\"merges\":[]}}", "0000");
    refused_text(HEAD "\"vocab\":{\"\\x\":0},\"merges\":[]}}", "escape");
    refused_text(HEAD "\"vocab\":{\"a\n\":0},\"merges\":[]}}", "the end of a string");
    refused_text(HEAD "\"vocab\":{\"\xff\":0},\"merges\":[]}}", "model.vocab is not valid UTF-8");
    refused_text(HEAD "\"merges\":[\"\xff a\"],\"vocab\":{}}}", "model.merges is not valid UTF-8");
    refused_text("{\n\"model\":{\"vocab\":{\n},\n\"merges\":[\n]},\n\"x\":nul}", "line 6");
    refused_text(HEAD "\"vocab\":{},\"merges\":[]}} x", "end of file");
}

static void add_times(struct str *text, const char *unit, int times)
{
    for (int i = 0; i < times; i++)
        str_add_text(text, unit);
}

static void deep_nesting_is_refused(void **state)
{
    static const char *const heads[] = {"{\"x\":", HEAD "\"merges\":[\"a b\"],\"vocab\":{\"a\":"};
    static const char *const tails[] = {",\"model\":{\"vocab\":{},\"merges\":[]}}", "}}}"};
    static const char *const parts[] = {"nested deeper than 64 levels", "expected an integer"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct str text = {0};
        str_add_text(&text, heads[i]);
        add_times(&text, "[", 1000000);
        refused_text(text.data, "not valid JSON");
        add_times(&text, "]", 1000000);
        str_add_text(&text, tails[i]);
        refused_text(text.data, parts[i]);
        str_free(&text);
    }
}

/* `text` as a file: the child opens it and finds it refused. */
struct hostile {
    const struct str *text;
    const char *part;
};

static void open_hostile(void *ctx)
{
    const struct hostile *h = ctx;
    struct moeflux_err e = {0};
    struct tokenizer *t = tokenizer_build_open_text(h->text->data, h->text->len, &e);
    if (t || e.code != ERR_FORMAT || !strstr(e.text, h->part)) {
        fprintf(stderr, "expected \"%s\": %s\n", h->part, t ? "was taken" : e.text);
        abort();
    }
}

static void hostile_files_take_little_memory(void **state)
{
    enum { BYTES = 24 << 20, SLACK = 16 << 20 };
    /* Replaces what follows a place in a good file: `before` it, `unit` again and again, `after`. */
    static const struct {
        const char *place, *before, *unit, *after, *part;
    } cases[] = {
        {"{", "\"x\":[", "{},", "0],", "bytes outside of vocab"},
        {"{", "\"x\":[", "\n", "0],", "bytes outside of vocab"},
        {"{", "\"x\":\"", "a", "\",", "bytes outside of vocab"},
        {"\"model\":{", "\"x\":[", "[],", "1],", "bytes outside of vocab"},
        {"\"added_tokens\":[", "", "{},", "", "added_tokens[0]: content"},
        {"\"added_tokens\":[", "{\"x\":[", "{},", "0]},", "JSON values, expected at most"},
        {"\"added_tokens\":[", "", "\n", "", "bytes outside of vocab"},
        {"\"merges\":[", "", "1,", "", "model.merges: more than"},
        {"\"merges\":[", "", "\n", "", "bytes outside of vocab"},
        {"\"vocab\":{", "", "\"\":1,", "", "model.vocab: more than"},
    };
    (void)state;
    json_t *root = tokenizer_build();
    char *good = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str text = {0};
        char *place = strstr(good, cases[i].place);
        assert_non_null(place);
        place += strlen(cases[i].place);
        str_add(&text, good, (size_t)(place - good));
        str_add_text(&text, cases[i].before);
        while (text.len < BYTES)
            str_add_text(&text, cases[i].unit);
        str_add_text(&text, cases[i].after);
        str_add_text(&text, place);
        assert_true(str_ok(&text));
        /* The text as it is read, and a part of it copied once. */
        uint64_t bytes = peak_of(open_hostile, &(struct hostile){&text, cases[i].part});
        if (bytes > 2 * (uint64_t)BYTES + SLACK)
            fail_msg("%s: %llu bytes of memory", cases[i].part, (unsigned long long)bytes);
        str_free(&text);
    }
    free(good);
}

static void escapes_in_names_are_read(void **state)
{
    static const char woman[] = "\xf0\x9f\x91\xa9";
    json_t *root = tokenizer_build();
    const char *bytes;
    struct moeflux_err e = {0};
    (void)state;
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), woman, json_integer(259));
    char *text = json_dumps(root, JSON_ENSURE_ASCII | JSON_ESCAPE_SLASH);
    json_decref(root);
    assert_non_null(strstr(text, "\\u0120"));
    assert_non_null(strstr(text, "\"\\/\""));
    assert_non_null(strstr(text, "\\uD83D\\uDC69"));
    struct tokenizer *t = tokenizer_build_open_text(text, strlen(text), &e);
    assert_non_null(t);
    EXPECT_IDS(t, "/ \"\\ab\xc3\xa9", SPECIALS_AS_TEXT, '/', ' ', '"', '\\', 256, 0xc3, 0xa9);
    assert_int_equal(tokenizer_bytes(t, 259, &bytes), 4);
    assert_memory_equal(bytes, woman, 4);
    tokenizer_free(t);
    free(text);
}

static void every_truncation_is_refused(void **state)
{
    json_t *root = tokenizer_build();
    char *text = json_dumps(root, JSON_INDENT(1));
    (void)state;
    json_decref(root);
    for (size_t len = 0; len < strlen(text); len++) {
        struct moeflux_err e = {0};
        assert_null(tokenizer_build_open_text(text, len, &e));
        assert_int_equal(e.code, ERR_FORMAT);
        assert_non_null(strstr(e.text, "not valid JSON"));
    }
    struct tokenizer *t = tokenizer_build_open_text(text, strlen(text), NULL);
    assert_non_null(t);
    tokenizer_free(t);
    free(text);
}

static void a_missing_file_is_named(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    assert_null(tokenizer_open("tests/no-such-tokenizer.json", &e));
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.text, "tests/no-such-tokenizer.json"));
    assert_null(tokenizer_open("tests", &e));
    tokenizer_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_encode_and_decode_exactly),
        cmocka_unit_test(random_texts_encode_and_decode_exactly),
        cmocka_unit_test(ids_without_a_token_decode_to_nothing),
        cmocka_unit_test(holes_between_ids_are_no_tokens),
        cmocka_unit_test(added_tokens_are_found_by_content),
        cmocka_unit_test(a_token_outside_the_byte_alphabet_stands_for_its_own_text),
        cmocka_unit_test(control_strings_in_user_text_stay_text),
        cmocka_unit_test(the_longest_added_token_at_the_leftmost_place_is_taken),
        cmocka_unit_test(normalised_tokens_match_the_normalised_text),
        cmocka_unit_test(without_a_normalizer_text_is_kept),
        cmocka_unit_test(invalid_utf8_is_replaced_and_counted),
        cmocka_unit_test(encode_appends),
        cmocka_unit_test(a_failed_encode_appends_nothing),
        cmocka_unit_test(encoding_can_be_interrupted),
        cmocka_unit_test(added_tokens_that_a_text_almost_has_everywhere_are_an_error),
        cmocka_unit_test(a_megabyte_of_one_letter_comes_back),
        cmocka_unit_test(merges_may_be_strings_or_pairs),
        cmocka_unit_test(ignore_merges_takes_a_piece_that_is_a_token_whole),
        cmocka_unit_test(a_file_with_several_splits_cuts_as_deepseek_does),
        cmocka_unit_test(what_cannot_be_done_is_refused_by_name),
        cmocka_unit_test(what_is_not_used_may_be_anything),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(members_that_are_there_twice_are_refused),
        cmocka_unit_test(malformed_json_is_refused_with_its_line),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(hostile_files_take_little_memory),
        cmocka_unit_test(escapes_in_names_are_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
