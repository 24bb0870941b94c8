/* The length of a submission, learned from the times of earlier ones.
 *
 * suites: check fast asan */
#include "check.h"
#include "exec/pace.h"

enum { KERNEL = 3 };

static struct pace pace_of(uint64_t most_ns)
{
    struct pace p;
    struct moeflux_err e = {0};
    pace_init(&p, most_ns);
    check_ok(pace_reserve(&p, KERNEL + 2, &e), &e);
    return p;
}

static void a_first_run_is_not_believed(void **state)
{
    (void)state;
    struct pace p = pace_of(1000);
    pace_learn(&p, KERNEL, 10, 5000000);
    assert_false(pace_knows(&p, KERNEL));
    assert_int_equal(pace_estimate(&p, KERNEL, 10), 0);
    pace_learn(&p, KERNEL, 10, 500);
    assert_true(pace_knows(&p, KERNEL));
    assert_int_equal(pace_estimate(&p, KERNEL, 20), 1000);
    assert_false(pace_knows(&p, KERNEL + 1));
    pace_close(&p);
}

static void slower_is_believed_at_once_and_faster_by_half(void **state)
{
    (void)state;
    struct pace p = pace_of(1000);
    for (int i = 0; i < 2; i++)
        pace_learn(&p, KERNEL, 1, 100);
    pace_learn(&p, KERNEL, 1, 300);
    assert_int_equal(pace_estimate(&p, KERNEL, 1), 300);
    pace_learn(&p, KERNEL, 1, 100);
    assert_int_equal(pace_estimate(&p, KERNEL, 1), 200);
    pace_forget(&p);
    assert_false(pace_knows(&p, KERNEL));
    pace_learn(&p, KERNEL, 1, 50);
    assert_int_equal(pace_estimate(&p, KERNEL, 1), 50);
    pace_close(&p);
}

/* The pieces of a dispatch of n steps, each within what a submission may take where a step is. */
static uint32_t count_pieces(const struct pace *p, uint32_t n, uint64_t step)
{
    uint32_t n_pieces = 0;
    while (n > 0) {
        uint32_t here = pace_piece(p, KERNEL, n, step);
        assert_true(here >= 1 && here <= n);
        assert_true(here == 1 || pace_estimate(p, KERNEL, here * step) <= p->most_ns);
        n -= here;
        n_pieces++;
    }
    return n_pieces;
}

static void pieces_fit(void **state)
{
    (void)state;
    struct pace p = pace_of(1000);
    assert_int_equal(pace_piece(&p, KERNEL, 160, 4), 10); /* an unknown kernel is tried first */
    assert_int_equal(pace_piece(&p, KERNEL, 3, 4), 1);
    for (int i = 0; i < 2; i++)
        pace_learn(&p, KERNEL, 1, 10);
    assert_int_equal(count_pieces(&p, 99, 1), 1);
    assert_int_equal(count_pieces(&p, 1000, 1), 11);
    assert_int_equal(count_pieces(&p, 7, 1000), 7); /* a step that is too long stays whole */
    assert_int_equal(count_pieces(&p, 1, 1), 1);
    assert_in_range(count_pieces(&p, 4096, 37), 1516, 4096);
    assert_int_equal(count_pieces(&p, 0, 1), 0);
    pace_close(&p);
}

static void every_kernel_has_a_time_of_its_own(void **state)
{
    (void)state;
    enum { KERNELS = 3000 };
    struct pace p;
    struct moeflux_err e = {0};
    pace_init(&p, 1000);
    for (uint32_t k = 0; k < KERNELS; k++) {
        check_ok(pace_reserve(&p, k + 1, &e), &e);
        assert_false(pace_knows(&p, k));
        pace_learn(&p, k, 1, 1);
        pace_learn(&p, k, 1, k);
    }
    for (uint32_t k = 0; k < KERNELS; k++)
        assert_int_equal(pace_estimate(&p, k, 1), k);
    pace_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_run_is_not_believed),
        cmocka_unit_test(slower_is_believed_at_once_and_faster_by_half),
        cmocka_unit_test(pieces_fit),
        cmocka_unit_test(every_kernel_has_a_time_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
