/* Kimi-K3's form of prompts and answers: sections between tags of control tokens, thinking, calls of tools.
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
#include "text/chat/chat_families.h"
#include "text/chat/tool_calls.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"
#include "tokens.h"

#define OPEN(tag)  "<|open|>" tag "<|sep|>"
#define CLOSE(tag) "<|close|>" tag "<|sep|>"
#define EMPTY      OPEN("response") CLOSE("response")
#define ENDS       CLOSE("message") "<|end_of_msg|>"

/* The tiny model's tokenizer with other control tokens. is_own: the directory has a chat template. */
static void write_with(const char *folder, bool is_own)
{
    static const char *const names[][2] = {{"<|im_start|>", "<|open|>"},
                                           {"<|im_end|>", "<|end_of_msg|>"},
                                           {"<think>", "<|close|>"},
                                           {"</think>", "<|sep|>"}};
    size_t n, k;
    uint8_t *file = tmp_tree_read("tests/models/tiny/tokenizer.json", &n);
    json_t *root = json_loadb((const char *)file, n, 0, NULL), *token;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "added_tokens"), k, token)
    {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(json_string_value(json_object_get(token, "content")), names[i][0])) {
                json_object_set_new(token, "content", json_string(names[i][1]));
                json_object_set_new(token, "special", json_true());
            }
    }
    assert_int_equal(json_dump_file(root, tmp_tree_path(folder, "tokenizer.json"), 0), 0);
    if (is_own)
        tmp_tree_write_text(folder, "chat_template.jinja", chat_family_find("kimi-k3")->text);
    json_decref(root);
    free(file);
}

static struct tokenizer *open_tokenizer(void)
{
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    write_with(tmp, false);
    struct tokenizer *t = tokenizer_open(tmp_tree_path(tmp, "tokenizer.json"), &e);
    if (!t)
        fail_msg("%s", e.text);
    tmp_tree_remove(tmp);
    return t;
}

/* ---- prompts ---- */

#define EFFORT(word)                                                                                         \
    OPEN("message role=\"system\" type=\"thinking-effort\"")                                                 \
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "    \
    "channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked "     \
    "with `thinking_effort=" word "`." ENDS

static void a_prompt_opens_the_first_section(void **state)
{
    struct tokenizer *t = open_tokenizer();
    struct moeflux_err e = {0};
    struct chat c;
    (void)state;
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_AUTO);
    assert_true(c.sections.is_used && c.opens_inside && c.is_family);
    assert_int_equal(c.turn_close, tokenizer_added_id(t, "<|end_of_msg|>"));
    chats_expect(&c, chats_messages("user", "hi"),
                 EFFORT("max") OPEN("message role=\"user\"") "hi" ENDS OPEN("message role=\"assistant\"")
                     OPEN("think"));
    check_ok(chat_use_effort(&c, CHAT_EFFORT_LOW, &e), &e);
    chats_expect(&c, chats_messages("user", "hi"),
                 EFFORT("low") OPEN("message role=\"user\"") "hi" ENDS OPEN("message role=\"assistant\"")
                     OPEN("think"));
    /* The template does not know this one: thinking is limited. */
    check_ok(chat_use_effort(&c, CHAT_EFFORT_MEDIUM, &e), &e);
    assert_true(chat_effort_budget(&c) > 0);
    chat_free(&c);
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_OFF);
    assert_false(c.opens_inside);
    chats_expect(&c, chats_messages("user", "hi"),
                 OPEN("message role=\"user\"") "hi" ENDS OPEN("message role=\"assistant\"") OPEN("response"));
    chat_free(&c);
    tokenizer_free(t);
}

