/* Every kernel against its reference on MOEFLUX_DEVICE, else the first Vulkan device. Kernels that only work
 * as a group run once. On a software device MOEFLUX_PART names a part of the cases (device.h).
 *
 * usage: test_ops [TESTS]     TESTS: a part of the tests, for example "mla*"
 *
 * suites: check vulkan parts long */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "selftest/selftest.h"

enum { MAX_KERNELS = 48 };

struct seen {
    const char *const *kernels;  /* up to a NULL */
    uint64_t times[MAX_KERNELS]; /* that each of them ran */
    int n_cases;
};

static void print_row(void *ctx, const struct selftest_row *row)
{
    struct seen *seen = ctx;
    if (row->skipped) {
        printf("SKIP %s %s: the device has no kernel for it\n", row->kernel, row->shape);
        return;
    }
    printf("%-12s %-48s %.2e (bound %.0e)%s\n", row->kernel, row->shape, row->error, row->bound,
           row->ok ? "" : "  FAILED");
    seen->n_cases++;
}

static void count_runs(void *ctx, const char *kernel, uint64_t times)
{
    struct seen *seen = ctx;
    for (int i = 0; i < MAX_KERNELS && seen->kernels[i]; i++)
        if (strcmp(kernel, seen->kernels[i]) == 0)
            seen->times[i] += times;
}

static bool ends_in(const char *kernel, const char *variant)
{
    size_t n = strlen(kernel), end = strlen(variant);
    return n >= end && strcmp(kernel + n - end, variant) == 0;
}

/* Returns whether the kernel of that name followed by `more` ran. */
static bool ran_with(const struct seen *seen, const char *kernel, size_t n, const char *more)
{
    for (int i = 0; i < MAX_KERNELS && seen->kernels[i]; i++)
        if (seen->times[i] && strncmp(seen->kernels[i], kernel, n) == 0 &&
            strcmp(seen->kernels[i] + n, more) == 0)
            return true;
    return false;
}

/* What only some devices have, or only those that do not run a kernel for denormals in its place. */
static bool may_be_left_out(const struct seen *seen, const char *kernel)
{
    const char *variant = strrchr(kernel, '_');
    size_t n = strlen(kernel), plain = variant ? (size_t)(variant - kernel) : n;
    bool is_of_one_format = ends_in(kernel, "_q4") || ends_in(kernel, "_q8") || ends_in(kernel, "_bf16") ||
                            ends_in(kernel, "_f32");
    return ends_in(kernel, "coop") || ends_in(kernel, "denorm") || ran_with(seen, kernel, n, "denorm") ||
           (is_of_one_format && ran_with(seen, kernel, plain, "_denorm"));
}

/* Returns whether it is for one format and runs with the rest: kernels like it run with the first cases. */
static bool runs_with_the_rest(const char *kernel)
{
    static const char *const kernels[] = {"linear_decode_long_q8", "linear_decode_long_bf16",
                                          "linear_decode_long_f32"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i], kernel) == 0)
            return true;
    return false;
}

/* MOEFLUX_PART=first on a GPU shows that the cases of `--selftest` run every kernel. */
static enum selftest_grid grid(void)
{
    if (!device_runs_part("first"))
        return SELFTEST_REST;
    if (!device_runs_part("rest"))
        return SELFTEST_FIRST;
    return device_is_software() ? SELFTEST_BRIEF : SELFTEST_FULL;
}

/* Runs the cases of a group: none fails. */
static void run_cases(const char *group, struct seen *seen)
{
    const char *device = getenv("MOEFLUX_DEVICE");
    const struct selftest s = {.device = device ? device : "0",
                               .kernel = group,
                               .grid = grid(),
                               .row = print_row,
                               .ran = count_runs,
                               .ctx = seen};
    struct moeflux_err e = {0};
    int rc = selftest_run(&s, &e);
    if (rc < 0)
        fail_msg("%s: %s", group, e.text);
    assert_int_equal(rc, 0);
    assert_true(seen->n_cases > 0);
}

/* Runs the cases in which the first of `kernels` takes part: all of `kernels` that belong to them ran on the
 * device, except for variants that it does not have. */
