/* gpt-oss's form of prompts and answers: channels, thinking, calls of tools.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "chats.h"
#include "check.h"
#include "generate/answer.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/tools.h"
#include "text/grammar/constraint.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"
#include "text/chat/tool_calls.h"
#include "tmp_tree.h"
#include "tokens.h"

/* Other words than the published one. */
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

/* The tiny model's tokenizer with other control tokens, and a chat template. Its answers end with
 * <|return|>. */
static void write_with(const char *folder, const char *template)
{
    static const char *const names[][2] = {
        {"<|im_start|>", "<|start|>"},  {"<|im_end|>", "<|return|>"}, {"<think>", "<|channel|>"},
        {"</think>", "<|message|>"},    {"<tool_call>", "<|call|>"},  {"</tool_call>", "<|constrain|>"},
        {"<tool_response>", "<|end|>"},
    };
    size_t n;
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
    assert_int_equal(json_dump_file(root, tmp_tree_path(folder, "tokenizer.json"), 0), 0);
    tmp_tree_write_text(folder, "chat_template.jinja", template);
    json_decref(root);
    free(file);
}

static struct tokenizer *open_with(const char *template)
{
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    write_with(tmp, template);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
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

static void a_tool_needs_no_description(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_with("{%- for tool in tools or [] %}{{- '<|start|>// ' + tool.function.description + "
                  "'\n' + tool.function.name }}{%- endfor %}"
                  "{%- for m in messages %}{{- '<|message|>' ~ m.content }}{%- endfor %}"
                  "{%- if add_generation_prompt %}{{- '<|channel|>' }}{%- endif %}");
    struct moeflux_err e = {0};
    struct chat c;
    struct chat_text text = {0};
    json_t *messages = chats_messages("user", "a");
    json_t *tools =
        json_pack("[{s:{s:s}}, {s:{s:s, s:n}}, {s:{s:s, s:s}}]", "function", "name", "f", "function", "name",
                  "g", "description", "function", "name", "h", "description", "Does.");
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    assert_true(c.harmony.is_used);
    check_ok(chat_render(&c,
                         &(struct chat_prompt){.messages = messages, .tools = tools, .opens_answer = true},
                         &text, &e),
             &e);
    assert_string_equal(str_text(&text.text),
                        "<|start|>// \nf<|start|>// \ng<|start|>// Does.\nh<|message|>a<|channel|>");
    assert_null(json_object_get(json_object_get(json_array_get(tools, 0), "function"), "description"));
    chat_text_free(&text);
    json_decref(messages);
    json_decref(tools);
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
    assert_string_equal(e.text, "chat template: the model's always thinks (leave `thinking off` out)");
    tokenizer_free(t);
}

/* ---- answers ---- */

struct heard {
    struct tool_calls calls;
    struct str text, thinking; /* calls stand in the text as [name|arguments] */
};

static int on_event(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    static const char *const before[] = {
        [TOOL_BEGINS] = "[", [TOOL_ENDS] = "]", [TOOL_BREAKS] = "~", [TOOL_FAILS] = "!"};
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
    const struct tool_form *form = has_tools ? tool_form_of(c->tokenizer, NULL) : NULL;
    assert_true(!has_tools || form);
    tool_calls_init(&h.calls, form, NULL, (struct tool_sink){on_event, &h});
    chat_filter_init(&f, c);
    f.has_calls = has_tools;
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
    str_clear(&shown);
    if (chat_filter_end(&f, c, &shown) == CHAT_ANSWER)
        check_ok(tool_calls_push(&h.calls, str_text(&shown), shown.len, &e), &e);
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
    /* Text outside of the calls is for the user. */
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
    expect(&c, true, "<|channel|>commentary to=functions.now<|message|>now<|call|>", "", "now");
    expect(&c, false, "<|channel|>commentary to=functions.now<|message|>{}<|call|>", "{}", "");
    expect(&c, true, "<|channel|>commentary to=functions.get<|message|>{\"x\": ", "", "[get|{\"x\": ~");
    /* A text like a call is none. */
    expect(&c, true, "<|channel|>final<|message|>to=functions.now {}<|return|>", "", "to=functions.now {}");
    chat_free(&c);
    tokenizer_free(t);
}

/* Other recipients are not functions; the user sees no header. */
static void messages_for_others_are_thinking(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    for (int has_tools = 0; has_tools < 2; has_tools++) {
        expect(&c, has_tools, " to=container.exec<|channel|>commentary<|message|>ls<|call|>", "ls", "");
        expect(&c, has_tools, "<|channel|>commentary to=python <|constrain|>code<|message|>f()", "f()", "");
        expect(&c, has_tools, "<|channel|>commentary to=user<|message|>Hi.<|end|>", "", "Hi.");
    }
    chat_free(&c);
    tokenizer_free(t);
}

static void the_last_channel_of_a_header_counts(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    expect(&c, false,
           "<|channel|>commentary to=assistant<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
           "<|channel|>commentary to=python<|channel|>final<|message|>Four.<|return|>",
           "hm", "Four.");
    /* A message may end without its token. */
    expect(&c, false, "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Four.", "hm", "Four.");
    chat_free(&c);
    tokenizer_free(t);
}

static void a_text_without_a_header_is_the_answer(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TEMPLATE);
    struct chat c;
    struct str long_text = {0};
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    expect(&c, false, "ok, plain text", "", "ok, plain text");
    expect(&c, true, "ok, plain text<|return|>", "", "ok, plain text");
    expect(&c, false, "<|channel|>I just answer. ok<|end|>", "", "I just answer. ok");
    expect(&c, false, "<|channel|>final ok", "", "ok");
    expect(&c, false, "<|channel|>?!<|end|><|start|>assistant<|channel|>final<|message|>ok", "", "ok");
    /* The answer ends in a header. */
    expect(&c, true, "<|channel|>commentary to=functions.now <|constrain|>", "", "");
    expect(&c, false, "<|channel|>final<|message|>a<|end|><|start|>assistant", "", "a");
    for (int i = 0; i < 300; i++)
        str_add_text(&long_text, i ? " text" : "text");
    expect(&c, false, str_text(&long_text), "", str_text(&long_text));
    str_free(&long_text);
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

/* ---- answers that are held to something: the model knows nothing of this form ---- */

enum { MOST = 120 };
static const char
    PROMPT[] = "<|start|>user<|message|>What time is it?<|end|><|start|>assistant",
    IN_FINAL[] =
        "<|start|>user<|message|>What time is it?<|end|><|start|>assistant<|channel|>final<|message|>",
    TOOLS[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": {\"properties\": "
        "{\"zone\": {\"enum\": [\"UTC\", \"<|end|>\"]}}, \"required\": [\"zone\"],"
        " \"additionalProperties\": false}}},"
        " {\"type\": \"function\", \"function\": {\"name\": \"nowhere\", \"parameters\": {\"properties\": "
        "{\"n\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 9}}, \"required\": [\"n\"],"
        " \"additionalProperties\": false}}}]",
    SCHEMA[] = "{\"type\": \"object\", \"properties\": {\"on\": {\"type\": \"boolean\"}}, "
               "\"required\": [\"on\"], \"additionalProperties\": false}";

static struct generator model;

static void close_model(void)
{
    struct moeflux_model *opened = model.model;
    generator_close(&model);
    moeflux_model_close(opened);
}

static void open_model(const char *template)
{
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const struct moeflux_options options = {.dir = tmp, .device = "cpu", .context = 256};
    const struct moeflux_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    write_with(tmp, template);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char from[80];
        snprintf(from, sizeof from, "tests/models/tiny/%s", files[i]);
        char *real = realpath(from, NULL);
        assert_int_equal(symlink(real, tmp_tree_path(tmp, files[i])), 0);
        free(real);
    }
    struct moeflux_model *opened;
    check_ok(moeflux_model_open(&opened, &options, &e), &e);
    check_ok(generator_of_models(&model, &opened, 1, &e), &e);
    check_ok(generator_use_chat(&model, (struct chat_reasoning){0}, "the test", &e), &e);
    check_ok(generator_start(&model, 256, &greedy, &e), &e);
    tmp_tree_remove(tmp);
}

/* What is likelier than the model finds it. */
struct leaning {
    const char *text; /* its first token */
    float value;
};

static const char EITHER[] = "either"; /* a tool: JSON that fits the schema, or a call */

/* tool: one to call, "" for any; NULL: JSON that fits the schema. The tokens as text go into `all`. */
static struct answer answer_held(const char *prompt, const char *tool, uint64_t seed,
                                 const struct leaning *to, struct str *all)
{
    bool either = tool == EITHER;
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    struct answer a = {0};
    struct str grammar = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    struct answer_options o = {.limit = MOST,
                               .chat = true,
                               .tools = tool ? tools : NULL,
                               .must_call = tool && !either,
                               .may_call = either};
    const struct tool_choice choice = {
        .tools = tools, .name = tool && *tool && !either ? tool : NULL, .where = "a test"};
    struct moeflux_bias bias[4];
    struct moeflux_sampler_options sampling = {
        .temperature = 3, .top_p = 1, .repeat_penalty = 1, .seed = seed, .bias = bias};
    for (; to && to->text; to++) {
        tokens_add(model.tokenizer, to->text, &ids);
        bias[sampling.n_bias++] = (struct moeflux_bias){ids.ids[0], to->value};
        ids.n = 0;
    }
    if (either) {
        struct str text = {0};
        check_ok(constrain_grammar(CONSTRAIN_JSON_SCHEMA, SCHEMA, strlen(SCHEMA), "a test", &text, &e), &e);
        check_ok(tools_grammar_or(&model, &choice, str_text(&text), &grammar, &e), &e);
        check_ok(constrain_begin_calls(&model, str_text(&grammar), &o.constraint, &e), &e);
        str_free(&text);
    } else if (tool) {
        check_ok(tools_grammar(&model, &choice, &grammar, &e), &e);
        check_ok(constrain_begin_calls(&model, str_text(&grammar), &o.constraint, &e), &e);
    } else {
        check_ok(constrain_grammar(CONSTRAIN_JSON_SCHEMA, SCHEMA, strlen(SCHEMA), "a test", &grammar, &e),
                 &e);
        check_ok(constrain_begin(&model, str_text(&grammar), &o.constraint, &e), &e);
    }
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_new_sampler(&model, &sampling, NULL, 0, &e), &e);
    tokens_add(model.tokenizer, prompt, &ids);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    check_ok(answer_run(&a, &model, &o, &e), &e);
    for (size_t i = 0; i < a.tokens.n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(model.tokenizer, a.tokens.ids[i], &bytes);
        str_add(all, bytes, n);
    }
    constraint_free(o.constraint);
    str_free(&grammar);
    token_list_free(&ids);
    json_decref(tools);
    return a;
}

