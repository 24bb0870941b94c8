/* Chats, requests and answers through moeflux.h, with the trained model and a template that has tools.
 *
 * suites: check fast asan */
#include "check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moeflux_chat.h"
#include "tmp_tree.h"

enum { CONTEXT = 512, CHUNK = 16 };

static char *dir;
static struct moeflux_model *model;
static struct moeflux_chat *chat;
static struct moeflux_session *session;
/* The request that the model's progress callback cancels at its next report of a prompt; NULL: none. */
static struct moeflux_request *to_cancel;
static uint64_t cancelled_at;

static bool report(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    (void)ctx, (void)what, (void)unit;
    if (total > 1 && to_cancel && done >= 3 * CHUNK) {
        cancelled_at = done;
        moeflux_request_cancel(to_cancel);
    }
    return true;
}

static int open_all(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    dir = tmp_tree_new();
    const char *place = tmp_tree_path(dir, "model");
    tmp_tree_copy("tests/models/tiny", place);
    char *template = (char *)tmp_tree_read("tests/data/tools.jinja", NULL);
    tmp_tree_write_text(place, "chat_template.jinja", template);
    free(template);
    const struct moeflux_options o = {
        .dir = place, .device = "cpu", .chunk = CHUNK, .context = CONTEXT, .progress = {report, NULL}};
    check_ok(moeflux_model_open(&model, &o, &e), &e);
    check_ok(moeflux_chat_open(&chat, model, &e), &e);
    check_ok(moeflux_session_new(&session, model, CONTEXT, &e), &e);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    moeflux_session_free(session);
    moeflux_chat_close(chat);
    moeflux_model_close(model);
    tmp_tree_remove(dir);
    return 0;
}

/* ---- requests ---- */

static void set(struct moeflux_request *r, const char *name, const char *json)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_request_set(r, name, json, &e), &e);
}

/* Returns a greedy request with a question; NULL: without. */
static struct moeflux_request *ask(const char *question)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r;
    check_ok(moeflux_request_new(&r, &e), &e);
    set(r, "temp", "0");
    set(r, "max_tokens", "40");
    if (question)
        check_ok(moeflux_request_say(r, "user", question, &e), &e);
    return r;
}

/* What a callback was given. */
struct seen {
    char text[2048], thinking[2048], arguments[2048], id[300], name[64];
    uint32_t n_tokens, n_logprobs, n_begun, n_ended, n_pieces, most;
};

static void append(char *to, size_t cap, const struct moeflux_piece *p)
{
    size_t at = strlen(to);
    assert_true(at + p->len < cap);
    memcpy(to + at, p->text, p->len);
    to[at + p->len] = '\0';
}

static bool see(void *ctx, const struct moeflux_piece *p)
{
    struct seen *s = ctx;
    s->n_pieces++;
    s->n_tokens += p->id >= 0;
    s->n_logprobs += p->logprobs && p->logprobs[0].id == p->id && p->n_logprobs == 2;
    if (p->kind == MOEFLUX_PIECE_TEXT)
        append(s->text, sizeof s->text, p);
    if (p->kind == MOEFLUX_PIECE_THINKING)
        append(s->thinking, sizeof s->thinking, p);
    if (p->kind == MOEFLUX_PIECE_CALL_ARGUMENTS)
        append(s->arguments, sizeof s->arguments, p);
    s->n_begun += p->kind == MOEFLUX_PIECE_CALL_BEGINS;
    s->n_ended += p->kind == MOEFLUX_PIECE_CALL_ENDS;
    if (p->kind == MOEFLUX_PIECE_CALL_BEGINS) {
        snprintf(s->name, sizeof s->name, "%s", p->call->name);
        snprintf(s->id, sizeof s->id, "%s", p->call->id);
    }
    return !s->most || s->n_tokens < s->most;
}

/* Answers a request; what the callback saw is what the answer has. */
static struct moeflux_answer *answer(struct moeflux_request *r, struct seen *s)
{
    struct moeflux_err e = {0};
    struct moeflux_answer *a;
    *s = (struct seen){.most = s->most};
    check_ok(moeflux_chat_answer(chat, session, r, see, s, &a, &e), &e);
    const struct moeflux_answer_info info = moeflux_answer_get_info(a);
    if (info.stop != MOEFLUX_STOP_INTERRUPTED) {
        assert_string_equal(info.text, s->text);
        assert_string_equal(info.thinking, s->thinking);
        assert_int_equal(info.n_tokens, s->n_tokens);
    }
    return a;
}

/* Returns the text of an answer to a question; the caller frees it. */
static char *text_of(const char *question, struct moeflux_answer_info *info)
{
    struct moeflux_request *r = ask(question);
    struct seen s = {0};
    struct moeflux_answer *a = answer(r, &s);
    *info = moeflux_answer_get_info(a);
    char *text = strdup(info->text);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    return text;
}

