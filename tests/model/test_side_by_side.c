/* Several threads on one model: results are batch-invariant, whatever the devices. MOEFLUX_PART=first: on two
 * sets of devices, as ThreadSanitizer has it with each commit.
 *
 * suites: nightly vulkan cpu parts asan-nightly tsan tsan-nightly */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"
#include "engine/session.h"
#include "exec/backend.h"
#include "generate/answer.h"
#include "generate/batcher.h"
#include "generate/generator.h"
#include "moeflux_chat.h"
#include "sequence.h"

enum { CONTEXT = 96, CHUNK = 16, THREADS = 5, TOKENS = 3 };
static const char TINY[] = "tests/models/tiny", ODD[] = "tests/models/qwen-odd/mlx",
                  DEEPSEEK[] = "tests/models/deepseek-odd/mlx";

/* ---- evaluations ---- */

/* What a thread does with a session of its own, and the logits that it gets. */
struct runner {
    struct sequence q; /* q.m is all threads' */
    uint32_t kind;
    float *rows; /* [n][vocab] */
    uint32_t n;
    pthread_t thread;
};

static float *next_row(struct runner *r)
{
    r->rows = realloc(r->rows, (size_t)(r->n + 1) * r->q.vocab * sizeof *r->rows);
    assert_non_null(r->rows);
    return r->rows + (size_t)r->n++ * r->q.vocab;
}

static void decode(struct runner *r)
{
    int32_t ids[TOKENS];
    sequence_ids(&r->q, r->kind, ids, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++)
        sequence_eval(&r->q, &ids[i], 1, next_row(r));
}

/* Prompts of one chunk and of several, with a checkpoint inside or after them, and tokens. */
static void *work(void *ctx)
{
    struct runner *r = ctx;
    struct moeflux_err e = {0};
    int32_t ids[CONTEXT];
    uint32_t n = 7 + 8 * r->kind, mark = r->kind % 2 ? n - 3 : 0;
    sequence_ids(&r->q, r->kind, ids, n);
    for (int round = 0; round < 2; round++) {
        check_ok(moeflux_session_clear(r->q.s, &e), &e);
        moeflux_session_checkpoint_at(r->q.s, mark);
        sequence_eval(&r->q, ids, n, next_row(r));
        if (!mark)
            check_ok(moeflux_session_checkpoint(r->q.s, &e), &e);
        decode(r);
        check_ok(moeflux_session_restore(r->q.s, mark ? mark : n, &e), &e);
        decode(r);
    }
    return NULL;
}

static struct runner new_runner(struct moeflux_model *m, uint32_t kind)
{
    struct runner r = {.q = {.m = m, .vocab = moeflux_model_get_info(m).vocab_size}, .kind = kind};
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&r.q.s, m, CONTEXT, &e), &e);
    return r;
}

static void free_runner(struct runner *r)
{
    moeflux_session_free(r->q.s);
    free(r->rows);
}

static struct moeflux_model *open_staged(const char *dir, const char *device, bool streams, bool staged)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = dir,
                                .device = device,
                                .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                .context = CONTEXT,
                                .chunk = CHUNK};
    struct moeflux_plan p;
    if (streams) {
        check_ok(device_make_plan(&o, &p, &e), &e);
        o.memory_bytes = p.n_devices * 20 * p.slot_bytes;
    }
    check_ok(device_open_staged(&m, &o, staged, &e), &e);
    return m;
}

static struct moeflux_model *open_model(const char *dir, const char *device, bool streams)
{
    return open_staged(dir, device, streams, false);
}

/* Runs n kinds, beginning with `first`. */
static void run_alone(const char *dir, struct runner *to, uint32_t first, uint32_t n)
{
    struct moeflux_model *m = open_model(dir, device_is_vulkan() ? device_name() : "cpu", false);
    for (uint32_t i = 0; i < n; i++) {
        to[i] = new_runner(m, first + i);
        work(&to[i]);
        moeflux_session_free(to[i].q.s);
        to[i].q.s = NULL;
    }
    moeflux_model_close(m);
}

