/* Earlier occurrences of a text's end, compared with a search of the whole text; the words of --draft.
 *
 * suites: check fast asan */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "generate/draft.h"
#include "generate/lookup.h"

enum { MOST = 600 };

static uint32_t length_at(const int32_t *text, uint32_t at, uint32_t n)
{
    uint32_t len = 0;
    while (len < LOOKUP_MOST && len < at && text[at - 1 - len] == text[n - 1 - len])
        len++;
    return len;
}

/* The same of n tokens, whose last one is not in the table yet. */
static uint32_t search(const int32_t *text, uint32_t n, uint32_t least, uint32_t *len)
{
    uint32_t found = 0;
    *len = 0;
    for (uint32_t at = n - 1; at > 0; at--) {
        uint32_t here = length_at(text, at, n);
        if (here >= least && here > *len) {
            *len = here;
            found = at;
        }
    }
    return found;
}

static uint32_t find(const struct lookup *l, const int32_t *text, uint32_t n, uint32_t least, uint32_t *len)
{
    return lookup_find(l, text, &(struct lookup_end){text, n - 1, text[n - 1]}, least, len);
}

/* The table looks at a bounded number of occurrences, so texts with few of each pair are compared. */
static void the_longest_occurrence_is_found_and_of_equal_ones_the_latest(void **state)
{
    (void)state;
    struct lookup l;
    struct moeflux_err e = {0};
    int32_t text[MOST];
    srand(7);
    check_ok(lookup_open(&l, MOST, &e), &e);
    for (uint32_t round = 0; round < 20; round++) {
        lookup_clear(&l);
        for (uint32_t n = 1; n <= MOST; n++) {
            uint32_t len, expected_len, least = 2 + round % 3;
            bool repeats = n > 40 && n % 50 < 25;
            text[n - 1] = repeats ? text[n - 40] : rand() % 40;
            lookup_add(&l, text, n - 1);
            uint32_t expected = search(text, n, least, &expected_len);
            assert_int_equal(find(&l, text, n, least, &len), expected);
            assert_int_equal(len, expected_len);
        }
    }
    lookup_close(&l);
}

static void a_text_of_one_token_is_found_in_bounded_time(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    struct lookup l;
    struct moeflux_err e = {0};
    int32_t *text = calloc(MANY, sizeof *text);
    uint32_t len;
    check_ok(lookup_open(&l, MANY, &e), &e);
    for (uint32_t n = 2; n <= MANY; n++) {
        lookup_add(&l, text, n - 1);
        assert_int_equal(find(&l, text, n, 2, &len), n > 2 ? n - 1 : 0);
    }
    assert_int_equal(len, LOOKUP_MOST);
    lookup_close(&l);
    free(text);
}

static void a_table_that_is_full_keeps_what_it_has(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, 1, 2, 4, 1, 2};
    struct lookup l;
    struct moeflux_err e = {0};
    uint32_t len;
    check_ok(lookup_open(&l, 4, &e), &e);
    lookup_add(&l, text, 7);
    assert_int_equal(l.n, 4);
    assert_int_equal(find(&l, text, 8, 2, &len), 2);
    lookup_close(&l);
}

static void the_words_of_drafts_are_read(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct draft_options o = {0};
    check_ok(draft_options_parse(&o, "--draft", "ngram", &e), &e);
    assert_int_equal(o.kind, DRAFT_NGRAM);
    check_ok(draft_options_parse(&o, "--draft", "file:a b", &e), &e);
    assert_int_equal(o.kind, DRAFT_FILE);
    assert_string_equal(o.path, "a b");
    check_ok(draft_options_parse(&o, "--draft", "off", &e), &e);
    assert_int_equal(o.kind, DRAFT_OFF);
    check_ok(draft_options_parse(&o, "--draft", "auto", &e), &e);
    assert_int_equal(o.kind, DRAFT_AUTO);
    const char *const wrong[] = {"mtp:", "", "file:", "file", "Ngram", "ngram "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(draft_options_parse(&o, "--draft", wrong[i], &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "--draft"));
        assert_non_null(strstr(e.text, "file:PATH"));
    }
    o.no_files = true;
    assert_int_equal(draft_options_parse(&o, "draft", "file:a", &e), ERR_USAGE);
    assert_null(strstr(e.text, "file:PATH"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_occurrence_is_found_and_of_equal_ones_the_latest),
        cmocka_unit_test(a_text_of_one_token_is_found_in_bounded_time),
        cmocka_unit_test(a_table_that_is_full_keeps_what_it_has),
        cmocka_unit_test(the_words_of_drafts_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