/* The session still answers as an empty one does. */
static void expect_usable(void)
{
    struct moeflux_answer_info first, second;
    struct moeflux_err e = {0};
    char *here = text_of("What is 47 + 38?", &first);
    check_ok(moeflux_session_clear(session, &e), &e);
    char *fresh = text_of("What is 47 + 38?", &second);
    assert_string_equal(here, fresh);
    assert_int_equal(first.n_tokens, second.n_tokens);
    free(here);
    free(fresh);
}

/* The answer to a request fails with this code and a line with this text. Frees the request. */
static void expect_refused(struct moeflux_request *r, int code, const char *text)
{
    struct moeflux_err e = {0};
    struct moeflux_answer *a = (struct moeflux_answer *)r;
    assert_int_equal(moeflux_chat_answer(chat, session, r, NULL, NULL, &a, &e), code);
    assert_null(a);
    assert_int_equal(e.code, code);
    if (!strstr(e.text, text) || strchr(e.text, '\n'))
        fail_msg("'%s' has no '%s'", e.text, text);
    moeflux_request_free(r);
}

/* ---- the tests ---- */

static void a_stream_is_the_answer_and_the_next_question_reuses_the_session(void **state)
{
    struct seen s = {0};
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask("What is 47 + 38?");
    (void)state;
    set(r, "enable_thinking", "true");
    struct moeflux_answer *a = answer(r, &s);
    struct moeflux_answer_info info = moeflux_answer_get_info(a);
    assert_int_equal(info.stop, MOEFLUX_STOP_EOS);
    assert_string_equal(moeflux_stop_name(info.stop), "eos");
    assert_string_equal(info.text, "85");
    assert_true(info.thinking_len > 0);
    assert_int_equal(info.n_reused, 0);
    int32_t ids[CONTEXT];
    assert_int_equal(moeflux_chat_encode(chat, r, ids, CONTEXT, &e), info.n_prompt);
    assert_memory_equal(ids, moeflux_session_history(session), info.n_prompt * sizeof *ids);

    check_ok(moeflux_request_add_answer(r, a, &e), &e);
    check_ok(moeflux_request_say(r, "user", "What is 1 + 1?", &e), &e);
    uint32_t n_first = info.n_prompt;
    moeflux_answer_free(a);
    a = answer(r, &s);
    info = moeflux_answer_get_info(a);
    /* The model has recurrent layers: the session goes back to the checkpoint that the prompt has got. */
    assert_in_range(info.n_reused, n_first / 2, info.n_prompt - 1);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    expect_usable();
}

static void messages_come_as_json_too(void **state)
{
    struct moeflux_err e = {0};
    int32_t one[CONTEXT], other[CONTEXT];
    struct moeflux_request *r = ask("Hello \"you\"\n"), *j = ask(NULL);
    (void)state;
    set(j, "messages", "[{\"role\": \"user\", \"content\": \"Hello \\\"you\\\"\\n\"}]");
    int64_t n = moeflux_chat_encode(chat, r, one, CONTEXT, &e);
    assert_in_range(n, 8, CONTEXT);
    assert_int_equal(moeflux_chat_encode(chat, j, other, CONTEXT, &e), n);
    assert_memory_equal(one, other, (size_t)n * sizeof *one);
    assert_int_equal(moeflux_chat_encode(chat, j, NULL, 0, &e), n);
    /* The template's variables: with thinking switched off the prompt has more tokens. */
    set(j, "chat_template_kwargs", "{\"enable_thinking\": false}");
    assert_true(moeflux_chat_encode(chat, j, NULL, 0, &e) > n);
    set(j, "chat_template_kwargs", "null");
    assert_int_equal(moeflux_chat_encode(chat, j, NULL, 0, &e), n);
    moeflux_request_free(r);
    moeflux_request_free(j);
}

static const char TOOLS[] = "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
                            "{\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Oslo\", "
                            "\"Rome\"]}}, \"required\": [\"city\"]}}}]";

