/* Unicode normalisation form C against the standard.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer/nfc.h"

static void expect(const char *in, const char *out)
{
    struct str got = {0};
    struct moeflux_err e = {0};
    assert_int_equal(nfc_add(in, strlen(in), &got, &e), 0);
    assert_string_equal(str_text(&got), out);
    str_free(&got);
}

/* Cases of the Unicode standard, section 3.11 and annex 15. */
static void characters_compose_as_the_standard_says(void **state)
{
    (void)state;
    expect("", "");
    expect("plain \xc3\xa9\xc3\xa9", "plain \xc3\xa9\xc3\xa9");
    /* e + acute */
    expect("e\xcc\x81", "\xc3\xa9");
    /* angstrom sign, ohm sign: single characters that change */
    expect("\xe2\x84\xab\xe2\x84\xa6", "\xc3\x85\xce\xa9");
    /* q + dot above + dot below: ordered, not composed */
    expect("q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87");
    /* D + dot above + dot below: D with dot below + dot above */
    expect("D\xcc\x87\xcc\xa3", "\xe1\xb8\x8c\xcc\x87");
    /* Hangul L + V + T */
    expect("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81");
    /* a composition exclusion: DEVANAGARI QA stays apart */
    expect("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");
    /* compatibility characters stay: the fi ligature */
    expect("\xef\xac\x81", "\xef\xac\x81");
}

static void the_longest_decomposition_comes_back(void **state)
{
    (void)state;
    /* U+1F82: four characters apart */
    expect("\xe1\xbe\x82", "\xe1\xbe\x82");
    expect("\xce\xb1\xcc\x93\xcc\x80\xcd\x85", "\xe1\xbe\x82");
}

/* Marks of Unicode 10 and later have no class there, and newer compositions do not exist. */
static void newer_characters_stay_as_in_the_published_library(void **state)
{
    (void)state;
    expect("a\xe0\xa3\x8a\xcc\x81", "a\xe0\xa3\x8a\xcc\x81");
    expect("a\xcc\xa3\xe0\xa3\x8a\xcc\x81", "\xe1\xba\xa1\xe0\xa3\x8a\xcc\x81");
    expect("a\xcc\x81\xcc\xa3\xe0\xa3\x8a\xcc\xa3\xcc\x81",
           "\xe1\xba\xa1\xcc\x81\xe0\xa3\x8a\xcc\xa3\xcc\x81");
    expect("\xe1\xab\x81\xcc\x81\xcc\xa3", "\xe1\xab\x81\xcc\xa3\xcc\x81");
    expect("e\xcc\x81\xe1\xab\x81", "\xc3\xa9\xe1\xab\x81");
    expect("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0");
    expect("\xeb\xa4\xbc\xe1\x86\xa7", "\xeb\xa4\xbc\xe1\x86\xa7");
    expect("\xf0\x91\xa4\xb8", "\xf0\x91\xa4\xb8");
}

static void zero_bytes_are_characters(void **state)
{
    struct str got = {0};
    (void)state;
    assert_int_equal(nfc_add("e\xcc\x81\0e\xcc\x81", 7, &got, NULL), 0);
    assert_int_equal(got.len, 5);
    assert_memory_equal(got.data, "\xc3\xa9\0\xc3\xa9", 5);
    str_free(&got);
}

/* Marks of two classes that alternate: a sort by exchange would take 10^11 steps here. */
static void a_long_run_of_marks_is_ordered_stably(void **state)
{
    enum { PAIRS = 300000 };
    struct str in = {0}, out = {0};
    (void)state;
    str_add_text(&in, "x");
    for (int i = 0; i < PAIRS; i++)
        str_add_text(&in, "\xcc\x81\xcc\xa3");
    assert_int_equal(nfc_add(in.data, in.len, &out, NULL), 0);
    assert_int_equal(out.len, in.len);
    for (size_t i = 0; i < 2 * PAIRS; i++)
        assert_memory_equal(out.data + 1 + 2 * i, i < PAIRS ? "\xcc\xa3" : "\xcc\x81", 2);
    str_free(&in);
    str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_compose_as_the_standard_says),
        cmocka_unit_test(the_longest_decomposition_comes_back),
        cmocka_unit_test(newer_characters_stay_as_in_the_published_library),
        cmocka_unit_test(zero_bytes_are_characters),
        cmocka_unit_test(a_long_run_of_marks_is_ordered_stably),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
