/* The order in which the reader takes requests.
 *
 * suites: check fast asan */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "read_fixture.h"

static const char ODD[] = "tests/models/qwen-odd/mlx";

/* Holds the first read until it may continue, and notes in which order the others come. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_held, n_to_hold;
    bool open;
    uint32_t experts[64], n;
};

static int64_t pass_gate(void *ctx, const struct read_part *p,
                         uint8_t *dst, /* NOLINT(readability-non-const-parameter): the hook's type */
                         int64_t result)
{
    struct gate *g = ctx;
    (void)dst;
    pthread_mutex_lock(&g->lock);
    if (g->n_held < g->n_to_hold) {
        g->n_held++;
        g->experts[g->n++] = p->request->expert;
        pthread_cond_broadcast(&g->changed);
        while (!g->open)
            pthread_cond_wait(&g->changed, &g->lock);
    } else {
        g->experts[g->n++] = p->request->expert;
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

static struct reader *open_gated(const struct model_dir *m, enum reader_mode mode, uint32_t n, struct gate *g,
                                 struct reader_hook *hook)
{
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    *hook = (struct reader_hook){pass_gate, g};
    return open_reader(m, &(struct reader_options){.mode = mode, .n_threads = n, .depth = n, .hook = hook});
}

static void wait_held(struct gate *g, uint32_t n)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_held < n)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void start_some(struct reader *r, struct read_request *q, uint32_t from, uint32_t to, bool speculative)
{
    for (uint32_t i = from; i < to; i++) {
        q[i].speculative = speculative;
        reader_start(r, &q[i]);
    }
}

static void demanded_reads_overtake_speculative_ones(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct gate g = {.n_to_hold = 1};
        struct reader_hook hook;
        struct reader *r = open_gated(&f.model, mode, 1, &g, &hook);
        struct read_request *q = new_requests(&f.model, 9);
        start_some(r, q, 0, 1, true);
        wait_held(&g, 1);
        start_some(r, q, 1, 6, true);
        start_some(r, q, 6, 9, false);
        open_gate(&g);
        for (uint32_t i = 0; i < 9; i++)
            assert_int_equal(reader_wait(r, &q[i], NULL), 0);
        static const uint32_t want[] = {0, 6, 7, 8};
        assert_int_equal(g.n, 9);
        assert_memory_equal(g.experts, want, sizeof want);
        free_requests(q, 9);
        reader_close(r);
    }
    close_packed(&f);
}

struct waiter {
    struct reader *reader;
    struct read_request *request;
    int code;
};

static void *wait_for_it(void *arg)
{
    struct waiter *w = arg;
    w->code = reader_wait(w->reader, w->request, NULL);
    return NULL;
}

static void waiting_makes_a_read_demanded(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct gate g = {.n_to_hold = 1};
        struct reader_hook hook;
        struct reader *r = open_gated(&f.model, mode, 1, &g, &hook);
        struct read_request *q = new_requests(&f.model, 6);
        start_some(r, q, 0, 1, false);
        wait_held(&g, 1);
        start_some(r, q, 1, 6, true);
        struct waiter w = {.reader = r, .request = &q[4]};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wait_for_it, &w), 0);
        while (reader_get_stats(r).n_promoted == 0)
            sched_yield();
        open_gate(&g);
        pthread_join(thread, NULL);
        assert_int_equal(w.code, 0);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(reader_wait(r, &q[i], NULL), 0);
        assert_int_equal(g.experts[1], 4);
        free_requests(q, 6);
        reader_close(r);
    }
    close_packed(&f);
}

static void speculative_reads_leave_half_of_the_depth(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct gate g = {.n_to_hold = 4};
    struct reader_hook hook;
    struct reader *r = open_gated(&f.model, READER_PREAD, 4, &g, &hook);
    struct read_request *q = new_requests(&f.model, 10);
    start_some(r, q, 0, 8, true);
    wait_held(&g, 2);
    start_some(r, q, 8, 10, false);
    wait_held(&g, 4);
    uint32_t n_demanded = 0;
    for (uint32_t i = 0; i < 4; i++)
        n_demanded += g.experts[i] >= 8;
    assert_int_equal(n_demanded, 2);
    open_gate(&g);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(reader_wait(r, &q[i], NULL), 0);
    free_requests(q, 10);
    reader_close(r);
    close_packed(&f);
}

