/* Pools of moeflux_chat.h, through the public headers alone, with the trained model.
 *
 * suites: check fast asan tsan */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moeflux_chat.h"
#include "tmp_tree.h"

enum { CONTEXT = 256, THREADS = 4, TURNS = 3, LONG_MS = 60000 };
static const char DIR[] = "tests/models/tiny",
                  SCHEMA[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, "
                             "\"required\": [\"a\"], \"additionalProperties\": false}";

static struct moeflux_model *model;
static struct moeflux_chat *chat;

static struct moeflux_model *open_model(void)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    const struct moeflux_options o = {.dir = DIR, .device = "cpu", .n_threads = 2, .context = CONTEXT};
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    return m;
}

static int open_all(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    model = open_model();
    check_ok(moeflux_chat_open(&chat, model, &e), &e);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    moeflux_chat_close(chat);
    moeflux_model_close(model);
    return 0;
}

static struct moeflux_pool *open_pool(struct moeflux_pool_options o)
{
    struct moeflux_err e = {0};
    struct moeflux_pool *p;
    o.context = o.context ? o.context : CONTEXT;
    check_ok(moeflux_pool_open(&p, chat, &o, &e), &e);
    return p;
}

static void set(struct moeflux_request *r, const char *name, const char *json)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_request_set(r, name, json, &e), &e);
}

/* Returns a greedy request with a prompt of its own. */
static struct moeflux_request *ask(uint32_t number, const char *most)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r;
    char text[40];
    snprintf(text, sizeof text, "What is %u + %u?", number, number + 1);
    check_ok(moeflux_request_new(&r, &e), &e);
    set(r, "temperature", "0");
    set(r, "max_tokens", most);
    check_ok(moeflux_request_say(r, "user", text, &e), &e);
    return r;
}

static struct moeflux_job *new_job(struct moeflux_pool *p, struct moeflux_request *r,
                                   struct moeflux_job_options o)
{
    struct moeflux_err e = {0};
    struct moeflux_job *j;
    o.requests = &r;
    o.n = 1;
    check_ok(moeflux_job_new(&j, p, &o, &e), &e);
    return j;
}

static void add(struct moeflux_pool *p, struct moeflux_job *j)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_pool_add(p, &j, 1, &e), &e);
}

/* ---- the same answers as without a pool ---- */

/* What a thread asks, and what it got. */
struct asker {
    struct moeflux_pool *pool;
    uint32_t idx;
    bool schema;
    char texts[TURNS][256];
    uint32_t n_reused[TURNS], n_read;
    pthread_t thread;
};

static void count_piece(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    struct asker *a = ctx;
    assert_int_equal(idx, 0);
    a->n_read += p->id >= 0;
}

static struct moeflux_answer *answer_in(struct asker *a, struct moeflux_request *r)
{
    struct moeflux_err e = {0};
    struct moeflux_job *j =
        new_job(a->pool, r, (struct moeflux_job_options){.keeps_pieces = true, .priority = (int)a->idx % 2});
    add(a->pool, j);
    while (!moeflux_job_read(j, 20, count_piece, a))
        continue;
    check_ok(moeflux_job_result(j, &e), &e);
    struct moeflux_answer *answer = moeflux_job_take(j, 0);
    assert_non_null(answer);
    assert_null(moeflux_job_take(j, 0));
    moeflux_job_free(j);
    return answer;
}

/* Holds a conversation: in the pool, or in a session of its own. */
static void *converse(void *ctx)
{
    struct asker *a = ctx;
    struct moeflux_err e = {0};
    struct moeflux_session *s = NULL;
    struct moeflux_request *r = ask(a->idx, "12");
    set(r, "no_think", "true");
    if (a->schema)
        set(r, "json_schema", SCHEMA);
    if (!a->pool)
        check_ok(moeflux_session_new(&s, model, CONTEXT, &e), &e);
    for (uint32_t i = 0; i < TURNS; i++) {
        struct moeflux_answer *answer;
        if (a->pool)
            answer = answer_in(a, r);
        else
            check_ok(moeflux_chat_answer(chat, s, r, NULL, NULL, &answer, &e), &e);
        const struct moeflux_answer_info info = moeflux_answer_get_info(answer);
        snprintf(a->texts[i], sizeof a->texts[i], "%s", info.text);
        a->n_reused[i] = info.n_reused;
        if (a->pool) {
            assert_int_equal(a->n_read, info.n_tokens);
            a->n_read = 0;
        }
        check_ok(moeflux_request_add_answer(r, answer, &e), &e);
        check_ok(moeflux_request_say(r, "user", "And then?", &e), &e);
        moeflux_answer_free(answer);
    }
    moeflux_request_free(r);
    moeflux_session_free(s);
    return NULL;
}

