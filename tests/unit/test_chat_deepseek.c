/* Templates that write what DeepSeek-V3's, V3.1's and Cogito-V2's do: prompts, and how answers are sorted.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "chats.h"
#include "check.h"
#include "text/chat/chat.h"
#include "text/chat/tool_calls.h"
#include "text/tokenizer/tokenizer.h"
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

/* What the published templates write for texts, in other words. */
#define SYSTEM "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
#define TURNS(think_close)                                                                                   \
    "{% for m in messages %}{% if m.role == 'user' %}{{ '" USER                                              \
    "' + m.content }}{% elif m.role == 'assistant' %}"                                                       \
    "{{ '" ASSISTANT think_close "' + m.content.split('</think>')[-1] + '" END "' }}{% endif %}{% endfor %}"
#define OPENS(thinking) "{% if add_generation_prompt %}{{ '" ASSISTANT "' }}" thinking "{% endif %}"

static const char V3[] = "{{ bos_token }}" SYSTEM TURNS("") OPENS("");
static const char V31[] =
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ bos_token }}" SYSTEM TURNS(
        "</think>") OPENS("{{ '<think>' if thinking else '</think>' }}");
static const char COGITO[] =
    "{{ bos_token }}{% set ns = namespace(system='" SELF "') %}"
    "{% for m in messages if m.role == 'system' %}{% set ns.system = ns.system + '\\n\\n' + m.content %}{% "
    "endfor %}"
    "{% if enable_thinking %}{% set ns.system = 'Enable deep thinking subroutine.\\n\\n' + ns.system + ("
    "'\\n\\n' if messages[0].role == 'system' else '') %}{% endif %}{{ ns.system }}" TURNS("")
        OPENS("{% if enable_thinking %}{{ '<think>\\n' }}{% endif %}");

/* A tag that merging can make has its id already. */
static void add_tag(json_t *file, const char *tag, int32_t id)
{
    const json_t *known = json_object_get(json_object_get(json_object_get(file, "model"), "vocab"), tag);
    tokenizer_build_added(file, tag, known ? (int32_t)json_integer_value(known) : id, false, false);
}

/* The small tokenizer of the data file, with the tags of `tags` as tokens, and the chat template `template`
 * (NULL: none). */
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
    tmp_tree_write_text(tmp, "tokenizer_config.json", "{\"bos_token\": {\"content\": \"" BEGIN "\"}}");
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
    chats_open(c, t, NULL, thinking);
}

/* ---- what they write ---- */

static void a_model_without_a_template_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, NULL);
    assert_non_null(strstr(chats_refused(t, NULL, CHAT_THINKING_AUTO).text,
                           "neither chat_template.jinja nor a chat_template in"));
    tokenizer_free(t);
}

static void deepseek_v3_writes_its_turns(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, V3);
    struct token_list got = {0};
    struct chat c;
    uint32_t n_system;
    assert_non_null(strstr(chats_refused(t, NULL, CHAT_THINKING_ON).text, "has no thinking"));
    start(&c, t, CHAT_THINKING_OFF);
    assert_int_equal(c.turn_close, tokenizer_added_id(t, END));
    chats_expect(&c, chats_messages("user", "hi 12"), BEGIN USER "hi 12" ASSISTANT);
    chats_prompt(&c,
                 chats_messages("system", "Be brief. ", "user", " one\n", "assistant", "1", "user", "two",
                                "assistant", "2", "user", "three"),
                 &got, NULL);
    tokens_expect(t,
                  BEGIN "Be brief. " USER " one\n" ASSISTANT "1" END USER "two" ASSISTANT "2" END USER
                        "three" ASSISTANT,
                  &got);
    got = (struct token_list){0};
    chats_prompt(&c, chats_messages("system", "Be brief. ", "user", "x"), &got, &n_system);
    assert_int_equal(got.ids[n_system], tokenizer_added_id(t, USER));
    token_list_free(&got);
    chat_free(&c);
    tokenizer_free(t);
}

