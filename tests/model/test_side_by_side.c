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

#include "cli/batch/item.h"
#include "device.h"
#include "engine/session.h"
#include "exec/backend.h"
#include "generate/answer.h"
#include "generate/batcher.h"
#include "generate/generator.h"
#include "generate/jobs.h"
#include "generate/workers.h"
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
static int await_all(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
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

static struct batch_item *read_line(const struct generator *g, uint64_t line, int n)
{
    struct moeflux_err e = {0};
    struct batch_item *item;
    const struct batch_defaults defaults = {.options = {.predict = -1,
                                                        .seed = 1,
                                                        .sampling = {.repeat_penalty = 1, .top_p = 1},
                                                        .logprobs = REQUEST_NO_LOGPROBS}};
    char text[128];
    bool as_openai = false;
    int len =
        snprintf(text, sizeof text,
                 "{\"raw\": true, \"prompt\": \"Once %d\", \"n\": %d, \"ignore_eos\": true}", (int)line, n);
    check_ok(batch_item_read(&item, text, (size_t)len, line, 1000, g, &defaults, &as_openai, &e), &e);
    check_ok(batch_item_encode(item, (struct generator *)g, &e), &e);
    return item;
}

/* The pool as --batch starts it. */
struct pool {
    struct jobs jobs;
    struct workers *workers;
};

static void start_pool(struct pool *p, struct generator *g, uint32_t n)
{
    struct moeflux_err e = {0};
    const struct workers_options o = {.keep = {.most = n, .chunk = CHUNK}, .waits = true};
    check_ok(jobs_init(&p->jobs, UINT32_MAX, &e), &e);
    assert_non_null(p->workers = workers_new(n, &p->jobs, &e));
    check_ok(workers_start(p->workers, g, &o, &e), &e);
}

static void free_pool(struct pool *p)
{
    jobs_close(&p->jobs, "the end");
    workers_join(p->workers);
    workers_free(p->workers);
    jobs_free(&p->jobs);
}

/* Answers the items at once; results [n]. */
static void answer_items(struct pool *p, struct batch_item *const *items, uint32_t n,
                         const struct job_calls *calls, struct choice_result *results)
{
    struct moeflux_err e = {0};
    struct job *list[THREADS];
    uint64_t n_ended = p->jobs.n_ended, end = n_ended + n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_choices;
        struct choice *c = batch_item_choices(items[i], &n_choices);
        assert_non_null(list[i] = jobs_new(c, n_choices, calls, items[i], &e));
    }
    check_ok(jobs_add(&p->jobs, list, n, &e), &e);
    while (n_ended < end)
        n_ended = jobs_await(&p->jobs, n_ended, 1000);
    for (uint32_t i = 0; i < n; i++) {
        results[i] = jobs_result(list[i])->result;
        jobs_release(&p->jobs, list[i]);
    }
}

/* n lines at once, from a number on; how many are answered. The others name the lost device. */
static uint32_t answer_lines(struct pool *p, const struct generator *g, uint64_t from, uint32_t n, int length)
{
    struct batch_item *items[THREADS];
    struct choice_result results[THREADS];
    uint32_t n_answered = 0;
    for (uint32_t i = 0; i < n; i++)
        items[i] = read_line(g, from + i, length);
    answer_items(p, items, n, &batch_item_calls, results);
    for (uint32_t i = 0; i < n; i++) {
        if (results[i].rc == 0)
            assert_non_null(items[i]->result);
        else
            sequence_refused(results[i].rc, &results[i].error, ERR_DEVICE, "device 2 of 2 (CPU");
        n_answered += results[i].rc == 0;
        batch_item_free(items[i]);
    }
    return n_answered;
}

/* The second of two is lost on the way: what was answered is there, the others name it, and none is waited
 * for in vain. */
static void a_lost_device_ends_the_lines_on_it_and_no_others(void **state)
{
    (void)state;
    enum { LINES = 4 };
    struct generator g;
    struct pool p;
    open_generator(&g, "cpu,cpu");
    start_pool(&p, &g, LINES);
    assert_int_equal(answer_lines(&p, &g, 1, LINES, 5), LINES);
    struct backend *broken = set_wait(g.model, 1, lose);
    atomic_store(&n_waits_left, 20);
    assert_int_equal(answer_lines(&p, &g, 1 + LINES, LINES, 60), 0);
    /* A line is not waited for where all have failed, and it fails at once. */
    assert_int_equal(answer_lines(&p, &g, 1 + 2 * LINES, 1, 5), 0);
    reset_wait(g.model, broken);
    assert_int_equal(answer_lines(&p, &g, 2 + 2 * LINES, 1, 5), 1);
    free_pool(&p);
    close_generator(&g);
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

static atomic_uint n_begun, n_meeting;

/* The first jobs wait for one another, so that all run when the first finds no room. */
static int meet(struct job *j, struct moeflux_err *e)
{
    atomic_fetch_add(&n_begun, 1);
    while (atomic_load(&n_begun) < atomic_load(&n_meeting))
        sched_yield();
    return batch_item_calls.begin(j, e);
}

static int keep_piece(struct job *j, const struct answer_piece *p, struct moeflux_err *e)
{
    return batch_item_calls.piece(j, p, e);
}

static void end_choice(struct job *j, const struct moeflux_answer_info *a)
{
    batch_item_calls.ended(j, a);
}

/* Answers the lines of a pool at once, after so many of its sequences were refused. Returns how often one
 * was tried again. */
static uint32_t answer_after(struct generator *g, struct batch_item **items, uint32_t n, int n_refused,
                             struct choice_result *results)
{
    static const struct job_calls calls = {meet, keep_piece, end_choice};
    struct pool p;
    start_pool(&p, g, n);
    atomic_store(&n_to_refuse, n_refused);
    atomic_store(&n_begun, 0);
    atomic_store(&n_meeting, n);
    answer_items(&p, items, n, &calls, results);
    free_pool(&p);
    return atomic_load(&n_begun) - n;
}

/* A result has times after its tokens. */
static void assert_same_answer(const char *line, const char *wanted)
{
    const char *end = strstr(wanted, "\"prompt_tokens\"");
    assert_non_null(end);
    assert_memory_equal(line, wanted, (size_t)(end - wanted));
}

/* Lines that find no room are answered one by one, and as they would be with room for all, also where all
 * find none at the same time. For one that is alone there is no more room to come. */
static void lines_without_memory_wait(void **state)
{
    (void)state;
    enum { LINES = 3 };
    struct generator g;
    struct batch_item *items[LINES], *again[LINES];
    struct choice_result results[LINES];
    open_generator(&g, "cpu");
    for (uint32_t i = 0; i < LINES; i++) {
        items[i] = read_line(&g, 1 + i, 20);
        again[i] = read_line(&g, 1 + i, 20);
    }
    struct backend *b = set_wait(g.model, 0, g.model->stages[0].exec->backend->wait);
    b->buffer_new = take_buffer;
    assert_int_equal(answer_after(&g, items, LINES, 0, results), 0);
    assert_int_equal(answer_after(&g, again, 1, 1, results), 0);
    sequence_refused(results[0].rc, &results[0].error, ERR_NO_FIT, "no room for another buffer");
    assert_int_equal(answer_after(&g, again, LINES, LINES, results), LINES);
    for (uint32_t i = 0; i < LINES; i++) {
        check_ok(results[i].rc, &results[i].error);
        assert_same_answer(again[i]->result, items[i]->result);
        batch_item_free(items[i]);
        batch_item_free(again[i]);
    }
    reset_wait(g.model, b);
    close_generator(&g);
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