/* What the model has written is what the template writes, so a next question keeps it. */
static void an_answer_stays_in_the_next_prompt(void **state)
{
    struct tokenizer *t = open_tokenizer();
    struct moeflux_err e = {0};
    struct chat c;
    struct chat_text text = {0};
    struct token_list ids = {0};
    uint32_t n_kept;
    (void)state;
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_AUTO);
    chats_prompt(&c, chats_messages("user", "hi"), &ids, NULL);
    uint32_t n_prompt = (uint32_t)ids.n;
    tokens_add(t, "so" CLOSE("think") OPEN("response") "yes" CLOSE("response") ENDS, &ids);
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "hi",
                                 "role", "assistant", "content", "yes", "reasoning_content", "so", "role",
                                 "user", "content", "more");
    check_ok(chat_render(&c, &(struct chat_prompt){.messages = messages, .opens_answer = true}, &text, &e),
             &e);
    const struct chat_span span = {n_prompt, (uint32_t)ids.n};
    check_ok(chat_extend(&c, &text, &span, 1, &ids, &n_kept, &e), &e);
    assert_int_equal(n_kept, span.to);
    chat_text_free(&text);
    json_decref(messages);
    token_list_free(&ids);
    chat_free(&c);
    tokenizer_free(t);
}

/* ---- answers ---- */

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"special\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"arg1\": {\"type\": \"integer\"}, \"arg2\": {\"type\": \"integer\"}}, \"required\": "
    "[\"arg1\"]}}}, {\"type\": \"function\", \"function\": {\"name\": \"python\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"code\": {\"type\": \"string\"}}, \"required\": [\"code\"]}}}]";

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
    json_t *tools = json_loads(TOOLS, 0, NULL);
    const struct tool_form *form = has_tools ? tool_form_of(c->tokenizer, "kimi-k3") : NULL;
    assert_true(!has_tools || form);
    tool_calls_init(&h.calls, form, tools, (struct tool_sink){on_event, &h});
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
    json_decref(tools);
}

static void sections_are_thinking_and_answer(void **state)
{
    struct tokenizer *t = open_tokenizer();
    struct chat c;
    (void)state;
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_OFF);
    expect(&c, false, "Hello, world!\nWhat's up?" CLOSE("response") ENDS, "", "Hello, world!\nWhat's up?");
    expect(&c, false, OPEN("response") "Hello" CLOSE("response") ENDS, "", "Hello");
    expect(&c, false, "Use the response tag, then message the handler." CLOSE("response") ENDS, "",
           "Use the response tag, then message the handler.");
    chat_free(&c);
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_ON);
    for (int has_tools = 0; has_tools < 2; has_tools++) {
        expect(&c, has_tools, "I think\nso" CLOSE("think") OPEN("response") "Hello" CLOSE("response") ENDS,
               "I think\nso", "Hello");
        expect(&c, has_tools, "cut off", "cut off", "");
        expect(&c, has_tools, "no end " OPEN("response") "Hello", "no end ", "Hello");
        expect(&c, has_tools, "a" CLOSE("think") "\n\nHello", "a", "Hello");
        expect(&c, has_tools, "a" CLOSE("think") OPEN("response") "b<|close|>", "a",
               has_tools ? "b<|close|>" : "b");
    }
    chat_free(&c);
    tokenizer_free(t);
}

#define CALL(name, index, rest)    OPEN("call tool=\"" name "\" index=\"" index "\"") rest CLOSE("call")
#define ARGUMENT(key, type, value) OPEN("argument key=\"" key "\" type=\"" type "\"") value CLOSE("argument")

static void calls_are_found(void **state)
{
    struct tokenizer *t = open_tokenizer();
    struct chat c;
    (void)state;
    chats_open(&c, t, "kimi-k3", CHAT_THINKING_ON);
    expect(&c, true,
           "I should" CLOSE("think") OPEN("response") "On it." CLOSE("response") OPEN("tools")
               CALL("special", "1", ARGUMENT("arg1", "number", "1")) CLOSE("tools") ENDS,
           "I should", "On it.[special|{\"arg1\": 1}]");
    expect(&c, true,
           CLOSE("think") EMPTY OPEN("tools")
               CALL("special", "1", ARGUMENT("arg1", "number", "1") ARGUMENT("arg2", "number", "2"))
                   CALL("python", "2", ARGUMENT("code", "string", "print('<hey>')\n1"))
                       CALL("python", "3", "") CLOSE("tools") ENDS,
           "", "[special|{\"arg1\": 1, \"arg2\": 2}][python|{\"code\": \"print('<hey>')\\n1\"}][python|{}]");
    /* The attribute says what a value is; without it the schema does. */
    expect(&c, true,
           CLOSE("think") OPEN("tools") CALL("f", "1", ARGUMENT("a&quot;b", "object", "{\"x\": []}")), "",
           "[f|{\"a\\\"b\": {\"x\": []}}]");
    expect(
        &c, true,
        CLOSE("think")
            OPEN("tools") "<|open|>call tool=\"python\"<|sep|><|open|>argument key=\"code\"<|sep|>12" CLOSE(
                "argument") CLOSE("call"),
        "", "[python|{\"code\": \"12\"}]");
    expect(&c, true,
           CLOSE("think") OPEN("tools") CALL(
               "python", "1",
               ARGUMENT("code", "string",
                        "a")) "<|open|>call tool=\"python\" index=\"2\"<|sep|><|open|>argument key=\"code\" "
                              "type=\"string\"<|sep|>cut",
           "", "[python|{\"code\": \"a\"}][python|{\"code\": \"cut~");
    /* Without tools there are no calls. */
    expect(&c, false, CLOSE("think") OPEN("response") "x" CLOSE("response") OPEN("tools") CLOSE("tools"), "",
           "x");
    chat_free(&c);
    tokenizer_free(t);
}

