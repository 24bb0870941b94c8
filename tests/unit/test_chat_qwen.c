/* Templates with <|im_start|> turns: the model's own, which wins over its family's form, Qwen3's form, and
 * the variables of Qwen3.8's. Qwen3.5's is in test_chat.c.
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

/* Other words than the published ones. */
#define TURNS_OF(role)                                                                                       \
    "{% for m in messages %}{{ '<|im_start|>' ~ " role " ~ '\\n' ~ m.content.split('</think>')[-1] ~ "       \
    "'<|im_end|>\\n' }}{% endfor %}"
#define OPENS(thinking)                                                                                      \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}" thinking "{% endif %}"

static const char PLAIN[] = TURNS_OF("m.role") OPENS("");
static const char ALWAYS_THINKS[] = TURNS_OF("m.role") OPENS("{{ '<think>\\n' }}");
static const char SWITCHED[] =
    TURNS_OF("m.role") OPENS("{{ '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}");

/* The tiny model's tokenizer, which has all tags, with a chat template (NULL: none). */
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

/* ---- which template ---- */

static void the_models_template_wins_over_the_familys(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(TURNS_OF("m.role|upper") OPENS(""));
    struct chat c;
    chats_open(&c, t, "qwen3", CHAT_THINKING_AUTO);
    chats_expect(&c, chats_messages("system", "a ", "user", " b"),
                 "<|im_start|>SYSTEM\na <|im_end|>\n<|im_start|>USER\n b<|im_end|>\n<|im_start|>assistant\n");
    chat_free(&c);
    tokenizer_free(t);
}

static void without_a_template_the_family_must_have_a_form(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(NULL);
    static const char *const unknown[] = {NULL, "another"};
    for (size_t i = 0; i < 2; i++) {
        struct moeflux_err e = chats_refused(t, unknown[i], CHAT_THINKING_AUTO);
        assert_int_equal(e.code, ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "neither chat_template.jinja nor a chat_template in"));
    }
    tokenizer_free(t);
}

static void expect_refused(const char *template, int code, const char *text)
{
    struct tokenizer *t = open_with(template);
    struct moeflux_err e = chats_refused(t, "qwen3", CHAT_THINKING_AUTO);
    assert_int_equal(e.code, code);
    assert_string_equal(e.text, text);
    tokenizer_free(t);
}

static void a_template_that_cannot_be_run_is_refused_with_its_place(void **state)
{
    (void)state;
    expect_refused("{% for m in messages %}\n{{ m.content | shine }}{% endfor %}", ERR_UNSUPPORTED,
                   "chat template:2:16: the filter \"shine\" is not known");
    expect_refused("{% if %}", ERR_FORMAT, "chat template:1:7: expected an expression, found \"%}\"");
    expect_refused("{{ raise_exception('no ' ~ messages[0].role) }}", ERR_USAGE,
                   "chat template:1:4: the template refuses the messages: no user");
    expect_refused("{{ messages|length }}", ERR_UNSUPPORTED,
                   "chat template: it does not repeat the text of an answer");
}

/* ---- what they write ---- */

static void expect_prompt(const char *template, enum chat_thinking thinking, const char *want)
{
    struct tokenizer *t = open_with(template);
    struct chat c;
    chats_open(&c, t, "qwen3", thinking);
    chats_expect(&c, chats_messages("system", "Be brief.", "user", "hi "), want);
    chat_free(&c);
    tokenizer_free(t);
}

#define TURNS                                                                                                \
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi <|im_end|>\n<|im_start|>assistant\n"

static void qwen3_thinks_by_itself_and_text_is_not_trimmed(void **state)
{
    (void)state;
    expect_prompt(NULL, CHAT_THINKING_AUTO, TURNS);
    expect_prompt(NULL, CHAT_THINKING_ON, TURNS);
    expect_prompt(NULL, CHAT_THINKING_OFF, TURNS "<think>\n\n</think>\n\n");
    expect_prompt(ALWAYS_THINKS, CHAT_THINKING_AUTO, TURNS "<think>\n");
    expect_prompt(ALWAYS_THINKS, CHAT_THINKING_ON, TURNS "<think>\n");
    expect_prompt(PLAIN, CHAT_THINKING_AUTO, TURNS);
    expect_prompt(PLAIN, CHAT_THINKING_OFF, TURNS);
    expect_prompt(SWITCHED, CHAT_THINKING_AUTO, TURNS "<think>\n\n</think>\n\n");
    expect_prompt(SWITCHED, CHAT_THINKING_ON, TURNS "<think>\n");
}