static void run_batched(struct moeflux_model *m, struct runner *want, uint32_t n)
{
    struct runner each[THREADS];
    for (uint32_t i = 0; i < n; i++)
        each[i] = new_runner(m, want[i].kind);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&each[i].thread, NULL, work, &each[i]), 0);
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(each[i].thread, NULL);
        assert_int_equal(each[i].n, want[i].n);
        assert_memory_equal(each[i].rows, want[i].rows,
                            (size_t)want[i].n * want[i].q.vocab * sizeof *want[i].rows);
        free_runner(&each[i]);
    }
}

static void threads_results_equal_those_of_one_thread(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *device;
        bool streams;
    } setups[] = {{ODD, "cpu,cpu,cpu", true},  {DEEPSEEK, "cpu,cpu", false}, {ODD, "cpu", false},
                  {ODD, "cpu,cpu,cpu", false}, {ODD, "cpu,cpu", false},      {ODD, "cpu,cpu", true},
                  {TINY, "cpu,cpu", true}};
    enum { N_FIRST = 2 };
    size_t n = device_runs_part("rest") ? sizeof setups / sizeof *setups : N_FIRST;
    for (size_t i = 0; i < n; i++) {
        struct runner want[THREADS];
        run_alone(setups[i].dir, want, 0, THREADS);
        struct moeflux_model *m = open_model(setups[i].dir, setups[i].device, setups[i].streams);
        assert_true(moeflux_model_get_info(m).experts_resident == !setups[i].streams);
        run_batched(m, want, THREADS);
        moeflux_model_close(m);
        for (uint32_t k = 0; k < THREADS; k++)
            free(want[k].rows);
    }
}

/* Prompts of two chunks and of three, one of which begins while the other is still in flight. */
static void threads_do_on_a_device_named_twice(void **state)
{
    (void)state;
    enum { FIRST = 3, FEW = 2 };
    struct runner want[FEW];
    run_alone(TINY, want, FIRST, FEW);
    for (int staged = 0; staged < 2; staged++) {
        struct moeflux_model *m = open_staged(TINY, "0,0", false, staged);
        if (device_is_software())
            assert_true(crossing_is_there(&m->stages[0].crossing) == staged);
        run_batched(m, want, FEW);
        moeflux_model_close(m);
    }
    for (uint32_t k = 0; k < FEW; k++)
        free(want[k].rows);
}

/* ---- answers ---- */

enum { ANSWERS = 6, LENGTH = 24 };

static const struct backend *real_backend;
static atomic_int n_waits_left;

/* How often one device was at work while another was. */
static struct {
    pthread_mutex_t lock; /* lock of the fields below */
    pthread_cond_t met;
    int n_at_work, n_overlaps, n_in_vain;
    const struct exec *first; /* NULL: none waits for another */
} work_seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .met = PTHREAD_COND_INITIALIZER};

/* Until the first overlap a device after the first holds its work back for a while, so that another thread
 * reaches the first one even on a slow machine. After a few waits in vain it stops.
 * The caller has the lock. */
static void await_another(void)
{
    enum { PATIENCE = 4 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (work_seen.n_in_vain == PATIENCE)
        return;
    while (work_seen.n_overlaps == 0 && pthread_cond_timedwait(&work_seen.met, &work_seen.lock, &until) == 0)
        continue;
    work_seen.n_in_vain += work_seen.n_overlaps == 0;
}

static int wait_and_see(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    pthread_mutex_lock(&work_seen.lock);
    if (work_seen.n_at_work++ > 0) {
        work_seen.n_overlaps++;
        pthread_cond_broadcast(&work_seen.met);
    }
    if (work_seen.first && x != work_seen.first)
        await_another();
    pthread_mutex_unlock(&work_seen.lock);
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    int rc = real_backend->wait(x, ticket, e);
    pthread_mutex_lock(&work_seen.lock);
    work_seen.n_at_work--;
    pthread_mutex_unlock(&work_seen.lock);
    return rc;
}

/* Replaces the devices' wait until the model is closed. */
static struct backend *set_wait(struct moeflux_model *m, uint32_t first,
                                int (*wait)(struct exec *, uint64_t, struct moeflux_err *))
{
    struct backend *b = malloc(sizeof *b);
    assert_non_null(b);
    real_backend = m->stages[0].exec->backend;
    *b = *real_backend;
    b->wait = wait;
    for (uint32_t i = first; i < m->n_stages; i++)
        m->stages[i].exec->backend = b;
    return b;
}

static void reset_wait(struct moeflux_model *m, struct backend *b)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        m->stages[i].exec->backend = real_backend;
    free(b);
}