/* ---- answers that are held to something: the model knows nothing of this form ---- */

static const char PROMPT[] =
    OPEN("message role=\"user\"") "What time is it?" ENDS OPEN("message role=\"assistant\"") OPEN("think"),
                  SCHEMA[] = "{\"type\": \"object\", \"properties\": {\"on\": {\"type\": \"boolean\"}}, "
                             "\"required\": [\"on\"], \"additionalProperties\": false}";
static struct generator model;

static void close_model(void)
{
    struct moeflux_model *opened = model.model;
    generator_close(&model);
    moeflux_model_close(opened);
}

static void open_model(void)
{
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const struct moeflux_options options = {.dir = tmp, .device = "cpu", .context = 512};
    const struct moeflux_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    struct moeflux_model *opened;
    write_with(tmp, true);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char from[80];
        snprintf(from, sizeof from, "tests/models/tiny/%s", files[i]);
        char *real = realpath(from, NULL);
        assert_int_equal(symlink(real, tmp_tree_path(tmp, files[i])), 0);
        free(real);
    }
    check_ok(moeflux_model_open(&opened, &options, &e), &e);
    check_ok(generator_of_models(&model, &opened, 1, &e), &e);
    check_ok(generator_use_chat(&model, (struct chat_reasoning){0}, "the test", &e), &e);
    check_ok(generator_start(&model, 512, &greedy, &e), &e);
    tmp_tree_remove(tmp);
}

/* How an answer is held: it fits the schema, calls a tool, or does one of both. */
enum held { TEXT, CALLS, EITHER };

/* The tokens as text go into `all`. Thinking ends after a few tokens. */
static struct answer answer_held(enum held held, uint64_t seed, struct str *all)
{
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    struct answer a = {0};
    struct str grammar = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    struct answer_options o = {.limit = 400,
                               .chat = true,
                               .tools = held == TEXT ? NULL : tools,
                               .must_call = held == CALLS,
                               .may_call = held == EITHER,
                               .limits_thinking = true,
                               .think_budget = 3};
    const struct tool_choice choice = {.tools = tools, .name = "special", .where = "a test"};
    /* The model would end its thinking with its answer. */
    struct moeflux_bias bias[] = {
        {model.chat.sections.end, -60}, {tokenizer_added_id(model.tokenizer, "<|endoftext|>"), -60}, {0}};
    /* Every other answer that may be both is rather a text. */
    tokens_add(model.tokenizer, "{", &ids);
    bias[2] = (struct moeflux_bias){ids.ids[0], held == EITHER && seed % 2 ? 60 : 0};
    ids.n = 0;
    const struct moeflux_sampler_options sampling = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = seed, .bias = bias, .n_bias = 3};
    struct str text = {0};
    check_ok(constrain_grammar(CONSTRAIN_JSON_SCHEMA, SCHEMA, strlen(SCHEMA), "a test", &text, &e), &e);
    if (held == CALLS)
        check_ok(tools_grammar(&model, &choice, &grammar, &e), &e);
    else if (held == EITHER)
        check_ok(tools_grammar_or(&model, &choice, str_text(&text), &grammar, &e), &e);
    if (held == TEXT)
        check_ok(constrain_begin(&model, str_text(&text), &o.constraint, &e), &e);
    else
        check_ok(constrain_begin_calls(&model, str_text(&grammar), &o.constraint, &e), &e);
    str_free(&text);
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_new_sampler(&model, &sampling, NULL, 0, &e), &e);
    tokens_add(model.tokenizer, PROMPT, &ids);
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