/* What the template is, of what stands in front of the text of a call, and in front of JSON. */
static const struct leaning TO_CALL[] = {{"commentary", 50}, {0}}, TO_FINAL[] = {{"final", 50}, {0}},
                            TO_THINK[] = {{"analysis", 50}, {"<|end|>", 60}, {0}};

/* The call and what the answer's tokens begin with. */
static void expect_call(const char *prompt, const char *tool, uint64_t seed, const struct leaning *to,
                        const char *begin)
{
    struct str all = {0};
    struct answer a = answer_held(prompt, tool, seed, to, &all);
    char head[300];
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    assert_int_equal(a.n_calls, 1);
    const char *name = str_text(&a.calls[0].name), *text = str_text(&a.calls[0].arguments);
    assert_true(!strcmp(name, "now") || !strcmp(name, "nowhere"));
    assert_true(!*tool || tool == EITHER || !strcmp(name, tool));
    assert_int_equal(a.text.len, 0);
    json_t *arguments = json_loads(text, 0, NULL);
    assert_int_equal(json_object_size(arguments), 1);
    assert_non_null(json_object_get(arguments, strcmp(name, "now") ? "n" : "zone"));
    snprintf(head, sizeof head, "%s<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s",
             begin, name, text);
    if (strncmp(str_text(&all), head, strlen(head)) != 0)
        fail_msg("%s\nexpected\n%s", str_text(&all), head);
    json_decref(arguments);
    answer_free(&a);
    str_free(&all);
}