struct answering {
    struct generator g;
    struct batcher_slot slot;
    struct answer answer;
    int rc;
    struct moeflux_err e;
    uint32_t idx, n_pieces;
    pthread_barrier_t *start; /* NULL: at once */
    pthread_t thread;
};

/* All threads have a token before any is evaluated: the batcher evaluates a single answer next to the groups,
 * and the devices that work at the same time must be those of two groups. */
static int await_all(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    (void)p;
    (void)e;
    struct answering *x = ctx;
    if (x->start && x->n_pieces++ == 0)
        pthread_barrier_wait(x->start);
    return 0;
}

static void *answer(void *ctx)
{
    struct answering *x = ctx;
    const struct answer_options o = {.limit = LENGTH - x->idx, .ignore_eos = true, .sink = {await_all, x}};
    x->rc = batcher_answer(&x->slot, &x->answer, &x->g, &o, &x->e);
    return NULL;
}

static void open_generator(struct generator *g, const char *device)
{
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = TINY,
                                      .device = device,
                                      .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                      .context = 512,
                                      .chunk = CHUNK};
    struct moeflux_model *m;
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    check_ok(generator_of_models(g, &m, 1, &e), &e);
    check_ok(generator_prepare(g, CONTEXT, &e), &e);
}

static void close_generator(struct generator *g)
{
    struct moeflux_model *m = g->model;
    generator_close(g);
    moeflux_model_close(m);
}

/* A prompt of its own, and a sampler. */
static void begin_answer(struct answering *x, const struct generator *g, struct batcher *b, uint32_t idx)
{
    struct moeflux_err e = {0};
    int32_t ids[CONTEXT];
    const struct sequence q = {.vocab = g->info.vocab_size};
    const struct moeflux_sampler_options sampling = {
        .seed = idx, .temperature = idx % 2 ? 0.8f : 0, .top_p = 1, .repeat_penalty = 1};
    *x = (struct answering){.idx = idx};
    generator_share(&x->g, g, 0);
    x->g.logits = malloc(g->info.vocab_size * sizeof(float));
    check_ok(moeflux_session_new(&x->g.sequence, g->model, CONTEXT, &e), &e);
    check_ok(generator_new_sampler(&x->g, &sampling, NULL, 0, &e), &e);
    batcher_bind(b, &x->slot, &x->g);
    sequence_ids(&q, idx, ids, 4 + 7 * idx);
    check_ok(generator_eval(&x->g, ids, 4 + 7 * idx, NULL, &e), &e);
}

static void end_answer(struct answering *x)
{
    moeflux_session_free(x->g.sequence);
    answer_free(&x->answer);
    generator_unshare(&x->g);
}

