/* Keys through keyboard.h: what a byte, a sequence and a pause give. tests/cli/prompt.py has the keys of a
 * whole keyboard.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cli/terminal/keyboard.h"

/* What the bytes give: text as it is, keys as "<N>" with N counted from KEY_LEFT. */
static const char *keys_of(struct keyboard *k, const char *bytes)
{
    static char out[256];
    size_t n = 0;
    for (; *bytes; bytes++) {
        keyboard_push(k, *bytes);
        for (int key; (key = keyboard_next(k)) >= 0;)
            n += (size_t)snprintf(out + n, sizeof out - n, key < KEY_LEFT ? "%c" : "<%d>",
                                  key < KEY_LEFT ? key : key - KEY_LEFT);
    }
    out[n] = '\0';
    return out;
}

static void an_escape_alone_gives_nothing_after_a_pause(void **state)
{
    (void)state;
    struct keyboard k = {0};
    assert_string_equal(keys_of(&k, "a\033"), "a");
    assert_true(keyboard_waits(&k));
    keyboard_give_up(&k);
    assert_int_equal(keyboard_next(&k), -1);
    assert_false(keyboard_waits(&k));
    assert_string_equal(keys_of(&k, "b"), "b");
    /* Without the pause the letter is one with Alt. */
    assert_string_equal(keys_of(&k, "\033b\033x"), "<7>");
    assert_string_equal(keys_of(&k, "\033["), "");
    assert_true(keyboard_waits(&k));
    keyboard_give_up(&k);
    assert_string_equal(keys_of(&k, "A"), "A");
    keyboard_free(&k);
}

static void sequences_without_end_are_dropped(void **state)
{
    (void)state;
    struct keyboard k = {0};
    char endless[200];
    memset(endless, '1', sizeof endless);
    memcpy(endless, "x\033[", 3);
    endless[KEYBOARD_MAX_SEQUENCE] = '\0';
    assert_string_equal(keys_of(&k, endless), "x");
    assert_string_equal(keys_of(&k, "y"), "y");
    /* A letter of several bytes ends one, and belongs to it. */
    assert_string_equal(keys_of(&k, "\033[1\xc3\xa9z\033\xe6\x97\xa5z"), "zz");
    /* A second escape begins anew what the first one did not. */
    assert_string_equal(keys_of(&k, "\033\033[D"), "<7>");
    keyboard_free(&k);
}

static void a_pasted_text_has_no_keys(void **state)
{
    (void)state;
    struct keyboard k = {0};
    assert_string_equal(keys_of(&k, "a\033[200~b\033[D\003\rc\033[201"), "a");
    assert_false(keyboard_waits(&k));
    assert_string_equal(keys_of(&k, "~"), "<11>");
    assert_string_equal(str_text(&k.pasted), "b\033[D\003\rc");
    assert_string_equal(keys_of(&k, "d\033[200~\033[201~"), "d<11>");
    assert_int_equal(k.pasted.len, 0);
    keyboard_reset(&k);
    assert_string_equal(keys_of(&k, "e"), "e");
    keyboard_free(&k);
}

static void an_editor_with_bindings_of_its_own_gets_all_bytes(void **state)
{
    (void)state;
    struct keyboard k = {.as_is = true};
    assert_string_equal(keys_of(&k, "\033[5~\033x\033\xc3\xa9\030"), "\033[5~\033x\033\xc3\xa9\030");
    assert_string_equal(keys_of(&k, "\033"), "");
    keyboard_give_up(&k);
    assert_int_equal(keyboard_next(&k), '\033');
    assert_string_equal(keys_of(&k, "\033[200~b\033[201~"), "<11>");
    keyboard_free(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_escape_alone_gives_nothing_after_a_pause),
        cmocka_unit_test(sequences_without_end_are_dropped),
        cmocka_unit_test(a_pasted_text_has_no_keys),
        cmocka_unit_test(an_editor_with_bindings_of_its_own_gets_all_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