static void an_answer_that_has_to_call_a_tool_has_its_header(void **state)
{
    (void)state;
    open_model(TEMPLATE);
    for (uint64_t seed = 0; seed < 8; seed++)
        expect_call(PROMPT,
                    seed < 2   ? "now"
                    : seed < 4 ? "nowhere"
                    : seed < 6 ? ""
                               : EITHER,
                    seed, TO_CALL, "");
    /* It ends by the token for calls, which is none of the configuration's. */
    static const struct leaning call_end[] = {{"commentary", 50}, {"<|call|>", 50}, {0}};
    struct str all = {0};
    struct answer a = answer_held(PROMPT, "nowhere", 1, call_end, &all);
    assert_int_equal(a.tokens.ids[a.tokens.n - 1], model.chat.harmony.call);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    answer_free(&a);
    str_free(&all);
    /* A message that the prompt has begun ends first. */
    expect_call("<|start|>user<|message|>a<|end|><|start|>assistant", "now", 9, TO_CALL, "");
    close_model();
}

static void it_may_think_first_and_once(void **state)
{
    (void)state;
    open_model(TEMPLATE);
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct str all = {0};
        struct answer a = answer_held(PROMPT, "nowhere", seed, TO_THINK, &all);
        assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
        assert_int_equal(a.n_calls, 1);
        assert_int_equal(strncmp(str_text(&all), "<|channel|>analysis<|message|>", 30), 0);
        assert_non_null(
            strstr(str_text(&all), "<|end|><|start|>assistant<|channel|>commentary to=functions.nowhere "));
        assert_null(strstr(str_text(&all) + 30, "analysis"));
        answer_free(&a);
        str_free(&all);
    }
    close_model();
}