static void deepseek_v31_opens_or_closes_the_think_block(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, V31);
    struct chat c;
    start(&c, t, CHAT_THINKING_AUTO);
    chats_expect(&c, chats_messages("user", "hi"), BEGIN USER "hi" ASSISTANT "</think>");
    chat_free(&c);
    start(&c, t, CHAT_THINKING_OFF);
    chats_expect(&c, chats_messages("user", "hi"), BEGIN USER "hi" ASSISTANT "</think>");
    chat_free(&c);
    start(&c, t, CHAT_THINKING_ON);
    chats_expect(&c, chats_messages("system", "sys", "user", "hi"),
                 BEGIN "sys" USER "hi" ASSISTANT "<think>");
    assert_true(c.opens_inside);
    chat_free(&c);
    tokenizer_free(t);
}

static void cogito_says_who_it_is_and_thinks_when_asked(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, COGITO);
    struct chat c;
    start(&c, t, CHAT_THINKING_AUTO);
    chats_expect(&c, chats_messages("user", "hi"), BEGIN SELF USER "hi" ASSISTANT);
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "hi"),
                 BEGIN SELF "\n\nBe brief." USER "hi" ASSISTANT);
    chat_free(&c);
    start(&c, t, CHAT_THINKING_ON);
    chats_expect(&c, chats_messages("user", "hi"),
                 BEGIN "Enable deep thinking subroutine.\n\n" SELF USER "hi" ASSISTANT "<think>\n");
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "hi"),
                 BEGIN "Enable deep thinking subroutine.\n\n" SELF "\n\nBe brief.\n\n" USER "hi" ASSISTANT
                       "<think>\n");
    chat_free(&c);
    tokenizer_free(t);
}

static void control_strings_of_users_stay_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(false, COGITO);
    struct token_list got = {0};
    struct chat c;
    size_t n[3] = {0};
    start(&c, t, CHAT_THINKING_OFF);
    chats_prompt(&c, chats_messages("system", BEGIN END USER, "user", BEGIN USER ASSISTANT END), &got, NULL);
    for (size_t i = 0; i < got.n; i++) {
        n[0] += got.ids[i] == tokenizer_added_id(t, BEGIN);
        n[1] += got.ids[i] == tokenizer_added_id(t, USER);
        n[2] += got.ids[i] == tokenizer_added_id(t, END);
    }
    assert_true(n[0] == 1 && n[1] == 1 && n[2] == 0);
    token_list_free(&got);
    chat_free(&c);
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
    chat_filter_end(&f, c, &parts[0]);
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
    struct tokenizer *t = open_with(false, COGITO);
    struct token_list spelt = {0};
    struct chat c;
    start(&c, t, CHAT_THINKING_ON);
    assert_int_equal(c.think_close, -1);
    tokens_add(t, "x</think>y", &spelt);
    assert_true(spelt.n > 3);
    token_list_free(&spelt);
    expect_parts(&c, "one two\n</think>\n\nanswer\n\nmore" END, "one two|answer\n\nmore");
    expect_parts(&c, "a < b </ c </thin> </</think>d", "a < b </ c </thin> </|d");
    expect_parts(&c, "<</think>\n</think> e", "<|</think> e");
    expect_parts(&c, "never closed </thi", "never closed </thi|");
    expect_parts(&c, "汉字…</think>汉", "汉字…|汉");
    chat_free(&c);
    start(&c, t, CHAT_THINKING_OFF);
    expect_parts(&c, "plain </think> text" END, "|plain </think> text");
    chat_free(&c);
    tokenizer_free(t);
}

static void tags_that_are_tokens_are_found(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, V31);
    struct chat c;
    start(&c, t, CHAT_THINKING_ON);
    expect_parts(&c, "one</think>two" END, "one|two");
    expect_parts(&c, "one</think>\n\ntwo", "one|two");
    chat_free(&c);
    start(&c, t, CHAT_THINKING_OFF);
    expect_parts(&c, "two" END, "|two");
    chat_free(&c);
    tokenizer_free(t);
}

