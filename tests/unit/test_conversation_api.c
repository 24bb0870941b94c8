/* Conversations through moeflux.h, with the trained model: what stays in the session, other answers, going
 * back and on, and their text.
 *
 * suites: check fast asan */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "moeflux_chat.h"

enum { CONTEXT = 512, MANY = 24 };

static const char first[] = "The capital of Iceland is", second[] = "And of Norway?";
static struct moeflux_model *model;
static struct moeflux_chat *chat;
static struct moeflux_session *session;

static int open_all(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    const struct moeflux_options o = {.dir = "tests/models/tiny", .device = "cpu", .context = CONTEXT};
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
    return 0;
}

static struct moeflux_request *make_how(const char *temperature, const char *max_tokens)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r;
    check_ok(moeflux_request_new(&r, &e), &e);
    check_ok(moeflux_request_set(r, "temperature", temperature, &e), &e);
    check_ok(moeflux_request_set(r, "max_tokens", max_tokens, &e), &e);
    check_ok(moeflux_request_set(r, "no_think", "true", &e), &e);
    check_ok(moeflux_request_set(r, "seed", "7", &e), &e);
    return r;
}

static struct moeflux_conversation *begin(const char *temperature, const char *max_tokens)
{
    struct moeflux_err e = {0};
    struct moeflux_conversation *v;
    struct moeflux_request *how = make_how(temperature, max_tokens);
    check_ok(moeflux_conversation_new(&v, &e), &e);
    check_ok(moeflux_conversation_attach(v, chat, session, how, &e), &e);
    check_ok(moeflux_conversation_clear(v, "Be brief.", &e), &e);
    moeflux_request_free(how);
    return v;
}

static struct moeflux_answer *answer(struct moeflux_conversation *v)
{
    struct moeflux_err e = {0};
    struct moeflux_answer *a;
    check_ok(moeflux_conversation_answer(v, NULL, NULL, &a, &e), &e);
    return a;
}

static struct moeflux_answer *ask(struct moeflux_conversation *v, const char *question)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_conversation_ask(v, question, false, &e), &e);
    return answer(v);
}

static struct moeflux_turn last_of(const struct moeflux_conversation *v)
{
    struct moeflux_turn all[MANY];
    size_t n = moeflux_conversation_list(v, all, MANY);
    assert_in_range(n, 1, MANY);
    return all[n - 1];
}

static void the_first_answer_is_that_of_a_request_and_the_next_evaluates_its_question_only(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r = make_how("0", "20");
    struct moeflux_answer *wanted, *a;
    (void)state;
    check_ok(moeflux_request_say(r, "system", "Be brief.", &e), &e);
    check_ok(moeflux_request_say(r, "user", first, &e), &e);
    check_ok(moeflux_chat_answer(chat, session, r, NULL, NULL, &wanted, &e), &e);
    struct moeflux_conversation *v = begin("0", "20");
    a = ask(v, first);
    assert_string_equal(moeflux_answer_get_info(a).text, moeflux_answer_get_info(wanted).text);
    assert_int_equal(moeflux_answer_get_info(a).n_prompt, moeflux_answer_get_info(wanted).n_prompt);
    uint32_t n_held = moeflux_session_position(session);
    moeflux_answer_free(a);
    a = ask(v, second);
    /* The sampled tokens that were evaluated stay. */
    assert_int_equal(moeflux_answer_get_info(a).n_reused, n_held);
    assert_string_equal(last_of(v).question, second);
    assert_string_equal(last_of(v).answer, moeflux_answer_get_info(a).text);
    assert_int_equal(moeflux_conversation_get_info(v).n_turns, 2);
    moeflux_answer_free(a);
    moeflux_answer_free(wanted);
    moeflux_request_free(r);
    moeflux_conversation_free(v);
}

static void another_answer_has_another_seed_and_evaluates_nothing(void **state)
{
    struct moeflux_conversation *v = begin("9", "20");
    struct moeflux_answer *a = ask(v, first), *b;
    (void)state;
    moeflux_conversation_unanswer(v);
    assert_null(last_of(v).answer);
    b = answer(v);
    const struct moeflux_answer_info x = moeflux_answer_get_info(a), y = moeflux_answer_get_info(b);
    assert_int_equal(x.seed, 7);
    assert_int_equal(y.seed, 8);
    assert_string_not_equal(x.text, y.text);
    assert_int_equal(y.n_reused, y.n_prompt);
    moeflux_answer_free(a);
    moeflux_answer_free(b);
    moeflux_conversation_free(v);
}

static void an_answer_goes_on_where_its_limit_was(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_conversation *v = begin("0", "40");
    struct moeflux_answer *whole = ask(v, first), *a, *b;
    (void)state;
    assert_int_equal(moeflux_conversation_continue(v, NULL, NULL, &b, &e), 1);
    assert_null(b);
    moeflux_conversation_free(v);
    v = begin("0", "3");
    a = ask(v, first);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_LENGTH);
    struct moeflux_request *how = make_how("0", "37");
    check_ok(moeflux_conversation_use(v, how, &e), &e);
    check_ok(moeflux_conversation_continue(v, NULL, NULL, &b, &e), &e);
    assert_string_equal(last_of(v).answer, moeflux_answer_get_info(whole).text);
    moeflux_request_free(how);
    moeflux_answer_free(whole);
    moeflux_answer_free(a);
    moeflux_answer_free(b);
    moeflux_conversation_free(v);
}

