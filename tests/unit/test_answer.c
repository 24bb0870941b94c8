/* The answer loop with the embedded model: stop texts, log-probabilities, penalties, calls of tools.
 *
 * suites: check fast asan */
#include "check.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate/answer.h"
#include "generate/answer_json.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/tools.h"
#include "text/chat/tool_calls.h"
#include "text/grammar/constraint.h"
#include "tmp_tree.h"

#define MODEL "tests/models/tiny"
enum { LENGTH = 24, MOST = 200 };

static struct generator model;
static char *dir;

/* The model with a template that has tools. */
static const char *make_dir(void)
{
    static const char *const files[][2] = {
        {MODEL "/config.json", "config.json"},
        {MODEL "/model.safetensors", "model.safetensors"},
        {MODEL "/model.safetensors.index.json", "model.safetensors.index.json"},
        {MODEL "/tokenizer.json", "tokenizer.json"},
        {"tests/data/tools.jinja", "chat_template.jinja"},
    };
    dir = tmp_tree_new();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *real = realpath(files[i][0], NULL);
        assert_non_null(real);
        assert_int_equal(symlink(real, tmp_tree_path(dir, files[i][1])), 0);
        free(real);
    }
    return dir;
}

static int open_model(void **state)
{
    struct moeflux_err e = {0};
    const struct moeflux_options options = {.dir = make_dir(), .device = "cpu", .context = 256};
    const struct moeflux_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    (void)state;
    struct moeflux_model *opened;
    check_ok(moeflux_model_open(&opened, &options, &e), &e);
    check_ok(generator_of_models(&model, &opened, 1, &e), &e);
    check_ok(generator_use_chat(&model, (struct chat_reasoning){0}, "the test", &e), &e);
    check_ok(generator_start(&model, 256, &greedy, &e), &e);
    return 0;
}

static int close_model(void **state)
{
    struct moeflux_model *opened = model.model;
    (void)state;
    generator_close(&model);
    moeflux_model_close(opened);
    tmp_tree_remove(dir);
    return 0;
}

/* What a sink was given. */
struct seen {
    struct str text, thinking;
    int32_t ids[MOST];
    float logprobs[MOST];
    size_t n;
};

static int see(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    struct seen *s = ctx;
    (void)e;
    if (!p->call)
        str_add(p->kind == MOEFLUX_PIECE_THINKING ? &s->thinking : &s->text, p->text, p->len);
    assert_int_equal(p->id >= 0 && p->logprobs, p->logprobs != NULL);
    if (p->id < 0)
        return 0;
    assert_true(s->n < MOST);
    s->logprobs[s->n] = p->logprobs ? p->logprobs->value : 0;
    s->ids[s->n++] = p->id;
    return 0;
}

/* Answers a prompt, raw, from the start. What the sink saw is what the answer has. */
static struct answer run(struct answer_options o, const struct moeflux_sampler_options *sampling,
                         const char *prompt)
{
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    struct answer a = {0};
    struct seen seen = {0};
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_new_sampler(&model, sampling, NULL, 0, &e), &e);
    check_ok(
        tokenizer_encode_prompt(model.tokenizer, prompt, strlen(prompt), SPECIALS_AS_TOKENS, &ids, NULL, &e),
        &e);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    o.sink = (struct answer_sink){see, &seen};
    check_ok(answer_run(&a, &model, &o, &e), &e);
    assert_string_equal(str_text(&a.text), str_text(&seen.text));
    assert_string_equal(str_text(&a.thinking), str_text(&seen.thinking));
    assert_int_equal(a.tokens.n, seen.n);
    assert_memory_equal(a.tokens.ids, seen.ids, seen.n * sizeof *seen.ids);
    for (size_t i = 0; o.logprobs && i < seen.n; i++)
        assert_true(seen.logprobs[i] == logprobs_of(&a.logprobs, i)->value);
    str_free(&seen.text);
    str_free(&seen.thinking);
    token_list_free(&ids);
    return a;
}