static void past_answers_stand_without_thinking(void **state)
{
    (void)state;
    static const struct {
        const char *template, *want;
    } cases[] = {
        {V3, BEGIN USER "one" ASSISTANT "1" END USER "two" ASSISTANT},
        {V31, BEGIN USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT "</think>"},
        {COGITO, BEGIN SELF USER "one" ASSISTANT "1" END USER "two" ASSISTANT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat c;
        struct tokenizer *t = open_with(true, cases[i].template);
        start(&c, t, CHAT_THINKING_OFF);
        chats_expect(&c, chats_messages("user", "one", "assistant", "1", "user", "two"), cases[i].want);
        chat_free(&c);
        tokenizer_free(t);
    }
}

/* ---- V3.2, whose models have no template ---- */

#define DSML "｜DSML｜"

static json_t *conversation(const char *text)
{
    json_error_t why;
    json_t *root = json_loads(text, 0, &why);
    if (!root)
        fail_msg("%s", why.text);
    return root;
}

/* Renders the messages with the tools and expects this text after the begin and the declaration of tools. */
static void expect_text(const struct chat *c, const char *messages, const char *tools, const char *want)
{
    struct moeflux_err e = {0};
    struct chat_text text = {0};
    json_t *list = conversation(messages), *known = tools ? conversation(tools) : NULL;
    struct chat_prompt p = {.messages = list, .tools = known, .opens_answer = true};
    check_ok(chat_render(c, &p, &text, &e), &e);
    const char *found = str_text(&text.text), *user = strstr(found, USER);
    assert_non_null(user);
    assert_int_equal(strncmp(found, BEGIN, strlen(BEGIN)), 0);
    assert_true(!tools == !strstr(found, "<functions>\n{\"name\": \"f\"}\n</functions>\n" USER));
    assert_string_equal(user, want);
    chat_text_free(&text);
    json_decref(list);
    json_decref(known);
}

static void deepseek_v32_writes_its_turns_without_a_template(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct chat c;
    chats_open(&c, t, "deepseek-v3.2", CHAT_THINKING_AUTO);
    assert_int_equal(c.turn_close, tokenizer_added_id(t, END));
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "one", "assistant", "1", "user", "two"),
                 BEGIN "Be brief." USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT "</think>");
    chat_free(&c);
    chats_open(&c, t, "deepseek-v3.2", CHAT_THINKING_ON);
    assert_true(c.opens_inside);
    chats_expect(&c, chats_messages("user", "one", "assistant", "1", "user", "two"),
                 BEGIN USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT "<think>");
    expect_parts(&c, "one</think>two" END, "one|two");
    chat_free(&c);
    tokenizer_free(t);
}

static void deepseek_v32_thinks_between_its_calls(void **state)
{
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
                      messages[] =
                          "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                          "\"\", \"reasoning_content\": \"hm\", \"tool_calls\": [{\"function\": {\"name\": "
                          "\"f\", \"arguments\": {\"s\": \"x\", \"n\": [1]}}}]}, {\"role\": \"tool\", "
                          "\"content\": \"r\"}]";
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct chat c;
    chats_open(&c, t, "deepseek-v3.2", CHAT_THINKING_ON);
    expect_text(&c, messages, tools,
                USER "a" ASSISTANT "<think>hm</think>\n\n<" DSML "function_calls>\n<" DSML
                     "invoke name=\"f\">\n<" DSML "parameter name=\"s\" string=\"true\">x</" DSML
                     "parameter>\n<" DSML "parameter name=\"n\" string=\"false\">[1]</" DSML
                     "parameter>\n</" DSML "invoke>\n</" DSML "function_calls>" END
                     "\n\n<function_results>\n<result>r</result>\n</function_results>\n\n<think>");
    expect_text(&c, "[{\"role\": \"user\", \"content\": \"a\"}]", NULL, USER "a" ASSISTANT "<think>");
    chat_free(&c);
    assert_ptr_equal(tool_form_of(t, "deepseek-v3.2"), tool_form_find(DSML "function_calls>"));
    assert_null(tool_form_of(t, NULL));
    tokenizer_free(t);
}

