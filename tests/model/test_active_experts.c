/* Fewer and more experts for a token than a model's own, and a share of their weights: logits as another
 * program computes them (tests/cli/active_experts.py), what is read, what is counted, what is refused.
 * MOEFLUX_DEVICE names another device.
 *
 * suites: gpu vulkan cpu fast long asan-nightly */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "golden.h"
#include "little_memory.h"
#include "moeflux.h"
#include "tmp_tree.h"

static const char QWEN[] = "tests/models/qwen-odd/mlx", DEEPSEEK[] = "tests/models/deepseek-odd/mlx";
static const char GOLDEN[] = "tests/data/active_experts.safetensors";

enum { N_CASES = 8, CASES_OF_A_MODEL = 4, MAX_PROMPT = 64 };

struct example {
    struct moeflux_options options; /* without a device */
    const int32_t *ids;
    uint32_t n, n_chosen; /* experts, of all tokens and layers */
    uint32_t n_moe_layers;
    const float *logits;
    uint64_t vocab;
};

static struct example example_of(const struct golden *g, uint32_t i)
{
    const struct golden_tensor *tokens = golden_find(g, i, "tokens"), *logits = golden_find(g, i, "logits");
    struct example x = {.ids = tokens->data,
                        .n = (uint32_t)tokens->shape[0],
                        .n_chosen = *(const uint32_t *)golden_find(g, i, "chosen")->data,
                        .n_moe_layers = i < CASES_OF_A_MODEL ? 6 : 3,
                        .logits = logits->data,
                        .vocab = logits->shape[0]};
    x.options.dir = i < CASES_OF_A_MODEL ? QWEN : DEEPSEEK;
    x.options.active_experts = *(const uint32_t *)golden_find(g, i, "active")->data;
    x.options.expert_share = *(const float *)golden_find(g, i, "share")->data;
    x.options.prompt_type = MOEFLUX_PROMPT_TYPE_F32;
    x.options.kv_type = MOEFLUX_KV_TYPE_F32;
    return x;
}

/* Logits after the ids, which are evaluated `step` at once. To be freed. */
static float *evaluate(const struct moeflux_options *o, const int32_t *ids, uint32_t n, uint32_t step,
                       bool staged, struct moeflux_stats *stats)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    check_ok(device_open_staged(&m, o, staged, &e), &e);
    float *logits = calloc(moeflux_model_get_info(m).vocab_size, sizeof *logits);
    assert_non_null(logits);
    check_ok(moeflux_session_new(&s, m, MAX_PROMPT, &e), &e);
    for (uint32_t at = 0; at < n; at += step)
        check_ok(moeflux_session_eval(s, ids + at, step < n - at ? step : n - at,
                                      &(struct moeflux_outputs){.logits = logits}, &e),
                 &e);
    moeflux_model_get_stats(m, stats);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return logits;
}

static uint64_t n_counted(const struct moeflux_stats *s)
{
    return s->n_hits + s->n_host_hits + s->n_misses;
}

/* All at once and token by token, which use different kernels; also with slots for little more than one
 * token. */
static void check_on(const char *device, const struct example *x)
{
    struct moeflux_stats stats;
    struct moeflux_options o = x->options;
    o.device = device;
    for (int streams = 0; streams < 2; streams++) {
        if (streams)
            little_memory(&o, false);
        for (uint32_t step = 1; step <= x->n; step += x->n - 1) {
            if (device_is_vulkan() && streams == (step > 1))
                continue;
            float *got = evaluate(&o, x->ids, x->n, step, false, &stats);
            for (uint64_t i = 0; i < x->vocab; i++)
                if (!(fabsf(got[i] - x->logits[i]) <= 2e-4f))
                    fail_msg("%s on %s, %u experts, share %g, by %u: logit %u is %.6f, expected %.6f", o.dir,
                             device ? device : "the device", o.active_experts, (double)o.expert_share, step,
                             (uint32_t)i, (double)got[i], (double)x->logits[i]);
            free(got);
            if (streams && step == 1)
                assert_int_equal(n_counted(&stats), x->n_chosen);
            /* A device that holds all experts keeps its choices to itself. */
            bool is_seen = streams || !device_is_vulkan();
            assert_int_equal(stats.n_chosen, is_seen ? x->n_chosen : 0);
            assert_int_equal(stats.n_choices, is_seen ? x->n * x->n_moe_layers : 0);
        }
    }
}

