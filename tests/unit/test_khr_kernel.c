/* Kernels with matrices that are converted from NV's extension to KHR's. No driver here compiles them, so the
 * test inspects their instructions.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "check.h"
#include "vulkan/khr_kernel.h"
#include "vulkan/pipeline.h"

static const char *const kernels[] = {
    "linear_prefill_coop",        "linear_prefill_fragcoop",        "linear_prefill_extcoop",
    "experts_prefill_up_coop",    "experts_prefill_up_fragcoop",    "experts_prefill_up_extcoop",
    "experts_prefill_down_coop",  "experts_prefill_down_fragcoop",  "experts_prefill_down_extcoop",
    "attention_prefill_coop",     "attention_wide_scores_coop",     "attention_wide_scores_fragcoop",
    "attention_wide_values_coop", "attention_wide_values_fragcoop", "matrices_probe_coop"};
enum { N_KERNELS = sizeof kernels / sizeof *kernels, HEADER = 5, NO_USE = 3 };
/* SPIR-V's numbers. */
enum { EXTENSION = 10, CAPABILITY = 17, CONSTANT = 43, SPEC_CONSTANT_OP = 52, FUNCTION = 54 };
enum { NV_FIRST = 5358, NV_LAST = 5362, NV_CAPABILITY = 5357, TYPE = 4456, LOAD, STORE, MULADD, LENGTH };

/* A module, and what its ids are. */
struct module {
    uint32_t *words;
    size_t n;
    uint32_t *use;   /* use of a matrix type or of a value of one, else NO_USE */
    uint32_t *value; /* value of a constant of one word, else UINT32_MAX */
    bool names_khr, has_capability, is_in_main;
    uint32_t n_types[3], n_muladd, length;
};

static void see_type(struct module *m, const uint32_t *in)
{
    assert_int_equal(m->value[in[4]], 16);
    assert_int_equal(m->value[in[5]], 16);
    m->use[in[1]] = m->value[in[6]];
    assert_in_range(m->use[in[1]], 0, 2);
    m->n_types[m->use[in[1]]]++;
}

/* Checks a load or a store; order: the id of BY_ROWS or BY_COLUMNS. */
static void see_access(const struct module *m, uint32_t order, uint32_t use)
{
    assert_in_range(m->value[order], 0, 1);
    assert_int_not_equal(use, NO_USE);
}

static void see(struct module *m, const uint32_t *in, uint32_t n)
{
    uint32_t op = in[0] & 0xffff;
    assert_false(op >= NV_FIRST && op <= NV_LAST);
    if (op == CONSTANT)
        m->value[in[2]] = in[3];
    if (op == EXTENSION) {
        m->names_khr |= strcmp((const char *)(in + 1), "SPV_KHR_cooperative_matrix") == 0;
        assert_string_not_equal((const char *)(in + 1), "SPV_NV_cooperative_matrix");
    }
    if (op == CAPABILITY) {
        m->has_capability |= in[1] == 6022;
        assert_int_not_equal(in[1], NV_CAPABILITY);
    }
    if (op == SPEC_CONSTANT_OP) {
        assert_false(in[3] == LENGTH || (in[3] >= NV_FIRST && in[3] <= NV_LAST));
        for (uint32_t i = 4; i < n; i++)
            assert_int_not_equal(in[i], m->length);
    }
    if (op == LENGTH) {
        assert_true(m->is_in_main);
        m->length = in[2];
    }
    m->is_in_main |= op == FUNCTION;
    if (op == TYPE) {
        assert_int_equal(n, 7);
        see_type(m, in);
    }
    if (op == LOAD)
        see_access(m, in[4], m->use[in[1]]);
    if (op == STORE)
        see_access(m, in[3], m->use[in[2]]);
    if (op == MULADD) {
        assert_int_equal(m->use[in[1]], 2);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(m->use[in[3 + i]], i);
        m->n_muladd++;
    }
}

/* OpUndef, OpConstantComposite, OpConstantNull, OpFunctionParameter, OpFunctionCall, OpLoad,
 * OpCompositeConstruct, OpCompositeExtract, OpCompositeInsert, OpCopyObject, OpFMul, OpSelect, OpPhi: what
 * makes a matrix, and has the type's id and its own. */
static bool makes_matrix(uint32_t op)
{
    static const uint32_t with[] = {1, 44, 46, 55, 57, 61, 80, 81, 82, 83, 133, 169, 245, LOAD, MULADD};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (with[i] == op)
            return true;
    return false;
}

static struct module parse(const uint32_t *words, size_t n)
{
    uint32_t bound = words[3];
    struct module m = {
        .n = n, .use = malloc(bound * sizeof(uint32_t)), .value = malloc(bound * sizeof(uint32_t))};
    assert_non_null(m.use);
    assert_non_null(m.value);
    for (uint32_t i = 0; i < bound; i++) {
        m.use[i] = NO_USE;
        m.value[i] = UINT32_MAX;
    }
    for (size_t i = HEADER; i < n; i += words[i] >> 16) {
        uint32_t length = words[i] >> 16;
        assert_in_range(length, 1, n - i);
        if (makes_matrix(words[i] & 0xffff))
            m.use[words[i + 2]] = m.use[words[i + 1]];
        see(&m, words + i, length);
    }
    return m;
}

static void kernels_are_turned_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KERNELS; i++) {
        size_t n, n_out;
        const uint32_t *words = pipeline_words(kernels[i], &n);
        uint32_t *out;
        struct moeflux_err e = {0};
        print_message("%s\n", kernels[i]);
        assert_non_null(words);
        check_ok(khr_kernel(words, n, &out, &n_out, &e), &e);
        struct module m = parse(out, n_out);
        assert_true(m.names_khr && m.has_capability);
        assert_int_equal(out[0], words[0]);
        /* One of each: the results of NV's first and second factors are distinguished. */
        for (uint32_t use = 0; use < 3; use++)
            assert_int_equal(m.n_types[use], 1);
        assert_true(m.n_muladd > 0 || strcmp(kernels[i], "matrices_probe_coop") == 0);
        free(m.use);
        free(m.value);
        free(out);
    }
}

static void what_is_no_kernel_is_refused(void **state)
{
    (void)state;
    size_t n, n_out;
    const uint32_t *words = pipeline_words("matrices_probe_coop", &n);
    uint32_t *out = NULL, copy[6];
    struct moeflux_err e = {0};
    memcpy(copy, words, sizeof copy);
    assert_int_equal(khr_kernel(words, 4, &out, &n_out, &e), ERR_DEVICE);
    assert_int_equal(khr_kernel(copy, 6, &out, &n_out, &e),
                     ERR_DEVICE); /* one word of an instruction of two */
    assert_non_null(strstr(e.text, "expected whole instructions"));
    copy[5] &= 0xffff; /* an instruction of no words */
    assert_int_equal(khr_kernel(copy, 6, &out, &n_out, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "expected whole instructions"));
    copy[0]++;
    assert_int_equal(khr_kernel(copy, 6, &out, &n_out, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "expected SPIR-V"));
    assert_null(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_are_turned_whole),
                                       cmocka_unit_test(what_is_no_kernel_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