static void deepseek_v4_thinks_between_its_calls_and_drops_old_thoughts(void **state)
{
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
                      messages[] =
                          "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                          "\"\", \"reasoning_content\": \"hm\", \"tool_calls\": [{\"function\": {\"name\": "
                          "\"f\", \"arguments\": {\"s\": \"x\", \"n\": [1]}}}]}, {\"role\": \"tool\", "
                          "\"content\": \"r\"}, {\"role\": \"user\", \"content\": \"b\"}]";
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct chat c;
    chats_open(&c, t, "deepseek-v4", CHAT_THINKING_AUTO);
    assert_int_equal(c.turn_close, tokenizer_added_id(t, END));
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "one", "assistant", "1", "user", "two"),
                 BEGIN "Be brief." USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT "</think>");
    chat_free(&c);
    chats_open(&c, t, "deepseek-v4", CHAT_THINKING_ON);
    assert_true(c.opens_inside);
    chats_expect(&c, chats_messages("user", "one", "assistant", "1", "user", "two"),
                 BEGIN USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT "<think>");
    expect_parts(&c, "one</think>two" END, "one|two");
    json_t *list = conversation(messages), *known = conversation(tools);
    struct chat_prompt p = {.messages = list, .tools = known, .opens_answer = true};
    struct chat_text text = {0};
    struct moeflux_err e = {0};
    check_ok(chat_render(&c, &p, &text, &e), &e);
    const char *user = strstr(str_text(&text.text), USER);
    assert_non_null(user);
    assert_non_null(strstr(str_text(&text.text), "Schemas\n\n{\"name\": \"f\"}\n\nYou MUST strictly follow"));
    assert_string_equal(user,
                        USER "a" ASSISTANT "<think>hm</think>\n\n<" DSML "tool_calls>\n<" DSML
                             "invoke name=\"f\">\n<" DSML "parameter name=\"s\" string=\"true\">x</" DSML
                             "parameter>\n<" DSML "parameter name=\"n\" string=\"false\">[1]</" DSML
                             "parameter>\n</" DSML "invoke>\n</" DSML "tool_calls>" END USER
                             "<tool_result>r</tool_result>\n\nb" ASSISTANT "<think>");
    chat_text_free(&text);
    json_decref(list);
    json_decref(known);
    chat_free(&c);
    assert_ptr_equal(tool_form_of(t, "deepseek-v4"), tool_form_find(DSML "tool_calls>"));
    tokenizer_free(t);
}

/* What encoding.py of DeepSeek-V4.1-Flash writes. */
static void deepseek_v41_has_system_texts_anywhere_and_says_how_much_it_thinks(void **state)
{
#define SYSTEM_TEXT "<｜System｜>"
#define EFFORT(n)                                                                                            \
    "Reasoning Effort: " n " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
                      messages[] =
                          "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                          "\"\", \"reasoning_content\": \"hm\", \"tool_calls\": [{\"function\": {\"name\": "
                          "\"f\", \"arguments\": {\"s\": \"x\", \"n\": [1]}}}]}, {\"role\": \"tool\", "
                          "\"content\": \"r\"}, {\"role\": \"user\", \"content\": \"b\"}]";
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct chat c;
    chats_open(&c, t, "deepseek-v4.1", CHAT_THINKING_AUTO);
    chats_expect(&c, chats_messages("user", "hello"), BEGIN USER "hello" ASSISTANT "</think>");
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "one", "assistant", "1", "system", "Now!"),
                 BEGIN SYSTEM_TEXT "Be brief." USER "one" ASSISTANT "</think>1" END SYSTEM_TEXT
                                   "Now!" ASSISTANT "</think>");
    chat_free(&c);
    chats_open(&c, t, "deepseek-v4.1", CHAT_THINKING_ON);
    assert_true(c.opens_inside);
    chats_expect(&c, chats_messages("user", "one", "assistant", "1", "user", "two"),
                 BEGIN SYSTEM_TEXT EFFORT("75") USER "one" ASSISTANT "</think>1" END USER "two" ASSISTANT
                                                     "<think>");
    struct moeflux_err e = {0};
    check_ok(chat_use_effort(&c, CHAT_EFFORT_LOW, &e), &e);
    chats_expect(&c, chats_messages("system", "S", "user", "one"),
                 BEGIN SYSTEM_TEXT EFFORT("50") "S" USER "one" ASSISTANT "<think>");
    check_ok(chat_use_effort(&c, CHAT_EFFORT_XHIGH, &e), &e);
    chats_expect(&c, chats_messages("user", "one"),
                 BEGIN SYSTEM_TEXT EFFORT("100") USER "one" ASSISTANT "<think>");
    check_ok(chat_use_effort(&c, CHAT_EFFORT_AUTO, &e), &e);
    json_t *list = conversation(messages), *known = conversation(tools);
    struct chat_prompt p = {.messages = list, .tools = known, .opens_answer = true};
    struct chat_text text = {0};
    check_ok(chat_render(&c, &p, &text, &e), &e);
    const char *begin = BEGIN SYSTEM_TEXT EFFORT("75") "\n\n## Tools\n\n",
               *user = strstr(str_text(&text.text), USER);
    assert_non_null(user);
    assert_memory_equal(str_text(&text.text), begin, strlen(begin));
    assert_non_null(strstr(str_text(&text.text),
                           "Schemas\n\n{\"name\": \"f\"}\n\nYou MUST strictly follow the above defined"));
    assert_string_equal(user,
                        USER "a" ASSISTANT "<think>hm</think>\n\n<" DSML " calls>\n<" DSML
                             " invoke name=\"f\">\n<" DSML " parameter name=\"s\" string=\"true\">x</" DSML
                             " parameter>\n<" DSML " parameter name=\"n\" string=\"false\">[1]</" DSML
                             " parameter>\n</" DSML " invoke>\n</" DSML " calls>" END USER
                             "<tool_result>r</tool_result>\n\nb" ASSISTANT "<think>");
    chat_text_free(&text);
    json_decref(list);
    json_decref(known);
    chat_free(&c);
    assert_ptr_equal(tool_form_of(t, "deepseek-v4.1"), tool_form_find(DSML " calls>"));
    tokenizer_free(t);
