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
#include "text/tokenizer.h"

#define TINY "tests/models/tiny/tokenizer.json"

static int open_tiny(void **state)
{
    struct err e = {0};
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
    struct err e = {0};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_encode_and_decode_exactly),
        cmocka_unit_test(random_texts_encode_and_decode_exactly),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
