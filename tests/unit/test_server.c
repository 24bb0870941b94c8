/* The server's parts without a socket: the queue, turns, keys, bodies. tests/cli/serve.sh has the rest.
 *
 * suites: check fast asan tsan */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/turns.h"
#include "generate/generator.h"
#include "generate/choice.h"
#include "api/api_request.h"
#include "generate/jobs.h"
#include "server/keys.h"
#include "api/refusal.h"
#include "tmp_tree.h"

/* ---- the queue ---- */

static struct jobs new_queue(uint32_t most)
{
    struct jobs q;
    struct moeflux_err e = {0};
    check_ok(jobs_init(&q, most, &e), &e);
    return q;
}

static struct moeflux_job *new_job(struct choice *choice)
{
    struct moeflux_err e = {0};
    struct moeflux_job *j = jobs_new(1, &e);
    assert_non_null(j);
    j->choices[0] = choice;
    return j;
}

static void jobs_are_taken_in_order_and_the_queue_has_an_end(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(2);
    struct moeflux_job *j[4];
    struct choice choice = {0};
    for (int i = 0; i < 4; i++)
        j[i] = new_job(&choice);
    check_ok(jobs_add(&q, j, 1, &e), &e);
    /* A request of several jobs is one. */
    check_ok(jobs_add(&q, j + 1, 2, &e), &e);
    assert_int_equal(jobs_add(&q, j + 3, 1, &e), ERR_NO_FIT);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(jobs_take(&q, 0), j[i]);
        jobs_finish(&q, j[i]);
    }
    for (int i = 0; i < 4; i++)
        jobs_release(&q, j[i]);
    jobs_free(&q);
}

static void a_request_of_several_jobs_counts_once_while_any_of_them_waits(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(2);
    struct moeflux_job *j[9];
    struct choice choice = {0};
    for (int i = 0; i < 9; i++)
        j[i] = new_job(&choice);
    check_ok(jobs_add(&q, j, 6, &e), &e);
    check_ok(jobs_add(&q, j + 6, 1, &e), &e);
    assert_int_equal(jobs_add(&q, j + 7, 2, &e), ERR_NO_FIT);
    assert_string_equal(e.text, "2 requests wait already, the most that may");
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(jobs_take(&q, 0), j[i]);
    assert_int_equal(jobs_add(&q, j + 7, 2, &e), ERR_NO_FIT);
    assert_ptr_equal(jobs_take(&q, 0), j[5]);
    check_ok(jobs_add(&q, j + 7, 2, &e), &e);
    assert_int_equal(jobs_add(&q, j + 7, 1, &e), ERR_NO_FIT);
    for (int i = 6; i < 9; i++)
        assert_ptr_equal(jobs_take(&q, 0), j[i]);
    for (int i = 0; i < 9; i++) {
        jobs_finish(&q, j[i]);
        jobs_release(&q, j[i]);
    }
    jobs_free(&q);
}

static void jobs_with_a_lower_number_are_taken_first(void **state)
{
    (void)state;
    static const int32_t priorities[] = {1, 0, 1, -5, 0, 2}, order[] = {3, 1, 4, 0, 2, 5};
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct moeflux_job *j[6];
    struct choice choice = {0};
    for (int i = 0; i < 6; i++) {
        j[i] = new_job(&choice);
        j[i]->options.priority = priorities[i];
        check_ok(jobs_add(&q, &j[i], 1, &e), &e);
    }
    for (int i = 0; i < 6; i++) {
        assert_ptr_equal(jobs_take(&q, 0), j[order[i]]);
        jobs_finish(&q, j[order[i]]);
    }
    for (int i = 0; i < 6; i++)
        jobs_release(&q, j[i]);
    jobs_free(&q);
}

static void a_released_job_waits_no_more(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct moeflux_job *j[3];
    struct choice choice = {0};
    uint32_t n_waiting, n_running;
    for (int i = 0; i < 3; i++)
        j[i] = new_job(&choice);
    check_ok(jobs_add(&q, j, 3, &e), &e);
    jobs_release(&q, j[1]);
    jobs_release(&q, j[2]);
    jobs_count(&q, &n_waiting, &n_running);
    assert_int_equal(n_waiting, 1);
    assert_ptr_equal(jobs_take(&q, 0), j[0]);
    jobs_finish(&q, j[0]);
    jobs_release(&q, j[0]);
    jobs_free(&q);
}

