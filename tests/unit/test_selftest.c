/* How the self-test compares NaNs: the error is infinite, whatever numbers follow.
 *
 * suites: check fast asan */
#include <math.h>
#include <string.h>

#include "check.h"
#include "selftest/kernel_test.h"

enum { N = 8 };

static void open_test(struct kernel_test *l)
{
    *l = (struct kernel_test){.rng = 1};
    for (int s = 0; s < KT_SIDES; s++)
        check_ok(exec_open(&l->side[s], &(struct exec_options){.device = "reference"}, &l->err), &l->err);
}

static void close_test(struct kernel_test *l)
{
    kt_clear(l);
    for (int s = 0; s < KT_SIDES; s++)
        exec_close(l->side[s]);
}

static void a_number_after_a_nan_does_not_hide_it(void **state)
{
    (void)state;
    struct kernel_test l;
    open_test(&l);
    for (int side = 0; side < KT_SIDES; side++)
        for (int at = 0; at < N; at++) {
            struct test_buffer *t = kt_floats(&l, N, 1, 2);
            assert_true(t && kt_error(&l, t, N) == 0);
            memcpy(t->on[side].host + (size_t)at * sizeof(float), &(float){NAN}, sizeof(float));
            assert_true(kt_error(&l, t, N) == INFINITY);
            kt_clear(&l);
        }
    close_test(&l);
}

static void a_half_after_a_nan_does_not_hide_it(void **state)
{
    (void)state;
    struct kernel_test l;
    open_test(&l);
    for (int side = 0; side < KT_SIDES; side++)
        for (int at = 0; at < N; at++) {
            const uint16_t ones[N] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00};
            struct test_buffer *t = kt_bytes(&l, ones, sizeof ones);
            assert_true(t && kt_f16_error(&l, t, N) == 0);
            memcpy(t->on[side].host + (size_t)at * sizeof(uint16_t), &(uint16_t){0x7e00}, sizeof(uint16_t));
            assert_true(kt_f16_error(&l, t, N) == INFINITY);
            kt_clear(&l);
        }
    close_test(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_after_a_nan_does_not_hide_it),
        cmocka_unit_test(a_half_after_a_nan_does_not_hide_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
