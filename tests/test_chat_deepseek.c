/* The templates of DeepSeek-V3, V3.1 and Cogito-V2: which one it is, what they write, how answers are sorted. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "tmp_tree.h"
#include "tokenizer_build.h"
#include "tokens.h"

#define BEGIN     "<｜begin▁of▁sentence｜>"
#define END       "<｜end▁of▁sentence｜>"
#define USER      "<｜User｜>"
#define ASSISTANT "<｜Assistant｜>"
#define SELF                                                                                                 \
    "You are Cogito, an AI assistant created by Deep Cogito, which is an AI research lab based in San "      \
    "Francisco."

/* What tells the templates apart in their own text. */
static const char *const templates[] = {
    [CHAT_DEEPSEEK3] = "{{ bos_token }}{{'" USER "' + text + '" ASSISTANT "' + answer + '" END "'}}",
    [CHAT_DEEPSEEK31] = "{{'" USER "' + text}}{{'" ASSISTANT "</think>' + answer}}",
    [CHAT_COGITO2] = "{% set system = 'Enable deep thinking subroutine.' + system %}{{'" ASSISTANT "'}}",
};

/* A tag that merging can make has its id already. */
static void add_tag(json_t *file, const char *tag, int32_t id)
{
    const json_t *known = json_object_get(json_object_get(json_object_get(file, "model"), "vocab"), tag);
    tokenizer_build_added(file, tag, known ? (int32_t)json_integer_value(known) : id, false, false);
}

/* The small tokenizer of the data file, with the tags of `tags` as tokens, and `template` beside it (NULL: none). */
static struct tokenizer *open_with(bool tags, const char *template)
{
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    json_t *root = json_load_file("tests/data/deepseek_tokenizer.json", JSON_ALLOW_NUL, NULL);
    json_t *file = json_object_get(root, "tokenizer");
    assert_non_null(file);
    if (tags) {
        add_tag(file, "<think>", 1000);
        add_tag(file, "</think>", 1001);
    }
    char *text = json_dumps(file, 0);
    tmp_tree_write_text(tmp, "tokenizer.json", text);
    if (template)
        tmp_tree_write_text(tmp, "chat_template.jinja", template);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    free(text);
    json_decref(root);
    tmp_tree_remove(tmp);
    return t;
}

static void start(struct chat *c, const struct tokenizer *t, enum chat_thinking thinking)
{
    struct moeflux_err e = {0};
    enum chat_kind kind;
    check_ok(chat_find_kind(t, NULL, &kind, &e), &e);
    check_ok(chat_init(c, t, kind, thinking, &e), &e);
}

static void begin(const struct chat *c, const char *system, const char *user, struct token_list *out)
{
    struct moeflux_err e = {0};
    check_ok(chat_begin(c, system, strlen(system), out, NULL, &e), &e);
    check_ok(chat_user(c, user, strlen(user), out, NULL, &e), &e);
}

/* ---- which template ---- */

static void the_template_is_told_by_the_models_own_files(void **state)
{
    (void)state;
    for (int i = CHAT_DEEPSEEK3; i <= CHAT_COGITO2; i++) {
        struct tokenizer *t = open_with(true, templates[i]);
        enum chat_kind kind;
        struct moeflux_err e = {0};
        check_ok(chat_find_kind(t, NULL, &kind, &e), &e);
        assert_int_equal(kind, i);
        tokenizer_free(t);
    }
    struct tokenizer *tiny = tokenizer_open("tests/models/tiny/tokenizer.json", NULL);
    enum chat_kind kind;
    assert_int_equal(chat_find_kind(tiny, "qwen3.5", &kind, NULL), 0);
    assert_int_equal(kind, CHAT_QWEN35);
    tokenizer_free(tiny);
}

static void expect_unknown(struct tokenizer *t, const char *text)
{
    enum chat_kind kind;
    struct moeflux_err e = {0};
    assert_int_equal(chat_find_kind(t, NULL, &kind, &e), ERR_UNSUPPORTED);
    if (!strstr(e.text, text))
        fail_msg("\"%s\", expected \"%s\"", e.text, text);
    tokenizer_free(t);
}

static void a_template_that_cannot_be_told_is_refused(void **state)
{
    (void)state;
    expect_unknown(open_with(false, NULL), "neither chat_template.jinja nor a chat_template in");
    expect_unknown(open_with(true, "{{'" ASSISTANT "<think>\\n'}}"),
                   "is not one of Qwen3.5, Qwen3, DeepSeek-V3");
    expect_unknown(open_with(false, "{{ messages }}"), "is not one of Qwen3.5, Qwen3, DeepSeek-V3");
    expect_unknown(tokenizer_build_open(tokenizer_build(), NULL), "has neither <|im_start|> nor " USER);
}

