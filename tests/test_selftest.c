/* What the self-test makes of numbers that are none. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "ops/lab.h"

enum { N = 8 };

static void open_lab(struct lab *l)
{
    *l = (struct lab){.rng = 1};
    for (int s = 0; s < LAB_SIDES; s++)
        check_ok(exec_open(&l->side[s], "reference", false, false, &l->err), &l->err);
}

static void close_lab(struct lab *l)
{
    lab_clear(l);
    for (int s = 0; s < LAB_SIDES; s++)
        exec_close(l->side[s]);
}

static void a_number_behind_a_nan_does_not_hide_it(void **state)
{
    (void)state;
    struct lab l;
    open_lab(&l);
    for (int side = 0; side < LAB_SIDES; side++)
        for (int at = 0; at < N; at++) {
            struct twin *t = lab_floats(&l, N, 1, 2);
            assert_true(t && lab_error(&l, t, N) == 0);
            ((float *)t->on[side].host)[at] = NAN;
            assert_true(lab_error(&l, t, N) == INFINITY);
            lab_clear(&l);
        }
    close_lab(&l);
}

static void a_half_behind_a_nan_does_not_hide_it(void **state)
{
    (void)state;
    struct lab l;
    open_lab(&l);
    for (int side = 0; side < LAB_SIDES; side++)
        for (int at = 0; at < N; at++) {
            const uint16_t ones[N] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00};
            struct twin *t = lab_bytes(&l, ones, sizeof ones);
            assert_true(t && lab_half_error(&l, t, N) == 0);
            ((uint16_t *)t->on[side].host)[at] = 0x7e00;
            assert_true(lab_half_error(&l, t, N) == INFINITY);
            lab_clear(&l);
        }
    close_lab(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_behind_a_nan_does_not_hide_it),
        cmocka_unit_test(a_half_behind_a_nan_does_not_hide_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
