/* gpt-oss's form of prompts and answers: channels, thinking, calls of tools. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "chats.h"
#include "check.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"
#include "tmp_tree.h"
#include "tokens.h"

/* With other words than the published one. */
static const char TEMPLATE[] =
    "{{- '<|start|>system<|message|>Reasoning: ' ~ reasoning_effort|default('medium') ~ '<|end|>' }}"
    "{%- for m in messages %}"
    "{%- if m.tool_calls %}"
    "{%- if 'content' in m and '<|channel|>' in m.content %}{{- raise_exception('tags') }}{%- endif %}"
    "{%- if m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}"
    "{%- endif %}"
    "{{- '<|start|>assistant to=functions.' ~ m.tool_calls[0].function.name ~ '<|channel|>commentary "
    "json<|message|>' ~ m.tool_calls[0].function.arguments|tojson ~ '<|call|>' }}"
    "{%- elif m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content }}"
    "{{- '<|end|>' if not loop.last or add_generation_prompt else '<|return|>' }}"
    "{%- else %}{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}";
static const char OPENS_FINAL[] =
    "{%- for m in messages %}{{- '<|start|>user<|message|>' ~ m.content ~ '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant<|channel|>final<|message|>' }}{%- endif %}";

/* The tiny model's tokenizer with other control tokens, and a template beside it. */
static struct tokenizer *open_with(const char *template)
{
    static const char *const names[][2] = {
        {"<|im_start|>", "<|start|>"},     {"<|im_end|>", "<|end|>"},   {"<think>", "<|channel|>"},
        {"</think>", "<|message|>"},       {"<tool_call>", "<|call|>"}, {"</tool_call>", "<|constrain|>"},
        {"<tool_response>", "<|return|>"},
    };
    struct moeflux_err e = {0};
    size_t n;
    char *tmp = tmp_tree_new();
    uint8_t *file = tmp_tree_read("tests/models/tiny/tokenizer.json", &n);
    json_t *root = json_loadb((const char *)file, n, 0, NULL), *token;
    size_t k;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "added_tokens"), k, token)
    {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(json_string_value(json_object_get(token, "content")), names[i][0]))
                json_object_set_new(token, "content", json_string(names[i][1]));
    }
    assert_int_equal(json_dump_file(root, tmp_tree_path(tmp, "tokenizer.json"), 0), 0);
    tmp_tree_write_text(tmp, "chat_template.jinja", template);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    json_decref(root);
    free(file);
    tmp_tree_remove(tmp);
    return t;
}

/* ---- prompts ---- */

static json_t *with_a_call(void)
{
    return json_pack("[{s:s, s:s}, {s:s, s:n, s:s, s:[{s:s, s:{s:s, s:{s:i}}}]}, {s:s, s:s}]", "role", "user",
                     "content", "a", "role", "assistant", "content", "reasoning_content", "so", "tool_calls",
                     "type", "function", "function", "name", "f", "arguments", "x", 1, "role", "tool",
                     "content", "2");
}

static void thinking_of_calls_reaches_the_template(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    assert_true(c.harmony.is_used);
    chats_expect(&c, with_a_call(),
                 "<|start|>system<|message|>Reasoning: medium<|end|><|start|>user<|message|>a<|end|>"
                 "<|start|>assistant<|channel|>analysis<|message|>so<|end|>"
                 "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"x\": 1}<|call|>"
                 "<|start|>tool<|message|>2<|end|><|start|>assistant");
    chat_free(&c);
    tokenizer_free(t);
}

static void the_model_always_thinks(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_ON);
    chat_free(&c);
    struct moeflux_err e = chats_refused(t, NULL, CHAT_THINKING_OFF);
    assert_string_equal(e.text, "chat template: the model's always thinks (leave --no-think out)");
    tokenizer_free(t);
}

/* ---- answers ---- */

struct heard {
    struct tool_calls calls;
    struct str text, thinking; /* calls stand in the text as [name|arguments] */
};

static int on_event(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    static const char *const before[] = {[TOOL_BEGINS] = "[", [TOOL_ENDS] = "]", [TOOL_FAILS] = "!"};
    struct heard *h = ctx;
    (void)e;
    if (event != TOOL_TEXT && event != TOOL_ARGUMENTS)
        str_add_text(&h->text, before[event]);
    str_add(&h->text, bytes, n);
    str_add_text(&h->text, event == TOOL_BEGINS ? "|" : "");
    return 0;
}