static void tokens_that_a_template_needs_are_named(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, NULL);
    struct chat c;
    struct moeflux_err e = {0};
    assert_int_equal(chat_init(&c, t, CHAT_DEEPSEEK31, CHAT_THINKING_OFF, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "no token <think>"));
    assert_int_equal(chat_init(&c, t, CHAT_DEEPSEEK3, CHAT_THINKING_ON, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "has no thinking"));
    assert_int_equal(chat_init(&c, t, CHAT_QWEN35, CHAT_THINKING_OFF, &e), ERR_UNSUPPORTED);
    tokenizer_free(t);
}

/* ---- what they write ---- */

static void deepseek_v3_writes_its_turns(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, templates[CHAT_DEEPSEEK3]);
    struct token_list got = {0};
    struct chat c;
    struct moeflux_err e = {0};
    start(&c, t, CHAT_THINKING_AUTO);
    assert_false(c.thinking);
    begin(&c, "", "hi 12", &got);
    tokens_expect(t, BEGIN USER "hi 12" ASSISTANT, &got);
    start(&c, t, CHAT_THINKING_OFF);
    begin(&c, "Be brief. ", " one\n", &got);
    tokens_add(t, "1" END, &got);
    check_ok(chat_end_answer(&c, true, &got, &e), &e);
    check_ok(chat_user(&c, "two", 3, &got, NULL, &e), &e);
    tokens_add(t, "2", &got);
    check_ok(chat_end_answer(&c, false, &got, &e), &e);
    check_ok(chat_user(&c, "three", 5, &got, NULL, &e), &e);
    tokens_expect(t,
                  BEGIN "Be brief. " USER " one\n" ASSISTANT "1" END USER "two" ASSISTANT "2" END USER
                        "three" ASSISTANT,
                  &got);
    tokenizer_free(t);
}

static void deepseek_v31_opens_or_closes_the_think_block(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, templates[CHAT_DEEPSEEK31]);
    struct token_list got = {0};
    struct chat c;
    start(&c, t, CHAT_THINKING_AUTO);
    begin(&c, "", "hi", &got);
    tokens_expect(t, BEGIN USER "hi" ASSISTANT "</think>", &got);
    start(&c, t, CHAT_THINKING_OFF);
    begin(&c, "", "hi", &got);
    tokens_expect(t, BEGIN USER "hi" ASSISTANT "</think>", &got);
    start(&c, t, CHAT_THINKING_ON);
    begin(&c, "sys", "hi", &got);
    tokens_expect(t, BEGIN "sys" USER "hi" ASSISTANT "<think>", &got);
    tokenizer_free(t);
}

static void cogito_says_who_it_is_and_thinks_when_asked(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, templates[CHAT_COGITO2]);
    struct token_list got = {0};
    struct chat c;
    start(&c, t, CHAT_THINKING_AUTO);
    begin(&c, "", "hi", &got);
    tokens_expect(t, BEGIN SELF USER "hi" ASSISTANT, &got);
    begin(&c, "Be brief.", "hi", &got);
    tokens_expect(t, BEGIN SELF "\n\nBe brief." USER "hi" ASSISTANT, &got);
    start(&c, t, CHAT_THINKING_ON);
    begin(&c, "", "hi", &got);
    tokens_expect(t, BEGIN "Enable deep thinking subroutine.\n\n" SELF USER "hi" ASSISTANT "<think>\n", &got);
    begin(&c, "Be brief.", "hi", &got);
    tokens_expect(t,
                  BEGIN "Enable deep thinking subroutine.\n\n" SELF "\n\nBe brief.\n\n" USER "hi" ASSISTANT
                        "<think>\n",
                  &got);
    tokenizer_free(t);
}

static void control_strings_of_users_stay_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, templates[CHAT_COGITO2]);
    struct token_list got = {0};
    struct chat c;
    size_t n[3] = {0};
    start(&c, t, CHAT_THINKING_OFF);
    begin(&c, BEGIN END USER, BEGIN USER ASSISTANT END, &got);
    for (size_t i = 0; i < got.n; i++) {
        n[0] += got.ids[i] == tokenizer_added_id(t, BEGIN);
        n[1] += got.ids[i] == tokenizer_added_id(t, USER);
        n[2] += got.ids[i] == tokenizer_added_id(t, END);
    }
    assert_true(n[0] == 1 && n[1] == 1 && n[2] == 0);
    token_list_free(&got);
    tokenizer_free(t);
}