static void threads_get_the_answers_that_each_would_get_alone(void **state)
{
    (void)state;
    struct asker have[THREADS], want[THREADS];
    struct moeflux_sequence_counts counts;
    struct moeflux_stats stats;
    struct moeflux_pool *p =
        open_pool((struct moeflux_pool_options){.parallel = 3, .sequences = THREADS, .most_waiting = 8});
    for (uint32_t i = 0; i < THREADS; i++) {
        want[i] = (struct asker){.idx = i, .schema = i % 2};
        converse(&want[i]);
        have[i] = (struct asker){.pool = p, .idx = i, .schema = i % 2};
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&have[i].thread, NULL, converse, &have[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(have[i].thread, NULL);
        for (uint32_t k = 0; k < TURNS; k++) {
            assert_string_equal(have[i].texts[k], want[i].texts[k]);
            assert_true(k == 0 || have[i].n_reused[k] > 0);
            assert_true(!have[i].schema || have[i].texts[k][0] == '{');
        }
    }
    moeflux_pool_get_stats(p, &stats, &counts);
    assert_true(counts.n > 0 && counts.n <= THREADS && counts.n_used == 0 && counts.bytes > 0);
    assert_true(stats.n_decode_tokens > 0);
    moeflux_pool_close(p);
}

/* ---- order, limits, ends ---- */

/* What the callbacks of several jobs share. */
static struct {
    atomic_uint n_begun;
    atomic_bool is_open; /* jobs may go on */
    uint32_t order[16], n;
} gate;

static int begin_at_gate(void *ctx, struct moeflux_err *e)
{
    (void)ctx, (void)e;
    atomic_fetch_add(&gate.n_begun, 1);
    while (!atomic_load(&gate.is_open))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return 0;
}

static void note_end(void *ctx, uint32_t idx, const struct moeflux_answer_info *a, struct moeflux_err *err)
{
    const uint32_t *number = ctx;
    assert_true(err->code || a->n_tokens > 0);
    gate.order[gate.n++] = *number * 10 + idx;
}

static uint32_t numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static struct moeflux_job *gated(struct moeflux_pool *p, struct moeflux_request *r, uint32_t number,
                                 int32_t priority)
{
    return new_job(
        p, r,
        (struct moeflux_job_options){
            .priority = priority, .begin = begin_at_gate, .ended = note_end, .ctx = &numbers[number]});
}

static void close_gate(void)
{
    atomic_store(&gate.is_open, false);
    atomic_store(&gate.n_begun, 0);
    gate.n = 0;
}

static void await_begun(uint32_t n)
{
    while (atomic_load(&gate.n_begun) < n)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void jobs_with_a_lower_number_begin_first_and_the_queue_has_an_end(void **state)
{
    (void)state;
    static const int32_t priorities[] = {0, 5, -1, 5, 0};
    static const uint32_t order[] = {0, 20, 40, 10};
    struct moeflux_err e = {0};
    struct moeflux_request *r[5];
    struct moeflux_job *j[5];
    uint32_t n_waiting, n_running;
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 1, .most_waiting = 3});
    close_gate();
    for (uint32_t i = 0; i < 5; i++) {
        r[i] = ask(i, "2");
        j[i] = gated(p, r[i], i, priorities[i]);
    }
    add(p, j[0]);
    await_begun(1);
    for (uint32_t i = 1; i < 5; i++)
        if (i != 3)
            add(p, j[i]);
    assert_int_equal(moeflux_pool_add(p, &j[3], 1, &e), MOEFLUX_ERR_NO_FIT);
    assert_int_equal(moeflux_pool_add(p, &j[1], 1, &e), MOEFLUX_ERR_USAGE);
    moeflux_pool_count(p, &n_waiting, &n_running);
    assert_true(n_waiting == 3 && n_running == 1);
    assert_false(moeflux_job_wait(j[0], 0));
    atomic_store(&gate.is_open, true);
    uint64_t n_ended = 0;
    while (n_ended < 4)
        n_ended = moeflux_pool_await(p, n_ended, LONG_MS);
    assert_true(moeflux_pool_is_drained(p, UINT32_MAX));
    assert_int_equal(gate.n, 4);
    assert_memory_equal(gate.order, order, sizeof order);
    for (uint32_t i = 0; i < 5; i++) {
        moeflux_job_free(j[i]);
        moeflux_request_free(r[i]);
    }
    moeflux_pool_close(p);
}

