/* Every kernel against its reference on the default device. Kernels that only work together run once, together. On a
 * software device the kernels of GPUs run too: nothing else tests them where there is no GPU.
 * usage: test_ops [TESTS], a part of the tests, as "mla*" */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "selftest/selftest.h"

struct seen { /* rows of the kernels that have some */
    const char *kernels[2];
    int rows[2];
};

static void count_row(void *ctx, const struct selftest_row *row)
{
    struct seen *seen = ctx;
    printf("%-12s %-48s %.2e (bound %.0e)%s\n", row->kernel, row->shape, row->error, row->bound,
           row->ok ? "" : "  FAILED");
    for (int i = 0; i < 2; i++)
        if (strcmp(row->kernel, seen->kernels[i]) == 0)
            seen->rows[i]++;
}

static void check_kernels(const char *kernel, bool as_gpu, struct seen *seen)
{
    struct moeflux_err e = {0};
    const struct selftest s = {.kernel = kernel, .as_gpu = as_gpu, .row = count_row, .ctx = seen};
    printf("%s%s\n", kernel, as_gpu ? ", as on a GPU" : "");
    int rc = selftest_run(&s, &e);
    if (rc < 0)
        fail_msg("%s: %s", kernel, e.text);
    assert_int_equal(rc, 0);
    assert_true(seen->rows[0] > 0 && seen->rows[1] > 0);
}

/* Runs the cases in which `kernel` takes part: there are some for both of the named kernels, and none fails. */
static void check(const char *kernel, const char *first, const char *second)
{
    for (int as_gpu = 0; as_gpu < 2; as_gpu++) {
        struct seen seen = {.kernels = {first, second}};
        check_kernels(kernel, as_gpu == 1, &seen);
    }
}

static void embed_agrees_with_its_reference(void **state)
{
    (void)state;
    check("embed", "embed", "embed");
}

static void cast_f16_agrees_with_its_reference(void **state)
{
    (void)state;
    check("cast_f16", "cast_f16", "cast_f16");
}

/* Cases of many tokens run matmul; columns that are no multiple of 64 run linear_plain and matvec_transposed_plain. */
static void linear_and_matvec_transposed_agree_with_their_references(void **state)
{
    (void)state;
    check("matmul", "linear", "matvec_transposed");
}

static void router_and_router_groups_agree_with_their_references(void **state)
{
    (void)state;
    check("router", "router", "router_groups");
}

/* Cases of many tokens run expert_sort, expert_up_many, expert_down_many and expert_mix. */
static void expert_up_and_expert_down_agree_with_their_references(void **state)
{
    (void)state;
    check("expert_up", "expert_up", "expert_down");
}

/* Cases of many tokens run delta_prep, delta_scan or delta_blocks and delta_walk, and delta_out. */
static void delta_agrees_with_its_reference(void **state)
{
    (void)state;
    check("delta", "delta", "delta");
}

/* What attention writes, or as on a GPU attention_many for many tokens, is seen after attention_merge. */
static void gqa_prepare_attention_attention_many_and_attention_merge_agree_with_their_references(void **state)
{
    (void)state;
    check("attention_many", "gqa_prepare", "attention");
}

/* Cases of the expanded form run mla_keys and mla_rows. */
static void mla_prepare_and_attention_over_latents_agree_with_their_references(void **state)
{
    (void)state;
    check("mla_prepare", "mla_prepare", "mla");
}

static void swiglu_agrees_with_its_reference(void **state)
{
    (void)state;
    check("swiglu", "swiglu", "swiglu");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees_with_its_reference),
        cmocka_unit_test(cast_f16_agrees_with_its_reference),
        cmocka_unit_test(linear_and_matvec_transposed_agree_with_their_references),
        cmocka_unit_test(router_and_router_groups_agree_with_their_references),
        cmocka_unit_test(expert_up_and_expert_down_agree_with_their_references),
        cmocka_unit_test(delta_agrees_with_its_reference),
        cmocka_unit_test(
            gqa_prepare_attention_attention_many_and_attention_merge_agree_with_their_references),
        cmocka_unit_test(mla_prepare_and_attention_over_latents_agree_with_their_references),
        cmocka_unit_test(swiglu_agrees_with_its_reference),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
