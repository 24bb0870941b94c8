/* An answer through markdown.h and wrap.h: what is dressed, drawn and hidden, where lines break, and that
 * pieces make no difference.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cli/output.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/wrap.h"

/* What comes of the text in pieces of `piece` bytes on a terminal of `width` columns, from malloc. */
static char *shown_by(struct markdown m, const char *text, size_t n, size_t piece, uint32_t width)
{
    struct output out;
    output_init(&out, -1);
    struct wrap w = {.out = &out, .width = width};
    for (size_t at = 0; at < n; at += piece)
        markdown_push(&m, text + at, n - at < piece ? n - at : piece, &w);
    markdown_end(&m, &w);
    wrap_end(&w);
    assert_true(str_ok(&out.held));
    char *copy = strdup(str_text(&out.held));
    str_free(&out.held);
    return copy;
}

static char *shown_in(const char *text, size_t n, size_t piece, uint32_t width)
{
    return shown_by((struct markdown){0}, text, n, piece, width);
}

static char *dressed(const char *text, size_t n, size_t piece)
{
    return shown_in(text, n, piece, 0);
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

static void bold_code_and_headings_are_dressed_and_their_marks_hidden(void **state)
{
    (void)state;
    check_dressed("a **bold** word", "a [bold] word");
    check_dressed("**a**, **b**", "[a], [b]");
    check_dressed("***all***", "[all]");
    check_dressed("say `x = *y` and ``a`b``", "say {x = *y} and {a`b}");
    check_dressed("**with `code` in it**", "[with {code} in it]");
    check_dressed("## Title\ntext", "[Title]\ntext");
    check_dressed("# A **bold** one\n", "[A bold one]\n");
    check_dressed("a\n```c\nint **a; # `x`\n```\ntext", "a\n{int **a; # `x`\n}text");
    check_dressed("  ```\na\n  ```", "{a\n}");
    check_dressed("````\n```\n````\n**b**", "{```\n}[b]");
    check_dressed("caf\303\251 **\346\227\245**", "caf\303\251 [\346\227\245]");
    check_dressed("\346\227\245**\346\227\245**", "\346\227\245[\346\227\245]");
}

static void what_is_no_mark_is_left_alone(void **state)
{
    (void)state;
    check_dressed("2 * 3 ** 4 and a*b*c", "2 * 3 ** 4 and a*b*c");
    check_dressed("x**2 + y**2", "x**2 + y**2");
    check_dressed("* item\n- item\n*** \n", "* item\n- item\n*** \n");
    check_dressed("\\*\\*no\\*\\* \\`no\\`", "\\*\\*no\\*\\* \\`no\\`");
    check_dressed("#hashtag, issue #3, C#", "#hashtag, issue #3, C#");
    check_dressed("    # indented", "    # indented");
    check_dressed("a | b\n|x|\n| y |\nz", "a | b\n|x|\n| y |\nz");
    check_dressed("|", "|");
    check_dressed("  \n x", "  \n x");
    check_dressed("", "");
}

static void a_mark_without_its_partner_stays(void **state)
{
    (void)state;
    check_dressed("**open\nnext**", "**open\nnext**");
    check_dressed("`open\nnext`", "`open\nnext`");
    check_dressed("**open", "**open");
    check_dressed("text **", "text **");
    check_dressed("**a `b` c\n", "**a {b} c\n");
    check_dressed("`a **b** c\n", "`a [b] c\n");
    check_dressed("**a *b***", "[a *b*]");
    check_dressed("***a** b", "***a** b");
    check_dressed("**a \\** b", "**a \\** b");
    check_dressed("``a` b", "``a` b");
    check_dressed("#\n# \n## ", "#\n# \n## ");
    check_dressed("```", "```");
    check_dressed("```c", "```c");
    check_dressed("```a``` is `b`\n", "{a} is {b}\n");
    check_dressed("**a\\\nb**", "**a\\\nb**");
    /* A code block and a heading end with the text. */
    check_dressed("```\ncode", "{code}");
    check_dressed("# Title", "[Title]");
    /* No more than 512 bytes are held back. */
    char text[700] = "**";
    memset(text + 2, 'a', 600);
    char *got = shown_in(text, 602, 7, 0);
    assert_string_equal(got, text);
    free(got);
    strcat(text, "**");
    got = shown_in(text, strlen(text), 1, 0);
    assert_string_equal(got, text);
    free(got);
}

static void fences_in_lists_are_fences(void **state)
{
    (void)state;
    check_dressed("1. do\n    ```sh\n    a **b**\n    ```\nend", "1. do\n{    a **b**\n}end");
}

static void a_plain_text_keeps_every_character(void **state)
{
    static const char letters[] = "**``##\\ \n\nab|-";
    (void)state;
    srand(6);
    for (int round = 0; round < 3000; round++) {
        char text[60];
        size_t n = (size_t)(rand() % (int)sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = letters[(size_t)rand() % (sizeof letters - 1)];
        char *got = shown_by((struct markdown){.plain = true}, text, n, 1 + (size_t)rand() % 5, 0);
        assert_int_equal(strlen(got), n);
        assert_memory_equal(got, text, n);
        free(got);
    }
}

static void tables_are_drawn(void **state)
{
    (void)state;
    check_dressed("| Name | Size |\n|---|---:|\n| a | 1 |\n| **long** name | `100` |\nend",
                  " [Name]      │ [Size]\n───────────┼──────\n a         │    1\n [long] name │  {100}\nend");
    check_dressed("|a|b|\n|:-:|-|\n|xyz|\\||", "  [a]  │ [b]\n─────┼────\n xyz │ \\|\n");
    check_dressed("|a|\n|b|\n", "|a|\n|b|\n");
    check_dressed("|a|b|\n|-|\n", "|a|b|\n|-|\n");
    /* A cell too many would be lost. */
    check_dressed("|a|b|\n|-|-|\n|c|d|e|\n", "|a|b|\n|-|-|\n|c|d|e|\n");
    /* One that is wider than the terminal stays as it is. */
    static const char large[] = "|aaaaaaaaaaaa|bbbbbbbbbbbb|\n|-|-|\n|c|d|\n";
    char *got = shown_in(large, sizeof large - 1, 5, 20);
    assert_non_null(strstr(got, "|c|d|"));
    free(got);
}

static void check_wrapped(const char *text, uint32_t width, const char *expected)
{
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        char *got = shown_in(text, strlen(text), piece, width);
        if (strcmp(got, expected) != 0)
            fail_msg("width %u, pieces of %zu: \"%s\", expected \"%s\"", width, piece, got, expected);
        free(got);
    }
}

static void lines_break_between_words(void **state)
{
    (void)state;
    check_wrapped("the quick brown fox", 10, "the quick\nbrown fox");
    check_wrapped("the quick brown fox", 9, "the quick\nbrown fox");
    check_wrapped("the quick brown fox", 8, "the\nquick\nbrown\nfox");
    check_wrapped("abcdefghijklmnop qr", 10, "abcdefghijklmnop qr");
    check_wrapped("ab\ncd ef\n", 5, "ab\ncd ef\n");
    check_wrapped("a  b", 4, "a  b");
    check_wrapped("one **two three** x", 6, "one\033[1m\ntwo\nthree\033[22m\nx");
    /* A wide character takes two columns and may begin a line. */
    check_wrapped("日本語日本語", 6, "日本語\n日本語");
    check_wrapped("ab 日本", 6, "ab 日\n本");
    /* Marks over a letter take none. */
    check_wrapped("e\314\201e\314\201 ab", 5, "e\314\201e\314\201 ab");
    /* Code stays as it is. */
    check_wrapped("```\nlong line of code\n```\n", 8, "\033[36mlong line of code\n\033[39m");
    check_wrapped("    indented code of a line\n", 8, "    indented code of a line\n");
    check_wrapped("    - an item", 8, "    - an\nitem");
    check_wrapped("say `git add -A` now", 8, "say\033[36m\ngit add -A\033[39m now");
    /* A table that is too wide keeps its lines. */
    check_wrapped("|a b c|d e f|\n|-|-|\n|g h i|k l|\n", 8, "|a b c|d e f|\n|-|-|\n|g h i|k l|\n");
    check_wrapped("anything at all", 0, "anything at all");
}

/* A terminal without colours: every character stays, code and tables keep their lines. */
static void plain_lines_of_code_and_tables_are_not_broken(void **state)
{
    static const char *const whole[] = {"```\nlong line of code\n```\n", "|a b c|d e f|\n|-|-|\n|g h i|k l|",
                                        "    indented code of a line\n"};
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        for (size_t piece = 1; piece < 9; piece++) {
            char *got = shown_by((struct markdown){.plain = true}, whole[i], strlen(whole[i]), piece, 8);
            assert_string_equal(got, whole[i]);
            free(got);
        }
    static const char text[] = "one **two** `a b c` four";
    char *got = shown_by((struct markdown){.plain = true}, text, sizeof text - 1, 3, 9);
    assert_string_equal(got, "one\n**two**\n`a b c`\nfour");
    free(got);
}

/* Escape sequences aside, nothing but marks is gone, and the styles end. */
static void any_text_keeps_what_is_no_mark_and_ends_plain(void **state)
{
    (void)state;
    static const char letters[] = "**``##\\\\ \n\nab|-";
    srand(5);
    for (int round = 0; round < 3000; round++) {
        char text[40], kept[41] = "", left[400] = "";
        size_t n = (size_t)(rand() % (int)sizeof text), n_kept = 0, n_left = 0;
        for (size_t i = 0; i < n; i++) {
            text[i] = letters[(size_t)rand() % (sizeof letters - 1)];
            if (text[i] == 'a' || text[i] == 'b')
                kept[n_kept++] = text[i];
        }
        char *got = dressed(text, n, 1 + (size_t)rand() % 5), *whole = dressed(text, n, sizeof text);
        assert_string_equal(got, whole);
        int bold = 0, code = 0, stars = 0, ticks = 0;
        for (size_t i = 0; i < n; i++) {
            stars += text[i] == '*';
            ticks += text[i] == '`';
        }
        for (const char *at = got; *at; at++) {
            stars -= *at == '*';
            ticks -= *at == '`';
            if (*at == '\033') {
                bold += strncmp(at, "\033[1m", 4) == 0 ? 1 : strncmp(at, "\033[22m", 5) == 0 ? -1 : 0;
                code += strncmp(at, "\033[36m", 5) == 0 ? 1 : strncmp(at, "\033[39m", 5) == 0 ? -1 : 0;
                at = strchr(at, 'm');
            } else if (*at == 'a' || *at == 'b') {
                left[n_left++] = *at;
            }
        }
        /* The name of a code block's language is hidden with its fence. */
        assert_true(bold == 0 && code == 0);
        /* Marks are hidden in pairs, and only next to what they draw. */
        bool has_fence = memmem(text, n, "```", 3) != NULL;
        assert_true(has_fence || (stars % 2 == 0 && (!stars || strstr(got, "\033[1m"))));
        assert_true(has_fence || (ticks % 2 == 0 && (!ticks || strstr(got, "\033[36m"))));
        if (!memmem(text, n, "```", 3))
            assert_string_equal(left, kept);
        free(got);
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bold_code_and_headings_are_dressed_and_their_marks_hidden),
        cmocka_unit_test(what_is_no_mark_is_left_alone),
        cmocka_unit_test(a_mark_without_its_partner_stays),
        cmocka_unit_test(fences_in_lists_are_fences),
        cmocka_unit_test(a_plain_text_keeps_every_character),
        cmocka_unit_test(tables_are_drawn),
        cmocka_unit_test(lines_break_between_words),
        cmocka_unit_test(plain_lines_of_code_and_tables_are_not_broken),
        cmocka_unit_test(any_text_keeps_what_is_no_mark_and_ends_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