static void a_call_arrives_with_its_name_and_arguments(void **state)
{
    struct seen s = {0};
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask("How is the weather in Rome?");
    (void)state;
    set(r, "tools", TOOLS);
    set(r, "tool_choice", "\"required\"");
    set(r, "think_budget", "0");
    set(r, "max_tokens", "100");
    set(r, "parallel_tool_calls", "false");
    struct moeflux_answer *a = answer(r, &s);
    const struct moeflux_answer_info info = moeflux_answer_get_info(a);
    assert_int_equal(info.stop, MOEFLUX_STOP_CALLS);
    assert_int_equal(info.n_calls, 1);
    assert_int_equal(s.n_begun, 1);
    assert_int_equal(s.n_ended, 1);
    assert_string_equal(info.calls[0].name, "weather");
    assert_string_equal(s.name, "weather");
    assert_string_equal(info.calls[0].id, s.id);
    assert_string_equal(info.calls[0].arguments, s.arguments);
    assert_false(info.calls[0].is_cut);
    json_t *arguments = json_loads(info.calls[0].arguments, 0, NULL);
    assert_non_null(json_string_value(json_object_get(arguments, "city")));
    json_decref(arguments);

    /* The call and its result are a part of the next prompt. */
    check_ok(moeflux_request_add_answer(r, a, &e), &e);
    check_ok(moeflux_request_add_message(r, "{\"role\": \"tool\", \"content\": \"rain\"}", &e), &e);
    set(r, "tool_choice", "\"auto\"");
    moeflux_answer_free(a);
    a = answer(r, &s);
    assert_true(moeflux_answer_get_info(a).n_prompt > info.n_prompt + 10);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void a_tool_that_is_left_out_is_named(void **state)
{
    struct seen s = {0};
    struct moeflux_request *r = ask("Hello");
    (void)state;
    set(r, "tools", "[{\"type\": \"web_search\"}]");
    struct moeflux_answer *a = answer(r, &s);
    assert_string_equal(moeflux_answer_get_info(a).skipped_tool, "web_search");
    moeflux_answer_free(a);
    set(r, "tools", TOOLS);
    a = answer(r, &s);
    assert_null(moeflux_answer_get_info(a).skipped_tool);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void a_schema_and_a_grammar_bind_the_answer(void **state)
{
    struct seen s = {0};
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask("Where is Rome?");
    (void)state;
    set(r, "json_schema",
        "{\"type\": \"object\", \"properties\": {\"sum\": {\"type\": \"integer\", \"minimum\": "
        "0, \"maximum\": 99}}, \"required\": [\"sum\"], \"additionalProperties\": false}");
    set(r, "think_budget", "0");
    struct moeflux_answer *a = answer(r, &s);
    json_t *object = json_loads(s.text, 0, NULL);
    assert_in_range(json_integer_value(json_object_get(object, "sum")), 0, 99);
    assert_int_equal(json_object_size(object), 1);
    json_decref(object);
    moeflux_answer_free(a);
    set(r, "json_schema", "null");
    check_ok(moeflux_request_set_text(r, "grammar", "root ::= \"yes\" | \"no\"", &e), &e);
    a = answer(r, &s);
    assert_true(strcmp(s.text, "yes") == 0 || strcmp(s.text, "no") == 0);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void expect_prompt(struct moeflux_chat *c, struct moeflux_request *r, const char *text)
{
    struct moeflux_err e = {0};
    struct moeflux_tokenizer *t;
    int32_t found[64], wanted[64];
    check_ok(moeflux_tokenizer_open(&t, moeflux_model_get_info(model).tokenizer_path, &e), &e);
    int64_t n = moeflux_chat_encode(c, r, found, 64, &e),
            n_wanted = moeflux_tokenizer_encode(t, text, strlen(text), true, wanted, 64, &e);
    assert_int_equal(n, n_wanted);
    assert_memory_equal(found, wanted, (size_t)n * sizeof *found);
    moeflux_tokenizer_close(t);
}

static void a_template_may_replace_the_models(void **state)
{
    static const char text[] =
        "{% for m in messages %}<|im_start|>{{ m.role ~ word }}: {{ m.content }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}";
    struct moeflux_err e = {0};
    struct moeflux_chat *own;
    struct moeflux_request *r = ask("Hello");
    struct seen s = {0};
    (void)state;
    check_ok(moeflux_chat_open(&own, model, &e), &e);
    moeflux_answer_free(answer(r, &s));
    check_ok(moeflux_chat_use_template(own, text, "{\"word\": \"!\"}", &e), &e);
    expect_prompt(own, r, "<|im_start|>user!: Hello<|im_end|><|im_start|>");
    assert_int_equal(moeflux_chat_use_template(own, "{% if %}", NULL, &e), MOEFLUX_ERR_FORMAT);
    assert_int_equal(moeflux_chat_use_template(own, "no answers", NULL, &e), MOEFLUX_ERR_UNSUPPORTED);
    assert_int_equal(moeflux_chat_use_template(own, NULL, "[]", &e), MOEFLUX_ERR_FORMAT);
    assert_int_equal(moeflux_chat_use_template(NULL, text, NULL, &e), MOEFLUX_ERR_USAGE);
    expect_prompt(own, r, "<|im_start|>user!: Hello<|im_end|><|im_start|>");
    check_ok(moeflux_chat_use_template(own, NULL, "{\"word\": \"?\"}", &e), &e);
    expect_prompt(own, r, "<|im_start|>user?: Hello<|im_end|><|im_start|>");
    set(r, "chat_template_kwargs", "{\"word\": \".\"}");
    expect_prompt(own, r, "<|im_start|>user.: Hello<|im_end|><|im_start|>");
    moeflux_request_free(r);
    moeflux_chat_close(own);
}

/* The tags of the first form are no tokens, those of the second one are. */
static void another_template_has_calls_of_its_own_form(void **state)
{
    static const char others[] =
        "{#- <minimax:tool_call> #}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    struct moeflux_err e = {0};
    struct moeflux_chat *own;
    struct moeflux_answer *a[3];
    struct moeflux_request *r = ask("How is the weather in Rome?");
    char *text = (char *)tmp_tree_read("tests/data/tools.jinja", NULL);
    (void)state;
    set(r, "tools", TOOLS);
    set(r, "tool_choice", "\"required\"");
    set(r, "think_budget", "0");
    set(r, "temperature", "0");
    set(r, "max_tokens", "100");
    check_ok(moeflux_chat_open(&own, model, &e), &e);
    for (int i = 0; i < 3; i++) {
        check_ok(moeflux_session_clear(session, &e), &e);
        if (i < 2)
            check_ok(moeflux_chat_use_template(own, i ? text : others, NULL, &e), &e);
        check_ok(moeflux_chat_answer(i < 2 ? own : chat, session, r, NULL, NULL, &a[i], &e), &e);
        assert_true(moeflux_answer_get_info(a[i]).n_calls >= 1);
    }
    const struct moeflux_answer_info have = moeflux_answer_get_info(a[1]),
                                     want = moeflux_answer_get_info(a[2]);
    assert_int_equal(have.n_tokens, want.n_tokens);
    assert_memory_equal(have.tokens, want.tokens, want.n_tokens * sizeof *want.tokens);
    for (int i = 0; i < 3; i++)
        moeflux_answer_free(a[i]);
    moeflux_request_free(r);
    moeflux_chat_close(own);
    free(text);
}

static void rules_of_a_schema_are_made_without_a_model(void **state)
{
    static const char schema[] = "{\"enum\": [\"yes\", \"no\"]} and more";
    struct moeflux_err e = {0};
    struct seen s = {0};
    char *rules;
    (void)state;
    check_ok(
        moeflux_grammar_rules(&rules, MOEFLUX_GRAMMAR_JSON_SCHEMA, schema, strlen(schema) - 9, "s.json", &e),
        &e);
    struct moeflux_request *r = ask("Is it so?");
    set(r, "think_budget", "0");
    check_ok(moeflux_request_set_text(r, "grammar", rules, &e), &e);
    struct moeflux_answer *a = answer(r, &s);
    assert_true(strcmp(s.text, "\"yes\"") == 0 || strcmp(s.text, "\"no\"") == 0);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    free(rules);
    assert_int_equal(
        moeflux_grammar_rules(&rules, MOEFLUX_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), "s.json", &e),
        MOEFLUX_ERR_FORMAT);
    assert_null(rules);
    assert_non_null(strstr(e.text, "s.json"));
    assert_int_equal(moeflux_grammar_rules(&rules, MOEFLUX_GRAMMAR_REGEX, NULL, 0, "r", &e),
                     MOEFLUX_ERR_USAGE);
    check_ok(moeflux_grammar_rules(&rules, MOEFLUX_GRAMMAR_JSON_OBJECT, NULL, 0, "o", &e), &e);
    free(rules);
}

static void a_grammar_binds_a_loop_of_the_callers_own(void **state)
{
    const struct moeflux_model_info info = moeflux_model_get_info(model);
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_err e = {0};
    struct moeflux_tokenizer *t;
    struct moeflux_sampler *sampler;
    struct moeflux_grammar *g;
    char text[64] = "";
    (void)state;
    check_ok(moeflux_tokenizer_open(&t, info.tokenizer_path, &e), &e);
    check_ok(moeflux_sampler_new(&sampler, &o, info.vocab_size, t, &e), &e);
    check_ok(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_REGEX, "\\[(7|true),(7|true)\\]", &e), &e);
    float *flat = calloc(info.vocab_size, sizeof *flat);
    for (int n = 0; n < 20; n++) {
        const uint64_t *ids;
        const char *bytes;
        check_ok(moeflux_grammar_next(g, &ids, &e), &e);
        moeflux_sampler_restrict(sampler, ids);
        int32_t id = moeflux_sampler_pick(sampler, flat, &e);
        check_ok(id, &e);
        assert_true(ids[id / 64] >> id % 64 & 1);
        if (moeflux_tokenizer_is_special(t, id))
            break;
        check_ok(moeflux_grammar_accept(g, id, &e), &e);
        size_t len = moeflux_tokenizer_bytes(t, id, &bytes);
        strncat(text, bytes, len);
    }
    assert_true(moeflux_grammar_may_end(g));
    json_t *array = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(array), 2);
    json_decref(array);
    assert_int_equal(moeflux_grammar_accept(g, moeflux_tokenizer_special_id(t, "<|im_start|>"), &e),
                     MOEFLUX_ERR_USAGE);
    moeflux_grammar_free(g);
    moeflux_grammar_free(NULL);
    assert_int_equal(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_RULES, "root = 1", &e),
                     MOEFLUX_ERR_FORMAT);
    assert_null(g);
    assert_non_null(strstr(e.text, "the grammar"));
    check_ok(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_JSON_OBJECT, NULL, &e), &e);
    assert_false(moeflux_grammar_may_end(g));
    moeflux_grammar_free(g);
    check_ok(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_JSON_SCHEMA, "{\"type\": \"null\"}", &e), &e);
    moeflux_grammar_free(g);
    free(flat);
    moeflux_sampler_free(sampler);
    moeflux_tokenizer_close(t);
}