static bool stop_after_two(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    uint32_t *n = ctx;
    (void)idx;
    *n += p->id >= 0;
    return *n < 2;
}

static void a_cancelled_job_ends_alone(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_request *r[4];
    struct moeflux_job *j[4];
    uint32_t n_pieces = 0;
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 1});
    close_gate();
    for (uint32_t i = 0; i < 4; i++)
        r[i] = ask(i, "100");
    for (uint32_t i = 0; i < 4; i++)
        set(r[i], "ignore_eos", "true");
    j[0] = new_job(p, r[0], (struct moeflux_job_options){.begin = begin_at_gate});
    j[1] = new_job(p, r[1], (struct moeflux_job_options){0});
    j[2] = new_job(p, r[2], (struct moeflux_job_options){0});
    j[3] = new_job(p, r[3], (struct moeflux_job_options){.piece = stop_after_two, .ctx = &n_pieces});
    add(p, j[0]);
    await_begun(1);
    check_ok(moeflux_pool_add(p, &j[1], 3, &e), &e);
    moeflux_job_cancel(j[1]); /* it waits */
    moeflux_job_free(j[2]);
    moeflux_job_cancel(j[0]); /* it runs */
    atomic_store(&gate.is_open, true);
    assert_true(moeflux_job_wait(j[0], LONG_MS) && moeflux_job_wait(j[1], LONG_MS));
    assert_int_equal(moeflux_job_result(j[0], &e), MOEFLUX_ERR_INTERRUPTED);
    assert_int_equal(moeflux_job_result(j[1], &e), MOEFLUX_ERR_INTERRUPTED);
    assert_null(moeflux_job_take(j[1], 0));
    assert_true(moeflux_job_wait(j[3], LONG_MS));
    check_ok(moeflux_job_result(j[3], &e), &e);
    struct moeflux_answer *a = moeflux_job_take(j[3], 0);
    assert_int_equal(moeflux_answer_get_info(a).stop, MOEFLUX_STOP_INTERRUPTED);
    assert_int_equal(moeflux_answer_get_info(a).n_tokens, 2);
    moeflux_answer_free(a);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            moeflux_job_free(j[i]);
        moeflux_request_free(r[i]);
    }
    moeflux_pool_close(p);
}

static void count_warning(void *ctx, const char *text)
{
    unsigned *n = ctx;
    (void)text;
    ++*n;
}

static int cancel_itself(void *ctx, struct moeflux_err *e)
{
    struct moeflux_job *const *j = ctx;
    (void)e;
    moeflux_job_cancel(*j);
    return 0;
}

/* Returns a request whose prompt is long enough for a file. */
static struct moeflux_request *ask_much(uint32_t number)
{
    struct moeflux_err e = {0};
    struct moeflux_request *r = ask(number, "2");
    for (int i = 0; i < 20; i++)
        check_ok(moeflux_request_say(r, i % 2 ? "user" : "assistant", "more words", &e), &e);
    return r;
}

