/* A stream of bytes leaves in whole UTF-8 characters.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "text/utf8.h"

#define R "\xef\xbf\xbd"

struct sample {
    const char *in, *out;
    size_t n_replaced;
};

/* Expected: the Unicode standard's tables on maximal subparts (section 3.9). */
static const struct sample samples[] = {
    {"", "", 0},
    {"plain", "plain", 0},
    {"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x91\xa9", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x91\xa9", 0},
    {"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80", "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80", 0},
    {"a\x80z", "a" R "z", 1},
    {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A", 8},
    {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A", 8},
    {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B", 7},
    {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A", 4},
    {"\xe4\xb8", R, 1},
    {"x\xf0\x9f\x91", "x" R, 1},
};
#define N_SAMPLES (sizeof samples / sizeof *samples)

static void clean_replaces_each_maximal_invalid_sequence_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        struct str out = {0};
        assert_int_equal(utf8_clean(samples[i].in, strlen(samples[i].in), &out), samples[i].n_replaced);
        assert_string_equal(str_text(&out), samples[i].out);
        str_free(&out);
    }
}

static void clean_appends_and_keeps_zero_bytes(void **state)
{
    struct str out = {0};
    (void)state;
    str_add_text(&out, "x");
    assert_int_equal(utf8_clean("a\0\xff", 3, &out), 1);
    assert_int_equal(out.len, 6);
    assert_memory_equal(out.data, "xa\0" R, 6);
    str_free(&out);
}

static void stream_cut_anywhere_gives_what_clean_gives(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        size_t len = strlen(samples[i].in);
        for (size_t cut = 0; cut <= len; cut++) {
            struct utf8_stream s = {0};
            struct str out = {0};
            utf8_stream_push(&s, samples[i].in, cut, &out);
            utf8_stream_push(&s, samples[i].in + cut, len - cut, &out);
            utf8_stream_end(&s, &out);
            assert_string_equal(str_text(&out), samples[i].out);
            str_free(&out);
        }
    }
}

static void stream_holds_an_unfinished_character_back(void **state)
{
    static const char woman[] = "\xf0\x9f\x91\xa9";
    struct utf8_stream s = {0};
    struct str out = {0};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        utf8_stream_push(&s, woman + i, 1, &out);
        assert_int_equal(out.len, 0);
    }
    utf8_stream_push(&s, woman + 3, 1, &out);
    assert_string_equal(out.data, woman);
    str_free(&out);
}

static void stream_end_can_be_followed_by_a_new_text(void **state)
{
    struct utf8_stream s = {0};
    struct str out = {0};
    (void)state;
    utf8_stream_push(&s, "\xe4\xb8", 2, &out);
    utf8_stream_end(&s, &out);
    utf8_stream_end(&s, &out);
    utf8_stream_push(&s, "b", 1, &out);
    assert_string_equal(out.data, R "b");
    str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_replaces_each_maximal_invalid_sequence_once),
        cmocka_unit_test(clean_appends_and_keeps_zero_bytes),
        cmocka_unit_test(stream_cut_anywhere_gives_what_clean_gives),
        cmocka_unit_test(stream_holds_an_unfinished_character_back),
        cmocka_unit_test(stream_end_can_be_followed_by_a_new_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
