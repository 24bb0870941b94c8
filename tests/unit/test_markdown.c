/* Colours of an answer through markdown.h: what is dressed, and that the text stays as it is however it comes
 * in pieces.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cli/output.h"
#include "cli/terminal/markdown.h"

/* What comes of the text in pieces of `piece` bytes, from malloc. */
static char *dressed(const char *text, size_t n, size_t piece)
{
    struct output out;
    struct markdown m = {0};
    output_init(&out, STDOUT_FILENO);
    for (size_t at = 0; at < n; at += piece)
        markdown_push(&m, text + at, n - at < piece ? n - at : piece, &out);
    markdown_end(&m, &out);
    assert_true(str_ok(&out.held));
    char *copy = strdup(str_text(&out.held));
    str_free(&out.held);
    return copy;
}

/* [ and ] stand for bold on and off, { and } for code. */
static void check_dressed(const char *text, const char *expected)
{
    static const char *const names[][2] = {
        {"\033[1m", "["}, {"\033[22m", "]"}, {"\033[36m", "{"}, {"\033[39m", "}"}};
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        char *got = dressed(text, strlen(text), piece), shown[400];
        size_t n = 0;
        for (const char *at = got; *at;) {
            const char *name = NULL;
            for (size_t i = 0; i < 4 && !name; i++)
                if (strncmp(at, names[i][0], strlen(names[i][0])) == 0) {
                    name = names[i][1];
                    at += strlen(names[i][0]);
                }
            if (name)
                shown[n++] = *name;
            else
                shown[n++] = *at++;
        }
        shown[n] = '\0';
        free(got);
        if (strcmp(shown, expected) != 0)
            fail_msg("pieces of %zu: \"%s\", expected \"%s\"", piece, shown, expected);
    }
}

static void bold_code_and_headings_are_dressed(void **state)
{
    (void)state;
    check_dressed("a **bold** word", "a [**bold**] word");
    check_dressed("**a**, **b**", "[**a**], [**b**]");
    check_dressed("***all***", "[***all***]");
    check_dressed("say `x = *y` and ``a`b``", "say {`x = *y`} and {``a`b``}");
    check_dressed("**with `code` in it**", "[**with {`code`} in it**]");
    check_dressed("## Title\ntext", "[## Title]\ntext");
    check_dressed("# A **bold** one\n", "[# A **bold** one]\n");
    check_dressed("```c\nint **a; # `x`\n```\ntext", "{```c\nint **a; # `x`\n```}\ntext");
    check_dressed("  ```\na\n  ```", "  {```\na\n  ```}");
    check_dressed("````\n```\n````\n**b**", "{````\n```\n````}\n[**b**]");
    check_dressed("caf\303\251 **\346\227\245**", "caf\303\251 [**\346\227\245**]");
}

static void what_is_no_mark_is_left_alone(void **state)
{
    (void)state;
    check_dressed("2 * 3 ** 4 and a*b*c", "2 * 3 ** 4 and a*b*c");
    check_dressed("* item\n- item\n*** \n", "* item\n- item\n*** \n");
    check_dressed("\\*\\*no\\*\\* \\`no\\`", "\\*\\*no\\*\\* \\`no\\`");
    check_dressed("#hashtag, issue #3, C#", "#hashtag, issue #3, C#");
    check_dressed("    # indented", "    # indented");
    check_dressed("", "");
}

static void what_does_not_end_ends_with_its_line_or_the_text(void **state)
{
    (void)state;
    check_dressed("**open\nnext", "[**open]\nnext");
    check_dressed("`open\nnext", "{`open}\nnext");
    check_dressed("**open", "[**open]");
    check_dressed("```\ncode", "{```\ncode}");
    check_dressed("text **", "text **");
    check_dressed("text `", "text {`}");
    check_dressed("# Title", "[# Title]");
}

static void any_text_stays_as_it_is_and_ends_plain(void **state)
{
    (void)state;
    static const char letters[] = "**``##\\\\ \n\nab";
    srand(5);
    for (int round = 0; round < 3000; round++) {
        char text[40];
        size_t n = (size_t)(rand() % (int)sizeof text), kept = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = letters[(size_t)rand() % (sizeof letters - 1)];
        char *got = dressed(text, n, 1 + (size_t)rand() % 5), *whole = dressed(text, n, sizeof text);
        assert_string_equal(got, whole);
        int bold = 0, code = 0;
        for (const char *at = got; *at; at++) {
            if (*at == '\033') {
                bold += strncmp(at, "\033[1m", 4) == 0 ? 1 : strncmp(at, "\033[22m", 5) == 0 ? -1 : 0;
                code += strncmp(at, "\033[36m", 5) == 0 ? 1 : strncmp(at, "\033[39m", 5) == 0 ? -1 : 0;
                at = strchr(at, 'm');
                continue;
            }
            assert_true(kept < n && *at == text[kept]);
            kept++;
        }
        assert_true(kept == n && bold == 0 && code == 0);
        free(got);
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bold_code_and_headings_are_dressed),
        cmocka_unit_test(what_is_no_mark_is_left_alone),
        cmocka_unit_test(what_does_not_end_ends_with_its_line_or_the_text),
        cmocka_unit_test(any_text_stays_as_it_is_and_ends_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