/* The cancelled job's sequence is the first one's, which is saved before. */
static void a_cancelled_job_ends_no_save_of_another_conversation(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    char *dir = tmp_tree_new();
    unsigned n_warnings = 0;
    struct moeflux_job *j[3];
    struct moeflux_request *r[] = {ask_much(1), ask_much(2)};
    struct moeflux_pool *p =
        open_pool((struct moeflux_pool_options){.parallel = 1,
                                                .sequences = 1,
                                                .context = 2 * CONTEXT,
                                                .dir = tmp_tree_path(dir, "states"),
                                                .warning = {count_warning, &n_warnings}});
    for (int i = 0; i < 3; i++) {
        const struct moeflux_job_options o = {.begin = i == 1 ? cancel_itself : NULL, .ctx = &j[i]};
        j[i] = new_job(p, r[i % 2], o);
        add(p, j[i]);
        assert_true(moeflux_job_wait(j[i], LONG_MS));
    }
    assert_int_equal(moeflux_job_result(j[1], &e), MOEFLUX_ERR_INTERRUPTED);
    check_ok(moeflux_job_result(j[2], &e), &e);
    struct moeflux_answer *a = moeflux_job_take(j[2], 0);
    const struct moeflux_answer_info info = moeflux_answer_get_info(a);
    assert_true(info.n_reused + 4 > info.n_prompt);
    assert_int_equal(n_warnings, 0);
    moeflux_answer_free(a);
    for (int i = 0; i < 3; i++)
        moeflux_job_free(j[i]);
    for (int i = 0; i < 2; i++)
        moeflux_request_free(r[i]);
    moeflux_pool_close(p);
    tmp_tree_remove(dir);
}

/* The state is too large to be saved. */
static void a_pool_without_a_function_for_warnings_shows_none(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    const char *files = tmp_tree_path(dir, "states");
    struct moeflux_request *r = ask_much(1);
    struct moeflux_pool *p = open_pool(
        (struct moeflux_pool_options){.parallel = 1, .context = 2 * CONTEXT, .dir = files, .dir_bytes = 1});
    struct moeflux_job *j = new_job(p, r, (struct moeflux_job_options){0});
    add(p, j);
    assert_true(moeflux_job_wait(j, LONG_MS));
    moeflux_job_free(j);
    moeflux_request_free(r);
    moeflux_pool_close(p);
    assert_int_equal(tmp_tree_count(files), 0);
    tmp_tree_remove(dir);
}

static void the_end_fails_jobs_that_wait_and_refuses_later_ones(void **state)
{
    (void)state;
    for (int reuse = MOEFLUX_POOL_RECENT; reuse <= MOEFLUX_POOL_BATCH; reuse++) {
        struct moeflux_err e = {0};
        struct moeflux_request *r[3];
        struct moeflux_job *j[3];
        struct moeflux_pool *p =
            open_pool((struct moeflux_pool_options){.reuse = (enum moeflux_pool_reuse)reuse, .parallel = 1});
        close_gate();
        for (uint32_t i = 0; i < 3; i++) {
            r[i] = ask(i, "2");
            j[i] = gated(p, r[i], i, 0);
        }
        add(p, j[0]);
        await_begun(1);
        add(p, j[1]);
        atomic_store(&gate.is_open, true);
        moeflux_pool_end(p, "the shop closes", UINT32_MAX);
        assert_true(moeflux_job_wait(j[0], 0) && moeflux_job_wait(j[1], 0));
        /* It may have ended before the pool did. */
        int rc = moeflux_job_result(j[1], &e);
        assert_true(rc == 0 || (rc == MOEFLUX_ERR_INTERRUPTED && strcmp(e.text, "the shop closes") == 0));
        check_ok(moeflux_job_result(j[0], &e), &e);
        assert_int_equal(moeflux_pool_add(p, &j[2], 1, &e), MOEFLUX_ERR_INTERRUPTED);
        assert_string_equal(e.text, "the shop closes");
        for (uint32_t i = 0; i < 3; i++) {
            moeflux_job_free(j[i]);
            moeflux_request_free(r[i]);
        }
        moeflux_pool_close(p);
    }
}

/* ---- batches ---- */

