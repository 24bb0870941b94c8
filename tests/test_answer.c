/* The answer loop with the embedded model: stop texts, log-probabilities, penalties. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate/answer.h"
#include "generate/generator.h"

#define MODEL "tests/models/tiny"
enum { LENGTH = 24, MOST = 32 };

static struct generator model;

static int open_model(void **state)
{
    struct moeflux_err e = {0};
    const struct moeflux_options options = {.dir = MODEL, .device = "cpu", .context = 128};
    const struct sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    (void)state;
    check_ok(generator_open(&model, &options, &e), &e);
    check_ok(generator_use_chat(&model, CHAT_THINKING_AUTO, "the test", &e), &e);
    check_ok(generator_start(&model, 128, &greedy, &e), &e);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    generator_close(&model);
    return 0;
}

/* What a sink was given. */
struct seen {
    struct str text, thinking;
    int32_t ids[MOST];
    float logprobs[MOST];
    size_t n;
};

static int see(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
{
    struct seen *s = ctx;
    (void)e;
    str_add(p->part == CHAT_THINKING ? &s->thinking : &s->text, p->text, p->len);
    assert_int_equal(p->id >= 0 && p->logprobs, p->logprobs != NULL);
    if (p->id < 0)
        return 0;
    assert_true(s->n < MOST);
    s->logprobs[s->n] = p->logprobs ? p->logprobs->value : 0;
    s->ids[s->n++] = p->id;
    return 0;
}

/* Answers a prompt, raw, from the start. What the sink saw is what the answer has. */
static struct answer run(struct answer_options o, const struct sampler_options *sampling, const char *prompt)
{
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    struct answer a = {0};
    struct seen seen = {0};
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_new_sampler(&model, sampling, NULL, 0, &e), &e);
    check_ok(generator_encode(&model, prompt, strlen(prompt), SPECIALS_AS_TOKENS, &ids, NULL, &e), &e);
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

static const struct sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
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
    assert_int_equal(whole.stop, ANSWER_LENGTH);
    for (size_t at = 0; at < 24; at += 3) {
        char stop[12] = {0};
        const char *stops[] = {"not there", stop};
        memcpy(stop, text + at, 1 + at % 8);
        size_t first = (size_t)(strstr(text, stop) - text);
        struct answer a = run_greedy(stops, 2);
        assert_int_equal(a.stop, ANSWER_STOP_TEXT);
        assert_string_equal(answer_stop_name(a.stop), "stop");
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
    assert_int_equal(a.stop, ANSWER_LENGTH);
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
    assert_int_equal(a.stop, ANSWER_LENGTH);
    assert_true(strstr(str_text(&a.thinking), "3 =") != NULL);
    answer_free(&a);
}

static void logprobs_are_those_of_the_logits_and_change_no_choice(void **state)
{
    static const struct sampler_options sampling = {
        .temperature = 1.5f, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 8, .seed = 5};
    const struct answer_options plain = {.limit = LENGTH}, with = {
                                                               .limit = LENGTH,
                                                               .logprobs = true,
                                                               .n_logprobs = LOGPROBS_MAX,
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
    check_ok(generator_encode(&model, PROMPT, strlen(PROMPT), SPECIALS_AS_TOKENS, &ids, NULL, &e), &e);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    for (size_t i = 0; i < b.tokens.n; i++) {
        const struct logprob *l = logprobs_of(&b.logprobs, i);
        double sum = 0;
        uint32_t n_larger = 0;
        for (uint32_t k = 0; k < model.info.vocab_size; k++)
            sum += exp((double)model.logits[k]);
        assert_int_equal(l[0].id, b.tokens.ids[i]);
        for (uint32_t k = 0; k <= LOGPROBS_MAX; k++)
            assert_true(fabs((double)model.logits[l[k].id] - log(sum) - (double)l[k].value) < 1e-4);
        for (uint32_t k = 1; k < LOGPROBS_MAX; k++)
            assert_true(l[k].value > l[k + 1].value ||
                        (l[k].value == l[k + 1].value && l[k].id < l[k + 1].id));
        for (uint32_t k = 0; k < model.info.vocab_size; k++)
            n_larger += model.logits[k] > model.logits[l[LOGPROBS_MAX].id];
        assert_true(n_larger < LOGPROBS_MAX);
        check_ok(generator_eval(&model, &b.tokens.ids[i], 1, NULL, &e), &e);
    }
    token_list_free(&ids);
    answer_free(&a);
    answer_free(&b);
}

/* The lowest id of the largest logit that is left after the penalties. */
static int32_t penalised_best(const struct sampler_options *o, const int32_t *ids, size_t n)
{
    int32_t best = 0;
    float largest = -INFINITY;
    for (uint32_t k = 0; k < model.info.vocab_size; k++) {
        float n_times = 0, logit = model.logits[k];
        for (size_t i = 0; i < n; i++)
            n_times += ids[i] == (int32_t)k;
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
    static const struct sampler_options o = {
        .top_p = 1, .repeat_penalty = 1, .presence_penalty = 1.5f, .frequency_penalty = -1.75f};
    struct answer plain = run_greedy(NULL, 0),
                  a = run((struct answer_options){.limit = LENGTH, .ignore_eos = true}, &o, PROMPT);
    struct moeflux_err e = {0};
    struct token_list ids = {0};
    (void)state;
    assert_memory_not_equal(a.tokens.ids, plain.tokens.ids, LENGTH * sizeof(int32_t));
    check_ok(moeflux_session_clear(model.sequence, &e), &e);
    check_ok(generator_encode(&model, PROMPT, strlen(PROMPT), SPECIALS_AS_TOKENS, &ids, NULL, &e), &e);
    check_ok(generator_eval(&model, ids.ids, ids.n, NULL, &e), &e);
    for (size_t i = 0; i < a.tokens.n; i++) {
        assert_int_equal(a.tokens.ids[i], penalised_best(&o, a.tokens.ids, i));
        check_ok(generator_eval(&model, &a.tokens.ids[i], 1, NULL, &e), &e);
    }
    token_list_free(&ids);
    answer_free(&plain);
    answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_text_ends_the_answer_wherever_it_parts_the_tokens),
        cmocka_unit_test(what_is_held_back_for_a_stop_comes_out_at_the_end),
        cmocka_unit_test(a_stop_text_is_not_looked_for_in_the_thinking),
        cmocka_unit_test(logprobs_are_those_of_the_logits_and_change_no_choice),
        cmocka_unit_test(presence_and_frequency_penalty_look_at_the_answer_alone),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