/* ---- answers ---- */

/* Feeds an answer token by token: the thinking, a bar, the answer. */
static void expect_parts(const struct chat *c, const char *answer, const char *want)
{
    struct token_list ids = {0};
    struct str parts[2] = {{0}, {0}}, shown = {0};
    struct chat_filter f;
    tokens_add(c->tokenizer, answer, &ids);
    chat_filter_init(&f, c);
    for (size_t i = 0; i < ids.n; i++) {
        str_clear(&shown);
        enum chat_part part = chat_filter_push(&f, c, ids.ids[i], &shown);
        if (part == CHAT_CONTROL)
            assert_int_equal(shown.len, 0);
        else
            str_add(&parts[part == CHAT_ANSWER], str_text(&shown), shown.len);
    }
    chat_filter_end(&f, &parts[0]);
    str_addf(&parts[0], "|%s", str_text(&parts[1]));
    assert_string_equal(str_text(&parts[0]), want);
    str_free(&parts[0]);
    str_free(&parts[1]);
    str_free(&shown);
    token_list_free(&ids);
}

static void tags_spelt_in_several_tokens_are_found(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, templates[CHAT_COGITO2]);
    struct token_list spelt = {0};
    struct chat c;
    start(&c, t, CHAT_THINKING_ON);
    assert_int_equal(c.think_close, -1);
    tokens_add(t, "x</think>y", &spelt);
    assert_true(spelt.n > 3);
    token_list_free(&spelt);
    expect_parts(&c, "one two\n</think>\n\nanswer\n\nmore" END, "one two\n|answer\n\nmore");
    expect_parts(&c, "a < b </ c </thin> </</think>d", "a < b </ c </thin> </|d");
    expect_parts(&c, "<</think>\n</think> e", "<|</think> e");
    expect_parts(&c, "never closed </thi", "never closed </thi|");
    expect_parts(&c, "汉字…</think>汉", "汉字…|汉");
    start(&c, t, CHAT_THINKING_OFF);
    expect_parts(&c, "plain </think> text" END, "|plain </think> text");
    tokenizer_free(t);
}

static void tags_that_are_tokens_are_found(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, templates[CHAT_DEEPSEEK31]);
    struct chat c;
    start(&c, t, CHAT_THINKING_ON);
    expect_parts(&c, "one</think>two" END, "one|two");
    expect_parts(&c, "one</think>\n\ntwo", "one|two");
    start(&c, t, CHAT_THINKING_OFF);
    expect_parts(&c, "two" END, "|two");
    tokenizer_free(t);
}

static void past_answers_stand_without_thinking(void **state)
{
    (void)state;
    static const struct {
        enum chat_kind kind;
        const char *want;
    } cases[] = {
        {CHAT_DEEPSEEK3, BEGIN USER "one" ASSISTANT "1" END},
        {CHAT_DEEPSEEK31, BEGIN USER "one" ASSISTANT "</think>1" END},
        {CHAT_COGITO2, BEGIN SELF USER "one" ASSISTANT "1" END},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_list got = {0};
        struct chat c;
        struct tokenizer *t = open_with(true, templates[cases[i].kind]);
        start(&c, t, CHAT_THINKING_OFF);
        assert_int_equal(chat_begin(&c, "", 0, &got, NULL, NULL), 0);
        assert_int_equal(chat_exchange(&c, "one", 3, "1", 1, &got, NULL, NULL), 0);
        tokens_expect(t, cases[i].want, &got);
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(past_answers_stand_without_thinking),
        cmocka_unit_test(the_template_is_told_by_the_models_own_files),
        cmocka_unit_test(a_template_that_cannot_be_told_is_refused),
        cmocka_unit_test(tokens_that_a_template_needs_are_named),
        cmocka_unit_test(deepseek_v3_writes_its_turns),
        cmocka_unit_test(deepseek_v31_opens_or_closes_the_think_block),
        cmocka_unit_test(cogito_says_who_it_is_and_thinks_when_asked),
        cmocka_unit_test(control_strings_of_users_stay_text),
        cmocka_unit_test(tags_spelt_in_several_tokens_are_found),
        cmocka_unit_test(tags_that_are_tokens_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