/* Two groups of prompts: those that go on as the last one come first. */
static void a_batch_takes_what_the_last_sequence_has_first(void **state)
{
    (void)state;
    static const char *const texts[] = {"Tell me a long story about a fox and its friends. One.",
                                        "Add 17 and 25, then say nothing else at all. One.",
                                        "Tell me a long story about a fox and its friends. Two.",
                                        "Add 17 and 25, then say nothing else at all. Two."};
    static const uint32_t order[] = {0, 20, 10, 30};
    struct moeflux_err e = {0};
    struct moeflux_request *r[4];
    struct moeflux_job *j[4];
    struct moeflux_pool *p =
        open_pool((struct moeflux_pool_options){.reuse = MOEFLUX_POOL_BATCH, .parallel = 1, .holds = true});
    close_gate();
    atomic_store(&gate.is_open, true);
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = ask(i, "2");
        set(r[i], "messages", "null");
        check_ok(moeflux_request_set_text(r[i], "prompt", texts[i], &e), &e);
        j[i] = gated(p, r[i], i, 0);
        add(p, j[i]);
    }
    uint64_t n_ended = moeflux_pool_await(p, 0, 10);
    assert_int_equal(n_ended, 0);
    while (n_ended < 4) {
        moeflux_pool_begin(p);
        n_ended = moeflux_pool_await(p, n_ended, LONG_MS);
    }
    assert_memory_equal(gate.order, order, sizeof order);
    for (uint32_t i = 0; i < 4; i++) {
        moeflux_job_free(j[i]);
        moeflux_request_free(r[i]);
    }
    moeflux_pool_close(p);
}

/* One job answers three requests one after the other; several jobs begin by themselves. */
static void jobs_of_several_requests_give_the_answers_of_each(void **state)
{
    (void)state;
    enum { JOBS = 5, EACH = 3 };
    struct moeflux_err e = {0};
    struct moeflux_request *r[JOBS][EACH];
    struct moeflux_job *j[JOBS];
    struct moeflux_session *s;
    struct moeflux_pool *p =
        open_pool((struct moeflux_pool_options){.reuse = MOEFLUX_POOL_BATCH, .parallel = 2});
    for (uint32_t i = 0; i < JOBS; i++) {
        for (uint32_t k = 0; k < EACH; k++)
            r[i][k] = ask(k ? i : 10 * i, "8");
        const struct moeflux_job_options o = {.requests = r[i], .n = EACH};
        check_ok(moeflux_job_new(&j[i], p, &o, &e), &e);
    }
    check_ok(moeflux_pool_add(p, j, JOBS, &e), &e);
    check_ok(moeflux_session_new(&s, model, CONTEXT, &e), &e);
    for (uint32_t i = 0; i < JOBS; i++) {
        assert_true(moeflux_job_wait(j[i], LONG_MS));
        check_ok(moeflux_job_result(j[i], &e), &e);
        for (uint32_t k = 0; k < EACH; k++) {
            struct moeflux_answer *have = moeflux_job_take(j[i], k), *want;
            check_ok(moeflux_session_clear(s, &e), &e);
            check_ok(moeflux_chat_answer(chat, s, r[i][k], NULL, NULL, &want, &e), &e);
            assert_string_equal(moeflux_answer_get_info(have).text, moeflux_answer_get_info(want).text);
            moeflux_answer_free(have);
            moeflux_answer_free(want);
        }
        moeflux_job_free(j[i]);
        for (uint32_t k = 0; k < EACH; k++)
            moeflux_request_free(r[i][k]);
    }
    moeflux_session_free(s);
    moeflux_pool_close(p);
}