static const struct moeflux_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
static const char PROMPT[] = "Hello there";

static struct answer run_greedy(const char *const *stops, size_t n)
{
    return run((struct answer_options){.limit = LENGTH, .stops = stops, .n_stops = n}, &greedy, PROMPT);
}

static void a_stop_text_ends_the_answer_wherever_it_parts_the_tokens(void **state)
{
    struct answer whole = run_greedy(NULL, 0);
    const char *text = str_text(&whole.text);
    (void)state;
    assert_int_equal(whole.stop, MOEFLUX_STOP_LENGTH);
    for (size_t at = 0; at < 24; at += 3) {
        char stop[12] = {0};
        const char *stops[] = {"not there", stop};
        memcpy(stop, text + at, 1 + at % 8);
        size_t first = (size_t)(strstr(text, stop) - text);
        struct answer a = run_greedy(stops, 2);
        assert_int_equal(a.stop, MOEFLUX_STOP_TEXT);
        assert_string_equal(moeflux_stop_name(a.stop), "stop");
        assert_ptr_equal(a.stop_text, stop);
        assert_int_equal(a.text.len, first);
        assert_memory_equal(str_text(&a.text), text, first);
        /* The tokens are those that were sampled; no more of them than the text took. */
        assert_memory_equal(a.tokens.ids, whole.tokens.ids, a.tokens.n * sizeof(int32_t));
        const char *bytes;
        size_t n_bytes = 0;
        for (size_t i = 0; i < a.tokens.n; i++) {
            assert_true(n_bytes < first + strlen(stop));
            n_bytes += tokenizer_bytes(model.tokenizer, a.tokens.ids[i], &bytes);
        }
        assert_true(n_bytes >= first + strlen(stop));
        answer_free(&a);
    }
    answer_free(&whole);
}

static void what_is_held_back_for_a_stop_comes_out_at_the_end(void **state)
{
    struct answer whole = run_greedy(NULL, 0);
    struct str stop = {0};
    (void)state;
    /* All of the last ten bytes, and one more that does not come. */
    str_add_text(&stop, str_text(&whole.text) + whole.text.len - 10);
    str_add_text(&stop, "\x01");
    const char *const stops[] = {str_text(&stop)};
    struct answer a = run_greedy(stops, 1);
    assert_int_equal(a.stop, MOEFLUX_STOP_LENGTH);
    assert_null(a.stop_text);
    assert_string_equal(str_text(&a.text), str_text(&whole.text));
    str_free(&stop);
    answer_free(&a);
    answer_free(&whole);
}

static void a_stop_text_is_not_looked_for_in_the_thinking(void **state)
{
    static const char *const stops[] = {"=", "3"};
    static const char prompt[] =
        "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    struct answer a =
        run((struct answer_options){.limit = 8, .chat = true, .stops = stops, .n_stops = 2}, &greedy, prompt);
    (void)state;
    assert_int_equal(a.stop, MOEFLUX_STOP_LENGTH);
    assert_true(strstr(str_text(&a.thinking), "3 =") != NULL);
    answer_free(&a);
}

static const char THINKS[] = "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n<think>\n";

/* Runs with a limit of the thinking. */
static struct answer run_limited(uint32_t budget, struct answer_options o)
{
    o.chat = o.limits_thinking = true;
    o.think_budget = budget;
    return run(o, &greedy, THINKS);
}