static void what_was_undone_is_gone(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_conversation *v = begin("0", "12");
    struct moeflux_answer *a = ask(v, first), *b = ask(v, second), *c;
    (void)state;
    moeflux_conversation_undo(v);
    assert_string_equal(last_of(v).question, first);
    check_ok(moeflux_conversation_ask(v, second, true, &e), &e);
    assert_int_equal(moeflux_conversation_get_info(v).n_turns, 1);
    moeflux_conversation_undo(v);
    assert_int_equal(moeflux_conversation_get_info(v).n_turns, 0);
    assert_int_equal(moeflux_conversation_answer(v, NULL, NULL, &c, &e), MOEFLUX_ERR_USAGE);
    c = ask(v, first);
    assert_string_equal(moeflux_answer_get_info(a).text, moeflux_answer_get_info(c).text);
    moeflux_answer_free(a);
    moeflux_answer_free(b);
    moeflux_answer_free(c);
    moeflux_conversation_free(v);
}

static bool stop_at_once(void *ctx, const struct moeflux_piece *p)
{
    (void)ctx, (void)p;
    return false;
}

static void errors_and_cancels_leave_the_conversation_usable(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_conversation *v = begin("0", "12");
    struct moeflux_request *bad = make_how("200", "12");
    struct moeflux_answer *a;
    (void)state;
    assert_int_equal(moeflux_conversation_use(v, bad, &e), MOEFLUX_ERR_FORMAT);
    assert_non_null(strstr(e.text, "temperature"));
    char *long_text = malloc(4 * CONTEXT + 1);
    for (size_t i = 0; i < CONTEXT; i++)
        memcpy(long_text + 4 * i, " owl", 5);
    assert_int_equal(moeflux_conversation_ask(v, long_text, false, &e), MOEFLUX_ERR_NO_FIT);
    assert_int_equal(moeflux_conversation_get_info(v).n_turns, 0);
    check_ok(moeflux_conversation_ask(v, first, false, &e), &e);
    check_ok(moeflux_conversation_answer(v, stop_at_once, NULL, &a, &e), &e);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_INTERRUPTED);
    assert_int_equal(last_of(v).stop, MOEFLUX_STOP_INTERRUPTED);
    free(long_text);
    moeflux_answer_free(a);
    moeflux_request_free(bad);
    moeflux_conversation_free(v);
    check_ok(moeflux_conversation_new(&v, &e), &e);
    assert_int_equal(moeflux_conversation_ask(v, first, false, &e), MOEFLUX_ERR_USAGE);
    moeflux_conversation_free(v);
    moeflux_conversation_free(NULL);
}

static void a_conversation_that_was_written_goes_on_the_same(void **state)
{
    struct moeflux_err e = {0};
    struct moeflux_conversation *v = begin("0", "12"), *again;
    struct moeflux_request *how = make_how("0", "12");
    struct moeflux_answer *a = ask(v, first), *wanted, *b;
    char *text;
    uint64_t fingerprint;
    (void)state;
    check_ok(moeflux_conversation_write(v, &text, &e), &e);
    wanted = ask(v, second);
    check_ok(moeflux_conversation_read(&again, text, strlen(text), "the text", &e), &e);
    check_ok(moeflux_model_fingerprint(model, &fingerprint, &e), &e);
    assert_int_equal(moeflux_conversation_get_info(again).fingerprint, fingerprint);
    assert_string_equal(moeflux_conversation_get_info(again).system, "Be brief.");
    assert_string_equal(last_of(again).answer, moeflux_answer_get_info(a).text);
    free(text);
    assert_int_equal(moeflux_conversation_write(again, &text, NULL), MOEFLUX_ERR_USAGE);
    check_ok(moeflux_session_clear(session, &e), &e);
    check_ok(moeflux_conversation_attach(again, chat, session, how, &e), &e);
    b = ask(again, second);
    assert_string_equal(moeflux_answer_get_info(b).text, moeflux_answer_get_info(wanted).text);
    moeflux_conversation_free(again);
    assert_int_equal(moeflux_conversation_read(&again, "{}", 2, "the text", &e), MOEFLUX_ERR_FORMAT);
    assert_null(again);
    assert_int_equal(strncmp(e.text, "the text: ", 10), 0);
    moeflux_request_free(how);
    moeflux_answer_free(a);
    moeflux_answer_free(b);
    moeflux_answer_free(wanted);
    moeflux_conversation_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_answer_is_that_of_a_request_and_the_next_evaluates_its_question_only),
        cmocka_unit_test(another_answer_has_another_seed_and_evaluates_nothing),
        cmocka_unit_test(an_answer_goes_on_where_its_limit_was),
        cmocka_unit_test(what_was_undone_is_gone),
        cmocka_unit_test(errors_and_cancels_leave_the_conversation_usable),
        cmocka_unit_test(a_conversation_that_was_written_goes_on_the_same),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