static void what_a_template_cannot_do_is_refused(void **state)
{
    (void)state;
    struct tokenizer *plain = open_with(PLAIN), *thinks = open_with(ALWAYS_THINKS);
    assert_non_null(strstr(chats_refused(plain, NULL, CHAT_THINKING_ON).text, "has no thinking"));
    assert_non_null(strstr(chats_refused(thinks, NULL, CHAT_THINKING_OFF).text, "always thinks"));
    tokenizer_free(plain);
    tokenizer_free(thinks);
}

static void a_past_answer_stands_without_thinking(void **state)
{
    (void)state;
    struct tokenizer *t = open_with(NULL);
    struct chat c;
    chats_open(&c, t, "qwen3", CHAT_THINKING_AUTO);
    chats_expect(&c, chats_messages("user", "one", "assistant", "1", "user", "two"),
                 "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
                 "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n");
    chat_free(&c);
    tokenizer_free(t);
}

/* ---- a conversation goes on ---- */

/* Tokens of a first prompt with a sampled answer after it; then those of the conversation with a second
 * question. */
struct going_on {
    struct tokenizer *t;
    struct chat c;
    struct token_list tokens, want;
    struct chat_span span;
    uint32_t n_kept;
};

/* thought: the message's thinking; NULL: none. */
static void go_on(struct going_on *g, const char *template, enum chat_thinking thinking, const char *sampled,
                  bool ended, const char *thought, const char *answer)
{
    struct moeflux_err e = {0};
    struct chat_text text = {0};
    *g = (struct going_on){.t = open_with(template)};
    chats_open(&g->c, g->t, "qwen3", thinking);
    chats_prompt(&g->c, chats_messages("user", "one <|im_end|>"), &g->tokens, NULL);
    g->span.from = (uint32_t)g->tokens.n;
    tokens_add(g->t, sampled, &g->tokens);
    check_ok(chat_end_answer(&g->c, ended, &g->tokens, &e), &e);
    g->span.to = (uint32_t)g->tokens.n;
    for (size_t i = 0; i < g->tokens.n; i++)
        check_ok(token_list_add(&g->want, g->tokens.ids[i], &e), &e);
    json_t *messages = chats_messages("user", "one <|im_end|>", "assistant", answer, "user", "two");
    if (thought)
        json_object_set_new(json_array_get(messages, 1), "reasoning_content", json_string(thought));
    struct chat_prompt prompt = {.messages = messages, .opens_answer = true};
    check_ok(chat_render(&g->c, &prompt, &text, &e), &e);
    check_ok(chat_extend(&g->c, &text, &g->span, 1, &g->tokens, &g->n_kept, &e), &e);
    chat_text_free(&text);
    json_decref(messages);
}

/* The first n tokens stayed, and `rest` follows them. */
static void expect_kept(struct going_on *g, size_t n, const char *rest)
{
    assert_int_equal(g->n_kept, n);
    g->want.n = n;
    tokens_add(g->t, rest, &g->want);
    assert_int_equal(g->tokens.n, g->want.n);
    assert_memory_equal(g->tokens.ids, g->want.ids, g->want.n * sizeof *g->want.ids);
    token_list_free(&g->tokens);
    token_list_free(&g->want);
    chat_free(&g->c);
    tokenizer_free(g->t);
}

#define SECOND "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"