static void logits_and_counts_are_those_of_another_program(void **state)
{
    (void)state;
    const char *const hosts[] = {"cpu", "reference"};
    struct golden g;
    golden_open(&g, GOLDEN);
    for (uint32_t i = 0; i < N_CASES; i++) {
        const struct example x = example_of(&g, i);
        bool is_one_of_few = i == 0 || i == 3 || i == 5 || i == 6;
        if (device_is_vulkan() && is_one_of_few)
            check_on(device_name(), &x);
        for (int k = 0; !device_is_vulkan() && k < 2; k++)
            check_on(hosts[k], &x);
    }
    golden_close(&g);
}

/* The CPU takes the device's choice. */
static void experts_on_the_cpu_next_to_a_device_are_the_same(void **state)
{
    (void)state;
    struct golden g;
    struct moeflux_stats stats;
    golden_open(&g, GOLDEN);
    struct example x = example_of(&g, 2);
    x.options.device = device_name();
    x.options.n_cpu_layers = UINT32_MAX;
    float *got = evaluate(&x.options, x.ids, x.n, x.n, false, &stats);
    for (uint64_t k = 0; k < x.vocab; k++)
        assert_true(fabsf(got[k] - x.logits[k]) <= 2e-4f);
    assert_int_equal(stats.n_cpu_experts, x.n_chosen);
    free(got);
    golden_close(&g);
}

static void fill_ids(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 37 + 11) % 700);
}

/* Chunks whose experts are sorted and come in rounds, and tokens whose experts come as they are read. */
static void a_share_streams_as_if_all_were_resident(void **state)
{
    (void)state;
    static const char *const dirs[] = {QWEN, DEEPSEEK};
    int32_t ids[MAX_PROMPT];
    fill_ids(ids, MAX_PROMPT);
    for (int i = 0; i < (device_is_vulkan() ? 1 : 2); i++)
        for (uint32_t step = 1; step < 64; step += 39) {
            struct moeflux_stats stats;
            struct moeflux_options o = {
                .dir = dirs[i], .device = device_name(), .active_experts = 6, .expert_share = 0.6f};
            uint32_t n = step == 1 ? 8 : MAX_PROMPT;
            uint64_t vocab = i == 0 ? 1003 : 777;
            float *want = evaluate(&o, ids, n, step, false, &stats);
            for (int staged = 0; staged < (device_is_vulkan() ? 2 : 1); staged++) {
                little_memory(&o, staged);
                float *got = evaluate(&o, ids, n, step, staged, &stats);
                assert_true(stats.n_reads > 0);
                assert_memory_equal(got, want, vocab * sizeof *got);
                free(got);
            }
            free(want);
        }
}

static void the_models_own_number_and_all_of_the_weights_change_no_bit(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        uint32_t own;
    } models[] = {{QWEN, 3}, {DEEPSEEK, 4}};
    int32_t ids[MAX_PROMPT];
    fill_ids(ids, MAX_PROMPT);
    for (int i = 0; i < (device_is_vulkan() ? 1 : 2); i++) {
        struct moeflux_stats stats;
        struct moeflux_options o = {.dir = models[i].dir, .device = device_name()};
        float *want = evaluate(&o, ids, 24, 23, false, &stats);
        o.active_experts = models[i].own;
        o.expert_share = 1;
        float *got = evaluate(&o, ids, 24, 23, false, &stats);
        assert_memory_equal(got, want, (i == 0 ? 1003 : 777) * sizeof *got);
        free(got);
        free(want);
    }
}

/* Slots for little more than six experts, so that nearly all of them are read for every token. */
static void fewer_experts_are_fewer_bytes(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        float share;
    } settings[] = {{6, 0}, {6, 0.7f}, {3, 0}, {1, 0}};
    int32_t ids[8];
    uint64_t before = UINT64_MAX;
    fill_ids(ids, 8);
    struct moeflux_options o = {.dir = QWEN, .device = device_name(), .active_experts = 6};
    o.prefetch = MOEFLUX_PREFETCH_NONE;
    little_memory(&o, false);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct moeflux_stats stats;
        o.active_experts = settings[i].n;
        o.expert_share = settings[i].share;
        free(evaluate(&o, ids, 8, 1, false, &stats));
        assert_true(stats.read_bytes > 0 && stats.read_bytes < before);
        assert_int_equal(stats.read_bytes, stats.n_misses * (stats.read_bytes / stats.n_reads));
        if (settings[i].share > 0)
            assert_true(n_counted(&stats) < (uint64_t)8 * 6 * settings[i].n);
        else
            assert_int_equal(n_counted(&stats), (uint64_t)8 * 6 * settings[i].n);
        before = stats.read_bytes;
    }
}