/* All answers, one after the other or side by side. */
static void answer_all(struct generator *g, struct answering *list, bool side_by_side)
{
    struct batcher *b;
    struct moeflux_err e = {0};
    pthread_barrier_t start;
    check_ok(batcher_new(&b, g->model, false, &e), &e);
    assert_int_equal(pthread_barrier_init(&start, NULL, ANSWERS), 0);
    for (uint32_t i = 0; i < ANSWERS; i++) {
        begin_answer(&list[i], g, b, i);
        list[i].start = side_by_side ? &start : NULL;
    }
    /* The chunks of a prompt overlapped, too. */
    work_seen.n_overlaps = work_seen.n_in_vain = 0;
    work_seen.first = side_by_side ? g->model->stages[0].exec : NULL;
    for (uint32_t i = 0; i < ANSWERS; i++)
        if (side_by_side)
            assert_int_equal(pthread_create(&list[i].thread, NULL, answer, &list[i]), 0);
        else
            answer(&list[i]);
    for (uint32_t i = 0; side_by_side && i < ANSWERS; i++)
        pthread_join(list[i].thread, NULL);
    pthread_barrier_destroy(&start);
    work_seen.first = NULL;
    batcher_free(b);
}

/* Checks the answers on the devices, and that they worked at the same time. */
static void answer_like(const struct answering *want, const char *devices)
{
    struct generator g;
    struct answering have[ANSWERS];
    open_generator(&g, devices);
    struct backend *b = set_wait(g.model, 0, wait_and_see);
    answer_all(&g, have, true);
    reset_wait(g.model, b);
    print_message("%s: %d overlaps\n", devices, work_seen.n_overlaps);
    assert_true((work_seen.n_overlaps > 0) == (g.model->n_stages > 1));
    for (uint32_t i = 0; i < ANSWERS; i++) {
        check_ok(have[i].rc, &have[i].e);
        assert_int_equal(have[i].answer.tokens.n, LENGTH - i);
        assert_int_equal(have[i].answer.tokens.n, want[i].answer.tokens.n);
        assert_memory_equal(have[i].answer.tokens.ids, want[i].answer.tokens.ids,
                            have[i].answer.tokens.n * sizeof(int32_t));
        end_answer(&have[i]);
    }
    close_generator(&g);
}

static void answers_are_equal(const char *alone, const char *const *devices, size_t n)
{
    struct generator g;
    struct answering want[ANSWERS];
    open_generator(&g, alone);
    answer_all(&g, want, false);
    for (size_t i = 0; i < n; i++)
        answer_like(want, devices[i]);
    for (uint32_t i = 0; i < ANSWERS; i++)
        end_answer(&want[i]);
    close_generator(&g);
}

static void answers_are_the_same_and_devices_work_at_the_same_time(void **state)
{
    (void)state;
    answers_are_equal("cpu", (const char *const[]){"cpu,cpu", "cpu", "cpu,cpu,cpu"},
                      device_runs_part("rest") ? 3 : 1);
}

/* Groups take turns there, each with commands that were recorded ahead. */
static void answers_are_the_same_on_a_device_named_twice(void **state)
{
    (void)state;
    answers_are_equal("0", (const char *const[]){"0,0"}, 1);
}

/* ---- a lost device ---- */

static int lose(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return atomic_fetch_sub(&n_waits_left, 1) > 0 ? real_backend->wait(x, ticket, e)
                                                  : err_set(e, ERR_DEVICE, "waiting: the device was lost");
}

/* A line of --batch: a job of one request, and what its callbacks have seen. */
struct line {
    struct moeflux_request *request;
    struct moeflux_job *job;
    int32_t tokens[64]; /* [n] */
    uint32_t n;
    bool meets; /* waits for the other jobs (meet) */
    int rc;
    struct moeflux_err e;
};

static atomic_uint n_begun, n_meeting;

/* The first jobs wait for one another, so that all run when the first finds no room. */
static int meet(void *ctx, struct moeflux_err *e)
{
    const struct line *l = ctx;
    (void)e;
    atomic_fetch_add(&n_begun, 1);
    while (l->meets && atomic_load(&n_begun) < atomic_load(&n_meeting))
        sched_yield();
    return 0;
}

