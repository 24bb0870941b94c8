/* Mutated tokenizer files open or are refused with an error; none crashes.
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
#include "base/file.h"
#include "fuzz.h"
#include "text/tokenizer/tokenizer.h"
#include "tokenizer_build.h"

/* Whatever the file says, a tokenizer that opened must encode or refuse, and decode every id it gave. */
static void use(const struct tokenizer *t)
{
    static const char text[] = "abcab <end> 12 e\xcc\x81\xff\n\n  \xe4\xb8\xad!";
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    int rc = tokenizer_encode(t, text, sizeof text - 1, SPECIALS_AS_TOKENS, &ids, NULL, &e);
    assert_true(rc == 0 || (rc == (int)e.code && e.text[0]));
    assert_true(rc == 0 ? ids.n > 0 : ids.n == 0);
    for (size_t i = 0; i < ids.n; i++) {
        const char *bytes;
        assert_true(tokenizer_has(t, ids.ids[i]));
        assert_true(tokenizer_bytes(t, ids.ids[i], &bytes) <= 1 << 20);
    }
    token_list_free(&ids);
}

/* Returns whether the mutated file opened. */
static bool try_one(struct fuzz *f, const char *text, size_t len)
{
    size_t cap = len + 512;
    uint8_t *copy = malloc(cap);
    struct moeflux_err e = {0};
    memcpy(copy, text, len);
    size_t n = fuzz_mutate(f, copy, len, cap);
    struct tokenizer *t = tokenizer_build_open_text((const char *)copy, n, &e);
    if (t) {
        use(t);
    } else {
        assert_true(e.code == ERR_FORMAT || e.code == ERR_UNSUPPORTED);
        assert_true(e.text[0] && !strchr(e.text, '\n'));
    }
    tokenizer_free(t);
    free(copy);
    return t != NULL;
}

static void mutated_small_files_open_or_are_refused(void **state)
{
    json_t *root = tokenizer_build(),
           *patterns = json_pack("[ss]", "\\p{N}{1,3}", "(?i:'s)|\\s+(?!\\S)|[^\\s]+|\\s+");
    struct fuzz f = {2024};
    int n_opened = 0;
    (void)state;
    tokenizer_build_splits(root, patterns);
    tokenizer_build_added(root, "<more>", 300, true, false);
    char *text = json_dumps(root, JSON_COMPACT);
    for (int i = 0; i < 6000; i++)
        n_opened += try_one(&f, text, strlen(text));
    /* Mutations that leave a file valid must occur, or nothing past the parser was tried. */
    assert_in_range(n_opened, 100, 5900);
    free(text);
    json_decref(patterns);
    json_decref(root);
}

/* The settings alone, without the long vocabulary: here most edits hit patterns and flags. */
static void mutated_settings_open_or_are_refused(void **state)
{
    struct fuzz f = {7};
    json_t *root = tokenizer_build(), *model = json_object_get(root, "model");
    struct moeflux_err e = {0};
    int n_opened = 0;
    (void)state;
    json_t *steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_array_insert_new(steps, 0, json_pack("{ss sb}", "type", "Digits", "individual_digits", 1));
    json_object_set_new(json_array_get(steps, 1), "behavior", json_string("MergedWithNext"));
    json_object_set_new(root, "post_processor",
                        json_pack("{ss s[{s{ss}} {s{ss}}] s{s{s[i]}}}", "type", "TemplateProcessing",
                                  "single", "SpecialToken", "id", "<end>", "Sequence", "id", "A",
                                  "special_tokens", "<end>", "ids", 258));
    char *lists = json_dumps(model, JSON_COMPACT);
    json_object_del(root, "model");
    char *rest = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    for (int i = 0; i < 6000; i++) {
        size_t len = strlen(rest), cap = len + 512;
        char *text = malloc(cap + strlen(lists) + 16);
        memcpy(text, rest, len);
        size_t n = fuzz_mutate(&f, (uint8_t *)text, len - 1, cap);
        n += (size_t)sprintf(text + n, ",\"model\":%s}", lists);
        struct tokenizer *t = tokenizer_build_open_text(text, n, &e);
        if (t)
            use(t);
        n_opened += t != NULL;
        tokenizer_free(t);
        free(text);
    }
    assert_in_range(n_opened, 100, 5900);
    free(rest);
    free(lists);
}

static void a_mutated_real_file_opens_or_is_refused(void **state)
{
    struct fuzz f = {99};
    char *text;
    size_t len;
    (void)state;
    assert_int_equal(file_read_text("tests/models/tiny/tokenizer.json", 1 << 20, &text, &len, NULL), 0);
    for (int i = 0; i < 200; i++)
        try_one(&f, text, len);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_small_files_open_or_are_refused),
        cmocka_unit_test(mutated_settings_open_or_are_refused),
        cmocka_unit_test(a_mutated_real_file_opens_or_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
