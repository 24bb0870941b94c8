/* Every kernel against its reference on the default device, group by group. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/err.h"
#include "ops/selftest.h"

static void print_row(void *ctx, const struct selftest_row *row)
{
    *(int *)ctx += 1;
    printf("%-12s %-48s %.2e (bound %.0e)%s\n", row->kernel, row->shape, row->error, row->bound,
           row->ok ? "" : "  FAILED");
}

static void check(const char *kernel)
{
    struct err e = {0};
    int n = 0;
    const struct selftest s = {.kernel = kernel, .row = print_row, .ctx = &n};
    int rc = selftest_run(&s, &e);
    if (rc < 0)
        printf("%s: %s\n", kernel, e.text);
    assert_int_equal(rc, 0);
    assert_true(n > 0);
}

#define KERNEL(name)                                                                                         \
    static void name##_agrees_with_its_reference(void **state)                                               \
    {                                                                                                        \
        (void)state;                                                                                         \
        check(#name);                                                                                        \
    }

KERNEL(embed)
KERNEL(linear)
KERNEL(router)
KERNEL(expert_up)
KERNEL(expert_down)
KERNEL(delta)
KERNEL(attn_prep)
KERNEL(attention)
KERNEL(attn_merge)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees_with_its_reference),
        cmocka_unit_test(linear_agrees_with_its_reference),
        cmocka_unit_test(router_agrees_with_its_reference),
        cmocka_unit_test(expert_up_agrees_with_its_reference),
        cmocka_unit_test(expert_down_agrees_with_its_reference),
        cmocka_unit_test(delta_agrees_with_its_reference),
        cmocka_unit_test(attn_prep_agrees_with_its_reference),
        cmocka_unit_test(attention_agrees_with_its_reference),
        cmocka_unit_test(attn_merge_agrees_with_its_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