static void *take_first(void *ctx)
{
    return jobs_take(ctx, 0);
}

/* The other group has an idle worker all the time. */
static void a_job_goes_home_where_not_much_more_is_in_flight(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct moeflux_job *j[3];
    struct choice choice = {0};
    pthread_t first;
    void *got;
    uint32_t n_idle = 0;
    jobs_add_worker(&q, 0);
    for (int i = 0; i < 3; i++) {
        j[i] = new_job(&choice);
        j[i]->copy = 1;
        jobs_add_worker(&q, 1);
    }
    assert_int_equal(pthread_create(&first, NULL, take_first, &q), 0);
    while (n_idle == 0) {
        pthread_mutex_lock(&q.lock);
        n_idle = q.groups[0].n_idle;
        pthread_mutex_unlock(&q.lock);
        sched_yield();
    }
    check_ok(jobs_add(&q, j, 3, &e), &e);
    assert_ptr_equal(jobs_take(&q, 1), j[0]);
    assert_ptr_equal(jobs_take(&q, 1), j[1]);
    pthread_join(first, &got);
    assert_ptr_equal(got, j[2]);
    for (int i = 0; i < 3; i++) {
        jobs_finish(&q, j[i]);
        jobs_release(&q, j[i]);
    }
    jobs_free(&q);
}

/* Two jobs run; the one without memory comes back first, and then no other runs with it. */
static void a_job_without_memory_waits_until_fewer_run(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct choice choice = {0};
    struct moeflux_job *j[3];
    pthread_t next;
    void *got;
    for (int i = 0; i < 3; i++)
        j[i] = new_job(&choice);
    check_ok(jobs_add(&q, j, 3, &e), &e);
    assert_ptr_equal(jobs_take(&q, 0), j[0]);
    assert_ptr_equal(jobs_take(&q, 0), j[1]);
    assert_true(jobs_put_back(&q, j[1], false));
    assert_int_equal(q.most_running, 1);
    assert_int_equal(pthread_create(&next, NULL, take_first, &q), 0);
    assert_int_equal(jobs_await(&q, 0, 0), 0);
    jobs_finish(&q, j[0]);
    assert_int_equal(jobs_await(&q, 0, 1000), 1);
    assert_true(jobs_wait(&q, j[0], 0));
    pthread_join(next, &got);
    assert_ptr_equal(got, j[1]);
    /* One may run and one has ended, so one more may run. */
    assert_int_equal(q.most_running, 2);
    /* Alone it would find no more the next time, unless something was freed. */
    assert_false(jobs_put_back(&q, j[1], false));
    assert_true(jobs_put_back(&q, j[1], true));
    assert_ptr_equal(jobs_take(&q, 0), j[1]);
    jobs_finish(&q, j[1]);
    for (int i = 0; i < 3; i++)
        jobs_release(&q, j[i]);
    jobs_free(&q);
}

static void closing_fails_what_waits_and_refuses_what_comes(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct choice choice = {0};
    struct moeflux_job *waits = new_job(&choice), *late = new_job(&choice);
    check_ok(jobs_add(&q, &waits, 1, &e), &e);
    jobs_close(&q, "the end");
    assert_null(jobs_take(&q, 0));
    assert_true(jobs_read(&q, waits, 0, NULL, NULL));
    assert_int_equal(choice.result.rc, ERR_INTERRUPTED);
    assert_string_equal(choice.result.error.text, "the end");
    assert_int_equal(jobs_add(&q, &late, 1, &e), ERR_INTERRUPTED);
    jobs_release(&q, waits);
    jobs_release(&q, late);
    jobs_free(&q);
}

