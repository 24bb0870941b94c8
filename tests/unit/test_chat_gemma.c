/* A template that writes turns as Gemma 4's does, and how answers with a channel of thinking are sorted.
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

#define EMPTY "<|channel>thought\n<channel|>"

/* What the published template writes for texts, in other words. */
static const char TEMPLATE[] =
    "{{ bos_token }}{% if enable_thinking %}{{ '<|turn>system\\n<|think|>\\n<turn|>\\n' }}{% endif %}"
    "{% for m in messages %}"
    "{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content + '<turn|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\\n' }}"
    "{% if not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}{% endif %}"
    "{#- '<|tool_call>call:' ... '<tool_call|>' #}";

static struct tokenizer *open_gemma(void)
{
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    json_t *root = json_load_file("tests/data/pieces.json", JSON_ALLOW_NUL, NULL);
    char *text = json_dumps(json_object_get(json_object_get(root, "merged"), "tokenizer"), 0);
    assert_non_null(text);
    tmp_tree_write_text(tmp, "tokenizer.json", text);
    tmp_tree_write_text(tmp, "tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    tmp_tree_write_text(tmp, "chat_template.jinja", TEMPLATE);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    free(text);
    json_decref(root);
    tmp_tree_remove(tmp);
    return t;
}

static void the_thinking_can_be_switched(void **state)
{
    struct tokenizer *t = open_gemma();
    struct chat c;
    (void)state;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    assert_int_equal(c.think_open, tokenizer_added_id(t, "<|channel>"));
    assert_int_equal(c.turn_close, tokenizer_added_id(t, "<turn|>"));
    assert_false(c.may_open);
    chats_expect(&c, chats_messages("user", "hi"), "<s><|turn>user\nhi<turn|>\n<|turn>model\n" EMPTY);
    chat_free(&c);
    chats_open(&c, t, NULL, CHAT_THINKING_ON);
    assert_true(c.may_open);
    assert_false(c.opens_inside);
    chats_expect(&c, chats_messages("user", "hi"),
                 "<s><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n");
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
        if (part == CHAT_CONTROL)
            assert_int_equal(shown.len, 0);
        else
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

static void the_channels_name_is_not_shown(void **state)
{
    struct tokenizer *t = open_gemma();
    struct chat c;
    (void)state;
    chats_open(&c, t, NULL, CHAT_THINKING_ON);
    expect_parts(&c, "<|channel>thought\none two\n<channel|>three<turn|>", "one two|three");
    expect_parts(&c, EMPTY "three", "|three");
    expect_parts(&c, "<|channel>thoughts<channel|>x", "thoughts|x");
    expect_parts(&c, "<|channel>thought<channel|>x", "|x");
    expect_parts(&c, "<|channel>other\n<channel|>x", "other|x");
    expect_parts(&c, "<|channel>thou", "thou|");
    expect_parts(&c, "<|channel>thou<channel|>x", "thou|x");
    expect_parts(&c, "<|channel>thought\none<channel|>\nx", "one|x");
    expect_parts(&c, "no thinking <think>", "|no thinking <think>");
    chat_free(&c);
    tokenizer_free(t);
}

static void tags_of_calls_are_known_and_users_cannot_write_them(void **state)
{
    struct tokenizer *t = open_gemma();
    const struct tool_form *form = tool_form_of(t, NULL);
    struct chat c;
    struct token_list ids = {0};
    (void)state;
    assert_non_null(form);
    assert_true(tool_form_has_tag(form, "<|tool_call>", 12));
    assert_true(tool_form_has_tag(form, "<|\"|>", 5));
    chats_open(&c, t, NULL, CHAT_THINKING_OFF);
    chats_prompt(&c, chats_messages("user", "<turn|> <|\"|> <|channel>"), &ids, NULL);
    size_t n_added = 0;
    for (size_t i = 0; i < ids.n; i++)
        n_added += tokenizer_is_added(t, ids.ids[i]);
    assert_int_equal(n_added, 6); /* <s>, two turns, one end, two tags of the channel */
    token_list_free(&ids);
    chat_free(&c);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_thinking_can_be_switched),
        cmocka_unit_test(the_channels_name_is_not_shown),
        cmocka_unit_test(tags_of_calls_are_known_and_users_cannot_write_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
