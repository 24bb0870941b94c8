/* Parsed JSON: what its values are counted as, and the memory that a hostile text may make it take.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_sent.h"
#include "base/str.h"
#include "check.h"
#include "peak.h"

static void values_are_commas_and_brackets_outside_of_strings(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"{}", 1}, {"{\"a\": 1, \"b\": [1, 2, 3]}", 5}, {"{\"[{,\\\",[\": 1}", 1}, {"{\"a\": [[], {}]}", 5},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(json_count_values(cases[i].text, strlen(cases[i].text)), cases[i].n);
}

static void one_value_more_than_allowed_is_refused(void **state)
{
    static const char text[] = "{\"a\": [1, 2, 3], \"b\": {}}";
    (void)state;
    struct moeflux_err e = {0};
    json_t *root = NULL;
    size_t n = json_count_values(text, strlen(text));
    check_ok(json_read(text, strlen(text), "f.json", n, &root, &e), &e);
    json_decref(root);
    assert_int_equal(json_read(text, strlen(text), "f.json", n - 1, &root, &e), ERR_FORMAT);
    assert_string_equal(e.text, "f.json: 6 JSON values, expected at most 5");
}

static void escapes_that_are_no_characters_become_one(void **state)
{
#define NONE "\xef\xbf\xbd" /* U+FFFD */
    static const struct {
        const char *text, *read;
    } cases[] = {
        {"\\u0000", NONE},
        {"a\\u0000b\\u0000", "a" NONE "b" NONE},
        /* A pair is a character. */
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80"},
        {"\\uD83D\\uDE00\\uDE00", "\xf0\x9f\x98\x80" NONE},
        {"\\ud83d\\ud83d\\ude00", NONE "\xf0\x9f\x98\x80"},
        /* Half of one is none. */
        {"\\ud83d", NONE},
        {"\\uDBFFx", NONE "x"},
        {"\\ud83d\\u0041", NONE "A"},
        {"\\ud83d\\n", NONE "\n"},
        {"\\ud800ude00", NONE "ude00"},
        {"\\udc00", NONE},
        {"a\\uDFFF", "a" NONE},
        {"\\ude00\\ud83d", NONE NONE},
        /* No escape begins after an escaped backslash. */
        {"\\\\ud83d \\\\u0000", "\\ud83d \\u0000"},
        {"\\\\\\ud83d", "\\" NONE},
        {"\\\"\\ud83d", "\"" NONE},
        {"\\ud7ff\\ue000\\u0001", "\xed\x9f\xbf\xee\x80\x80\x01"},
    };
    json_error_t why;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str text = {0};
        str_addf(&text, "{\"%s\": \"%s\"}", cases[i].text, cases[i].text);
        json_t *root = json_sent_read(str_text(&text), text.len, &why);
        if (!root)
            fail_msg("%s: %s", cases[i].text, why.text);
        json_t *value = json_object_get(root, cases[i].read);
        assert_string_equal(json_string_value(value), cases[i].read);
        assert_int_equal(json_string_length(value), strlen(cases[i].read));
        json_decref(root);
        /* Nothing past the end of the text is read, wherever it ends. */
        for (size_t n = 0; n < text.len; n++) {
            char *cut = malloc(n ? n : 1);
            assert_non_null(cut);
            memcpy(cut, str_text(&text), n);
            assert_null(json_sent_read(cut, n, &why));
            free(cut);
        }
        str_free(&text);
    }
}