static void a_paused_queue_gives_no_job_and_keeps_those_that_wait(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct choice choice = {0};
    struct moeflux_job *j = new_job(&choice);
    check_ok(jobs_add(&q, &j, 1, &e), &e);
    jobs_pause(&q);
    assert_null(jobs_take(&q, 0));
    jobs_resume(&q);
    assert_ptr_equal(jobs_take(&q, 0), j);
    jobs_finish(&q, j);
    jobs_release(&q, j);
    jobs_free(&q);
}

static const struct moeflux_logprob logprobs[] = {{7, -0.5f}, {9, -0.25f}};

static void expect_piece(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    int *n = ctx;
    assert_int_equal(idx, 0);
    assert_int_equal(p->id, *n);
    assert_true(p->len == 2 && p->text[0] == 'a' + *n && p->text[1] == 'x');
    assert_memory_equal(p->logprobs, logprobs, sizeof logprobs);
    assert_string_equal(p->call->id, "call_1");
    assert_string_equal(p->call->name, "f");
    ++*n;
}

static void pieces_come_in_order_and_whole(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jobs q = new_queue(8);
    struct choice choice = {0};
    struct moeflux_job *j = new_job(&choice);
    int n = 0;
    check_ok(jobs_add(&q, &j, 1, &e), &e);
    jobs_take(&q, 0);
    for (int i = 0; i < 3; i++) {
        char text[] = {(char)('a' + i), 'x'}, id[] = "call_1", name[] = "f";
        const struct moeflux_call call = {.id = id, .name = name, .arguments = text};
        const struct moeflux_piece p = {.kind = MOEFLUX_PIECE_CALL_BEGINS,
                                        .id = i,
                                        .text = text,
                                        .len = 2,
                                        .call = &call,
                                        .logprobs = logprobs,
                                        .n_logprobs = 1};
        check_ok(jobs_give(&q, j, &p, &e), &e);
        memset(text, 0, sizeof text);
        memset(id, 0, sizeof id);
    }
    assert_false(jobs_read(&q, j, 0, expect_piece, &n));
    assert_int_equal(n, 3);
    jobs_finish(&q, j);
    assert_true(jobs_read(&q, j, 0, expect_piece, &n));
    assert_int_equal(n, 3);
    jobs_release(&q, j);
    jobs_free(&q);
}

/* ---- turns ---- */

enum { RUNNERS = 5 };

struct race {
    struct turns turns;
    char order[RUNNERS];
    int n;
};
struct runner {
    struct race *race;
    pthread_t thread;
    char name;
};

static void *run(void *ctx)
{
    struct runner *r = ctx;
    turns_begin(&r->race->turns);
    r->race->order[r->race->n++] = r->name;
    turns_end(&r->race->turns);
    return NULL;
}

/* Until so many have asked. */
static void await_askers(struct turns *t, uint64_t n)
{
    for (uint64_t asked = 0; asked < n;) {
        pthread_mutex_lock(&t->lock);
        asked = t->next;
        pthread_mutex_unlock(&t->lock);
    }
}

static void threads_that_ask_get_their_turn_one_after_the_other(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct race race = {0};
    struct runner all[RUNNERS];
    check_ok(turns_init(&race.turns, &e), &e);
    turns_begin(&race.turns);
    assert_false(turns_are_wanted(&race.turns));
    for (int i = 0; i < RUNNERS; i++) {
        all[i] = (struct runner){.race = &race, .name = (char)('a' + i)};
        assert_int_equal(pthread_create(&all[i].thread, NULL, run, &all[i]), 0);
        await_askers(&race.turns, 2 + (uint64_t)i);
    }
    assert_true(turns_are_wanted(&race.turns));
    turns_end(&race.turns);
    for (int i = 0; i < RUNNERS; i++)
        pthread_join(all[i].thread, NULL);
    assert_memory_equal(race.order, "abcde", RUNNERS);
    turns_free(&race.turns);
}

/* ---- keys ---- */