/* Held, running and ended ones. Nothing but the pool orders the threads' accesses, for ThreadSanitizer. */
static void jobs_may_be_freed_at_any_time(void **state)
{
    (void)state;
    enum { JOBS = 4 };
    struct moeflux_request *r[JOBS];
    struct moeflux_job *j[JOBS];
    struct moeflux_pool *p =
        open_pool((struct moeflux_pool_options){.reuse = MOEFLUX_POOL_BATCH, .parallel = 1});
    for (uint32_t i = 0; i < JOBS; i++) {
        r[i] = ask(i, i ? "150" : "1");
        set(r[i], "ignore_eos", "true");
        j[i] = new_job(p, r[i], (struct moeflux_job_options){0});
    }
    for (uint32_t i = 0; i < JOBS; i++)
        add(p, j[i]);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    for (uint32_t i = 1; i < JOBS; i++)
        moeflux_job_free(j[i]);
    moeflux_job_free(j[0]);
    moeflux_pool_close(p);
    for (uint32_t i = 0; i < JOBS; i++)
        moeflux_request_free(r[i]);
}

static void prompts_may_be_token_ids_in_any_pool(void **state)
{
    (void)state;
    static const int32_t ids[] = {40, 41, 42, 43, 44, 45};
    struct moeflux_err e = {0};
    struct moeflux_session *s;
    struct moeflux_answer *want;
    struct moeflux_request *r = ask(1, "6");
    set(r, "messages", "null");
    check_ok(moeflux_request_set_ids(r, ids, sizeof ids / sizeof *ids, &e), &e);
    check_ok(moeflux_session_new(&s, model, CONTEXT, &e), &e);
    check_ok(moeflux_chat_answer(chat, s, r, NULL, NULL, &want, &e), &e);
    for (uint32_t i = 0; i < 4; i++) {
        struct moeflux_pool *p = open_pool((struct moeflux_pool_options){
            .reuse = i % 2 ? MOEFLUX_POOL_BATCH : MOEFLUX_POOL_RECENT, .parallel = 1 + i / 2});
        struct moeflux_job *j = new_job(p, r, (struct moeflux_job_options){0});
        add(p, j);
        assert_true(moeflux_job_wait(j, UINT32_MAX));
        check_ok(moeflux_job_result(j, &e), &e);
        struct moeflux_answer *a = moeflux_job_take(j, 0);
        const struct moeflux_answer_info have = moeflux_answer_get_info(a),
                                         of = moeflux_answer_get_info(want);
        assert_int_equal(have.n_tokens, of.n_tokens);
        assert_memory_equal(have.tokens, of.tokens, of.n_tokens * sizeof *of.tokens);
        moeflux_answer_free(a);
        moeflux_job_free(j);
        moeflux_pool_close(p);
    }
    moeflux_answer_free(want);
    moeflux_request_free(r);
    moeflux_session_free(s);
}

/* ---- faults ---- */

static int refused(struct moeflux_pool *p, struct moeflux_request *r, struct moeflux_err *e)
{
    struct moeflux_job *j;
    const struct moeflux_job_options o = {.requests = &r, .n = 1};
    int rc = moeflux_job_new(&j, p, &o, e);
    assert_null(j);
    return rc;
}

static void what_is_wrong_with_a_request_is_said_before_it_waits(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_job *j;
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 1, .context = 32});
    struct moeflux_request *r = ask(1, "2");
    set(r, "temperature", "-1");
    assert_int_equal(refused(p, r, &e), MOEFLUX_ERR_FORMAT);
    assert_non_null(strstr(e.text, "temperature"));
    set(r, "temperature", "0");
    for (int i = 0; i < 30; i++)
        check_ok(moeflux_request_say(r, i % 2 ? "user" : "assistant", "more words", &e), &e);
    assert_int_equal(refused(p, r, &e), MOEFLUX_ERR_USAGE);
    moeflux_request_set_alone(r, &(struct moeflux_alone){0});
    assert_int_equal(refused(p, r, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "alone"));
    assert_int_equal(refused(p, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_job_new(&j, p, &(struct moeflux_job_options){0}, &e), MOEFLUX_ERR_USAGE);
    moeflux_request_free(r);
    moeflux_pool_close(p);
    moeflux_pool_close(NULL);
    moeflux_job_free(NULL);
    const struct moeflux_pool_options many = {.parallel = MOEFLUX_MAX_PARALLEL + 1},
                                      few = {.parallel = 4, .sequences = 3};
    assert_int_equal(moeflux_pool_open(&p, chat, &many, &e), MOEFLUX_ERR_USAGE);
    assert_int_equal(moeflux_pool_open(&p, chat, &few, &e), MOEFLUX_ERR_USAGE);
    assert_null(p);
}