static void stops_limits_and_logprobs_are_obeyed(void **state)
{
    struct seen s = {0};
    struct moeflux_request *r = ask(NULL);
    struct moeflux_err e = {0};
    (void)state;
    set(r, "raw", "true");
    check_ok(moeflux_request_set_text(r, "prompt", "Hello there", &e), &e);
    struct moeflux_answer *a = answer(r, &s);
    assert_true(s.n_tokens > 3);
    char stop[3] = {s.text[2], s.text[3]}, json[16];
    snprintf(json, sizeof json, "[\"%s\"]", stop);
    moeflux_answer_free(a);
    set(r, "stop", json);
    a = answer(r, &s);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_TEXT);
    assert_string_equal(moeflux_answer_get_info(a).stop_text, stop);
    assert_int_equal(strlen(s.text), 2);
    moeflux_answer_free(a);
    set(r, "stop", "null");
    set(r, "max_tokens", "3");
    set(r, "logprobs", "2");
    a = answer(r, &s);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_LENGTH);
    assert_int_equal(moeflux_answer_get_info(a).n_tokens, 3);
    assert_int_equal(s.n_logprobs, 3);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void a_seed_that_was_drawn_gives_the_same_answer_again(void **state)
{
    struct seen first = {0}, second = {0};
    char seed[32];
    struct moeflux_request *r = ask("Tell me something about Iceland.");
    (void)state;
    set(r, "temperature", "1.5");
    /* A drawn seed may end the answer at once. */
    set(r, "ignore_eos", "true");
    struct moeflux_answer *a = answer(r, &second);
    uint64_t other = moeflux_answer_get_info(a).seed;
    moeflux_answer_free(a);
    a = answer(r, &first);
    /* Another seed was drawn, and it matters. */
    assert_true(moeflux_answer_get_info(a).seed != other);
    assert_true(first.n_tokens > 5);
    assert_true(strcmp(first.text, second.text) != 0 || strcmp(first.thinking, second.thinking) != 0);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)moeflux_answer_get_info(a).seed);
    moeflux_answer_free(a);
    set(r, "seed", seed);
    a = answer(r, &second);
    assert_string_equal(first.text, second.text);
    assert_string_equal(first.thinking, second.thinking);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void a_wrong_field_gives_one_message_and_leaves_the_session_usable(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask("Hello");
    (void)state;
    assert_int_equal(moeflux_request_set(r, "temprature", "1", &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "\"temprature\""));
    assert_int_equal(moeflux_request_set(r, "id", "1", &e), MOEFLUX_ERR_USAGE);
    /* The error may be NULL. */
    assert_int_equal(moeflux_request_set(r, "id", "1", NULL), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_set_text(r, "id", "1", NULL), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_add_message(r, "1", NULL), MOEFLUX_ERR_FORMAT);
    assert_int_equal(moeflux_chat_answer_all(chat, NULL, MOEFLUX_MAX_TASKS + 1, NULL), MOEFLUX_ERR_USAGE);
    static const char *const bad[] = {"", "{", "[1, 2", "1 2", "1, 2", "nul", "{\"a\": 1, \"a\": 2}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(moeflux_request_set(r, "messages", bad[i], &e), MOEFLUX_ERR_FORMAT);
        assert_non_null(strstr(e.text, "messages: "));
        assert_int_equal(moeflux_request_add_message(r, bad[i], &e), MOEFLUX_ERR_FORMAT);
    }
    assert_int_equal(moeflux_request_add_message(r, "[]", &e), MOEFLUX_ERR_FORMAT);
    struct moeflux_answer_info info;
    free(text_of("Hello", &info));
    moeflux_request_free(r);

    static const struct {
        const char *name, *json, *text;
        int code;
    } values[] = {
        {"temperature", "\"hot\"", "temperature", MOEFLUX_ERR_FORMAT},
        {"top_p", "7", "top_p", MOEFLUX_ERR_FORMAT},
        {"json_schema", "{\"type\": \"integr\"}", "json_schema", MOEFLUX_ERR_FORMAT},
        {"json_schema", "\"{\"", "json_schema", MOEFLUX_ERR_FORMAT},
        {"grammar", "\"root = 1\"", "grammar", MOEFLUX_ERR_FORMAT},
        {"tools", "[{\"type\": \"function\"}]", "tool", MOEFLUX_ERR_FORMAT},
        {"tool_choice", "\"required\"", "tool_choice", MOEFLUX_ERR_FORMAT},
        {"reasoning_effort", "\"extreme\"", "reasoning_effort", MOEFLUX_ERR_FORMAT},
        {"messages", "[{\"role\": \"king\", \"content\": \"x\"}]", "messages[0].role", MOEFLUX_ERR_FORMAT},
        {"prompt", "\"x\"", "prompt", MOEFLUX_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        r = ask("Hello");
        set(r, values[i].name, values[i].json);
        expect_refused(r, values[i].code, values[i].text);
    }
    expect_refused(ask(NULL), MOEFLUX_ERR_FORMAT, "prompt");
    r = ask(NULL);
    set(r, "messages", "{}");
    assert_int_equal(moeflux_request_say(r, "user", "x", &e), MOEFLUX_ERR_USAGE);
    moeflux_request_free(r);
    expect_usable();
}

static void a_prompt_that_does_not_fit_is_refused(void **state)
{
    static char text[1 << 20];
    (void)state;
    memset(text, 'a', sizeof text - 1);
    /* Refused for its bytes, before it is encoded; and for its tokens. */
    expect_refused(ask(text), MOEFLUX_ERR_USAGE, "512");
    for (size_t i = 0; i < 2 * CONTEXT; i++)
        memcpy(text + 4 * i, " xy.", 4);
    text[sizeof " xy." * CONTEXT] = '\0';
    expect_refused(ask(text), MOEFLUX_ERR_USAGE, "512");
    expect_usable();
}

static void a_session_of_another_model_is_refused(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_model *other;
    struct moeflux_session *s;
    struct moeflux_request *r = ask("Hello");
    (void)state;
    check_ok(moeflux_model_open_dir(&other, "tests/models/tiny", "cpu", &e), &e);
    check_ok(moeflux_session_new(&s, other, 64, &e), &e);
    assert_int_equal(moeflux_chat_answer(chat, s, r, NULL, NULL, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "another model"));
    moeflux_request_free(r);
    moeflux_session_free(s);
    moeflux_model_close(other);
}

static void a_cancelled_answer_ends_where_it_is(void **state)
{
    struct seen s = {0};
    struct moeflux_request *r = ask("What is 47 + 38?");
    (void)state;
    struct moeflux_answer *whole = answer(r, &s);
    const struct seen first = s;
    moeflux_answer_free(whole);

    /* The callback says stop. */
    s.most = 3;
    struct moeflux_answer *a = answer(r, &s);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_INTERRUPTED);
    assert_int_equal(moeflux_answer_get_info(a).n_tokens, 3);
    assert_int_equal(s.n_tokens, 3);
    moeflux_answer_free(a);

    /* A cancel that comes too late does not end the next answer. */
    s.most = 0;
    moeflux_request_cancel(r);
    a = answer(r, &s);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_EOS);
    assert_string_equal(s.thinking, first.thinking);
    assert_string_equal(s.text, first.text);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