static void check(const char *const *kernels)
{
    struct seen seen = {.kernels = kernels};
    run_cases(kernels[0], &seen);
    for (int i = 0; i < MAX_KERNELS && kernels[i]; i++) {
        bool is_rest = runs_with_the_rest(kernels[i]);
        /* The rest has the kernels of the first cases again. */
        if ((grid() == SELFTEST_FIRST && is_rest) || (grid() == SELFTEST_REST && !is_rest))
            continue;
        if (seen.times[i] == 0 && may_be_left_out(&seen, kernels[i]))
            printf("SKIP %s: the device does not run it\n", kernels[i]);
        else if (seen.times[i] == 0)
            fail_msg("%s did not run", kernels[i]);
    }
}
#define CHECK(...) check((const char *const[MAX_KERNELS]){__VA_ARGS__})

static void embed_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("embed", "embed_ext", "embed_blk");
}

static void cast_f16_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("cast_f16");
}

static void linear_and_matvec_transposed_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("linear_prefill", "linear_decode", "linear_decode_token", "linear_plain",
          "matvec_transposed_groups", "matvec_transposed_plain", "linear_prefill_coop",
          "linear_decode_denorm", "linear_decode_token_denorm", "linear_decode_q4", "linear_decode_q8",
          "linear_decode_bf16", "linear_decode_f32", "linear_decode_token_q4", "linear_decode_token_q8",
          "linear_decode_token_bf16", "linear_decode_token_f32", "linear_decode_long_denorm",
          "linear_decode_long_q4", "linear_decode_long_q8", "linear_decode_long_bf16",
          "linear_decode_long_f32", "linear_decode_ext", "linear_decode_token_ext", "linear_decode_extdenorm",
          "linear_decode_token_extdenorm", "linear_prefill_ext", "linear_prefill_extcoop", "linear_plain_ext",
          "matvec_transposed_groups_ext", "matvec_transposed_plain_ext", "linear_prefill_fragcoop",
          "matrices_probe_coop", "linear_prefill_split", "linear_prefill_split_ext", "linear_decode_blk",
          "linear_decode_token_blk", "linear_prefill_blk", "linear_prefill_blkcoop",
          "linear_prefill_split_blk", "matvec_transposed_groups_blk");
}

static void batched_decode_is_batch_invariant(void **state)
{
    (void)state;
    struct seen seen = {.kernels = (const char *const[MAX_KERNELS]){NULL}};
    run_cases("batched", &seen);
}

static void router_softmax_and_router_sigmoid_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("router_softmax");
    CHECK("router_sigmoid");
}

static void experts_up_and_experts_down_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("experts_decode_up", "experts_decode_down", "experts_prefill_sort", "experts_prefill_up",
          "experts_prefill_down", "experts_prefill_mix", "experts_prefill_up_coop",
          "experts_prefill_down_coop", "experts_decode_up_denorm", "experts_decode_down_denorm",
          "experts_decode_up_q4", "experts_decode_up_q8", "experts_decode_down_q4", "experts_decode_down_q8",
          "experts_decode_down_long", "experts_decode_down_long_denorm", "experts_decode_down_long_q4",
          "experts_decode_down_long_q8", "experts_decode_up_ext", "experts_decode_down_ext",
          "experts_decode_up_extdenorm", "experts_decode_down_extdenorm", "experts_decode_up_extq4",
          "experts_decode_down_extq4", "experts_decode_up_extq4denorm", "experts_decode_down_extq4denorm",
          "experts_prefill_up_ext", "experts_prefill_down_ext", "experts_prefill_up_extcoop",
          "experts_prefill_down_extcoop", "matrices_probe_coop", "experts_prefill_up_fragcoop",
          "experts_prefill_down_fragcoop", "experts_decode_up_blk", "experts_decode_down_blk",
          "experts_prefill_up_blk", "experts_prefill_down_blk", "experts_prefill_up_blkcoop",
          "experts_prefill_down_blkcoop");
}

static void delta_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("delta_decode", "delta_decode_each", "delta_prefill_prep", "delta_prefill_scan",
          "delta_prefill_blocks", "delta_prefill_walk", "delta_prefill_out");
}

static void ssd_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("ssd_scan", "ssd_scan_each", "ssd_scan_chain", "ssd_norm");
}