#undef EFFORT
#undef SYSTEM_TEXT
}

/* ---- what DeepSeek's own programs write: efforts, tools, results, thoughts ---- */

/* Renders with the family's template and expects the beginning of the text, or its end. */
static void expect_whole(const struct chat *c, const char *messages, const char *tools, const char *want,
                         bool is_end)
{
    struct moeflux_err e = {0};
    struct chat_text text = {0};
    json_t *list = conversation(messages), *known = tools ? conversation(tools) : NULL;
    struct chat_prompt p = {.messages = list, .tools = known, .opens_answer = true};
    check_ok(chat_render(c, &p, &text, &e), &e);
    size_t n = strlen(want);
    assert_true(text.text.len >= n);
    const char *part = str_text(&text.text) + (is_end ? text.text.len - n : 0);
    if (strncmp(part, want, n) != 0)
        fail_msg("%s", str_text(&text.text));
    chat_text_free(&text);
    json_decref(list);
    json_decref(known);
}

static const char ONE_TOOL[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";

static void deepseek_v4_says_that_it_thinks_most(void **state)
{
    static const char most[] = BEGIN
        "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
        "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
        "resolve the root cause, rigorously stress-testing your logic against all potential paths, edge "
        "cases, and adversarial scenarios.\n"
        "Explicitly write out your entire deliberation process, documenting every intermediate step, "
        "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
        "unchecked.\n\n";
    static const struct {
        enum chat_effort effort;
        bool is_most;
        int64_t budget;
    } cases[] = {{CHAT_EFFORT_XHIGH, true, -1},
                 {CHAT_EFFORT_HIGH, false, -1},
                 {CHAT_EFFORT_LOW, false, 2048},
                 {CHAT_EFFORT_AUTO, false, -1}};
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct moeflux_err e = {0};
    struct chat c;
    chats_open(&c, t, "deepseek-v4", CHAT_THINKING_ON);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str want = {0};
        check_ok(chat_use_effort(&c, cases[i].effort, &e), &e);
        assert_int_equal(chat_effort_budget(&c), cases[i].budget);
        str_addf(&want, "%sS" USER "a" ASSISTANT "<think>", cases[i].is_most ? most : BEGIN);
        chats_expect(&c, chats_messages("system", "S", "user", "a"), str_text(&want));
        str_free(&want);
    }
    chat_free(&c);
    tokenizer_free(t);
}

static void tools_stand_on_their_own_without_a_system_text(void **state)
{
    static const char *const families[][2] = {{"deepseek-v3.2", BEGIN "\n\n## Tools\n\nYou have"},
                                              {"deepseek-v4", BEGIN "\n\n## Tools\n\nYou have"},
                                              {"deepseek-v4.1", BEGIN "<｜System｜>\n\n## Tools\n\nYou"}};
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct chat c;
        chats_open(&c, t, families[i][0], CHAT_THINKING_OFF);
        expect_whole(&c, "[{\"role\": \"user\", \"content\": \"a\"}]", ONE_TOOL, families[i][1], false);
        chat_free(&c);
    }
    tokenizer_free(t);
}

/* A call of f by its id. */
#define CALL(id)         "{\"id\": \"" id "\", \"function\": {\"name\": \"f\", \"arguments\": {}}}"
#define RESULT(id, text) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}, "