/* How often the text has a control token's letters, and how often the answer has the token. */
static void count_tags(const struct answer *a, const char *text, const char *tag, unsigned *n_letters,
                       unsigned *n_tokens)
{
    int32_t id = tokenizer_added_id(model.tokenizer, tag);
    for (const char *at = text; (at = strstr(at, tag)); at++)
        ++*n_letters;
    for (size_t i = 0; i < a->tokens.n; i++)
        *n_tokens += a->tokens.ids[i] == id;
}

static void tags_of_a_call_that_is_asked_for_are_control_tokens(void **state)
{
    static const char *const tags[] = {"<|open|>", "<|close|>", "<|sep|>"};
    (void)state;
    open_model();
    for (uint64_t seed = 10; seed < 14; seed++) {
        struct str all = {0};
        unsigned n_letters = 0, n_tokens = 0;
        struct answer a = answer_held(CALLS, seed, &all);
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
            count_tags(&a, str_text(&all), tags[i], &n_letters, &n_tokens);
        if (n_tokens < 8 || n_tokens != n_letters)
            fail_msg("%u tags, %u tokens: %s", n_letters, n_tokens, str_text(&all));
        answer_free(&a);
        str_free(&all);
    }
    close_model();
}

static void an_answer_that_is_held_has_its_sections(void **state)
{
    (void)state;
    open_model();
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct str all = {0};
        struct answer a = answer_held(TEXT, seed, &all);
        if (!strstr(str_text(&all), CLOSE("think") OPEN("response")))
            fail_msg("%s", str_text(&all));
        json_t *value = json_loads(str_text(&a.text), 0, NULL);
        if (!json_is_boolean(json_object_get(value, "on")))
            fail_msg("%s: %s", str_text(&all), str_text(&a.text));
        json_decref(value);
        answer_free(&a);
        str_clear(&all);
        a = answer_held(CALLS, seed, &all);
        if (!strstr(str_text(&all),
                    CLOSE("think") EMPTY OPEN("tools") "<|open|>call tool=\"special\" index=\"") ||
            a.n_calls != 1)
            fail_msg("%s", str_text(&all));
        assert_int_equal(a.text.len, 0);
        value = json_loads(str_text(&a.calls[0].arguments), 0, NULL);
        assert_true(json_is_integer(json_object_get(value, "arg1")) || a.calls[0].is_cut);
        json_decref(value);
        answer_free(&a);
        str_free(&all);
    }
    close_model();
}

static void an_answer_may_be_a_text_of_a_form_or_call(void **state)
{
    unsigned n_texts = 0, n_calls = 0;
    (void)state;
    open_model();
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct str all = {0};
        struct answer a = answer_held(EITHER, seed, &all);
        if (a.n_calls) {
            assert_non_null(
                strstr(str_text(&all), EMPTY OPEN("tools") "<|open|>call tool=\"special\" index=\""));
            n_calls++;
        } else {
            json_t *value = json_loads(str_text(&a.text), 0, NULL);
            if (!json_is_boolean(json_object_get(value, "on")))
                fail_msg("%s: %s", str_text(&all), str_text(&a.text));
            json_decref(value);
            n_texts++;
        }
        answer_free(&a);
        str_free(&all);
    }
    if (!n_texts || !n_calls)
        fail_msg("%u texts, %u calls", n_texts, n_calls);
    close_model();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_opens_the_first_section),
        cmocka_unit_test(an_answer_stays_in_the_next_prompt),
        cmocka_unit_test(sections_are_thinking_and_answer),
        cmocka_unit_test(calls_are_found),
        cmocka_unit_test(tags_of_a_call_that_is_asked_for_are_control_tokens),
        cmocka_unit_test(an_answer_that_is_held_has_its_sections),
        cmocka_unit_test(an_answer_may_be_a_text_of_a_form_or_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