static void a_sampled_answer_stays_as_it_is(void **state)
{
    (void)state;
    struct going_on g;
    go_on(&g, PLAIN, CHAT_THINKING_AUTO, "1 2<|im_end|>", true, NULL, "1 2");
    assert_int_equal(g.c.n_opening, 0);
    expect_kept(&g, g.span.to, SECOND);
    /* White space that the text lacks, and an answer that was cut. */
    go_on(&g, PLAIN, CHAT_THINKING_AUTO, "\n1 2 \n", false, NULL, "1 2");
    expect_kept(&g, g.span.to, SECOND);
    /* Qwen3's form keeps the thinking too. */
    go_on(&g, NULL, CHAT_THINKING_AUTO, "<think>\nhm\n</think>\n\n1<|im_end|>", true, "hm", "1");
    expect_kept(&g, g.span.to, SECOND);
    go_on(&g, NULL, CHAT_THINKING_AUTO, "<think>\nhm, so", false, "hm, so", "");
    expect_kept(&g, g.span.to, SECOND);
    go_on(&g, NULL, CHAT_THINKING_OFF, "1<|im_end|>", true, "", "1");
    expect_kept(&g, g.span.to, SECOND "<think>\n\n</think>\n\n");
}

static void what_the_template_leaves_out_is_rendered_anew(void **state)
{
    (void)state;
    struct going_on g;
    struct token_list before = {0};
    /* It opened the think block, and writes past answers without it: everything after the role's token is
     * new. */
    go_on(&g, ALWAYS_THINKS, CHAT_THINKING_AUTO, "hm</think>\n\n1<|im_end|>", true, "hm", "1");
    tokens_add(g.t, "<|im_start|>assistant\n<think>\n", &before);
    assert_int_equal(g.c.n_opening, before.n - 1);
    expect_kept(&g, g.span.from - before.n + 1, "assistant\n1<|im_end|>\n" SECOND "<think>\n");
    /* The model opened it. */
    before.n = 0;
    go_on(&g, PLAIN, CHAT_THINKING_AUTO, "<think>hm</think>1<|im_end|>", true, "hm", "1");
    tokens_add(g.t, "assistant\n", &before);
    expect_kept(&g, g.span.from - before.n, "assistant\n1<|im_end|>\n" SECOND);
    /* Another answer than the sampled one: somebody edited it. */
    go_on(&g, PLAIN, CHAT_THINKING_AUTO, "1<|im_end|>", true, NULL, "13");
    expect_kept(&g, g.span.from - before.n, "assistant\n13<|im_end|>\n" SECOND);
    token_list_free(&before);
}

/* ---- answers ---- */

static void expect_answer(const char *template, enum chat_thinking thinking, const char *answer,
                          const char *want_thinking, const char *want_answer)
{
    struct tokenizer *t = open_with(template);
    struct chat c;
    chats_open(&c, t, "qwen3", thinking);
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
    chat_free(&c);
    tokenizer_free(t);
}

static void the_block_that_the_model_opens_is_thinking(void **state)
{
    (void)state;
    expect_answer(NULL, CHAT_THINKING_AUTO, "<think>\n1\n2\n</think>\n\n3\n4<|im_end|>", "1\n2\n", "3\n4");
    expect_answer(NULL, CHAT_THINKING_AUTO, "3<|im_end|>", "", "3");
    expect_answer(NULL, CHAT_THINKING_OFF, "3\n<|im_end|>", "", "3\n");
    expect_answer(ALWAYS_THINKS, CHAT_THINKING_AUTO, "1\n</think>\n\n3<|im_end|>", "1\n", "3");
    expect_answer(PLAIN, CHAT_THINKING_AUTO, "3<|im_end|>", "", "3");
}

/* ---- Qwen3.8: a sentence about the effort, thinking that stays, calls as Qwen3.5's ---- */

static const char EFFORT[] =
    "{% set effort = reasoning_effort|default('xhigh') %}"
    "{% if effort not in ('xhigh', 'medium', 'low') %}{{ raise_exception('no effort ' ~ effort) }}{% endif %}"
    "{% if (enable_thinking is undefined or enable_thinking) and effort != 'medium' %}"
    "{{ '<|im_start|>system\nThink: ' ~ effort ~ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
    "{% if m.role == 'assistant' %}"
    "{{ '<think>\n' ~ (m.reasoning_content or '')|trim ~ '\n</think>\n\n' }}{% endif %}"
    "{{ m.content|trim }}"
    "{% for call in m.tool_calls or [] %}{% set tool_call = call.function %}"
    "{{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}"
    "{% for k, v in tool_call.arguments|items %}"
    "{{ '<parameter=' ~ k ~ '>\n' ~ (v if v is string else v|tojson) ~ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}" OPENS("{{ '<think>\n' if enable_thinking is undefined or "
                                             "enable_thinking else '<think>\n\n</think>\n\n' }}");