static void a_key_is_a_line_that_is_no_comment(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct keys k;
    char *dir = tmp_tree_new();
    tmp_tree_write_text(dir, "keys", "# no key\n\n  \nfirst\r\nthe second \t\nlast");
    check_ok(keys_read(&k, tmp_tree_path(dir, "keys"), &e), &e);
    assert_true(keys_have(&k, "first") && keys_have(&k, "the second") && keys_have(&k, "last"));
    const char *const others[] = {"",       "firs", "firstt",  "First", "# no key",
                                  "second", " ",    "first\r", "last\n"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(keys_have(&k, others[i]));
    keys_free(&k);
    tmp_tree_write_text(dir, "keys", "# none\n\n");
    assert_int_equal(keys_read(&k, tmp_tree_path(dir, "keys"), &e), ERR_USAGE);
    tmp_tree_remove(dir);
}

/* ---- bodies ---- */

static const char body[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": "
    "[{\"type\": "
    "\"text\", \"text\": \"What is \"}, {\"type\": \"text\", \"text\": \"12 + 30?\"}]}], \"n\": 2, "
    "\"max_tokens\": 5, "
    "\"temperature\": 0.5, \"seed\": 4, \"stop\": [\"x\", \"y\"], \"logprobs\": true, \"top_logprobs\": 3}";

static struct generator tokenizer_alone(void)
{
    struct moeflux_err e = {0};
    struct generator g = {.dir = "tests/models/tiny",
                          .max_context = 64,
                          .info = {.vocab_size = 2048, .chat_template = "qwen3.5"},
                          .tokenizer = tokenizer_open("tests/models/tiny/tokenizer.json", &e)};
    assert_non_null(g.tokenizer);
    return g;
}

static const struct api_request_defaults defaults = {
    {.predict = -1,
     .seed = -1,
     .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
     .logprobs = REQUEST_NO_LOGPROBS},
    .turns = true};

static void a_body_becomes_an_ask_for_each_choice(void **state)
{
    (void)state;
    struct generator g = tokenizer_alone();
    struct refusal refusal = {0};
    struct api_request c;
    if (api_request_read(&c, true, body, strlen(body), &g, &defaults, &refusal))
        fail_msg("%s", refusal.text);
    assert_int_equal(c.n_choices, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct choice *j = api_request_choice(&c, i);
        const struct request_options *o = &j->request.options;
        assert_int_equal(j->seed, 4 + i);
        assert_true(o->predict == 5 && o->n_stops == 2 && o->logprobs == 3 && !o->raw);
        assert_true(o->sampling.temperature > 0.4f && o->sampling.temperature < 0.6f);
        /* The next question parts from this one before the answer begins. */
        uint32_t last = j->stops.n ? j->stops.at[j->stops.n - 1] : 0;
        assert_true(last < j->request.tokens.n && last + 4 >= j->request.tokens.n);
    }
    api_request_free(&c);
    tokenizer_free(g.tokenizer);
}

static void a_body_that_is_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct generator g = tokenizer_alone();
    for (size_t n = 0; n < strlen(body); n++) {
        struct refusal refusal = {0};
        struct api_request c;
        assert_int_equal(api_request_read(&c, true, body, n, &g, &defaults, &refusal), -1);
        assert_int_equal(refusal.status, 400);
        assert_true(refusal.text[0] != 0);
        api_request_free(&c);
    }
    tokenizer_free(g.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_taken_in_order_and_the_queue_has_an_end),
        cmocka_unit_test(a_request_of_several_jobs_counts_once_while_any_of_them_waits),
        cmocka_unit_test(jobs_with_a_lower_number_are_taken_first),
        cmocka_unit_test(a_released_job_waits_no_more),
        cmocka_unit_test(a_job_goes_home_where_not_much_more_is_in_flight),
        cmocka_unit_test(a_job_without_memory_waits_until_fewer_run),
        cmocka_unit_test(closing_fails_what_waits_and_refuses_what_comes),
        cmocka_unit_test(a_paused_queue_gives_no_job_and_keeps_those_that_wait),
        cmocka_unit_test(pieces_come_in_order_and_whole),
        cmocka_unit_test(threads_that_ask_get_their_turn_one_after_the_other),
        cmocka_unit_test(a_key_is_a_line_that_is_no_comment),
        cmocka_unit_test(a_body_becomes_an_ask_for_each_choice),
        cmocka_unit_test(a_body_that_is_cut_anywhere_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