static void results_stand_in_the_order_of_their_calls(void **state)
{
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"tool_calls\": [" CALL("x") ", " CALL("y") ", " CALL("z") "]}, " RESULT("z", "3")
            RESULT("y", "2 <think>") "{\"role\": \"user\", \"content\": \"b\"}, " RESULT("x", "1")
                RESULT("?", "0") "{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"d\", \"tool_calls\": [" CALL("x") "]}, " RESULT(
                                     "x", "4") "{\"role\": \"user\", \"content\": \"e\"}]";
    static const char *const families[] = {"deepseek-v4", "deepseek-v4.1"};
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct token_list got = {0};
        struct chat c;
        size_t n = 0;
        chats_open(&c, t, families[i], CHAT_THINKING_OFF);
        const char *calls = i ? " calls" : "tool_calls", *invoke = i ? " invoke" : "invoke";
        struct str want = {0};
        str_addf(&want,
                 END USER
                 "<tool_result>1</tool_result>\n\n<tool_result>0</tool_result>\n\nb\n\n"
                 "<tool_result>2 <think></tool_result>\n\n<tool_result>3</tool_result>\n\nc" ASSISTANT
                 "</think>d\n\n<" DSML "%s>\n<" DSML "%s name=\"f\">\n\n</" DSML "%s>\n</" DSML "%s>" END USER
                 "<tool_result>4</tool_result>\n\ne" ASSISTANT "</think>",
                 calls, invoke, invoke, calls);
        expect_whole(&c, messages, NULL, str_text(&want), true);
        str_free(&want);
        chats_prompt(&c, conversation(messages), &got, NULL);
        for (size_t k = 0; k < got.n; k++)
            n += got.ids[k] == tokenizer_added_id(t, "<think>");
        assert_int_equal(n, 0); /* the result's is text */
        token_list_free(&got);
        chat_free(&c);
    }
    tokenizer_free(t);
}

static void old_thoughts_stay_with_tools_alone(void **state)
{
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
        "\"reasoning_content\": \"hm\", \"tool_calls\": [" CALL("x") "]}, " RESULT(
            "x", "1") "{\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": \"so\"}, "
                      "{\"role\": \"user\", \"content\": \"d\"}]";
    static const char *const families[] = {"deepseek-v4", "deepseek-v4.1"};
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct chat c;
        chats_open(&c, t, families[i], CHAT_THINKING_ON);
        expect_whole(
            &c, messages, NULL,
            USER "<tool_result>1</tool_result>" ASSISTANT "</think>c" END USER "d" ASSISTANT "<think>", true);
        expect_whole(&c, messages, ONE_TOOL,
                     USER "<tool_result>1</tool_result>" ASSISTANT "<think>so</think>c" END USER "d" ASSISTANT
                          "<think>",
                     true);
        chat_free(&c);
    }
    tokenizer_free(t);
}

static void deepseek_v32_writes_a_line_for_no_arguments(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, NULL);
    struct chat c;
    chats_open(&c, t, "deepseek-v3.2", CHAT_THINKING_OFF);
    expect_whole(&c,
                 "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", "
                 "\"tool_calls\": [" CALL("x") "]}, {\"role\": \"tool\", \"content\": \"r\"}]",
                 NULL,
                 "\n\n<" DSML "function_calls>\n<" DSML "invoke name=\"f\">\n\n</" DSML "invoke>\n</" DSML
                 "function_calls>" END
                 "\n\n<function_results>\n<result>r</result>\n</function_results>\n\n</think>",
                 true);
    chat_free(&c);
    tokenizer_free(t);
}

/* ---- efforts that a template does not know ---- */

