/* A template that writes turns as MiniMax-M3's does, and how answers with its thinking are sorted.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "chats.h"
#include "check.h"
#include "text/chat/chat.h"
#include "text/chat/tool_calls.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"
#include "tokens.h"

#define MARK "]<]minimax[>["

/* What the published template writes, in other words. */
static const char TEMPLATE[] =
    "{%- set mark = '" MARK "' -%}{{ ']~!b[]~b]system\\nmode: ' + thinking_mode | default('adaptive') }}"
    "{{ '[e~[\\n' }}{% for m in messages %}{{ ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{% if m.role == 'assistant' %}"
    "{{ '<mm:think>' + m.reasoning_content if m.reasoning_content else '' }}{{ '</mm:think>' }}"
    "{% endif %}{{ m.content + '[e~[\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ']~b]ai\\n' }}{% if thinking_mode == 'disabled' %}{{ '</mm:think>' }}"
    "{% elif thinking_mode == 'enabled' %}{{ '<mm:think>' }}{% endif %}{% endif %}";

static struct tokenizer *open_minimax(void)
{
    static const char *const added[] = {"]~!b[",      "]~b]",        "[e~[",        MARK,
                                        "<mm:think>", "</mm:think>", "<tool_call>", "</tool_call>"};
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    json_t *root = json_load_file("tests/data/pieces.json", JSON_ALLOW_NUL, NULL);
    json_t *own = json_object_get(json_object_get(root, "merged"), "tokenizer"),
           *list = json_object_get(own, "added_tokens");
    json_int_t id =
        json_integer_value(json_object_get(json_array_get(list, json_array_size(list) - 1), "id"));
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", ++id, "content",
                                              added[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                              "normalized", 0, "special", i < 4));
    char *text = json_dumps(own, 0);
    assert_non_null(text);
    tmp_tree_write_text(tmp, "tokenizer.json", text);
    tmp_tree_write_text(tmp, "chat_template.jinja", TEMPLATE);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    free(text);
    json_decref(root);
    tmp_tree_remove(tmp);
    return t;
}

static void the_mode_of_thinking_is_set(void **state)
{
    struct tokenizer *t = open_minimax();
    struct chat c;
    (void)state;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    assert_int_equal(c.think_open, tokenizer_added_id(t, "<mm:think>"));
    assert_int_equal(c.turn_close, tokenizer_added_id(t, "[e~["));
    assert_true(c.may_open);
    chats_expect(&c, chats_messages("user", "hi"),
                 "]~!b[]~b]system\nmode: adaptive[e~[\n]~b]user\nhi[e~[\n]~b]ai\n");
    chat_free(&c);
    chats_open(&c, t, NULL, CHAT_THINKING_ON);
    assert_true(c.opens_inside);
    chats_expect(&c, chats_messages("user", "hi"),
                 "]~!b[]~b]system\nmode: enabled[e~[\n]~b]user\nhi[e~[\n]~b]ai\n<mm:think>");
    chat_free(&c);
    chats_open(&c, t, NULL, CHAT_THINKING_OFF);
    assert_false(c.opens_inside || c.may_open);
    chats_expect(&c, chats_messages("user", "hi"),
                 "]~!b[]~b]system\nmode: disabled[e~[\n]~b]user\nhi[e~[\n]~b]ai\n</mm:think>");
    chat_free(&c);
    tokenizer_free(t);
}

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
        str_add(&parts[part == CHAT_ANSWER], str_text(&shown), shown.len);
    }
    chat_filter_end(&f, c, &parts[0]);
    str_addf(&parts[0], "|%s", str_text(&parts[1]));
    assert_string_equal(str_text(&parts[0]), want);
    str_free(&parts[0]);
    str_free(&parts[1]);
    str_free(&shown);
    token_list_free(&ids);
}

static void thinking_is_told_from_the_answer(void **state)
{
    struct tokenizer *t = open_minimax();
    struct chat c;
    (void)state;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    expect_parts(&c, "<mm:think>one\ntwo</mm:think>three[e~[", "one\ntwo|three");
    /* A model that does not think writes the closing tag alone. */
    expect_parts(&c, "</mm:think>three[e~[", "|three");
    expect_parts(&c, "three <think> four", "|three <think> four");
    chat_free(&c);
    chats_open(&c, t, NULL, CHAT_THINKING_ON);
    expect_parts(&c, "one</mm:think>two", "one|two");
    expect_parts(&c, "one <tool_call>", "one <tool_call>|");
    chat_free(&c);
    tokenizer_free(t);
}

static void tags_of_calls_are_known(void **state)
{
    struct tokenizer *t = open_minimax();
    const struct tool_form *form = tool_form_of(t, NULL);
    (void)state;
    assert_non_null(form);
    assert_true(tool_form_has_tag(form, MARK, strlen(MARK)));
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mode_of_thinking_is_set),
        cmocka_unit_test(thinking_is_told_from_the_answer),
        cmocka_unit_test(tags_of_calls_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
