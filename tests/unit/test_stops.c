/* Stop strings are found wherever the pieces of the text end.
 *
 * suites: check fast asan */
#include "check.h"

#include <string.h>

#include "fuzz.h"
#include "text/stops.h"

/* The definition: the first byte with which a stop is complete; of those complete with it, the longest. */
static size_t find_first(const char *text, const char *const *stops, size_t n, int *which)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n; k++) {
            size_t len = strlen(stops[k]);
            if (len <= end && len > longest && memcmp(text + end - len, stops[k], len) == 0) {
                longest = len;
                *which = (int)k;
            }
        }
        if (longest)
            return end - longest;
    }
    *which = STOPS_NONE;
    return strlen(text);
}

/* Filters pieces of 1 to most_piece bytes; out gets what is shown. */
static int push_all(const char *text, const char *const *stops, size_t n, struct fuzz *f, uint32_t most_piece,
                    struct str *out)
{
    struct moeflux_err e = {0};
    struct stops s;
    int found = STOPS_NONE;
    size_t len = strlen(text);
    check_ok(stops_init(&s, stops, n, &e), &e);
    for (size_t at = 0, size; at < len && found == STOPS_NONE; at += size) {
        size = 1 + (size_t)fuzz_below(f, most_piece);
        size = size < len - at ? size : len - at;
        found = stops_push(&s, text + at, size, out);
    }
    if (found == STOPS_NONE)
        stops_end(&s, out);
    stops_free(&s);
    return found;
}

static void the_first_stop_that_is_complete_ends_the_text_wherever_pieces_part(void **state)
{
    struct fuzz f = {7};
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char text[25] = {0}, texts[4][7] = {{0}};
        const char *stops[4] = {texts[0], texts[1], texts[2], texts[3]};
        uint64_t letters = 2 + fuzz_below(&f, 2);
        size_t n = fuzz_below(&f, 5), len = fuzz_below(&f, sizeof text);
        for (size_t k = 0; k < len; k++)
            text[k] = (char)('a' + fuzz_below(&f, letters));
        for (size_t k = 0; k < n; k++)
            for (size_t j = 0, m = 1 + fuzz_below(&f, 6); j < m; j++)
                texts[k][j] = (char)('a' + fuzz_below(&f, letters));
        int expected;
        size_t shown = find_first(text, stops, n, &expected);
        struct str out = {0};
        int found = push_all(text, stops, n, &f, 6, &out);
        assert_int_equal(found < 0, expected < 0);
        if (found >= 0)
            assert_string_equal(stops[found], stops[expected]);
        assert_int_equal(out.len, shown);
        assert_memory_equal(str_text(&out), text, shown);
        str_free(&out);
    }
}

static void text_that_cannot_become_a_stop_comes_at_once(void **state)
{
    static const char *const stops[] = {"\nUser:", "###"};
    struct moeflux_err e = {0};
    struct stops s;
    struct str out = {0};
    (void)state;
    check_ok(stops_init(&s, stops, 2, &e), &e);
    assert_int_equal(stops_push(&s, "Hello #", 7, &out), STOPS_NONE);
    assert_string_equal(str_text(&out), "Hello ");
    assert_int_equal(stops_push(&s, "1\nUse", 5, &out), STOPS_NONE);
    assert_string_equal(str_text(&out), "Hello #1");
    assert_int_equal(stops_push(&s, "ful", 3, &out), STOPS_NONE);
    assert_string_equal(str_text(&out), "Hello #1\nUseful");
    assert_int_equal(stops_push(&s, "##", 2, &out), STOPS_NONE);
    stops_end(&s, &out);
    assert_string_equal(str_text(&out), "Hello #1\nUseful##");
    /* What came before the end is none of what comes after it. */
    assert_int_equal(stops_push(&s, "#.", 2, &out), STOPS_NONE);
    assert_string_equal(str_text(&out), "Hello #1\nUseful###.");
    stops_free(&s);
    str_free(&out);
}

static void a_zero_byte_is_part_of_no_stop(void **state)
{
    static const char *const stops[] = {"aa"};
    struct moeflux_err e = {0};
    struct stops s;
    struct str out = {0};
    (void)state;
    check_ok(stops_init(&s, stops, 1, &e), &e);
    assert_int_equal(stops_push(&s, "a\0a\0", 4, &out), STOPS_NONE);
    assert_int_equal(out.len, 4);
    assert_int_equal(stops_push(&s, "aa\0", 3, &out), 0);
    assert_int_equal(stops_push(&s, "\0b", 2, &out), STOPS_NONE);
    assert_int_equal(out.len, 6);
    stops_free(&s);
    str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_stop_that_is_complete_ends_the_text_wherever_pieces_part),
        cmocka_unit_test(text_that_cannot_become_a_stop_comes_at_once),
        cmocka_unit_test(a_zero_byte_is_part_of_no_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