/* The second one would take the first one's place in the models, and leave it when the first one is gone. */
static void a_model_has_one_pool_at_a_time(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_chat *other;
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){0}), *q;
    const struct moeflux_pool_options o = {.context = CONTEXT / 2};
    struct moeflux_request *r = ask(1, "2");
    check_ok(moeflux_chat_open(&other, model, &e), &e);
    assert_int_equal(moeflux_chat_use_template(chat, NULL, "{}", &e), MOEFLUX_ERR_USAGE);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(moeflux_pool_open(&q, i % 2 ? other : chat, &o, &e), MOEFLUX_ERR_USAGE);
        assert_null(q);
    }
    for (int i = 0; i < 2; i++) {
        struct moeflux_job *j = new_job(p, r, (struct moeflux_job_options){0});
        add(p, j);
        assert_true(moeflux_job_wait(j, LONG_MS));
        check_ok(moeflux_job_result(j, &e), &e);
        moeflux_job_free(j);
        moeflux_pool_end(p, NULL, 0);
        if (i == 0) {
            check_ok(moeflux_pool_open(&q, chat, &o, &e), &e);
            moeflux_pool_close(p);
            p = q;
        }
    }
    moeflux_pool_close(p);
    check_ok(moeflux_chat_use_template(other, NULL, "{}", &e), &e);
    moeflux_chat_close(other);
    moeflux_request_free(r);
}

static void a_job_is_added_once(void **state)
{
    (void)state;
    for (int reuse = MOEFLUX_POOL_RECENT; reuse <= MOEFLUX_POOL_BATCH; reuse++) {
        struct moeflux_err e = {0};
        struct moeflux_pool *p =
            open_pool((struct moeflux_pool_options){.reuse = (enum moeflux_pool_reuse)reuse, .parallel = 1});
        struct moeflux_request *r[2] = {ask(1, "2"), ask(2, "2")};
        struct moeflux_job *j[] = {new_job(p, r[0], (struct moeflux_job_options){0}),
                                   new_job(p, r[1], (struct moeflux_job_options){0})};
        struct moeflux_job *const lists[][3] = {{j[0], j[1], j[0]}, {j[1], j[1], j[0]}, {j[0], j[1], NULL}};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(moeflux_pool_add(p, lists[i], 3, &e), MOEFLUX_ERR_USAGE);
            assert_non_null(strstr(e.text, i == 1 ? "job 1" : "job 2"));
        }
        check_ok(moeflux_pool_add(p, j, 2, &e), &e);
        assert_int_equal(moeflux_pool_add(p, j, 1, &e), MOEFLUX_ERR_USAGE);
        for (int i = 0; i < 2; i++) {
            assert_true(moeflux_job_wait(j[i], LONG_MS));
            moeflux_job_free(j[i]);
            moeflux_request_free(r[i]);
        }
        moeflux_pool_close(p);
    }
}

static int fail_to_begin(void *ctx, struct moeflux_err *e)
{
    (void)ctx;
    *e = (struct moeflux_err){MOEFLUX_ERR_USAGE, "not today"};
    return e->code;
}

static void refuse_answer(void *ctx, uint32_t idx, const struct moeflux_answer_info *a,
                          struct moeflux_err *err)
{
    (void)ctx, (void)idx, (void)a;
    if (!err->code)
        *err = (struct moeflux_err){MOEFLUX_ERR_FORMAT, "no such answer"};
}

static void callbacks_may_fail_a_job(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 1});
    struct moeflux_request *r = ask(1, "2");
    struct moeflux_job *j = new_job(p, r, (struct moeflux_job_options){.begin = fail_to_begin});
    add(p, j);
    assert_true(moeflux_job_wait(j, LONG_MS));
    assert_int_equal(moeflux_job_result(j, &e), MOEFLUX_ERR_USAGE);
    assert_string_equal(e.text, "not today");
    moeflux_job_free(j);
    j = new_job(p, r, (struct moeflux_job_options){.ended = refuse_answer});
    add(p, j);
    assert_true(moeflux_job_wait(j, LONG_MS));
    assert_int_equal(moeflux_job_result(j, &e), MOEFLUX_ERR_FORMAT);
    assert_string_equal(e.text, "no such answer");
    moeflux_job_free(j);
    moeflux_request_free(r);
    moeflux_pool_close(p);
}

