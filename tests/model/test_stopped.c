/* What a stopped evaluation leaves on a device that does not finish it: the memory of sequences and models
 * that are closed meanwhile, and a wait for the next evaluation; and checkpoints that a device has no memory
 * for. The device is the reference, which says that it is busy, or out of memory, as long as the test wants
 * it.
 *
 * suites: check fast asan */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "engine/session.h"
#include "exec/backend.h"

static const char ODD[] = "tests/models/qwen-odd/mlx";
enum { CONTEXT = 64 };

static struct backend device;
static atomic_bool is_busy;
static atomic_uint n_waits;
static const struct exec *busy; /* NULL: all are */

static int wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    (void)ns, (void)e;
    n_waits++;
    return is_busy && (!busy || busy == x) ? 0 : 1;
}

static struct moeflux_model *open_with(const struct moeflux_options *o)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    check_ok(moeflux_model_open(&m, o, &e), &e);
    is_busy = false;
    device = *m->stages[0].exec->backend;
    device.wait_idle = wait_idle;
    for (uint32_t i = 0; i < m->n_stages; i++)
        m->stages[i].exec->backend = &device;
    return m;
}

static struct moeflux_model *open_model(void)
{
    return open_with(&(struct moeflux_options){.dir = ODD, .device = "reference"});
}

static struct moeflux_session *open_session(struct moeflux_model *m)
{
    static const int32_t ids[] = {1, 2, 3};
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    check_ok(moeflux_session_eval(s, ids, 3, &(struct moeflux_outputs){0}, &e), &e);
    return s;
}

static void stop(struct moeflux_model *m)
{
    is_busy = true;
    m->stages[0].is_stopped = true;
}

static uint64_t state_bytes(struct moeflux_model *m)
{
    struct moeflux_stats s;
    moeflux_model_get_stats(m, &s);
    return s.state_bytes;
}

static void sequences_closed_while_the_device_is_busy_are_freed_later(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model();
    struct moeflux_session *a = open_session(m);
    uint64_t one = state_bytes(m);
    struct moeflux_session *b = open_session(m), *c = open_session(m);
    stop(m);
    moeflux_session_free(a);
    moeflux_session_free(b);
    assert_int_equal(state_bytes(m), 3 * one);
    is_busy = false;
    moeflux_session_free(c);
    assert_int_equal(state_bytes(m), 0);
    moeflux_model_close(m);
}

static void a_new_sequence_finds_their_memory(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model();
    struct moeflux_session *a = open_session(m);
    uint64_t one = state_bytes(m);
    stop(m);
    moeflux_session_free(a);
    assert_int_equal(state_bytes(m), one);
    is_busy = false;
    struct moeflux_session *b = open_session(m);
    assert_int_equal(state_bytes(m), one);
    moeflux_session_free(b);
    moeflux_model_close(m);
}

/* Told by the leak checker. */
static void a_model_that_is_closed_frees_them(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model();
    struct moeflux_session *a = open_session(m);
    stop(m);
    moeflux_session_free(a);
    is_busy = false;
    moeflux_model_close(m);
}

/* The drafter has its own batches, on weights that are partly the model's. */
static void a_model_whose_drafter_is_busy_is_not_freed(void **state)
{
    (void)state;
    struct moeflux_model *m = open_with(
        &(struct moeflux_options){.dir = "tests/models/tiny-mtp", .device = "reference", .drafter = true});
    struct stage *at = &m->drafter->stages[0];
    at->exec->backend = &device;
    busy = at->exec;
    is_busy = at->is_stopped = true;
    moeflux_model_close(m);
    assert_string_equal(moeflux_model_get_info(m).dir, "tests/models/tiny-mtp");
    is_busy = false;
    busy = NULL;
    moeflux_model_close(m);
}

/* ---- what is watched ---- */

struct watcher {
    uint32_t n_calls;
    bool stops;
};

static bool count_calls(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct watcher *w = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    w->n_calls++;
    return !w->stops;
}

/* Tokens are watched until one has shown that they are quick. */
static void a_stopped_token_is_no_quick_one(void **state)
{
    (void)state;
    int32_t id = 3;
    struct watcher w = {0};
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    struct moeflux_model *m = open_with(
        &(struct moeflux_options){.dir = ODD, .device = "reference", .progress = {count_calls, &w}});
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    w.stops = true;
    assert_int_equal(moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){0}, &e), ERR_INTERRUPTED);
    w = (struct watcher){0};
    check_ok(moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){0}, &e), &e);
    assert_true(w.n_calls > 0);
    assert_int_equal(moeflux_session_position(s), 1);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