static void asking_for_more_never_means_less(void **state)
{
    /* What templates make of words that they do not know differs: they name one themselves, refuse them, say
     * nothing, or say a number. */
    static const char names_most[] = "{% set r = 'high' if reasoning_effort == 'high' else 'max' %}"
                                     "Effort (low to max): {{ r|capitalize }}<think>",
                      refuses[] = "{% if (reasoning_effort or 'low') not in ['low', 'high', 'max'] %}"
                                  "{{ raise_exception('no') }}{% endif %}{{ reasoning_effort }}<think>",
                      is_silent[] = "{% if reasoning_effort in ['low', 'xhigh'] %}{{ reasoning_effort }}"
                                    "{% endif %}<think>",
                      names_medium[] = "Effort {{ reasoning_effort if reasoning_effort in ['low', 'high'] "
                                       "else 'medium' }}.<think>",
                      says_number[] = "{{ {'low': 25, 'xhigh': 75}.get(reasoning_effort or '', 50) }}<think>";
    static const struct {
        const char *template, *word;
        enum chat_effort effort;
        int64_t budget;
    } cases[] = {
        {names_most, "max", CHAT_EFFORT_XHIGH, -1},       {names_most, "high", CHAT_EFFORT_HIGH, -1},
        {names_most, "high", CHAT_EFFORT_MEDIUM, 8192},   {names_most, "high", CHAT_EFFORT_LOW, 2048},
        {names_most, "high", CHAT_EFFORT_MINIMAL, 512},   {names_most, NULL, CHAT_EFFORT_NONE, -1},
        {refuses, "max", CHAT_EFFORT_XHIGH, -1},          {refuses, "high", CHAT_EFFORT_MEDIUM, 8192},
        {refuses, "low", CHAT_EFFORT_MINIMAL, -1},        {is_silent, "xhigh", CHAT_EFFORT_XHIGH, -1},
        {is_silent, NULL, CHAT_EFFORT_HIGH, -1},          {is_silent, NULL, CHAT_EFFORT_MEDIUM, 8192},
        {is_silent, "low", CHAT_EFFORT_LOW, -1},          {names_medium, "high", CHAT_EFFORT_XHIGH, -1},
        {names_medium, "medium", CHAT_EFFORT_MEDIUM, -1}, {says_number, NULL, CHAT_EFFORT_HIGH, -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str template = {0};
        str_addf(&template, "{%% for m in messages %%}{{ m.content }}{%% endfor %%}%s", cases[i].template);
        struct tokenizer *t = open_with(true, str_text(&template));
        struct moeflux_err e = {0};
        struct chat c;
        start(&c, t, CHAT_THINKING_AUTO);
        check_ok(chat_use_effort(&c, cases[i].effort, &e), &e);
        if (!c.effort_word != !cases[i].word || (c.effort_word && strcmp(c.effort_word, cases[i].word) != 0))
            fail_msg("%zu: %s", i, c.effort_word ? c.effort_word : "(none)");
        assert_int_equal(chat_effort_budget(&c), cases[i].budget);
        chat_free(&c);
        tokenizer_free(t);
        str_free(&template);
    }
}

/* ---- tools that the template leaves out ---- */

#define CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CALL_BEGIN  "<｜tool▁call▁begin｜>"
#define SEP         "<｜tool▁sep｜>"
#define ENDS        "<｜tool▁call▁end｜>"
/* What makes the form of the calls known: templates write old ones. */
#define OLD_CALLS(more)                                                                                      \
    "{% for m in messages if m.tool_calls %}{{ '" CALLS_BEGIN CALL_BEGIN more "' }}{% endfor %}"
#define TOOLS                                                                                                \
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"Does it.\", "              \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\"}}}}}, "            \
    "{\"type\": \"function\", \"function\": {\"name\": \"g\"}}]"
#define TOLD(call)                                                                                           \
    "## Tools\nYou have access to the following tools:\n\n### f\nDescription: Does it.\n\nParameters: "      \
    "{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\"}}}\n\n### g\nDescription: \n\n"    \
    "Parameters: {}\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n" CALLS_BEGIN CALL_BEGIN \
        call ENDS "{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n- `tool_call_name` must be " \
    "an exact match to one of the available tools\n- `tool_call_arguments` must be valid JSON that "         \
    "strictly follows the tool's Parameters Schema\n- For multiple tool calls, chain them directly "         \
    "without separators or spaces"

static void start_with_tools(struct chat *c, const struct tokenizer *t)
{
    struct moeflux_err e = {0};
    start(c, t, CHAT_THINKING_AUTO);
    check_ok(chat_use_tools(c, tool_form_of(t, NULL), &e), &e);
    assert_true(c->leaves_tools_out);
}

static void expect_told(const struct chat *c, json_t *messages, const char *want, size_t n_tags)
{
    struct moeflux_err e = {0};
    struct token_list got = {0};
    json_t *tools = conversation(TOOLS);
    struct chat_prompt p = {.messages = messages, .tools = tools, .opens_answer = true};
    struct chat_text text = {0};
    check_ok(chat_render(c, &p, &text, &e), &e);
    assert_string_equal(str_text(&text.text), want);
    check_ok(chat_prompt_tokens(c, &p, &got, NULL, &e), &e);
    size_t n = 0;
    for (size_t i = 0; i < got.n; i++)
        n += got.ids[i] == tokenizer_added_id(c->tokenizer, CALLS_BEGIN);
    assert_int_equal(n, n_tags);
    chat_text_free(&text);
    token_list_free(&got);
    json_decref(messages);
    json_decref(tools);
}

static void tools_that_a_template_leaves_out_stand_behind_the_system_text(void **state)
{
    static const char with_calls[] =
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ bos_token }}" SYSTEM
            OLD_CALLS("") TURNS("</think>") OPENS("{{ '<think>' if thinking else '</think>' }}"),
                      of_v3[] = "{{ bos_token }}" SYSTEM OLD_CALLS("```json") TURNS("") OPENS("");
    (void)state;
    struct tokenizer *t = open_with(true, with_calls);
    struct chat c;
    start_with_tools(&c, t);
    expect_told(&c, chats_messages("system", "Be brief.", "user", "hi"),
                BEGIN "Be brief.\n\n" TOLD("tool_call_name" SEP "tool_call_arguments") USER "hi" ASSISTANT
                                                                                            "</think>",
                1);
    /* The tags of the shown call are control tokens; a user's are not. */
    expect_told(&c, chats_messages("user", CALLS_BEGIN),
                BEGIN TOLD("tool_call_name" SEP "tool_call_arguments") USER CALLS_BEGIN ASSISTANT "</think>",
                1);
    chats_expect(&c, chats_messages("user", "hi"), BEGIN USER "hi" ASSISTANT "</think>");
    chat_free(&c);
    tokenizer_free(t);
    t = open_with(true, of_v3);
    start_with_tools(&c, t);
    expect_told(&c, chats_messages("user", "hi"),
                BEGIN TOLD("function" SEP "tool_call_name\n```json\ntool_call_arguments\n```") USER
                "hi" ASSISTANT,
                1);
    chat_free(&c);
    tokenizer_free(t);
}