/* ---- other models ---- */

/* A limit of fewer bytes than copies is still one. */
static void a_small_limit_of_idle_sequences_holds_for_copies_too(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_sequence_counts counts;
    struct moeflux_model *both[] = {model, open_model()};
    check_ok(moeflux_chat_use_models(chat, both, 2, &e), &e);
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.bytes = 1});
    struct moeflux_request *r = ask(1, "2");
    struct moeflux_job *j = new_job(p, r, (struct moeflux_job_options){0});
    add(p, j);
    assert_true(moeflux_job_wait(j, LONG_MS));
    check_ok(moeflux_job_result(j, &e), &e);
    moeflux_pool_get_stats(p, NULL, &counts);
    assert_int_equal(counts.n, 0);
    moeflux_job_free(j);
    moeflux_request_free(r);
    moeflux_pool_close(p);
    check_ok(moeflux_chat_use_models(chat, both, 1, &e), &e);
    moeflux_model_close(both[1]);
}

static void jobs_wait_while_the_models_are_replaced(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 2});
    struct moeflux_request *r[2] = {ask(1, "8"), ask(1, "8")};
    struct moeflux_job *j[2];
    for (int i = 0; i < 2; i++)
        j[i] = new_job(p, r[i], (struct moeflux_job_options){0});
    add(p, j[0]);
    assert_true(moeflux_job_wait(j[0], LONG_MS));
    assert_true(moeflux_pool_is_drained(p, LONG_MS));
    moeflux_pool_pause(p);
    moeflux_model_close(model);
    add(p, j[1]);
    assert_false(moeflux_job_wait(j[1], 20));
    model = open_model();
    check_ok(moeflux_chat_use_models(chat, &model, 1, &e), &e);
    check_ok(moeflux_pool_restart(p, &e), &e);
    assert_true(moeflux_job_wait(j[1], LONG_MS));
    struct moeflux_answer *a[2];
    for (int i = 0; i < 2; i++) {
        check_ok(moeflux_job_result(j[i], &e), &e);
        a[i] = moeflux_job_take(j[i], 0);
    }
    assert_string_equal(moeflux_answer_get_info(a[0]).text, moeflux_answer_get_info(a[1]).text);
    for (int i = 0; i < 2; i++) {
        moeflux_answer_free(a[i]);
        moeflux_job_free(j[i]);
        moeflux_request_free(r[i]);
    }
    moeflux_pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_get_the_answers_that_each_would_get_alone),
        cmocka_unit_test(jobs_with_a_lower_number_begin_first_and_the_queue_has_an_end),
        cmocka_unit_test(a_cancelled_job_ends_alone),
        cmocka_unit_test(a_cancelled_job_ends_no_save_of_another_conversation),
        cmocka_unit_test(a_pool_without_a_function_for_warnings_shows_none),
        cmocka_unit_test(the_end_fails_jobs_that_wait_and_refuses_later_ones),
        cmocka_unit_test(a_batch_takes_what_the_last_sequence_has_first),
        cmocka_unit_test(jobs_of_several_requests_give_the_answers_of_each),
        cmocka_unit_test(jobs_may_be_freed_at_any_time),
        cmocka_unit_test(prompts_may_be_token_ids_in_any_pool),
        cmocka_unit_test(what_is_wrong_with_a_request_is_said_before_it_waits),
        cmocka_unit_test(a_job_is_added_once),
        cmocka_unit_test(a_model_has_one_pool_at_a_time),
        cmocka_unit_test(callbacks_may_fail_a_job),
        cmocka_unit_test(a_small_limit_of_idle_sequences_holds_for_copies_too),
        cmocka_unit_test(jobs_wait_while_the_models_are_replaced),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