/* Nine extents, one thread: the first is held while the request is taken back. */
static void a_read_taken_back_half_way_ends_with_what_was_in_flight(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    struct gate g = {.n_to_hold = 1};
    struct reader_hook hook;
    check_ok(model_dir_open(&m, ODD, &e), &e);
    struct reader *r = open_gated(&m, READER_PREAD, 1, &g, &hook);
    struct read_request *q = new_requests(&m, 2);
    start_some(r, q, 0, 1, true);
    wait_held(&g, 1);
    assert_int_equal(reader_cancel(r, &q[0]), READER_CUT_SHORT);
    open_gate(&g);
    assert_int_equal(reader_wait(r, &q[0], &e), ERR_INTERRUPTED);
    assert_non_null(strstr(e.text, "cancelled"));
    assert_int_equal(g.n, 1);
    start_some(r, q, 1, 2, false);
    check_ok(reader_wait(r, &q[1], &e), &e);
    check_bytes(&m, &q[1]);
    assert_int_equal(reader_get_stats(r).n_dropped, 1);
    assert_int_equal(reader_get_stats(r).n_failed, 0);
    free_requests(q, 2);
    reader_close(r);
    model_dir_close(&m);
}

static void only_what_was_not_started_can_be_cancelled(void **state)
{
    (void)state;
    struct fixture f;
    struct moeflux_err e = {0};
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct gate g = {.n_to_hold = 1};
        struct reader_hook hook;
        struct reader *r = open_gated(&f.model, mode, 1, &g, &hook);
        struct read_request *q = new_requests(&f.model, 4);
        start_some(r, q, 0, 4, true);
        wait_held(&g, 1);
        assert_int_equal(reader_cancel(r, &q[0]), READER_NOT_CANCELLED);
        assert_int_equal(reader_cancel(r, &q[2]), READER_CANCELLED);
        assert_int_equal(reader_cancel(r, &q[3]), READER_CANCELLED);
        open_gate(&g);
        check_ok(reader_wait(r, &q[0], &e), &e);
        check_ok(reader_wait(r, &q[1], &e), &e);
        check_bytes(&f.model, &q[0]);
        check_bytes(&f.model, &q[1]);
        assert_int_equal(reader_cancel(r, &q[1]), READER_NOT_CANCELLED);
        assert_int_equal(q[2].dst[0], POISON);
        start_some(r, q, 2, 3, false);
        check_ok(reader_wait(r, &q[2], &e), &e);
        check_bytes(&f.model, &q[2]);
        struct reader_stats s = reader_get_stats(r);
        assert_int_equal(s.n_dropped, 2);
        assert_int_equal(s.n_reads, 3);
        free_requests(q, 4);
        reader_close(r);
    }
    close_packed(&f);
}

/* A caller that copies an expert counts as a flight: a thread that found too many then must hear that it is
 * over. */
static void what_waits_for_a_copy_is_read_after_it(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct reader *r = open_reader(&f.model, &(struct reader_options){.mode = READER_PREAD, .n_threads = 1});
    for (uint32_t round = 0; round < 10; round++) {
        struct read_request *q = new_requests(&f.model, 2);
        uint32_t n = reader_split(r, &q[0]);
        assert_true(n > 0);
        reader_start(r, &q[1]);
        /* The thread finds q[1] and must leave it. Where this pause is too short, the round shows nothing. */
        usleep(2000);
        assert_false(reader_is_done(r, &q[1]));
        for (uint32_t i = 0; i < n; i++)
            reader_copy(r, &q[0], i);
        assert_int_equal(reader_wait(r, &q[1], NULL), 0);
        check_bytes(&f.model, &q[1]);
        if (!reader_is_done(r, &q[0])) /* the page cache has lost it */
            reader_start(r, &q[0]);
        assert_int_equal(reader_wait(r, &q[0], NULL), 0);
        check_bytes(&f.model, &q[0]);
        free_requests(q, 2);
    }
    reader_close(r);
    close_packed(&f);
}

static void closing_finishes_what_was_started(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct reader *r =
            open_reader(&f.model, &(struct reader_options){.mode = mode, .n_threads = 2, .depth = 2});
        struct read_request *q = new_requests(&f.model, 24);
        start_some(r, q, 0, 12, true);
        start_some(r, q, 12, 24, false);
        reader_close(r);
        for (uint32_t i = 0; i < 24; i++) {
            assert_true(q[i].done);
            assert_int_equal(q[i].code, 0);
            check_bytes(&f.model, &q[i]);
        }
        free_requests(q, 24);
    }
    close_packed(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demanded_reads_overtake_speculative_ones),
        cmocka_unit_test(waiting_makes_a_read_demanded),
        cmocka_unit_test(speculative_reads_leave_half_of_the_depth),
        cmocka_unit_test(a_read_taken_back_half_way_ends_with_what_was_in_flight),
        cmocka_unit_test(only_what_was_not_started_can_be_cancelled),
        cmocka_unit_test(what_waits_for_a_copy_is_read_after_it),
        cmocka_unit_test(closing_finishes_what_was_started),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
