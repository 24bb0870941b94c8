/* What a stopped evaluation leaves on a device that does not finish it: the memory of sequences that are closed meanwhile. The
 * device is the reference, which says that it is busy as long as the test wants it. */
#include "check.h"
#include "engine/engine.h"
#include "exec/backend.h"

static const char ODD[] = "tests/models/qwen-odd/mlx";
enum { CONTEXT = 64 };

static struct backend device;
static bool is_busy;

static int settle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    (void)x, (void)ns, (void)e;
    return is_busy ? 0 : 1;
}

static struct moeflux_model *open_model(void)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    check_ok(moeflux_model_open(&m, &(struct moeflux_options){.dir = ODD, .device = "reference"}, &e), &e);
    struct exec *x = m->stages[0].exec;
    is_busy = false;
    device = *x->backend;
    device.settle = settle;
    x->backend = &device;
    return m;
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
    m->stages[0].is_stopped = is_busy = true;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_closed_while_the_device_is_busy_are_freed_later),
        cmocka_unit_test(a_new_sequence_finds_their_memory),
        cmocka_unit_test(a_model_that_is_closed_frees_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
