/* The filter for terminals: no byte of a text can control the terminal.
 *
 * suites: check fast asan */
#include <stdint.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "text/printable.h"

#define BAD "\xef\xbf\xbd"

/* Filters in pieces of `step` bytes. */
static void expect(const char *bytes, size_t n, size_t step, const char *expected)
{
    struct printable p = {0};
    struct str out = {0};
    for (size_t at = 0; at < n; at += step)
        printable_push(&p, bytes + at, n - at < step ? n - at : step, &out);
    printable_end(&p, &out);
    assert_true(str_ok(&out));
    assert_string_equal(str_text(&out), expected);
    assert_int_equal(out.len, strlen(expected));
    str_free(&out);
}

static void expect_text(const char *text, const char *expected)
{
    for (size_t step = 1; step <= strlen(text) + 1; step++)
        expect(text, strlen(text), step, expected);
}

static void plain_text_passes(void **state)
{
    (void)state;
    expect_text("", "");
    expect_text("two lines\n\tand a tab\n", "two lines\n\tand a tab\n");
    /* U+00A0, the first after the C1 controls; a letter, a sign of three bytes and one of four. */
    expect_text("\xc2\xa0 \xc3\xa9 \xe2\x82\xac \xf0\x9f\xa6\x8a ~",
                "\xc2\xa0 \xc3\xa9 \xe2\x82\xac \xf0\x9f\xa6\x8a ~");
}

static void every_control_character_is_replaced(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0xa0; c++) {
        char text[] = {'a', (char)(c < 0x80 ? c : 0xc2), (char)c, 'b'};
        size_t n = c < 0x80 ? 2 : 3;
        bool passes = c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7f);
        char as_it_is[] = {'a', (char)c, 'b', '\0'};
        text[n++] = 'b';
        expect(text, n, 1, passes ? as_it_is : "a" BAD "b");
        expect(text, n, n, passes ? as_it_is : "a" BAD "b");
    }
}

static void every_lone_byte_that_is_no_character_is_replaced(void **state)
{
    (void)state;
    for (unsigned c = 0x80; c <= 0xff; c++) {
        char text[] = {'a', (char)c, 'b'};
        expect(text, sizeof text, 1, "a" BAD "b");
        expect(text, sizeof text, sizeof text, "a" BAD "b");
        expect(text, 2, 2, "a" BAD);
    }
}

static void escape_sequences_lose_what_makes_them_work(void **state)
{
    (void)state;
    expect_text("\x1b[2J\x1b]0;title\x07 \xc2\x9b"
                "31mred",
                BAD "[2J" BAD "]0;title" BAD " " BAD "31mred");
    expect_text("\x9b"
                "31m",
                BAD "31m");
    /* No control comes together from two pieces that are none. */
    expect_text("\xc2\x1b\x9b", BAD BAD BAD);
}

static void line_ends_of_two_characters_become_one(void **state)
{
    (void)state;
    expect_text("one\r\ntwo\r\n", "one\ntwo\n");
    expect_text("over\rwritten", "over" BAD "written");
    expect_text("\r\r\n\r", BAD "\n" BAD);
    expect_text("\r\x1b", BAD BAD);
}

static void a_line_stays_on_its_line(void **state)
{
    struct str out = {0};
    (void)state;
    str_add_text(&out, "name: ");
    printable_line("a\nb\tc\r\n\x1b\x9bz", &out);
    assert_true(str_ok(&out));
    assert_string_equal(str_text(&out), "name: a" BAD "b" BAD "c" BAD BAD BAD "z");
    str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_passes),
        cmocka_unit_test(every_control_character_is_replaced),
        cmocka_unit_test(every_lone_byte_that_is_no_character_is_replaced),
        cmocka_unit_test(escape_sequences_lose_what_makes_them_work),
        cmocka_unit_test(line_ends_of_two_characters_become_one),
        cmocka_unit_test(a_line_stays_on_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