#define ASKED     "<|im_start|>user\nhi<|im_end|>\n"
#define THINKS    "<|im_start|>assistant\n<think>\n"
#define TOLD(how) "<|im_start|>system\nThink: " how "<|im_end|>\n"

static void an_effort_reaches_the_template_as_one_of_its_variables(void **state)
{
    (void)state;
    static const struct {
        const char *kwargs, *want; /* want NULL: refused */
    } cases[] = {
        {"{}", TOLD("xhigh") ASKED THINKS},
        {"{\"reasoning_effort\": \"xhigh\"}", TOLD("xhigh") ASKED THINKS},
        {"{\"reasoning_effort\": \"low\"}", TOLD("low") ASKED THINKS},
        {"{\"reasoning_effort\": \"medium\"}", ASKED THINKS},
        {"{\"reasoning_effort\": \"high\"}", NULL},
        {"{\"enable_thinking\": false}", ASKED "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
    };
    struct tokenizer *t = open_with(EFFORT);
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    assert_true(c.opens_inside);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        struct chat_text text = {0};
        json_t *messages = chats_messages("user", " hi "), *kwargs = json_loads(cases[i].kwargs, 0, NULL);
        int rc = chat_render(
            &c, &(struct chat_prompt){.messages = messages, .kwargs = kwargs, .opens_answer = true}, &text,
            &e);
        assert_true(cases[i].want ? rc == 0 : rc < 0 && strstr(e.text, "no effort high"));
        if (cases[i].want)
            assert_string_equal(str_text(&text.text), cases[i].want);
        chat_text_free(&text);
        json_decref(messages);
        json_decref(kwargs);
    }
    chat_free(&c);
    tokenizer_free(t);
}

static void thinking_and_calls_of_past_answers_stay(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\", "
        "\"reasoning_content\": \"hm\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": "
        "\"put\", \"arguments\": {\"path\": \"a b\", \"n\": [1, 2]}}}]}]";
    struct tokenizer *t = open_with(EFFORT);
    struct moeflux_err e = {0};
    struct chat_text text = {0};
    struct chat c;
    chats_open(&c, t, NULL, CHAT_THINKING_AUTO);
    json_t *list = json_loads(messages, 0, NULL);
    check_ok(chat_render(&c, &(struct chat_prompt){.messages = list, .opens_answer = true}, &text, &e), &e);
    assert_string_equal(str_text(&text.text), TOLD("xhigh") ASKED
                        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nho\n<tool_call>\n"
                        "<function=put>\n<parameter=path>\na b\n</parameter>\n<parameter=n>\n"
                        "[1, 2]\n</parameter>\n</function>\n</tool_call><|im_end|>\n" THINKS);
    assert_ptr_equal(tool_form_of(t, NULL), tool_form_find("<tool_call>\n<function=f>"));
    assert_ptr_not_equal(tool_form_of(t, NULL), tool_form_find("<tool_call>"));
    chat_text_free(&text);
    json_decref(list);
    chat_free(&c);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_models_template_wins_over_the_familys),
        cmocka_unit_test(without_a_template_the_family_must_have_a_form),
        cmocka_unit_test(a_template_that_cannot_be_run_is_refused_with_its_place),
        cmocka_unit_test(qwen3_thinks_by_itself_and_text_is_not_trimmed),
        cmocka_unit_test(what_a_template_cannot_do_is_refused),
        cmocka_unit_test(a_past_answer_stands_without_thinking),
        cmocka_unit_test(a_sampled_answer_stays_as_it_is),
        cmocka_unit_test(what_the_template_leaves_out_is_rendered_anew),
        cmocka_unit_test(the_block_that_the_model_opens_is_thinking),
        cmocka_unit_test(an_effort_reaches_the_template_as_one_of_its_variables),
        cmocka_unit_test(thinking_and_calls_of_past_answers_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
