/* Every operation's native implementation against the reference, with each instruction set that this processor has. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cpu/isa.h"
#include "selftest/selftest.h"

static const char *const kernels[] = {"embed",
                                      "cast_f16",
                                      "linear",
                                      "matvec_transposed",
                                      "router_softmax",
                                      "router_sigmoid",
                                      "experts_decode_up",
                                      "experts_decode_down",
                                      "delta",
                                      "gqa_prepare",
                                      "attention",
                                      "mla_prepare",
                                      "mla",
                                      "swiglu"};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

static void count_row(void *ctx, const struct selftest_row *row)
{
    int *rows = ctx;
    if (!row->ok)
        printf("%-12s %-48s %.2e (bound %.0e)  FAILED\n", row->kernel, row->shape, row->error, row->bound);
    for (int i = 0; i < N_KERNELS; i++)
        rows[i] += strcmp(row->kernel, kernels[i]) == 0;
}

static void agree(const char *isa)
{
    struct moeflux_err e = {0};
    int rows[N_KERNELS] = {0};
    int rc = selftest_run(&(struct selftest){.device = "cpu", .isa = isa, .row = count_row, .ctx = rows}, &e);
    if (rc < 0)
        fail_msg("%s: %s", isa, e.text);
    assert_int_equal(rc, 0);
    for (int i = 0; i < N_KERNELS; i++)
        if (rows[i] == 0)
            fail_msg("%s: no case of %s", isa, kernels[i]);
}

static void every_operation_agrees_with_its_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < CPU_N_ISAS; i++)
        if (cpu_isa_at(i))
            agree(cpu_isa_at(i)->name);
}

static void an_instruction_set_that_there_is_not_is_refused(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    assert_int_equal(selftest_run(&(struct selftest){.device = "cpu", .isa = "mmx"}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "'mmx'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_agrees_with_its_reference),
        cmocka_unit_test(an_instruction_set_that_there_is_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
