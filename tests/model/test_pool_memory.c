/* Pools whose device has room for a few blocks of the KV cache only: what is evicted, what is tried again,
 * and what fails.
 *
 * suites: check asan tsan-nightly */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "engine/model.h"
#include "exec/backend.h"
#include "exec/exec.h"
#include "moeflux_chat.h"

/* ENDLESS: more attempts than any job needs. */
enum { CONTEXT = 2048, BLOCK = 1 << KV_BLOCK_SHIFT, ENDLESS = 6, LONG_MS = 120000 };

static struct moeflux_model *model;
static struct moeflux_chat *chat;

/* ---- a device with little memory ---- */

static const struct backend *real;
static struct backend little;
static uint64_t block_bytes;
static atomic_int n_blocks_left;

static int take_buffer(struct exec *x, struct exec_buffer *b, enum exec_memory kind, struct moeflux_err *e)
{
    bool is_block = b->bytes == block_bytes;
    if (is_block && atomic_fetch_sub(&n_blocks_left, 1) <= 0) {
        atomic_fetch_add(&n_blocks_left, 1);
        return err_set(e, ERR_NO_FIT, "no room for another block");
    }
    int rc = real->buffer_new(x, b, kind, e);
    if (is_block && rc)
        atomic_fetch_add(&n_blocks_left, 1);
    return rc;
}

static void give_buffer(struct exec *x, struct exec_buffer *b)
{
    if (b->bytes == block_bytes)
        atomic_fetch_add(&n_blocks_left, 1);
    real->buffer_free(x, b);
}

static int open_all(void **state)
{
    struct moeflux_err e = {0};
    const struct moeflux_options o = {
        .dir = "tests/models/tiny", .device = "cpu", .n_threads = 1, .context = CONTEXT};
    (void)state;
    check_ok(moeflux_model_open(&model, &o, &e), &e);
    check_ok(moeflux_chat_open(&chat, model, &e), &e);
    struct stage *at = &model->stages[0];
    real = at->exec->backend;
    little = *real;
    little.buffer_new = take_buffer;
    little.buffer_free = give_buffer;
    at->exec->backend = &little;
    block_bytes = at->view.sizes.kv_block;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    moeflux_chat_close(chat);
    moeflux_model_close(model);
    return 0;
}

/* Opens a pool while nobody has a block. */
static struct moeflux_pool *open_pool(struct moeflux_pool_options o, int n_blocks)
{
    struct moeflux_err e = {0};
    struct moeflux_pool *p;
    o.context = CONTEXT;
    atomic_store(&n_blocks_left, n_blocks);
    check_ok(moeflux_pool_open(&p, chat, &o, &e), &e);
    return p;
}

/* ---- jobs ---- */

struct asked {
    struct moeflux_request *request;
    struct moeflux_job *job;
    uint32_t n_begun; /* attempts */
    int rc;
    struct moeflux_err e;
    struct moeflux_answer *answer;
    uint32_t n_read; /* tokens of the pieces */
};

static atomic_uint n_meeting; /* jobs that begin at the same time */