static void a_limit_ends_the_thinking_and_the_answer_goes_on(void **state)
{
    struct answer whole = run((struct answer_options){.limit = LENGTH, .chat = true}, &greedy, THINKS);
    struct moeflux_err e = {0};
    struct token_list closing = {0};
    size_t n_tag;
    (void)state;
    check_ok(chat_close_thinking(&model.chat, &closing, &n_tag, &e), &e);
    assert_true(n_tag > 0 && closing.ids[n_tag - 1] == model.chat.think_close);
    for (uint32_t budget = 0; budget < 4; budget++)
        for (int logprobs = 0; logprobs < 2; logprobs++) {
            struct answer a =
                run_limited(budget, (struct answer_options){.limit = LENGTH, .logprobs = logprobs == 1});
            assert_memory_equal(a.tokens.ids, whole.tokens.ids, budget * sizeof *a.tokens.ids);
            assert_memory_equal(a.tokens.ids + budget, closing.ids, closing.n * sizeof *closing.ids);
            assert_true(a.tokens.n > budget + closing.n && a.text.len > 0);
            assert_true(budget > 0 || a.thinking.len == 0);
            assert_true(!logprobs || a.logprobs.n == a.tokens.n);
            answer_free(&a);
        }
    /* A limit that is not reached changes nothing. */
    struct answer a = run_limited(MOST, (struct answer_options){.limit = LENGTH});
    assert_int_equal(a.tokens.n, whole.tokens.n);
    assert_memory_equal(a.tokens.ids, whole.tokens.ids, a.tokens.n * sizeof *a.tokens.ids);
    answer_free(&a);
    answer_free(&whole);
    token_list_free(&closing);
}

static void a_grammar_holds_after_a_limited_thinking(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    for (uint32_t budget = 0; budget < 4; budget++) {
        struct answer_options o = {.limit = LENGTH};
        check_ok(constrain_begin(&model, "root ::= \"five\"", &o.constraint, &e), &e);
        struct answer a = run_limited(budget, o);
        assert_string_equal(str_text(&a.text), "five");
        assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
        constraint_free(o.constraint);
        answer_free(&a);
    }
}

static void a_continued_text_is_a_part_of_what_the_grammar_describes(void **state)
{
    struct moeflux_err e = {0};
    struct answer_options o = {.limit = LENGTH, .chat = true, .continues = "fi"};
    (void)state;
    check_ok(constrain_begin(&model, "root ::= \"five\"", &o.constraint, &e), &e);
    struct answer a = run(o, &greedy, PROMPT);
    assert_string_equal(str_text(&a.text), "ve");
    assert_int_equal(a.thinking.len, 0);
    constraint_free(o.constraint);
    answer_free(&a);
    o = (struct answer_options){.limit = 4, .chat = true, .continues = "", .continues_thinking = true};
    a = run(o, &greedy, PROMPT);
    assert_true(a.thinking.len > 0 && a.text.len == 0);
    answer_free(&a);
}

static void a_stop_text_that_is_kept_is_the_end_of_the_text(void **state)
{
    static const char *const stops[] = {"d Ya"};
    struct answer_options o = {.limit = LENGTH, .stops = stops, .n_stops = 1, .keep_stop = true};
    (void)state;
    struct answer a = run(o, &greedy, PROMPT);
    assert_int_equal(a.stop, MOEFLUX_STOP_TEXT);
    assert_string_equal(str_text(&a.text) + a.text.len - 4, "d Ya");
    answer_free(&a);
}