static void an_answer_of_a_schema_is_the_final_message(void **state)
{
    (void)state;
    open_model(TEMPLATE);
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct str all = {0};
        struct answer a = answer_held(PROMPT, seed < 4 ? NULL : EITHER, seed,
                                      seed < 2 || seed > 3 ? TO_FINAL : TO_THINK, &all);
        assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
        json_t *found = json_loads(str_text(&a.text), 0, NULL);
        assert_true(json_is_boolean(json_object_get(found, "on")));
        assert_int_equal(json_object_size(found), 1);
        assert_non_null(strstr(str_text(&all), "<|channel|>final<|message|>"));
        json_decref(found);
        answer_free(&a);
        str_free(&all);
    }
    close_model();
}

static void a_prompt_may_have_begun_the_message_that_is_held_to_something(void **state)
{
    struct str all = {0};
    (void)state;
    open_model(OPENS_FINAL);
    for (int either = 0; either < 2; either++) {
        struct answer a = answer_held(IN_FINAL, either ? EITHER : NULL, 1, NULL, &all);
        json_t *found = json_loads(str_text(&a.text), 0, NULL);
        assert_true(json_is_boolean(json_object_get(found, "on")));
        assert_int_equal(str_text(&all)[0], '{');
        json_decref(found);
        answer_free(&a);
        str_free(&all);
    }
    /* A call is a message of its own. */
    expect_call(IN_FINAL, "now", 2, NULL, "<|end|><|start|>assistant");
    close_model();
}

static void a_name_that_no_header_can_have_is_refused(void **state)
{
    static const char *const names[] = {"a b", "a<|message|>", "line\n"};
    struct tokenizer *t = open_with(TEMPLATE);
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct moeflux_err e = {0};
        struct str out = {0};
        json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", names[i]);
        const struct tool_choice choice = {.tools = tools, .where = "a test"};
        assert_int_equal(tool_form_grammar(tool_form_of(t, NULL), &choice, &out, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "this model's calls need names"));
        json_decref(tools);
        str_free(&out);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_of_calls_reaches_the_template),
        cmocka_unit_test(a_tool_needs_no_description),
        cmocka_unit_test(the_model_always_thinks),
        cmocka_unit_test(channels_are_thinking_and_answer),
        cmocka_unit_test(messages_for_functions_are_calls),
        cmocka_unit_test(messages_for_others_are_thinking),
        cmocka_unit_test(the_last_channel_of_a_header_counts),
        cmocka_unit_test(a_text_without_a_header_is_the_answer),
        cmocka_unit_test(a_prompt_may_begin_the_message),
        cmocka_unit_test(an_answer_that_has_to_call_a_tool_has_its_header),
        cmocka_unit_test(it_may_think_first_and_once),
        cmocka_unit_test(an_answer_of_a_schema_is_the_final_message),
        cmocka_unit_test(a_prompt_may_have_begun_the_message_that_is_held_to_something),
        cmocka_unit_test(a_name_that_no_header_can_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