static void keep_tokens(void *ctx, uint32_t idx, const struct moeflux_answer_info *a, struct moeflux_err *err)
{
    struct line *l = ctx;
    assert_int_equal(idx, 0);
    assert_true(a->n_tokens <= sizeof l->tokens / sizeof *l->tokens);
    l->n = err->code ? 0 : a->n_tokens;
    if (l->n)
        memcpy(l->tokens, a->tokens, l->n * sizeof *l->tokens);
}

static struct line new_line(uint32_t number, int n)
{
    struct line l = {0};
    char text[40], limit[12];
    struct moeflux_err e = {0};
    snprintf(text, sizeof text, "Once %u", number);
    snprintf(limit, sizeof limit, "%d", n);
    check_ok(moeflux_request_new(&l.request, &e), &e);
    check_ok(moeflux_request_set(l.request, "raw", "true", &e), &e);
    check_ok(moeflux_request_set(l.request, "ignore_eos", "true", &e), &e);
    check_ok(moeflux_request_set(l.request, "seed", "1", &e), &e);
    check_ok(moeflux_request_set(l.request, "max_tokens", limit, &e), &e);
    check_ok(moeflux_request_set_text(l.request, "prompt", text, &e), &e);
    return l;
}

static struct moeflux_chat *open_chat(const char *device)
{
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = TINY,
                                      .device = device,
                                      .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                      .context = 512,
                                      .chunk = CHUNK};
    struct moeflux_model *m;
    struct moeflux_chat *c;
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    check_ok(moeflux_chat_open(&c, m, &e), &e);
    return c;
}

static void close_chat(struct moeflux_chat *c)
{
    struct moeflux_model *m = moeflux_chat_model(c);
    moeflux_chat_close(c);
    moeflux_model_close(m);
}

/* The pool as --batch opens it. */
static struct moeflux_pool *open_pool(struct moeflux_chat *c, uint32_t n)
{
    const struct moeflux_pool_options o = {.reuse = MOEFLUX_POOL_BATCH, .parallel = n, .context = CONTEXT};
    struct moeflux_pool *p;
    struct moeflux_err e = {0};
    check_ok(moeflux_pool_open(&p, c, &o, &e), &e);
    return p;
}

/* Answers n lines at once. */
static void answer_all_lines(struct moeflux_pool *p, struct line *lines, uint32_t n)
{
    struct moeflux_err e = {0};
    struct moeflux_job *list[THREADS];
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_job_options o = {
            .requests = &lines[i].request, .n = 1, .begin = meet, .ended = keep_tokens, .ctx = &lines[i]};
        check_ok(moeflux_job_new(&list[i], p, &o, &e), &e);
    }
    check_ok(moeflux_pool_add(p, list, n, &e), &e);
    for (uint32_t i = 0; i < n; i++) {
        while (!moeflux_job_wait(list[i], 1000))
            continue;
        lines[i].rc = moeflux_job_result(list[i], &lines[i].e);
        moeflux_job_free(list[i]);
    }
}

/* n lines at once, from a number on; how many are answered. The others name the lost device. */
static uint32_t answer_lines(struct moeflux_pool *p, uint32_t from, uint32_t n, int length)
{
    struct line lines[THREADS];
    uint32_t n_answered = 0;
    for (uint32_t i = 0; i < n; i++)
        lines[i] = new_line(from + i, length);
    answer_all_lines(p, lines, n);
    for (uint32_t i = 0; i < n; i++) {
        if (lines[i].rc == 0)
            assert_int_equal(lines[i].n, length);
        else
            sequence_refused(lines[i].rc, &lines[i].e, ERR_DEVICE, "device 2 of 2 (CPU");
        n_answered += lines[i].rc == 0;
        moeflux_request_free(lines[i].request);
    }
    return n_answered;
}

/* The second of two is lost on the way: what was answered is there, the others name it, and none is waited
 * for in vain. */