static void logprobs_are_those_of_the_logits_and_change_no_choice(void **state)
{
    static const struct moeflux_sampler_options sampling = {
        .temperature = 1.5f, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 8, .seed = 5};
    const struct answer_options plain = {.limit = LENGTH}, with = {
                                                               .limit = LENGTH,
                                                               .logprobs = true,
                                                               .n_logprobs = MOEFLUX_MAX_LOGPROBS,
                                                           };
    struct answer a = run(plain, &sampling, PROMPT), b = run(with, &sampling, PROMPT);
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    (void)state;
    assert_int_equal(a.tokens.n, b.tokens.n);
    assert_memory_equal(a.tokens.ids, b.tokens.ids, a.tokens.n * sizeof(int32_t));
    assert_int_equal(a.logprobs.n, 0);
    assert_int_equal(b.logprobs.n, b.tokens.n);
    /* Again, token by token, with plain sums. */
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(
        tokenizer_encode_prompt(model.tokenizer, PROMPT, strlen(PROMPT), SPECIALS_AS_TOKENS, &ids, NULL, &e),
        &e);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    for (size_t i = 0; i < b.tokens.n; i++) {
        const struct moeflux_logprob *l = logprobs_of(&b.logprobs, i);
        double sum = 0;
        uint32_t n_larger = 0;
        for (uint32_t k = 0; k < model.info.vocab_size; k++)
            sum += exp((double)model.logits[k]);
        assert_int_equal(l[0].id, b.tokens.ids[i]);
        for (uint32_t k = 0; k <= MOEFLUX_MAX_LOGPROBS; k++)
            assert_true(fabs(exp((double)model.logits[l[k].id] - (double)l[k].value) / sum - 1) < 1e-4);
        for (uint32_t k = 1; k < MOEFLUX_MAX_LOGPROBS; k++)
            assert_true(l[k].value > l[k + 1].value ||
                        (l[k].value == l[k + 1].value && l[k].id < l[k + 1].id));
        for (uint32_t k = 0; k < model.info.vocab_size; k++)
            n_larger += model.logits[k] > model.logits[l[MOEFLUX_MAX_LOGPROBS].id];
        assert_true(n_larger < MOEFLUX_MAX_LOGPROBS);
        check_ok(generator_eval(&model, &b.tokens.ids[i], 1, NULL, &e), &e);
    }
    token_list_free(&ids);
    answer_free(&a);
    answer_free(&b);
}

/* The lowest id of the largest logit that is left after the penalties. */
static int32_t penalised_best(const struct moeflux_sampler_options *o, const int32_t *ids, size_t n)
{
    int32_t best = 0;
    float largest = -INFINITY;
    for (uint32_t k = 0; k < model.info.vocab_size; k++) {
        float n_times = 0, logit = model.logits[k];
        for (size_t i = 0; i < n; i++)
            n_times += ids[i] == (int32_t)k ? 1 : 0;
        if (n_times > 0)
            logit -= o->presence_penalty + o->frequency_penalty * n_times;
        if (logit > largest && (model.allowed[k / 8] >> k % 8 & 1)) {
            largest = logit;
            best = (int32_t)k;
        }
    }
    return best;
}

static void presence_and_frequency_penalty_look_at_the_answer_alone(void **state)
{
    static const struct moeflux_sampler_options o = {
        .top_p = 1, .repeat_penalty = 1, .presence_penalty = 1.5f, .frequency_penalty = -1.75f};
    struct answer plain = run_greedy(NULL, 0),
                  a = run((struct answer_options){.limit = LENGTH, .ignore_eos = true}, &o, PROMPT);
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    (void)state;
    assert_memory_not_equal(a.tokens.ids, plain.tokens.ids, LENGTH * sizeof(int32_t));
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(
        tokenizer_encode_prompt(model.tokenizer, PROMPT, strlen(PROMPT), SPECIALS_AS_TOKENS, &ids, NULL, &e),
        &e);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    for (size_t i = 0; i < a.tokens.n; i++) {
        assert_int_equal(a.tokens.ids[i], penalised_best(&o, a.tokens.ids, i));
        check_ok(generator_eval(&model, &a.tokens.ids[i], 1, NULL, &e), &e);
    }
    token_list_free(&ids);
    answer_free(&plain);
    answer_free(&a);
}

/* ---- calls of tools ---- */

/* A sink that makes the model say these tokens. */
struct script {
    struct token_list tokens;
    size_t at;
    struct str events; /* text as it is, calls as <name|arguments>, or <name|arguments! where it fails */
    char ids[2][ANSWER_ID_BYTES];
    uint32_t n_ids; /* calls that have begun */
};

static void say_next(struct script *s)
{
    struct moeflux_err e = {0};
    memset(model.allowed, 0, model.info.vocab_size / 8 + 1);
    int32_t id = s->tokens.ids[s->at++];
    model.allowed[id / 8] = (uint8_t)(1u << id % 8);
    check_ok(generator_new_sampler(&model, &greedy, NULL, 0, &e), &e);
}

