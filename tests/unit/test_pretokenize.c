/* Split patterns cut text into the pieces that Hugging Face's tokenizers cut.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/work_limit.h"

static int cut(const struct pretokenizer *p, const char *text, size_t len,
               int (*piece)(void *ctx, const char *bytes, size_t len, struct moeflux_err *e), void *ctx,
               struct moeflux_err *e)
{
    struct work_limit limit = work_limit_for(len, p->n_splits, NULL);
    return pretokenize_run(p, text, len, &limit, (struct pretokenize_sink){piece, ctx}, e);
}

struct pieces {
    struct str text; /* each piece followed by a bar */
    size_t n;
};

static int add_piece(void *ctx, const char *bytes, size_t len, struct moeflux_err *e)
{
    struct pieces *p = ctx;
    (void)e;
    str_add(&p->text, bytes, len);
    str_add(&p->text, "|", 1);
    p->n++;
    return 0;
}

static void add(struct pretokenizer *p, const char *pattern)
{
    struct moeflux_err e = {0};
    if (pretokenize_add(p, pattern, strlen(pattern), false, PRETOKENIZE_ISOLATED, &e) < 0)
        fail_msg("%s", e.text);
}

static void expect(const struct pretokenizer *p, const char *text, size_t len, const char *want)
{
    struct pieces got = {0};
    struct moeflux_err e = {0};
    if (cut(p, text, len, add_piece, &got, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(str_text(&got.text), want);
    str_free(&got.text);
}

static void expect_once(const char *pattern, const char *text, const char *want)
{
    struct pretokenizer p = {0};
    add(&p, pattern);
    expect(&p, text, strlen(text), want);
    pretokenize_free(&p);
}

struct want {
    const json_t *pieces;
    size_t n;
};

static int compare_piece(void *ctx, const char *bytes, size_t len, struct moeflux_err *e)
{
    struct want *w = ctx;
    const json_t *piece = json_array_get(w->pieces, w->n++);
    (void)e;
    assert_non_null(piece);
    assert_int_equal(len, json_string_length(piece));
    assert_memory_equal(bytes, json_string_value(piece), len);
    return 0;
}

static void check_case(const struct pretokenizer *p, const json_t *pieces)
{
    struct want w = {pieces, 0};
    struct str text = {0};
    size_t i;
    json_t *piece;
    json_array_foreach(pieces, i, piece)
    {
        str_add(&text, json_string_value(piece), json_string_length(piece));
    }
    assert_int_equal(cut(p, text.data, text.len, compare_piece, &w, NULL), 0);
    assert_int_equal(w.n, json_array_size(pieces));
    str_free(&text);
}

/* The file's pieces come from another implementation of the same patterns. */
static void published_patterns_cut_random_texts_exactly(void **state)
{
    json_t *sets = json_load_file("tests/data/split_pieces.json", JSON_ALLOW_NUL, NULL);
    (void)state;
    assert_int_equal(json_array_size(sets), 2);
    for (size_t s = 0; s < 2; s++) {
        const json_t *set = json_array_get(sets, s), *item;
        const json_t *patterns = json_object_get(set, "patterns"), *cases = json_object_get(set, "cases");
        struct pretokenizer p = {0};
        for (size_t i = 0; (item = json_array_get(patterns, i)); i++)
            add(&p, json_string_value(item));
        assert_true(json_array_size(cases) >= 150);
        for (size_t i = 0; (item = json_array_get(cases, i)); i++)
            check_case(&p, item);
        pretokenize_free(&p);
    }
    json_decref(sets);
}

static void white_space_is_the_unicode_property(void **state)
{
    /* U+0009..D, 20, 85, A0, 1680, 2000, 200A, 2028, 2029, 202F, 205F, 3000 */
    static const char yes[] =
        "\t\n\v\f\r \xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80\x8a\xe2\x80\xa8\xe2\x80\xa9"
        "\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80";
    /* U+001C..1F, 180E, 200B, 2027, 2060, FEFF and neighbours */
    static const char no[] =
        "\x08\x0e\x1c\x1d\x1e\x1f!\xc2\x84\xc2\x86\xc2\x9f\xc2\xa1\xe1\xa0\x8e\xe2\x80\x8b\xe2\x80"
        "\xa7\xe2\x81\xa0\xe3\x80\x81\xef\xbb\xbf";
    static const char *const members[] = {"\\s+", "[\\s]+", "[^\\S]+", "[x\\s]+"};
    static const char *const others[] = {"\\S+", "[\\S]+", "[^\\s]+", "[\\Sx]+"};
    char text[sizeof yes + sizeof no], want[sizeof text + 2];
    (void)state;
    snprintf(text, sizeof text, "%s%s", yes, no);
    snprintf(want, sizeof want, "%s|%s|", yes, no);
    for (size_t i = 0; i < 4; i++) {
        expect_once(members[i], text, want);
        expect_once(others[i], text, want);
    }
}

static void matches_and_gaps_are_both_pieces(void **state)
{
    (void)state;
    expect_once("[0-9]{1,3}", "ab1234cd5", "ab|123|4|cd|5|");
    expect_once("x", "abc", "abc|");
    expect_once("x", "", "");
}

static void a_later_split_sees_pieces_as_whole_texts(void **state)
{
    struct pretokenizer p = {0};
    (void)state;
    add(&p, "[0-9]");
    add(&p, "\\s+(?!\\S)|[a-z]+");
    /* The blank before 1 ends its piece: to the second pattern no text follows. */
    expect(&p, "ab 1 cd", 7, "ab| |1| |cd|");
    pretokenize_free(&p);
    p = (struct pretokenizer){0};
    add(&p, "[0-9]");
    add(&p, "(?<=[0-9])[a-z]");
    expect(&p, "1ab", 3, "1|ab|");
    pretokenize_free(&p);
}

static void a_string_pattern_is_taken_literally(void **state)
{
    struct pretokenizer p = {0};
    (void)state;
    assert_int_equal(pretokenize_add(&p, ".*", 2, true, PRETOKENIZE_ISOLATED, NULL), 0);
    expect(&p, "ab.*c.*", 7, "ab|.*|c|.*|");
    pretokenize_free(&p);
    /* Every character that stands for itself only after a backslash, or never after one. */
    char every[127];
    for (char c = 1; c < 127; c++)
        every[c - 1] = c;
    every[126] = '\0';
    p = (struct pretokenizer){0};
    assert_int_equal(pretokenize_add(&p, every, 127, true, PRETOKENIZE_ISOLATED, NULL), 0);
    char text[2 * 128];
    for (int i = 0; i < 2; i++) {
        memcpy(text + i * 128, every, 127);
        text[i * 128 + 127] = 'x';
    }
    struct pieces got = {0};
    assert_int_equal(cut(&p, text, sizeof text, add_piece, &got, NULL), 0);
    assert_int_equal(got.n, 4);
    str_free(&got.text);
    pretokenize_free(&p);
}

static void line_anchors_work_by_line(void **state)
{
    (void)state;
    expect_once("^a+|b+$", "aab\naabb", "aa|b|\n|aa|bb|");
    expect_once(".+", "ab\rc\ncd", "ab\rc|\n|cd|");
}

static void letters_fold_to_every_case(void **state)
{
    (void)state;
    expect_once("(?i:'s|'ll)", "it'S'\xc5\xbf'Ll's", "it|'S|'\xc5\xbf|'Ll|'s|");
    expect_once("\\p{Lu}\\P{L}|\\x{e9}", "aA1\xc3\xa9", "a|A1|\xc3\xa9|");
}

/* U+3006 is used with Han but is no Han; U+323AF is Han of Unicode 15. */
static void a_script_s_name_means_its_own_characters(void **state)
{
    (void)state;
    expect_once("\\p{Han}+", "\xe3\x80\x86\xe4\xb8\xad\xe3\x80\x85\xf0\xb2\x8e\xaf\xe3\x83\xbb",
                "\xe3\x80\x86|\xe4\xb8\xad\xe3\x80\x85\xf0\xb2\x8e\xaf|\xe3\x83\xbb|");
    expect_once("[\\p{Han}x]+", "a\xe3\x80\x86\xe4\xb8\xadx\xe3\x83\xbb",
                "a\xe3\x80\x86|\xe4\xb8\xadx|\xe3\x83\xbb|");
    expect_once("\\P{L}+", "a\xf0\x90\x97\x89 1", "a\xf0\x90\x97\x89| 1|");
    expect_once("\\D+",
                "1\xf0\x90\xb5\x80"
                "a",
                "1\xf0\x90\xb5\x80|a|");
}

static void refused(const char *pattern, int code, const char *part)
{
    struct pretokenizer p = {0};
    struct moeflux_err e = {0};
    assert_int_equal(pretokenize_add(&p, pattern, strlen(pattern), false, PRETOKENIZE_ISOLATED, &e), code);
    if (!strstr(e.text, part))
        fail_msg("%s: no \"%s\" in: %s", pattern, part, e.text);
    pretokenize_free(&p);
}

static void patterns_that_engines_read_differently_are_refused(void **state)
{
    static const char *const patterns[] = {
        "\\h",      "\\w+", "\\b",  "\\R",     "\\1",    "\\Qa\\E", "\\K",    "[a[b]]", "[[:alpha:]]",
        "[a-z&&b]", "[]a]", "[^]]", "(*UTF)",  "(?m:a)", "(?s)a",   "(?#x)a", "(?|a)",  "a{,3}",
        "a{2}+",    "a{",   "a{x}", "\\u00e9", "\\pL",   "\\x41",   "a\\",    "\\p{L",  "a{2}?",
    };
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        refused(patterns[i], ERR_UNSUPPORTED, " at character ");
}

static void bad_patterns_are_refused(void **state)
{
    (void)state;
    refused("(a", ERR_FORMAT, "parenthes");
    refused("[a", ERR_FORMAT, "missing terminating ]");
    refused("a)", ERR_FORMAT, "parenthes");
    refused("+", ERR_FORMAT, "quantifier");
    refused("\\p{Nonsense}", ERR_FORMAT, "Nonsense");
    refused("a*", ERR_UNSUPPORTED, "empty");
    refused("a|", ERR_UNSUPPORTED, "empty");
    refused("(?=a)", ERR_UNSUPPORTED, "empty");
    refused("", ERR_UNSUPPORTED, "0 bytes");
    refused("a+++", ERR_FORMAT, "quantifier");
    refused("(a|+)", ERR_FORMAT, "quantifier");
    refused("a{1001}", ERR_UNSUPPORTED, "a count over 1000");
    refused("a{1,99999999999}", ERR_UNSUPPORTED, "a count over 1000");
    refused("(?<=a{256})b", ERR_UNSUPPORTED, "looks back by 256 characters");
}

static void too_many_splits_are_refused(void **state)
{
    struct pretokenizer p = {0};
    struct moeflux_err e = {0};
    (void)state;
    for (int i = 0; i < PRETOKENIZE_MAX_SPLITS; i++)
        add(&p, "a");
    assert_int_equal(pretokenize_add(&p, "a", 1, false, PRETOKENIZE_ISOLATED, &e), ERR_UNSUPPORTED);
    expect(&p, "bab", 3, "b|a|b|");
    pretokenize_free(&p);
}

static int count_piece(void *ctx, const char *bytes, size_t len, struct moeflux_err *e)
{
    (void)bytes;
    (void)len;
    (void)e;
    ++*(size_t *)ctx;
    return 0;
}

/* Each is refused for n times `unit` and then `tail`, and the text names the place. */
static void expect_too_many_steps(const char *pattern, const char *unit, size_t n, const char *tail)
{
    struct pretokenizer p = {0};
    struct str text = {0};
    struct moeflux_err e = {0};
    size_t pieces = 0;
    add(&p, "\\p{N}");
    add(&p, pattern);
    for (size_t i = 0; i < n; i++)
        str_add_text(&text, unit);
    str_add_text(&text, tail);
    int rc = cut(&p, text.data, text.len, count_piece, &pieces, &e);
    if (rc != ERR_UNSUPPORTED || !strstr(e.text, "split 2 of 2 takes too many steps at byte "))
        fail_msg("%s: %d %s", pattern, rc, e.text);
    str_free(&text);
    pretokenize_free(&p);
}

static void runaway_backtracking_is_an_error(void **state)
{
    (void)state;
    expect_too_many_steps("(?:[a-f]+)+[xy]", "a", 48, "");
    expect_too_many_steps(
        "(?:a|a|b)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)[xy]", "a",
        2000, "bx");
}

/* PCRE2's limits count neither the characters of a possessive or atomic run nor the starts of a match. */
static void patterns_whose_time_squares_with_the_text_are_an_error(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "[a-f]++[xy]",
        "(?:[a-f]++|z)[xy]",
        "[a-e]++x|[a-f]++y|[a-g]++z",
        "a*?(?:a++[xy])",
        "(?=[^x]*+y)a",
        "(?:ab?)*+[xy]",
        "(?>a{2,})[xy]",
        "(?>(?:a{1,900}){1,900})[xy]",
        "(?<![b-z])(?>a*)[xy]",
        "(?i)A++[xy]",
        "\\S++[xy]a|\\p{Ll}++[xy]",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        expect_too_many_steps(patterns[i], "a", 30000, "1yx");
}

static size_t count(const char *pattern, const char *unit, size_t times)
{
    struct pretokenizer p = {0};
    struct str text = {0};
    struct moeflux_err e = {0};
    size_t n = 0;
    add(&p, pattern);
    for (size_t i = 0; i < times; i++)
        str_add_text(&text, unit);
    if (cut(&p, text.data, text.len, count_piece, &n, &e) < 0)
        fail_msg("%s", e.text);
    str_free(&text);
    pretokenize_free(&p);
    return n;
}

#define QWEN                                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                            \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"                                                                   \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static void long_pieces_do_not_fail(void **state)
{
    (void)state;
    assert_int_equal(count(QWEN, "a", 3000000), 1);
    assert_int_equal(count(QWEN, " ", 3000000), 1);
    assert_int_equal(count(QWEN, "!", 3000000), 1);
    assert_int_equal(count(QWEN, "\r\n", 1000000), 1);
    assert_int_equal(count(QWEN, "\xe4\xb8\xad", 1000000), 1);
    assert_int_equal(count(QWEN, "1", 200000), 200000);
    /* A group that repeats needs a frame a round: more than the JIT's stack holds. */
    assert_int_equal(count("(?:a|bc)+", "abc", 100000), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_patterns_cut_random_texts_exactly),
        cmocka_unit_test(white_space_is_the_unicode_property),
        cmocka_unit_test(matches_and_gaps_are_both_pieces),
        cmocka_unit_test(a_later_split_sees_pieces_as_whole_texts),
        cmocka_unit_test(a_string_pattern_is_taken_literally),
        cmocka_unit_test(line_anchors_work_by_line),
        cmocka_unit_test(a_script_s_name_means_its_own_characters),
        cmocka_unit_test(letters_fold_to_every_case),
        cmocka_unit_test(patterns_that_engines_read_differently_are_refused),
        cmocka_unit_test(bad_patterns_are_refused),
        cmocka_unit_test(too_many_splits_are_refused),
        cmocka_unit_test(runaway_backtracking_is_an_error),
        cmocka_unit_test(patterns_whose_time_squares_with_the_text_are_an_error),
        cmocka_unit_test(long_pieces_do_not_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