/* What comes of an answer's tokens, as answer.c tells them apart. has_tools: calls are looked for. */
static void expect(const struct chat *c, bool has_tools, const char *answer, const char *thinking,
                   const char *text)
{
    struct moeflux_err e = {0};
    struct heard h = {0};
    struct token_list ids = {0};
    struct chat_filter f;
    struct str shown = {0};
    const struct tool_form *form = has_tools ? tool_form_of(c->tokenizer) : NULL;
    assert_true(!has_tools || form);
    tool_calls_init(&h.calls, form, NULL, (struct tool_sink){on_event, &h});
    chat_filter_init(&f, c);
    tokens_add(c->tokenizer, answer, &ids);
    for (size_t i = 0; i < ids.n; i++) {
        str_clear(&shown);
        enum chat_part part = chat_filter_push(&f, c, ids.ids[i], &shown);
        assert_true(part != CHAT_CONTROL || shown.len == 0);
        if (part == CHAT_THINKING)
            str_add(&h.thinking, str_text(&shown), shown.len);
        else
            check_ok(tool_calls_push(&h.calls, str_text(&shown), shown.len, &e), &e);
    }
    chat_filter_end(&f, &shown);
    check_ok(tool_calls_end(&h.calls, &e), &e);
    assert_string_equal(str_text(&h.thinking), thinking);
    assert_string_equal(str_text(&h.text), text);
    tool_calls_free(&h.calls);
    str_free(&h.text);
    str_free(&h.thinking);
    str_free(&shown);
    token_list_free(&ids);
}

static void channels_are_thinking_and_answer(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    expect(
        &c, false,
        "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Four."
        "<|return|>",
        "Let me see.", "Four.");
    expect(&c, false, "<|channel|>final<|message|>Yes, final<|return|>", "", "Yes, final");
    expect(&c, false, "<|channel|>analysis<|message|>cut", "cut", "");
    expect(&c, false, "no channel", "", "");
    /* What it says beside its calls is for the user. */
    expect(&c, false,
           "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
           "<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final"
           "<|message|>c<|return|>",
           "a\n\nb", "I look.\n\nc");
    chat_free(&c);
    tokenizer_free(t);
}

static void messages_for_functions_are_calls(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    expect(&c, true,
           "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get "
           "<|constrain|>json<|message|>{\"x\": {\"y\": 1}}<|call|>",
           "hm", "[get|{\"x\": {\"y\": 1}}]");
    /* The recipient may stand before the channel. */
    expect(&c, true, " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "", "[now|{}]");
    /* What is no object is no call, and without tools there are none. */
    expect(&c, true, "<|channel|>commentary to=functions.now<|message|>now<|call|>", "",
           "<|channel|>commentary to=functions.now<|message|>now");
    expect(&c, false, "<|channel|>commentary to=functions.now<|message|>{}<|call|>", "",
           "<|channel|>commentary to=functions.now<|message|>{}");
    /* A text like a call is none. */
    expect(&c, true, "<|channel|>final<|message|>to=functions.now {}<|return|>", "", "to=functions.now {}");
    chat_free(&c);
    tokenizer_free(t);
}

static void a_header_of_any_length_is_read(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    struct str answer = {0};
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    for (int i = 0; i < 300; i++)
        str_add_text(&answer, "assistant ");
    str_add_text(&answer,
                 "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b");
    expect(&c, false, str_text(&answer), "a", "b");
    str_free(&answer);
    chat_free(&c);
    tokenizer_free(t);
}

static void a_prompt_may_begin_the_message(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(OPENS_FINAL);
    struct chat c;
    struct moeflux_err e = {0};
    check_ok(chat_open(&c, t, NULL, CHAT_THINKING_AUTO, 0, &e), &e);
    expect(&c, false, "Four.<|return|>", "", "Four.");
    chat_free(&c);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_of_calls_reaches_the_template),
        cmocka_unit_test(the_model_always_thinks),
        cmocka_unit_test(channels_are_thinking_and_answer),
        cmocka_unit_test(messages_for_functions_are_calls),
        cmocka_unit_test(a_header_of_any_length_is_read),
        cmocka_unit_test(a_prompt_may_begin_the_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
