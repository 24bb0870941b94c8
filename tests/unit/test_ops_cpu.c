/* Every operation's native implementation against the reference, with each instruction set that this
 * processor has. The sizes of real models the fastest of them has in tests/cli/selftest.sh.
 *
 * suites: check fast long asan-nightly */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cpu/isa.h"
#include "selftest/selftest.h"

static const char *const kernels[] = {"add",
                                      "attention",
                                      "cast_f16",
                                      "compressed_attend",
                                      "compressed_pool",
                                      "compressed_turn",
                                      "delta",
                                      "embed",
                                      "experts_decode_down",
                                      "experts_decode_up",
                                      "gqa_prepare",
                                      "head_gate",
                                      "indexer_choose",
                                      "indexer_prepare",
                                      "linear",
                                      "matvec_transposed",
                                      "mla",
                                      "mla_prepare",
                                      "ngram",
                                      "normed_add",
                                      "router_sigmoid",
                                      "router_softmax",
                                      "softcap",
                                      "ssd",
                                      "streams_begin",
                                      "streams_collapse",
                                      "streams_attend",
                                      "streams_join",
                                      "streams_low",
                                      "streams_mix",
                                      "streams_norm",
                                      "swiglu"};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

struct seen {
    char device[CPU_N_ISAS][64]; /* one for each instruction set */
    int rows[CPU_N_ISAS][N_KERNELS];
    uint32_t n;
};

static void count_row(void *ctx, const struct selftest_row *row)
{
    struct seen *seen = ctx;
    if (seen->n == 0 || strcmp(row->device, seen->device[seen->n - 1]) != 0) {
        assert_true(seen->n < CPU_N_ISAS);
        snprintf(seen->device[seen->n++], sizeof *seen->device, "%s", row->device);
    }
    if (!row->ok)
        printf("%s: %-12s %-48s %.2e (bound %.0e)  FAILED\n", row->device, row->kernel, row->shape,
               row->error, row->bound);
    for (int i = 0; i < N_KERNELS; i++)
        seen->rows[seen->n - 1][i] += strcmp(row->kernel, kernels[i]) == 0;
}

static void every_operation_agrees_with_its_reference(void **state)
{
    struct moeflux_err e = {0};
    struct seen seen = {.n = 0};
    uint32_t n_sets = 0;
    (void)state;
    int rc = selftest_run(
        &(struct selftest){.device = "cpu", .grid = SELFTEST_BRIEF, .row = count_row, .ctx = &seen}, &e);
    if (rc < 0)
        fail_msg("%s", e.text);
    assert_int_equal(rc, 0);
    for (uint32_t i = 0; i < CPU_N_ISAS; i++) {
        if (!cpu_isa_at(i))
            continue;
        assert_true(n_sets < seen.n && strstr(seen.device[n_sets], cpu_isa_at(i)->name));
        for (int k = 0; k < N_KERNELS; k++)
            if (seen.rows[n_sets][k] == 0)
                fail_msg("%s: no case of %s", cpu_isa_at(i)->name, kernels[k]);
        n_sets++;
    }
    assert_int_equal(seen.n, n_sets);
}

static void an_instruction_set_that_there_is_not_is_refused(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    assert_int_equal(selftest_run(&(struct selftest){.device = "cpu", .isa = "mmx"}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, " mmx: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_agrees_with_its_reference),
        cmocka_unit_test(an_instruction_set_that_there_is_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