static void numbers_that_jansson_cannot_hold_are_passed_on_as_written(void **state)
{
    static const char text[] =
        "{\"a\": [18446744073709551616, -9223372036854775809, 9223372036854775807, 1e999, "
        "-1.5E+400, 0.5], \"b \\\" 99999999999999999999\": 123456789012345678901234567890}";
    json_error_t why;
    (void)state;
    json_t *root = json_sent_read(text, sizeof text - 1, &why), *list = json_object_get(root, "a");
    assert_non_null(root);
    assert_string_equal(json_sent_number(json_array_get(list, 0)), "18446744073709551616");
    assert_string_equal(json_sent_number(json_array_get(list, 4)), "-1.5E+400");
    assert_null(json_sent_number(json_array_get(list, 2)));
    assert_true(json_integer_value(json_array_get(list, 2)) == INT64_MAX);
    char *again = json_sent_dump(root, 0);
    assert_string_equal(again, text);
    free(again);
    json_t *rounded = json_sent_round(root);
    assert_true(json_real_value(json_array_get(json_object_get(rounded, "a"), 0)) == 0x1p64);
    assert_true(json_real_value(json_array_get(json_object_get(rounded, "a"), 3)) > 1e308);
    json_decref(rounded);
    json_decref(root);
    /* A text is no number, whatever it begins with. */
    static const char mark[] = "{\"a\": \"\xef\xb7\x90x1\", \"b\": \"\xef\xb7\x90\"}";
    root = json_sent_read(mark, sizeof mark - 1, &why);
    assert_null(json_sent_number(json_object_get(root, "a")));
    assert_null(json_sent_number(json_object_get(root, "b")));
    json_decref(root);
    assert_null(json_sent_read("[99999999999999999999, 1.2.3]", 29, &why));
    assert_null(json_sent_read("[099999999999999999999]", 23, &why));
}

/* {"x": [unit, unit, ... unit]} */
static struct str list_of(const char *unit, size_t n)
{
    struct str s = {0};
    str_add_text(&s, "{\"x\":[");
    for (size_t i = 0; i < n; i++) {
        str_add_text(&s, i ? "," : "");
        str_add_text(&s, unit);
    }
    str_add_text(&s, "]}");
    assert_true(str_ok(&s));
    return s;
}

struct reading {
    const struct str *text;
    size_t most;
    int rc;
};

static void read_it(void *ctx)
{
    struct reading *r = ctx;
    json_t *root = NULL;
    struct moeflux_err e;
    int rc = json_read(r->text->data, r->text->len, "f.json", r->most, &root, &e);
    if (rc != r->rc)
        abort();
    json_decref(root);
}

static const char *const units[] = {
    "{}", "[]", "1", "\"\"", "{\"a\":{}}", "{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}", "[[[[1]]]]"};

/* The page tables' and the allocator's own; AddressSanitizer's puts bytes around each piece of memory. */
#ifdef __SANITIZE_ADDRESS__
enum { SLACK = 64 << 20, FACTOR = 3 };
#else
enum { SLACK = 8 << 20, FACTOR = 1 };
#endif

static void a_tree_takes_no_more_than_its_limit_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct str text = list_of(units[i], 100000);
        size_t n = json_count_values(text.data, text.len);
        uint64_t bytes = peak_of(read_it, &(struct reading){&text, n, 0});
        uint64_t most = FACTOR * ((uint64_t)n * JSON_VALUE_BYTES + text.len);
        if (bytes > most + SLACK || bytes < text.len / 2)
            fail_msg("%s: %llu bytes of memory, expected at most %llu", units[i], (unsigned long long)bytes,
                     (unsigned long long)most);
        str_free(&text);
    }
}

static void text_of_too_many_values_takes_no_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct str text = list_of(units[i], 2000000);
        uint64_t bytes = peak_of(read_it, &(struct reading){&text, JSON_MAX_SMALL, ERR_FORMAT});
        if (bytes > SLACK)
            fail_msg("%s: %llu bytes of memory", units[i], (unsigned long long)bytes);
        str_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_that_jansson_cannot_hold_are_passed_on_as_written),
        cmocka_unit_test(values_are_commas_and_brackets_outside_of_strings),
        cmocka_unit_test(one_value_more_than_allowed_is_refused),
        cmocka_unit_test(escapes_that_are_no_characters_become_one),
        cmocka_unit_test(a_tree_takes_no_more_than_its_limit_says),
        cmocka_unit_test(text_of_too_many_values_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