static void what_a_model_needs_follows_the_number(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_needs own, less;
    const struct moeflux_options o = {.dir = QWEN, .active_experts = 1, .expert_share = 0.5f};
    check_ok(moeflux_get_needs(QWEN, &own, &e), &e);
    check_ok(moeflux_get_needs_with(&o, &less, &e), &e);
    assert_true(own.top_k == 3 && own.own_top_k == 3 && own.expert_share == 1);
    assert_true(less.top_k == 1 && less.own_top_k == 3 && less.expert_share == 0.5f);
    assert_int_equal(own.token_expert_bytes, 3 * less.token_expert_bytes);
    assert_true(less.n_active_params < own.n_active_params && less.floor_bytes < own.floor_bytes);
}

static void numbers_that_the_router_cannot_choose_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        uint32_t n;
        float share;
        const char *text;
    } bad[] = {
        {QWEN, 13, 1, "`active_experts` 13, expected at most 12 (experts of a layer)"},
        {QWEN, UINT32_MAX, 1, "expected at most 12"},
        {DEEPSEEK, 9, 1, "`active_experts` 9, expected at most 8 (2 groups of 4 experts)"},
        {QWEN, 0, 1.5f, "`expert_share` 1.5, expected more than 0 and at most 1"},
        {QWEN, 0, -0.5f, "`expert_share` -0.5"},
        {QWEN, 0, NAN, "`expert_share`"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct moeflux_options o = {.dir = bad[i].dir,
                                          .device = "reference",
                                          .active_experts = bad[i].n,
                                          .expert_share = bad[i].share};
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_needs n;
        struct moeflux_plan p;
        assert_int_equal(moeflux_model_open(&m, &o, &e), MOEFLUX_ERR_USAGE);
        assert_non_null(strstr(e.text, bad[i].text));
        assert_null(m);
        assert_int_equal(moeflux_get_needs_with(&o, &n, &e), MOEFLUX_ERR_USAGE);
        assert_int_equal(moeflux_make_plan(&o, &p, &e), MOEFLUX_ERR_USAGE);
    }
}

/* Loads `path` into a model of n experts and this share; the code that it gives. */
static int load_with(const char *path, uint32_t n, float share, struct moeflux_err *e)
{
    const struct moeflux_options o = {
        .dir = QWEN, .device = "cpu", .active_experts = n, .expert_share = share};
    struct moeflux_model *m;
    struct moeflux_session *s;
    check_ok(moeflux_model_open(&m, &o, e), e);
    check_ok(moeflux_session_new(&s, m, MAX_PROMPT, e), e);
    int rc = moeflux_session_load(s, path, e);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return rc;
}

static void states_of_other_settings_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        float share;
    } settings[] = {{0, 0}, {2, 0}, {0, 0.5f}, {0, 0.6f}};
    enum { N = sizeof settings / sizeof *settings };
    char *dir = tmp_tree_new();
    const char *path = tmp_tree_path(dir, "state");
    for (int i = 0; i < N; i++) {
        const struct moeflux_options o = {
            .dir = QWEN, .device = "cpu", .active_experts = settings[i].n, .expert_share = settings[i].share};
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_session *s;
        const int32_t ids[] = {5, 6, 7};
        check_ok(moeflux_model_open(&m, &o, &e), &e);
        check_ok(moeflux_session_new(&s, m, MAX_PROMPT, &e), &e);
        check_ok(moeflux_session_eval(s, ids, 3, &(struct moeflux_outputs){0}, &e), &e);
        check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
        moeflux_session_free(s);
        moeflux_model_close(m);
        for (int k = 0; k < N; k++) {
            int rc = load_with(path, settings[k].n, settings[k].share, &e);
            assert_int_equal(rc, k == i ? 0 : MOEFLUX_ERR_FORMAT);
            if (k != i)
                assert_non_null(strstr(e.text, "or of other experts for a token"));
        }
        if (i == 0) /* the model's own, said or not */
            assert_int_equal(load_with(path, 3, 1, &e), 0);
    }
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(logits_and_counts_are_those_of_another_program),
        cmocka_unit_test(a_share_streams_as_if_all_were_resident),
        cmocka_unit_test(the_models_own_number_and_all_of_the_weights_change_no_bit),
    };
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(experts_on_the_cpu_next_to_a_device_are_the_same),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(fewer_experts_are_fewer_bytes),
        cmocka_unit_test(what_a_model_needs_follows_the_number),
        cmocka_unit_test(numbers_that_the_router_cannot_choose_are_refused),
        cmocka_unit_test(states_of_other_settings_are_refused),
    };
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