static void tools_of_a_form_that_is_not_taught_stay_unseen(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(true, V31);
    struct moeflux_err e = {0};
    struct chat_text text = {0};
    struct chat c;
    start_with_tools(&c, t);
    json_t *messages = chats_messages("user", "hi"), *tools = conversation(TOOLS);
    struct chat_prompt p = {.messages = messages, .tools = tools, .opens_answer = true};
    check_ok(chat_render(&c, &p, &text, &e), &e);
    assert_string_equal(str_text(&text.text), BEGIN USER "hi" ASSISTANT "</think>");
    chat_text_free(&text);
    json_decref(messages);
    json_decref(tools);
    chat_free(&c);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(past_answers_stand_without_thinking),
        cmocka_unit_test(a_model_without_a_template_is_refused),
        cmocka_unit_test(deepseek_v3_writes_its_turns),
        cmocka_unit_test(deepseek_v31_opens_or_closes_the_think_block),
        cmocka_unit_test(cogito_says_who_it_is_and_thinks_when_asked),
        cmocka_unit_test(control_strings_of_users_stay_text),
        cmocka_unit_test(tags_spelt_in_several_tokens_are_found),
        cmocka_unit_test(tags_that_are_tokens_are_found),
        cmocka_unit_test(deepseek_v32_writes_its_turns_without_a_template),
        cmocka_unit_test(deepseek_v32_thinks_between_its_calls),
        cmocka_unit_test(deepseek_v4_thinks_between_its_calls_and_drops_old_thoughts),
        cmocka_unit_test(tools_that_a_template_leaves_out_stand_behind_the_system_text),
        cmocka_unit_test(tools_of_a_form_that_is_not_taught_stay_unseen),
        cmocka_unit_test(deepseek_v4_says_that_it_thinks_most),
        cmocka_unit_test(tools_stand_on_their_own_without_a_system_text),
        cmocka_unit_test(results_stand_in_the_order_of_their_calls),
        cmocka_unit_test(old_thoughts_stay_with_tools_alone),
        cmocka_unit_test(deepseek_v32_writes_a_line_for_no_arguments),
        cmocka_unit_test(asking_for_more_never_means_less),
        cmocka_unit_test(deepseek_v41_has_system_texts_anywhere_and_says_how_much_it_thinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