/* ---- checkpoints without memory ---- */

static int read_without_memory(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst,
                               uint64_t bytes, struct moeflux_err *e)
{
    (void)x, (void)b, (void)off, (void)dst;
    return err_set(e, ERR_NO_FIT, "%llu bytes to read through", (unsigned long long)bytes);
}

static void an_evaluation_does_without_a_checkpoint_that_does_not_fit(void **state)
{
    (void)state;
    enum { N = 12 };
    int32_t ids[N];
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    struct moeflux_model *m =
        open_with(&(struct moeflux_options){.dir = ODD, .device = "reference", .chunk = 4});
    device.read = read_without_memory;
    for (int32_t i = 0; i < N; i++)
        ids[i] = i + 1;
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    moeflux_session_set_checkpoint_every(s, 4);
    moeflux_session_checkpoint_at(s, 6); /* inside a chunk */
    check_ok(moeflux_session_eval(s, ids, N, &(struct moeflux_outputs){0}, &e), &e);
    moeflux_session_checkpoint_at(s, N + 1); /* where a chunk ends */
    check_ok(moeflux_session_eval(s, ids, 1, &(struct moeflux_outputs){0}, &e), &e);
    assert_int_equal(moeflux_session_list_checkpoints(s, NULL, 0), 0);
    /* One that the caller asks for is refused. */
    assert_int_equal(moeflux_session_checkpoint(s, &e), ERR_NO_FIT);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

/* ---- who asks whether to go on ---- */

struct caller {
    pthread_t thread;
    uint32_t n_calls, n_elsewhere;
    bool stops;
};

/* The device is ready when its stage has been asked for once. */
static bool listen(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct caller *c = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    c->n_calls++;
    c->n_elsewhere += !pthread_equal(c->thread, pthread_self());
    if (n_waits > 1 && !c->stops)
        is_busy = false;
    return !(n_waits > 1 && c->stops);
}

/* A prompt of several chunks, of which the second device is still at work on something else. */
static int eval_after_a_stop(struct caller *c, struct moeflux_err *e)
{
    enum { N = 12 };
    int32_t ids[N];
    struct moeflux_session *s;
    *c = (struct caller){.thread = pthread_self(), .stops = c->stops};
    n_waits = 0;
    struct moeflux_model *m = open_with(&(struct moeflux_options){
        .dir = ODD, .device = "reference,reference", .chunk = 4, .progress = {listen, c}});
    for (int32_t i = 0; i < N; i++)
        ids[i] = i + 1;
    check_ok(moeflux_session_new(&s, m, CONTEXT, e), e);
    c->n_calls = 0;
    is_busy = true;
    m->stages[1].is_stopped = true;
    int rc = moeflux_session_eval(s, ids, N, &(struct moeflux_outputs){0}, e);
    assert_true(n_waits > 1);
    is_busy = false;
    moeflux_session_free(s);
    moeflux_model_close(m);
    return rc;
}

static void the_callback_is_asked_on_the_thread_of_the_evaluation(void **state)
{
    (void)state;
    struct caller c = {0};
    struct moeflux_err e = {0};
    check_ok(eval_after_a_stop(&c, &e), &e);
    assert_true(c.n_calls > 0);
    assert_int_equal(c.n_elsewhere, 0);
}

static void it_can_stop_what_waits_for_another_device(void **state)
{
    (void)state;
    struct caller c = {.stops = true};
    struct moeflux_err e = {0};
    assert_int_equal(eval_after_a_stop(&c, &e), ERR_INTERRUPTED);
    assert_int_equal(c.n_elsewhere, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_closed_while_the_device_is_busy_are_freed_later),
        cmocka_unit_test(a_new_sequence_finds_their_memory),
        cmocka_unit_test(a_model_that_is_closed_frees_them),
        cmocka_unit_test(a_model_whose_drafter_is_busy_is_not_freed),
        cmocka_unit_test(a_stopped_token_is_no_quick_one),
        cmocka_unit_test(an_evaluation_does_without_a_checkpoint_that_does_not_fit),
        cmocka_unit_test(the_callback_is_asked_on_the_thread_of_the_evaluation),
        cmocka_unit_test(it_can_stop_what_waits_for_another_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