static void a_lost_device_ends_the_lines_on_it_and_no_others(void **state)
{
    (void)state;
    enum { LINES = 4 };
    struct moeflux_chat *c = open_chat("cpu,cpu");
    struct moeflux_model *m = moeflux_chat_model(c);
    struct moeflux_pool *p = open_pool(c, LINES);
    assert_int_equal(answer_lines(p, 1, LINES, 5), LINES);
    struct backend *broken = set_wait(m, 1, lose);
    atomic_store(&n_waits_left, 20);
    assert_int_equal(answer_lines(p, 1 + LINES, LINES, 60), 0);
    /* A line is not waited for where all have failed, and it fails at once. */
    assert_int_equal(answer_lines(p, 1 + 2 * LINES, 1, 5), 0);
    reset_wait(m, broken);
    assert_int_equal(answer_lines(p, 2 + 2 * LINES, 1, 5), 1);
    moeflux_pool_close(p);
    close_chat(c);
}

/* ---- too little memory ---- */

static atomic_int n_to_refuse; /* sequences */

/* A sequence that is refused its first buffer asks for no other. */
static int take_buffer(struct exec *x, struct exec_buffer *b, enum exec_memory kind, struct moeflux_err *e)
{
    if (atomic_fetch_sub(&n_to_refuse, 1) <= 0)
        return real_backend->buffer_new(x, b, kind, e);
    return err_set(e, ERR_NO_FIT, "no room for another buffer");
}

/* Answers the lines of a pool at once, after so many of its sequences were refused. Returns how often one
 * was tried again. */
static uint32_t answer_after(struct moeflux_chat *c, struct line *lines, uint32_t n, int n_refused)
{
    struct moeflux_pool *p = open_pool(c, n);
    for (uint32_t i = 0; i < n; i++)
        lines[i].meets = true;
    atomic_store(&n_to_refuse, n_refused);
    atomic_store(&n_begun, 0);
    atomic_store(&n_meeting, n);
    answer_all_lines(p, lines, n);
    moeflux_pool_close(p);
    return atomic_load(&n_begun) - n;
}

/* Lines that find no room are answered one by one, and as they would be with room for all, also where all
 * find none at the same time. For one that is alone there is no more room to come. */
static void lines_without_memory_wait(void **state)
{
    (void)state;
    enum { LINES = 3 };
    struct line lines[LINES], again[LINES];
    struct moeflux_chat *c = open_chat("cpu");
    struct moeflux_model *m = moeflux_chat_model(c);
    for (uint32_t i = 0; i < LINES; i++) {
        lines[i] = new_line(1 + i, 20);
        again[i] = new_line(1 + i, 20);
    }
    struct backend *b = set_wait(m, 0, m->stages[0].exec->backend->wait);
    b->buffer_new = take_buffer;
    assert_int_equal(answer_after(c, lines, LINES, 0), 0);
    assert_int_equal(answer_after(c, again, 1, 1), 0);
    sequence_refused(again[0].rc, &again[0].e, ERR_NO_FIT, "no room for another buffer");
    assert_int_equal(answer_after(c, again, LINES, LINES), LINES);
    for (uint32_t i = 0; i < LINES; i++) {
        check_ok(again[i].rc, &again[i].e);
        assert_int_equal(again[i].n, 20);
        assert_int_equal(lines[i].n, 20);
        assert_memory_equal(again[i].tokens, lines[i].tokens, sizeof again[i].tokens);
        moeflux_request_free(lines[i].request);
        moeflux_request_free(again[i].request);
    }
    reset_wait(m, b);
    close_chat(c);
}

int main(void)
{
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(threads_do_on_a_device_named_twice),
        cmocka_unit_test(answers_are_the_same_on_a_device_named_twice),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(threads_results_equal_those_of_one_thread),
        cmocka_unit_test(answers_are_the_same_and_devices_work_at_the_same_time),
        cmocka_unit_test(a_lost_device_ends_the_lines_on_it_and_no_others),
        cmocka_unit_test(lines_without_memory_wait),
    };
    return device_is_vulkan() ? cmocka_run_group_tests(on_vulkan, NULL, NULL)
                              : cmocka_run_group_tests(on_hosts, NULL, NULL);
}
