/* The templates with <|im_start|> turns: which one it is, what Qwen3's write, how their answers are sorted. Qwen3.5's
 * turns are in test_chat.c. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "tmp_tree.h"
#include "tokens.h"

/* What tells the templates apart: what stands in front of an answer. Earlier parts name the think block too. */
#define CUT_THINKING "{% if '</think>' in text %}{{ text.split('</think>')[-1] }}{% endif %}{{ '<think>' }}"
#define OPEN_TURN    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
#define NOT_THINKING                                                                                         \
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"

static const char *const templates[] = {
    [CHAT_QWEN35] = CUT_THINKING OPEN_TURN NOT_THINKING "{% else %}{{ '<think>\\n' }}{% endif %}{% endif %}",
    [CHAT_QWEN3] = CUT_THINKING OPEN_TURN NOT_THINKING "{% endif %}{% endif %}",
    [CHAT_QWEN3_THINKING] =
        CUT_THINKING "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
    [CHAT_CHATML] = CUT_THINKING OPEN_TURN "{% endif %}",
};

/* The tiny model's tokenizer, which has all tags, with a template beside it (NULL: none). */
static struct tokenizer *open_with(const char *template)
{
    struct moeflux_err e = {0};
    size_t n;
    char *tmp = tmp_tree_new();
    uint8_t *file = tmp_tree_read("tests/models/tiny/tokenizer.json", &n);
    tmp_tree_write(tmp, "tokenizer.json", file, n);
    if (template)
        tmp_tree_write_text(tmp, "chat_template.jinja", template);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    free(file);
    tmp_tree_remove(tmp);
    return t;
}

static struct chat start(const struct tokenizer *t, enum chat_kind kind, enum chat_thinking thinking)
{
    struct chat c;
    struct moeflux_err e = {0};
    check_ok(chat_init(&c, t, kind, thinking, &e), &e);
    return c;
}

/* ---- which template ---- */

static void the_template_is_told_by_what_stands_before_an_answer(void **state)
{
    (void)state;
    for (int i = CHAT_QWEN35; i <= CHAT_CHATML; i++) {
        struct tokenizer *t = open_with(templates[i]);
        enum chat_kind kind;
        struct moeflux_err e = {0};
        /* The model's own template counts, whatever its family. */
        check_ok(chat_find_kind(t, "qwen3.5", &kind, &e), &e);
        assert_int_equal(kind, i);
        tokenizer_free(t);
    }
}

static void the_family_stands_in_for_a_template_that_is_missing(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(NULL);
    enum chat_kind kind;
    struct moeflux_err e = {0};
    check_ok(chat_find_kind(t, "qwen3", &kind, &e), &e);
    assert_int_equal(kind, CHAT_QWEN3);
    check_ok(chat_find_kind(t, "qwen3.5", &kind, &e), &e);
    assert_int_equal(kind, CHAT_QWEN35);
    static const char *const unknown[] = {NULL, "another"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(chat_find_kind(t, unknown[i], &kind, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "neither chat_template.jinja nor a chat_template in"));
    }
    tokenizer_free(t);
}

static void a_template_that_cannot_be_told_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t = open_with("{{ messages }}");
    enum chat_kind kind;
    struct moeflux_err e = {0};
    assert_int_equal(chat_find_kind(t, "qwen3", &kind, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "not one of Qwen3.5, Qwen3, "));
    tokenizer_free(t);
}

/* ---- what they write ---- */

static void expect_prompt(enum chat_kind kind, enum chat_thinking thinking, const char *want)
{
    struct tokenizer *t = open_with(NULL);
    struct chat c = start(t, kind, thinking);
    struct token_list got = {0};
    struct moeflux_err e = {0};
    check_ok(chat_begin(&c, "Be brief.", 9, &got, NULL, &e), &e);
    check_ok(chat_user(&c, "hi ", 3, &got, NULL, &e), &e);
    tokens_expect(t, want, &got);
    tokenizer_free(t);
}

#define TURNS                                                                                                \
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi <|im_end|>\n<|im_start|>assistant\n"