static int count_attempt(void *ctx, struct moeflux_err *e)
{
    struct asked *a = ctx;
    if (atomic_load(&n_meeting) > 0)
        atomic_fetch_sub(&n_meeting, 1);
    while (atomic_load(&n_meeting) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return ++a->n_begun < ENDLESS ? 0 : err_set(e, ERR_USAGE, "attempts without end");
}

/* n_system, n_user: words, of one token or a few. */
static void ask(struct asked *a, struct moeflux_pool *p, uint32_t n_system, uint32_t n_user,
                const char *max_tokens)
{
    struct moeflux_err e = {0};
    char text[8192] = "";
    *a = (struct asked){0};
    check_ok(moeflux_request_new(&a->request, &e), &e);
    for (uint32_t i = 0; i < n_system; i++)
        strcat(text, "alpha beta gamma ");
    if (n_system)
        check_ok(moeflux_request_say(a->request, "system", text, &e), &e);
    text[0] = '\0';
    for (uint32_t i = 0; i < n_user; i++)
        strcat(text, n_user % 2 ? "one two three " : "four five six ");
    check_ok(moeflux_request_say(a->request, "user", text, &e), &e);
    check_ok(moeflux_request_set(a->request, "max_tokens", max_tokens, &e), &e);
    check_ok(moeflux_request_set(a->request, "ignore_eos", "true", &e), &e);
    check_ok(moeflux_request_set(a->request, "temperature", "0", &e), &e);
    check_ok(moeflux_request_set(a->request, "draft", "\"ngram\"", &e), &e);
    const struct moeflux_job_options o = {
        .requests = &a->request, .n = 1, .keeps_pieces = true, .begin = count_attempt, .ctx = a};
    check_ok(moeflux_job_new(&a->job, p, &o, &e), &e);
    check_ok(moeflux_pool_add(p, &a->job, 1, &e), &e);
}

static void count_piece(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    struct asked *a = ctx;
    assert_int_equal(idx, 0);
    a->n_read += p->id >= 0;
}

static void await(struct asked *a)
{
    if (!moeflux_job_wait(a->job, LONG_MS))
        fail_msg("the job does not end, it began %u times", a->n_begun);
    assert_true(moeflux_job_read(a->job, 0, count_piece, a));
    a->rc = moeflux_job_result(a->job, &a->e);
    a->answer = moeflux_job_take(a->job, 0);
    moeflux_job_free(a->job);
}

static void release(struct asked *a)
{
    moeflux_answer_free(a->answer);
    moeflux_request_free(a->request);
}

static void expect_tokens(const struct asked *a, const struct asked *want)
{
    const struct moeflux_answer_info have = moeflux_answer_get_info(a->answer),
                                     of = moeflux_answer_get_info(want->answer);
    assert_int_equal(have.n_tokens, of.n_tokens);
    assert_memory_equal(have.tokens, of.tokens, of.n_tokens * sizeof *of.tokens);
}

/* ---- batches ---- */

static const struct moeflux_pool_options batch = {.reuse = MOEFLUX_POOL_BATCH, .parallel = 2};

/* The prompt has two blocks, so prompt and answer have four. The beginning that could be shared is freed for
 * the sake of the job, and not made again. */
static void a_lone_job_that_never_fits_fails(void **state)
{
    (void)state;
    for (uint32_t n_system = 0; n_system <= 50; n_system += 50)
        for (int n_blocks = 1; n_blocks <= 3; n_blocks += 2) {
            struct asked a;
            struct moeflux_pool *p = open_pool(batch, n_blocks);
            ask(&a, p, n_system, n_system ? 1 : 50, "600");
            await(&a);
            assert_int_equal(a.rc, MOEFLUX_ERR_NO_FIT);
            assert_true(a.n_begun <= 2);
            release(&a);
            moeflux_pool_close(p);
        }
}

/* A beginning of the prompt and a sequence with all of it are three blocks. */
static void a_lone_job_that_fits_without_a_shared_beginning_is_answered(void **state)
{
    (void)state;
    struct asked few, many;
    struct moeflux_pool *p = open_pool(batch, 100);
    ask(&many, p, 50, 1, "8");
    await(&many);
    moeflux_pool_close(p);
    p = open_pool(batch, 2);
    ask(&few, p, 50, 1, "8");
    await(&few);
    check_ok(few.rc, &few.e);
    expect_tokens(&few, &many);
    moeflux_pool_close(p);
    release(&few);
    release(&many);
}

/* Each has one block, and there is one more. The one that waits has the pieces of its last attempt. */
static void a_job_that_is_tried_again_keeps_no_pieces_of_before(void **state)
{
    (void)state;
    struct asked asked[2];
    struct moeflux_pool *p = open_pool(batch, 3);
    atomic_store(&n_meeting, 2);
    for (uint32_t i = 0; i < 2; i++)
        ask(&asked[i], p, 0, 5 + i, "300");
    for (uint32_t i = 0; i < 2; i++) {
        await(&asked[i]);
        check_ok(asked[i].rc, &asked[i].e);
        assert_int_equal(moeflux_answer_get_info(asked[i].answer).n_tokens, 300);
        assert_int_equal(asked[i].n_read, 300);
    }
    assert_int_equal(asked[0].n_begun + asked[1].n_begun, 3);
    moeflux_pool_close(p);
    release(&asked[0]);
    release(&asked[1]);
}

/* ---- chains of drafts ---- */

/* Prompt and answer end with their third block. The last chains would begin a fourth one. */
static void a_chain_is_cut_where_memory_ends(void **state)
{
    (void)state;
    struct asked asked[2];
    for (int i = 0; i < 2; i++) {
        struct moeflux_pool *p = open_pool((struct moeflux_pool_options){.parallel = 1}, i ? 100 : 3);
        ask(&asked[i], p, 0, 50, "507");
        await(&asked[i]);
        check_ok(asked[i].rc, &asked[i].e);
        const struct moeflux_answer_info info = moeflux_answer_get_info(asked[i].answer);
        assert_int_equal(info.n_prompt + info.n_tokens, 3 * BLOCK + 1);
        assert_true(info.n_drafted > 0);
        moeflux_pool_close(p);
    }
    expect_tokens(&asked[0], &asked[1]);
    release(&asked[0]);
    release(&asked[1]);
}

/* ---- idle sequences ---- */

/* The first answer's sequence keeps two blocks, the second one needs four. */
static void an_answer_evicts_idle_sequences_in_its_middle(void **state)
{
    (void)state;
    const struct moeflux_pool_options pools[] = {{.parallel = 1, .sequences = 2}, batch};
    for (int i = 0; i < 2; i++) {
        struct asked first, much, little_room;
        struct moeflux_sequence_counts counts;
        struct moeflux_pool *p = open_pool(pools[i], 100);
        ask(&much, p, 0, 51, "600");
        await(&much);
        moeflux_pool_close(p);
        p = open_pool(pools[i], 5);
        ask(&first, p, 0, 50, "3");
        await(&first);
        check_ok(first.rc, &first.e);
        moeflux_pool_get_stats(p, NULL, &counts);
        assert_int_equal(counts.n, 1);
        ask(&little_room, p, 0, 51, "600");
        await(&little_room);
        check_ok(little_room.rc, &little_room.e);
        assert_int_equal(little_room.n_begun, 1);
        expect_tokens(&little_room, &much);
        moeflux_pool_get_stats(p, NULL, &counts);
        assert_int_equal(counts.n, 1);
        moeflux_pool_close(p);
        release(&first);
        release(&much);
        release(&little_room);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_job_that_never_fits_fails),
        cmocka_unit_test(a_lone_job_that_fits_without_a_shared_beginning_is_answered),
        cmocka_unit_test(a_job_that_is_tried_again_keeps_no_pieces_of_before),
        cmocka_unit_test(a_chain_is_cut_where_memory_ends),
        cmocka_unit_test(an_answer_evicts_idle_sequences_in_its_middle),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