static void gqa_prepare_and_attention_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("gqa_prepare", "attention_decode", "attention_prefill", "attention_merge",
          "attention_prefill_coop");
}

static void mla_prepare_and_attention_over_latents_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("mla_prepare", "mla_values", "mla_values_denorm", "mla_transpose_keys", "mla_transpose_keys_ext",
          "mla_transpose_keys_blk", "mla_gather_rows", "attention_decode", "attention_prefill",
          "attention_merge", "attention_prefill_coop", "attention_wide_scores_coop",
          "attention_wide_values_coop", "attention_wide_scores_fragcoop", "attention_wide_values_fragcoop");
}

static void sample_chooses_what_its_reference_chooses(void **state)
{
    (void)state;
    CHECK("sample_largest", "sample_greedy", "sample_draw", "sample_largest_each", "sample_greedy_each",
          "sample_draw_each");
}

static void swiglu_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("swiglu");
}

static void head_gate_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("head_gate");
}

static void add_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("add");
}

static void streams_agree_with_their_reference(void **state)
{
    (void)state;
    CHECK("streams_begin", "streams_norm", "streams_low", "streams_mix", "streams_join", "streams_collapse",
          "streams_attend");
}

static void ngram_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("ngram_gate", "ngram_conv");
}

static void indexer_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("indexer_prepare", "indexer_scores", "indexer_groups", "indexer_choose");
}

static void compressed_attention_agrees_with_its_reference(void **state)
{
    (void)state;
    CHECK("compressed_turn", "compressed_pool", "compressed_attend");
}

static void normed_add_and_softcap_agree_with_their_references(void **state)
{
    (void)state;
    CHECK("normed_add", "softcap");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees_with_its_reference),
        cmocka_unit_test(cast_f16_agrees_with_its_reference),
        cmocka_unit_test(linear_and_matvec_transposed_agree_with_their_references),
        cmocka_unit_test(batched_decode_is_batch_invariant),
        cmocka_unit_test(router_softmax_and_router_sigmoid_agree_with_their_references),
        cmocka_unit_test(experts_up_and_experts_down_agree_with_their_references),
        cmocka_unit_test(delta_agrees_with_its_reference),
        cmocka_unit_test(ssd_agrees_with_its_reference),
        cmocka_unit_test(gqa_prepare_and_attention_agree_with_their_references),
        cmocka_unit_test(mla_prepare_and_attention_over_latents_agree_with_their_references),
        cmocka_unit_test(sample_chooses_what_its_reference_chooses),
        cmocka_unit_test(swiglu_agrees_with_its_reference),
        cmocka_unit_test(head_gate_agrees_with_its_reference),
        cmocka_unit_test(add_agrees_with_its_reference),
        cmocka_unit_test(streams_agree_with_their_reference),
        cmocka_unit_test(ngram_agrees_with_its_reference),
        cmocka_unit_test(indexer_agrees_with_its_reference),
        cmocka_unit_test(compressed_attention_agrees_with_its_reference),
        cmocka_unit_test(normed_add_and_softcap_agree_with_their_references),
    };
    const struct CMUnitTest with_rest[] = {
        cmocka_unit_test(embed_agrees_with_its_reference),
        cmocka_unit_test(linear_and_matvec_transposed_agree_with_their_references),
        cmocka_unit_test(batched_decode_is_batch_invariant),
        cmocka_unit_test(router_softmax_and_router_sigmoid_agree_with_their_references),
        cmocka_unit_test(experts_up_and_experts_down_agree_with_their_references),
        cmocka_unit_test(delta_agrees_with_its_reference),
        cmocka_unit_test(ssd_agrees_with_its_reference),
        cmocka_unit_test(gqa_prepare_and_attention_agree_with_their_references),
        cmocka_unit_test(mla_prepare_and_attention_over_latents_agree_with_their_references),
        cmocka_unit_test(indexer_agrees_with_its_reference),
        cmocka_unit_test(compressed_attention_agrees_with_its_reference),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return grid() == SELFTEST_REST ? cmocka_run_group_tests(with_rest, NULL, NULL)
                                   : cmocka_run_group_tests(tests, NULL, NULL);
}