static int follow(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    static const char *const before[] = {"<", "", "", ""}, *const after[] = {"|", "", ">", "!"};
    struct script *s = ctx;
    (void)e;
    enum moeflux_piece_kind begins = MOEFLUX_PIECE_CALL_BEGINS;
    if (p->kind == begins && s->n_ids < 2)
        snprintf(s->ids[s->n_ids], sizeof s->ids[0], "%s", p->call->id);
    s->n_ids += p->kind == begins;
    if (p->call)
        assert_int_equal(p->call_idx, s->n_ids - 1);
    str_add_text(&s->events, p->call ? before[p->kind - begins] : "");
    if (p->kind == begins)
        str_add_text(&s->events, p->call->name);
    str_add(&s->events, p->text, p->len);
    str_add_text(&s->events, p->call ? after[p->kind - begins] : "");
    if (p->id >= 0 && s->at < s->tokens.n)
        say_next(s);
    return 0;
}

/* The model says the text, then the end of its turn. `events` is checked; free the answer. */
static struct answer say(const char *text, struct answer_options o, const char *events,
                         char ids[2][ANSWER_ID_BYTES])
{
    struct moeflux_err e = {0};
    struct script s = {0};
    struct answer a = {0};
    size_t n_bytes = model.info.vocab_size / 8 + 1;
    uint8_t *allowed = malloc(n_bytes);
    assert_non_null(allowed);
    memcpy(allowed, model.allowed, n_bytes);
    check_ok(tokenizer_encode(model.tokenizer, text, strlen(text), SPECIALS_AS_TOKENS, &s.tokens, NULL, &e),
             &e);
    check_ok(token_list_add(&s.tokens, model.chat.turn_close, &e), &e);
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_eval(&model, s.tokens.ids, 1, NULL, &e), &e);
    say_next(&s);
    o.limit = -1;
    o.chat = true;
    o.sink = (struct answer_sink){follow, &s};
    check_ok(answer_run(&a, &model, &o, &e), &e);
    assert_string_equal(str_text(&s.events), events);
    assert_true(a.tokens.n <= s.tokens.n);
    assert_memory_equal(a.tokens.ids, s.tokens.ids, a.tokens.n * sizeof(int32_t));
    if (ids)
        memcpy(ids, s.ids, sizeof s.ids);
    memcpy(model.allowed, allowed, n_bytes);
    free(allowed);
    token_list_free(&s.tokens);
    str_free(&s.events);
    return a;
}