static void qwen3_thinks_by_itself_and_text_is_not_trimmed(void **state)
{
    (void)state;
    expect_prompt(CHAT_QWEN3, CHAT_THINKING_AUTO, TURNS);
    expect_prompt(CHAT_QWEN3, CHAT_THINKING_ON, TURNS);
    expect_prompt(CHAT_QWEN3, CHAT_THINKING_OFF, TURNS "<think>\n\n</think>\n\n");
    expect_prompt(CHAT_QWEN3_THINKING, CHAT_THINKING_AUTO, TURNS "<think>\n");
    expect_prompt(CHAT_QWEN3_THINKING, CHAT_THINKING_ON, TURNS "<think>\n");
    expect_prompt(CHAT_CHATML, CHAT_THINKING_AUTO, TURNS);
    expect_prompt(CHAT_CHATML, CHAT_THINKING_OFF, TURNS);
}

static void what_a_template_cannot_do_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(NULL);
    struct chat c;
    struct moeflux_err e = {0};
    assert_int_equal(chat_init(&c, t, CHAT_CHATML, CHAT_THINKING_ON, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "has no thinking"));
    assert_int_equal(chat_init(&c, t, CHAT_QWEN3_THINKING, CHAT_THINKING_OFF, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "always thinks"));
    tokenizer_free(t);
}

static void a_past_answer_stands_without_thinking(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(NULL);
    struct chat c = start(t, CHAT_QWEN3, CHAT_THINKING_AUTO);
    struct token_list got = {0};
    struct moeflux_err e = {0};
    check_ok(chat_begin(&c, "", 0, &got, NULL, &e), &e);
    check_ok(chat_exchange(&c, "one", 3, "1", 1, &got, NULL, &e), &e);
    check_ok(chat_user(&c, "two", 3, &got, NULL, &e), &e);
    tokens_expect(t,
                  "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
                  "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
                  &got);
    tokenizer_free(t);
}

/* ---- answers ---- */

static void expect_answer(enum chat_kind kind, enum chat_thinking thinking, const char *answer,
                          const char *want_thinking, const char *want_answer)
{
    struct tokenizer *t = open_with(NULL);
    struct chat c = start(t, kind, thinking);
    struct token_list ids = {0};
    struct str thought = {0}, said = {0}, shown = {0};
    struct chat_filter f;
    tokens_add(t, answer, &ids);
    chat_filter_init(&f, &c);
    for (size_t i = 0; i < ids.n; i++) {
        str_clear(&shown);
        enum chat_part part = chat_filter_push(&f, &c, ids.ids[i], &shown);
        str_add(part == CHAT_THINKING ? &thought : &said, str_text(&shown), shown.len);
    }
    assert_string_equal(str_text(&thought), want_thinking);
    assert_string_equal(str_text(&said), want_answer);
    str_free(&thought);
    str_free(&said);
    str_free(&shown);
    token_list_free(&ids);
    tokenizer_free(t);
}

static void the_block_that_the_model_opens_is_thinking(void **state)
{
    (void)state;
    expect_answer(CHAT_QWEN3, CHAT_THINKING_AUTO, "<think>\n1\n2\n</think>\n\n3\n4<|im_end|>", "1\n2\n",
                  "3\n4");
    expect_answer(CHAT_QWEN3, CHAT_THINKING_AUTO, "3<|im_end|>", "", "3");
    expect_answer(CHAT_QWEN3, CHAT_THINKING_OFF, "3\n<|im_end|>", "", "3\n");
    expect_answer(CHAT_QWEN3_THINKING, CHAT_THINKING_AUTO, "1\n</think>\n\n3<|im_end|>", "1\n", "3");
    expect_answer(CHAT_CHATML, CHAT_THINKING_AUTO, "3<|im_end|>", "", "3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_template_is_told_by_what_stands_before_an_answer),
        cmocka_unit_test(the_family_stands_in_for_a_template_that_is_missing),
        cmocka_unit_test(a_template_that_cannot_be_told_is_refused),
        cmocka_unit_test(qwen3_thinks_by_itself_and_text_is_not_trimmed),
        cmocka_unit_test(what_a_template_cannot_do_is_refused),
        cmocka_unit_test(a_past_answer_stands_without_thinking),
        cmocka_unit_test(the_block_that_the_model_opens_is_thinking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