/* Cancels from outside at the fourth token. */
static bool see_and_cancel(void *ctx, const struct moeflux_piece *p)
{
    struct seen *s = ctx;
    see(ctx, p);
    if (s->n_tokens == 4)
        moeflux_request_cancel(to_cancel);
    return true;
}

static void a_cancel_from_outside_drops_no_text(void **state)
{
    struct seen s = {0};
    struct moeflux_err e = {0};
    struct moeflux_answer *a;
    struct moeflux_request *r = ask(NULL);
    (void)state;
    set(r, "raw", "true");
    check_ok(moeflux_request_set_text(r, "prompt", "Hello there", &e), &e);
    moeflux_answer_free(answer(r, &s));
    assert_true(s.n_tokens > 5);
    /* All text is held back, since it may become this stop. */
    strcat(s.text, "#");
    check_ok(moeflux_request_set_text(r, "stop", s.text, &e), &e);
    s = (struct seen){0};
    to_cancel = r;
    check_ok(moeflux_chat_answer(chat, session, r, see_and_cancel, &s, &a, &e), &e);
    to_cancel = NULL;
    const struct moeflux_answer_info info = moeflux_answer_get_info(a);
    assert_int_equal(info.stop, MOEFLUX_STOP_INTERRUPTED);
    assert_true(info.text_len > 1);
    assert_string_equal(info.text, s.text);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void an_answer_that_continues_a_message_is_joined_to_it(void **state)
{
    struct seen s = {0};
    struct moeflux_err e = {0};
    int32_t one[CONTEXT], other[CONTEXT];
    char whole[sizeof s.text + 10];
    struct moeflux_request *r = ask("Say it."), *same = ask("Say it.");
    (void)state;
    set(r, "enable_thinking", "false");
    set(same, "enable_thinking", "false");
    check_ok(moeflux_request_say(r, "assistant", "The river", &e), &e);
    check_ok(moeflux_request_set_text(r, "grammar", "root ::= \"The river is long\"", &e), &e);
    struct moeflux_answer *a = answer(r, &s);
    assert_string_equal(s.text, " is long");
    check_ok(moeflux_request_add_answer(r, a, &e), &e);
    snprintf(whole, sizeof whole, "The river%s", s.text);
    check_ok(moeflux_request_say(same, "assistant", whole, &e), &e);
    check_ok(moeflux_request_say(r, "user", "Go on.", &e), &e);
    check_ok(moeflux_request_say(same, "user", "Go on.", &e), &e);
    int64_t n = moeflux_chat_encode(chat, same, one, CONTEXT, &e);
    assert_int_equal(moeflux_chat_encode(chat, r, other, CONTEXT, &e), n);
    assert_memory_equal(one, other, (size_t)n * sizeof *one);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    moeflux_request_free(same);
}

static void nothing_and_unknown_kinds_are_errors(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask("Hello");
    struct moeflux_grammar *g;
    struct moeflux_chat *c;
    struct moeflux_answer *a;
    (void)state;
    assert_int_equal(moeflux_chat_open(&c, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_set(r, NULL, "1", &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_set(r, "seed", NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_set(NULL, "seed", "1", &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_set(r, "n", "2", &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "\"n\""));
    assert_int_equal(moeflux_request_set_text(r, "prompt", NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_say(r, NULL, "x", &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_say(r, "user", NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_add_message(r, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_request_add_answer(r, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_chat_encode(chat, NULL, NULL, 0, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_chat_answer(chat, NULL, r, NULL, NULL, &a, &e), MOEFLUX_ERR_USAGE);
    assert_null(a);
    assert_int_equal(moeflux_chat_answer(chat, session, NULL, NULL, NULL, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_chat_answer_all(chat, NULL, 1, &e), MOEFLUX_ERR_USAGE);
    struct moeflux_task task = {.session = session};
    assert_int_equal(moeflux_chat_answer_all(chat, &task, 1, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_grammar_new(&g, chat, (enum moeflux_grammar_kind)77, "x", &e),
                     MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_RULES, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_null(g);
    assert_string_equal(moeflux_stop_name((enum moeflux_stop)77), "unknown");
    moeflux_request_cancel(NULL);
    moeflux_request_free(r);
}

static void a_prompt_can_be_cancelled(void **state)
{
    struct seen s = {0};
    char text[1600] = "";
    (void)state;
    for (int i = 0; i < 100; i++)
        strcat(text, "What is this? ");
    struct moeflux_request *r = ask(text);
    to_cancel = r;
    struct moeflux_answer *a = answer(r, &s);
    to_cancel = NULL;
    const struct moeflux_answer_info info = moeflux_answer_get_info(a);
    assert_int_equal(info.stop, MOEFLUX_STOP_INTERRUPTED);
    assert_int_equal(s.n_pieces, 0);
    assert_true(info.n_prompt > 4 * CHUNK);
    /* It ends at the next report: the chunk in flight may be finished or dropped. */
    assert_in_range(moeflux_session_position(session), 2 * CHUNK, cancelled_at + 2 * CHUNK);
    assert_true(moeflux_session_position(session) < info.n_prompt - CHUNK);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    expect_usable();
}

enum { N_TASKS = 5 };

struct crowd {
    struct seen each[N_TASKS];
    int n_inside, n_overlaps;
};
static struct crowd crowd;

static bool see_one(void *ctx, const struct moeflux_piece *p)
{
    crowd.n_overlaps += crowd.n_inside++ > 0;
    bool more = see(ctx, p);
    crowd.n_inside--;
    return more;
}

static void answers_of_several_requests_are_those_of_each_alone(void **state)
{
    static const char *const questions[N_TASKS] = {"What is 47 + 38?", "Tell me something about Iceland.",
                                                   "What is 2 + 2?", "Hello", "Name a colour."};
    struct moeflux_task tasks[N_TASKS + 1] = {0};
    struct moeflux_err e = {0};
    (void)state;
    crowd = (struct crowd){0};
    for (int i = 0; i < N_TASKS; i++) {
        check_ok(moeflux_session_new(&tasks[i].session, model, CONTEXT, &e), &e);
        tasks[i].request = ask(questions[i]);
        tasks[i].piece = see_one;
        tasks[i].ctx = &crowd.each[i];
        tasks[i].err.code = MOEFLUX_ERR_IO;
    }
    set(tasks[2].request, "json_schema", "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}");
    /* One of them fails, which is no matter to the others. */
    tasks[N_TASKS].request = ask("Hello");
    set(tasks[N_TASKS].request, "top_p", "7");
    check_ok(moeflux_session_new(&tasks[N_TASKS].session, model, CONTEXT, &e), &e);
    assert_int_equal(moeflux_chat_answer_all(chat, tasks, N_TASKS + 1, &e), 1);
    assert_int_equal(crowd.n_overlaps, 0);
    assert_int_equal(tasks[N_TASKS].err.code, MOEFLUX_ERR_FORMAT);
    assert_null(tasks[N_TASKS].answer);
    for (int i = 0; i < N_TASKS; i++) {
        struct seen s = {0};
        assert_int_equal(tasks[i].err.code, MOEFLUX_OK);
        check_ok(moeflux_session_clear(session, &e), &e);
        struct moeflux_answer *a = answer(tasks[i].request, &s);
        assert_true(s.n_tokens > 1 && (s.text[0] || s.thinking[0]));
        assert_int_equal(crowd.each[i].n_tokens, s.n_tokens);
        assert_string_equal(moeflux_answer_get_info(tasks[i].answer).text, s.text);
        assert_string_equal(crowd.each[i].text, s.text);
        assert_string_equal(crowd.each[i].thinking, s.thinking);
        assert_int_equal(moeflux_answer_get_info(tasks[i].answer).n_tokens, s.n_tokens);
        moeflux_answer_free(a);
    }
    for (int i = 0; i <= N_TASKS; i++)
        moeflux_answer_free(tasks[i].answer);
    struct moeflux_task twice[2] = {tasks[0], tasks[1]};
    twice[1].session = tasks[0].session;
    assert_int_equal(moeflux_chat_answer_all(chat, twice, 2, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_chat_answer_all(chat, twice, MOEFLUX_MAX_TASKS + 1, &e), MOEFLUX_ERR_USAGE);
    for (int i = 0; i <= N_TASKS; i++) {
        moeflux_request_free(tasks[i].request);
        moeflux_session_free(tasks[i].session);
    }
}

static void a_model_without_a_tokenizer_answers_token_ids(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_chat *c;
    (void)state;
    const char *place = tmp_tree_path(dir, "mute");
    tmp_tree_copy("tests/models/tiny", place);
    assert_int_equal(remove(tmp_tree_path(place, "tokenizer.json")), 0);
    check_ok(moeflux_model_open_dir(&m, place, "cpu", &e), &e);
    check_ok(moeflux_chat_open(&c, m, &e), &e);
    assert_null(moeflux_chat_tokenizer(c));
    struct moeflux_session *s;
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    struct moeflux_request *r = ask("Who?");
    assert_int_equal(moeflux_chat_answer(c, s, r, NULL, NULL, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "tokenizer.json"));
    /* There are messages, too. */
    static const int32_t ids[] = {5, 17, 300};
    check_ok(moeflux_request_set_ids(r, ids, 3, &e), &e);
    assert_int_equal(moeflux_chat_answer(c, s, r, NULL, NULL, NULL, &e), MOEFLUX_ERR_USAGE);
    set(r, "messages", "null");
    struct moeflux_answer *a;
    assert_int_equal(moeflux_chat_encode(c, r, NULL, 0, &e), 3);
    check_ok(moeflux_chat_answer(c, s, r, NULL, NULL, &a, &e), &e);
    assert_int_equal(moeflux_answer_get_info(a).n_prompt, 3);
    assert_true(moeflux_answer_get_info(a).n_tokens > 0);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    moeflux_session_free(s);
    moeflux_chat_close(c);
    moeflux_chat_close(NULL);
    moeflux_request_free(NULL);
    moeflux_answer_free(NULL);
    moeflux_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_the_answer_and_the_next_question_reuses_the_session),
        cmocka_unit_test(messages_come_as_json_too),
        cmocka_unit_test(a_call_arrives_with_its_name_and_arguments),
        cmocka_unit_test(a_tool_that_is_left_out_is_named),
        cmocka_unit_test(a_schema_and_a_grammar_bind_the_answer),
        cmocka_unit_test(a_template_may_replace_the_models),
        cmocka_unit_test(another_template_has_calls_of_its_own_form),
        cmocka_unit_test(rules_of_a_schema_are_made_without_a_model),
        cmocka_unit_test(a_grammar_binds_a_loop_of_the_callers_own),
        cmocka_unit_test(stops_limits_and_logprobs_are_obeyed),
        cmocka_unit_test(a_seed_that_was_drawn_gives_the_same_answer_again),
        cmocka_unit_test(a_wrong_field_gives_one_message_and_leaves_the_session_usable),
        cmocka_unit_test(a_prompt_that_does_not_fit_is_refused),
        cmocka_unit_test(a_session_of_another_model_is_refused),
        cmocka_unit_test(a_cancelled_answer_ends_where_it_is),
        cmocka_unit_test(a_cancel_from_outside_drops_no_text),
        cmocka_unit_test(an_answer_that_continues_a_message_is_joined_to_it),
        cmocka_unit_test(nothing_and_unknown_kinds_are_errors),
        cmocka_unit_test(a_prompt_can_be_cancelled),
        cmocka_unit_test(answers_of_several_requests_are_those_of_each_alone),
        cmocka_unit_test(a_model_without_a_tokenizer_answers_token_ids),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