#define CALL(name, arguments)                                                                                \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static void calls_of_tools_come_apart_from_the_text(void **state)
{
    char ids[2][ANSWER_ID_BYTES], again[2][ANSWER_ID_BYTES];
    json_t *tools = json_array();
    const struct answer_options with = {.tools = tools}, without = {0};
    (void)state;
    static const char text[] =
        "</think>\n\nI look.\n" CALL("find", "{\"text\": \"caf\u00e9\"}") "\n" CALL("now", "{}");
    struct answer a = say(text, with, "I look.<find|{\"text\": \"caf\u00e9\"}><now|{}>", ids);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    assert_string_equal(moeflux_stop_name(a.stop), "tool_calls");
    assert_string_equal(str_text(&a.text), "I look.");
    assert_int_equal(a.n_calls, 2);
    assert_string_equal(str_text(&a.calls[0].arguments), "{\"text\": \"caf\u00e9\"}");
    assert_string_equal(str_text(&a.calls[1].name), "now");
    assert_string_equal(a.calls[0].id, ids[0]);
    assert_int_equal(strncmp(ids[0], "call_", 5), 0);
    assert_string_not_equal(ids[0], ids[1]);
    json_t *call = answer_json_call(&a.calls[1]);
    char *json = json_dumps(call, JSON_SORT_KEYS);
    assert_non_null(strstr(json, "\"function\": {\"arguments\": \"{}\", \"name\": \"now\"}"));
    free(json);
    json_decref(call);
    answer_free(&a);
    a = say(text, with, "I look.<find|{\"text\": \"caf\u00e9\"}><now|{}>", again);
    assert_memory_equal(ids, again, sizeof ids);
    answer_free(&a);
    /* Without tools it is text, of which this tokenizer's control tokens are none. */
    a = say("</think>\n\n" CALL("now", "{}"), without, "{\"name\": \"now\", \"arguments\": {}}\n", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
    assert_int_equal(a.n_calls, 0);
    answer_free(&a);
    json_decref(tools);
}

static void a_call_that_is_none_is_text_of_the_answer(void **state)
{
    json_t *tools = json_array();
    const struct answer_options with = {.tools = tools};
    static const char broken[] = "<tool_call>\n{\"name\": \"now\", \"arguments\": {]}\n</tool_call>";
    (void)state;
    struct answer a =
        say("</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {]}\n</tool_call>", with,
            "<now|{]!<tool_call>\n{\"name\": \"now\", \"arguments\": {]}\n</tool_call>", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
    assert_int_equal(a.n_calls, 0);
    assert_string_equal(str_text(&a.text), broken);
    answer_free(&a);
    json_decref(tools);
}

static void a_call_ends_thinking_that_has_no_end(void **state)
{
    json_t *tools = json_array();
    const struct answer_options with = {.tools = tools};
    (void)state;
    struct answer a = say("I see.\n" CALL("now", "{}") "\nDone.", with, "I see.<now|{}>\nDone.", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    assert_string_equal(str_text(&a.thinking), "I see.");
    assert_string_equal(str_text(&a.text), "\nDone.");
    answer_free(&a);
    a = say("Say " CALL("now", "{}") " then\n</think>\n\nDone.", with, "Say " CALL("now", "{}") " thenDone.",
            NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
    assert_string_equal(str_text(&a.thinking), "Say " CALL("now", "{}") " then");
    assert_string_equal(str_text(&a.text), "Done.");
    answer_free(&a);
    json_decref(tools);
}

static void a_call_that_the_answer_cuts_is_a_part_and_no_reason_to_wait(void **state)
{
    json_t *tools = json_array();
    const struct answer_options with = {.tools = tools};
    (void)state;
    struct answer a = say("</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1", with,
                          "<now|{\"a\": 1>", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_EOS);
    assert_int_equal(a.n_calls, 1);
    assert_true(a.calls[0].is_cut);
    assert_string_equal(str_text(&a.calls[0].arguments), "{\"a\": 1");
    assert_string_equal(str_text(&a.text), "");
    answer_free(&a);
    /* A tag that closes thinking is text inside of a call. */
    a = say("</think>\n\n" CALL("now", "{\"a\": \"</think>\"}"), with, "<now|{\"a\": \"</think>\"}>", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    answer_free(&a);
    json_decref(tools);
}

/* A client may have the first one already. */
static void a_call_after_one_that_failed_is_another_one(void **state)
{
    char ids[2][ANSWER_ID_BYTES];
    json_t *tools = json_array();
    const struct answer_options with = {.tools = tools};
    (void)state;
    struct answer a = say("</think>\n\n" CALL("now", "{]") "\n" CALL("find", "{}"), with,
                          "<now|{]!" CALL("now", "{]") "<find|{}>", ids);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    assert_int_equal(a.n_calls, 1);
    assert_string_equal(a.calls[0].id, ids[1]);
    assert_string_not_equal(ids[0], ids[1]);
    answer_free(&a);
    json_decref(tools);
}

static void an_answer_that_has_to_call_a_tool_calls_it(void **state)
{
    static const char text[] = "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}},"
                               " {\"type\": \"function\", \"function\": {\"name\": \"find\"}}]";
    json_t *tools = json_loads(text, 0, NULL);
    struct moeflux_err e = {0};
    struct str grammar = {0};
    (void)state;
    assert_non_null(tools);
    for (int i = 0; i < 3; i++) {
        struct answer_options o = {.tools = tools, .limit = MOST, .chat = true};
        str_clear(&grammar);
        const struct tool_choice choice = {.tools = tools,
                                           .name = i == 0   ? "find"
                                                   : i == 1 ? "now"
                                                            : NULL,
                                           .where = "a test"};
        check_ok(tools_grammar(&model, &choice, &grammar, &e), &e);
        check_ok(constrain_begin_calls(&model, str_text(&grammar), &o.constraint, &e), &e);
        struct answer a =
            run(o, &greedy, "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n<think>\n\n");
        assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
        assert_true(a.n_calls == 1 || i == 2);
        if (i < 2)
            assert_string_equal(str_text(&a.calls[0].name), i == 0 ? "find" : "now");
        constraint_free(o.constraint);
        answer_free(&a);
    }
    /* The tag is the model's own token, and no other; other grammars do not have it. */
    struct constraint *calls, *plain;
    const uint64_t *allowed;
    uint32_t n_allowed = 0;
    int32_t tag = tokenizer_added_id(model.tokenizer, "<tool_call>");
    check_ok(constrain_begin_calls(&model, str_text(&grammar), &calls, &e), &e);
    check_ok(constrain_begin(&model, str_text(&grammar), &plain, &e), &e);
    check_ok(constraint_mask(calls, &allowed, &e), &e);
    for (uint32_t i = 0; i < (model.info.vocab_size + 63) / 64; i++)
        n_allowed += (uint32_t)__builtin_popcountll(allowed[i]);
    assert_int_equal(n_allowed, 1);
    check_ok(constraint_accept(calls, tag, &e), &e);
    assert_int_equal(constraint_accept(plain, tag, &e), ERR_USAGE);
    constraint_free(calls);
    constraint_free(plain);
    str_free(&grammar);
    json_decref(tools);
}

/* The likelihood of a token is asked for only where one is chosen after the other. */
static void tokens_that_a_grammar_forces_are_those_that_masks_give(void **state)
{
    static const char grammar[] =
        "root ::= \"{\\\"the quick brown fox\\\": \" [a-z ]{1,12} \", \\\"jumps over the lazy dog\\\": \" "
        "(\"true\" | \"false\") \"}\"";
    struct moeflux_err e = {0};
    struct moeflux_stats stats;
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        const struct moeflux_sampler_options sampling = {.temperature = seed ? 1.5f : 0,
                                                         .top_p = 1,
                                                         .repeat_penalty = 1.1f,
                                                         .repeat_last = 32,
                                                         .seed = seed};
        struct answer answers[2];
        uint64_t n_alone[2];
        for (int i = 0; i < 2; i++) {
            struct answer_options o = {.limit = MOST, .logprobs = i == 1};
            check_ok(constrain_begin(&model, grammar, &o.constraint, &e), &e);
            moeflux_model_reset_stats(model.model);
            answers[i] = run(o, &sampling, PROMPT);
            moeflux_model_get_stats(model.model, &stats);
            n_alone[i] = stats.n_decode_tokens;
            constraint_free(o.constraint);
            assert_int_equal(answers[i].stop, MOEFLUX_STOP_EOS);
        }
        assert_string_equal(str_text(&answers[0].text), str_text(&answers[1].text));
        assert_int_equal(answers[0].tokens.n, answers[1].tokens.n);
        assert_memory_equal(answers[0].tokens.ids, answers[1].tokens.ids,
                            answers[0].tokens.n * sizeof *answers[0].tokens.ids);
        assert_true(n_alone[0] < n_alone[1]);
        answer_free(&answers[0]);
        answer_free(&answers[1]);
    }
}

static void a_stop_text_is_looked_for_in_the_text_and_not_in_calls(void **state)
{
    static const char *const stops[] = {"STOP"};
    json_t *tools = json_array();
    const struct answer_options o = {.tools = tools, .stops = stops, .n_stops = 1};
    (void)state;
    struct answer a = say("</think>\n\n" CALL("f", "{\"a\": \"STOP\"}") "\nST STOP it", o,
                          "<f|{\"a\": \"STOP\"}>\nST ", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_TEXT);
    assert_int_equal(a.n_calls, 1);
    answer_free(&a);
    json_decref(tools);
}

static void a_stop_that_is_a_control_token_ends_the_answer_there(void **state)
{
    static const char *const stops[] = {"nowhere", "<|im_end|>", "it S", "</tool_call>", "</think>"};
    static const char call[] = "</think>\n\n" CALL("f", "{}") "<|im_end|>more";
    json_t *tools = json_array();
    static const struct {
        const char *says, *events, *text;
        size_t first, n; /* a part of `stops` */
        bool keeps, ends;
    } cases[] = {
        /* What was held back for another stop comes out. */
        {"</think>\n\nsay it <|im_end|>more", "say it ", "<|im_end|>", 1, 2, false, false},
        {"</think>\n\nsay <|im_end|>more", "say <|im_end|>", "<|im_end|>", 1, 1, true, false},
        {"</think>\n\nsay it S<|im_end|>more", "say ", "it S", 1, 2, false, false},
        /* It ends the thinking, too. */
        {"hm</think>\n\nsay", "hm", "</think>", 4, 1, false, false},
        {"hm<|im_end|>\n\nsay", "hm", "<|im_end|>", 0, 2, false, false},
        /* An end of text stays one. */
        {"</think>\n\nsay<|im_end|>more", "say", NULL, 1, 1, false, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer_options o = {.stops = stops + cases[i].first,
                                   .n_stops = cases[i].n,
                                   .keep_stop = cases[i].keeps,
                                   .ignore_eos = !cases[i].ends};
        struct answer a = say(cases[i].says, o, cases[i].events, NULL);
        assert_int_equal(a.stop, cases[i].ends ? MOEFLUX_STOP_EOS : MOEFLUX_STOP_TEXT);
        assert_true(!a.stop_text == !cases[i].text);
        if (a.stop_text)
            assert_string_equal(a.stop_text, cases[i].text);
        answer_free(&a);
    }
    /* A tag of a call is part of the call, and a complete call counts for more than the token after it. */
    struct answer_options o = {.tools = tools, .stops = stops, .n_stops = 4, .ignore_eos = true};
    struct answer a = say(call, o, "<f|{}>", NULL);
    assert_int_equal(a.stop, MOEFLUX_STOP_CALLS);
    assert_int_equal(a.n_calls, 1);
    answer_free(&a);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_that_is_a_control_token_ends_the_answer_there),
        cmocka_unit_test(a_stop_text_ends_the_answer_wherever_it_parts_the_tokens),
        cmocka_unit_test(what_is_held_back_for_a_stop_comes_out_at_the_end),
        cmocka_unit_test(a_stop_text_is_not_looked_for_in_the_thinking),
        cmocka_unit_test(a_limit_ends_the_thinking_and_the_answer_goes_on),
        cmocka_unit_test(a_grammar_holds_after_a_limited_thinking),
        cmocka_unit_test(a_continued_text_is_a_part_of_what_the_grammar_describes),
        cmocka_unit_test(a_stop_text_that_is_kept_is_the_end_of_the_text),
        cmocka_unit_test(logprobs_are_those_of_the_logits_and_change_no_choice),
        cmocka_unit_test(presence_and_frequency_penalty_look_at_the_answer_alone),
        cmocka_unit_test(calls_of_tools_come_apart_from_the_text),
        cmocka_unit_test(a_call_that_is_none_is_text_of_the_answer),
        cmocka_unit_test(a_call_ends_thinking_that_has_no_end),
        cmocka_unit_test(a_call_that_the_answer_cuts_is_a_part_and_no_reason_to_wait),
        cmocka_unit_test(a_call_after_one_that_failed_is_another_one),
        cmocka_unit_test(an_answer_that_has_to_call_a_tool_calls_it),
        cmocka_unit_test(tokens_that_a_grammar_forces_are_those_that_masks_give),
        cmocka_unit_test(a_stop_text_is_looked_for_in_the_text_and_not_in_calls),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
