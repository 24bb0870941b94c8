/* Experts in memory before others with nearly the same scores (moeflux_options.prefer_resident): when nothing
 * changes, what is read, what every backend computes, what is refused. MOEFLUX_DEVICE names another device.
 *
 *
 * suites: gpu vulkan cpu fast asan-nightly */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/test_hooks.h"
#include "moeflux.h"
#include "tmp_tree.h"

static const char QWEN[] = "tests/models/qwen-odd/mlx", DEEPSEEK[] = "tests/models/deepseek-odd/mlx",
                  GEMMA[] = "tests/models/families/gemma4-odd",
                  V4[] = "tests/models/families/v4-plain"; /* its first layer's experts are chosen by token */
static const char *const models[] = {QWEN, DEEPSEEK, GEMMA, V4};

enum { MAX_TOKENS = 32 };

static void fill_ids(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 37 + i * i * 5 + 11) % 101);
}

/* Without reads ahead, so that what is in memory does not depend on the time that they take. */
static struct moeflux_options options_of(const char *dir, const char *device, float margin)
{
    return (struct moeflux_options){.dir = dir,
                                    .device = device,
                                    .prefetch = MOEFLUX_PREFETCH_NONE,
                                    .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                    .kv_type = MOEFLUX_KV_TYPE_F32,
                                    .prefer_resident = margin};
}

/* Memory for `part` of all experts; a device with memory of its own gets little, and the host that part.
 * Whether it has. */
static bool limit_slots(struct moeflux_options *o, float part, bool staged)
{
    struct moeflux_err e = {0};
    struct moeflux_needs n;
    struct moeflux_plan p;
    o->memory_bytes = o->gpu_memory_bytes = 0;
    check_ok(moeflux_get_needs_with(o, &n, &e), &e);
    check_ok(test_hooks_make_plan(o, &(struct test_hooks){.staged = staged, .shelf = device_shelf()}, &p, &e),
             &e);
    uint64_t n_experts = n.expert_bytes / n.one_expert_bytes;
    o->memory_bytes = (uint64_t)(part * (float)n_experts) * p.slot_bytes;
    if (p.is_unified)
        return false;
    o->memory_bytes += p.cpu_scratch_bytes;
    if (o->n_cpu_layers == 0)
        o->gpu_memory_bytes = p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes +
                              3 * n.top_k * p.slot_bytes / 2;
    return true;
}

/* Logits after the ids, evaluated `step` at once. To be freed. */
static float *evaluate(const struct moeflux_options *o, const int32_t *ids, uint32_t n, uint32_t step,
                       bool staged, struct moeflux_stats *stats)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    check_ok(test_hooks_open(&m, o, &(struct test_hooks){.staged = staged, .shelf = device_shelf()}, &e), &e);
    float *logits = calloc(moeflux_model_get_info(m).vocab_size, sizeof *logits);
    assert_non_null(logits);
    check_ok(moeflux_session_new(&s, m, MAX_TOKENS, &e), &e);
    for (uint32_t at = 0; at < n; at += step)
        check_ok(moeflux_session_eval(s, ids + at, step < n - at ? step : n - at,
                                      &(struct moeflux_outputs){.logits = logits}, &e),
                 &e);
    moeflux_model_get_stats(m, stats);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return logits;
}

static size_t logits_bytes(const char *dir)
{
    return (dir == QWEN ? 1003 : dir == DEEPSEEK ? 777 : 103) * sizeof(float);
}

static double hit_rate(const struct moeflux_stats *s)
{
    return (double)(s->n_hits + s->n_host_hits) / (double)(s->n_hits + s->n_host_hits + s->n_misses);
}

static void where_all_experts_are_in_memory_no_bit_changes(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    for (int i = 0; i < (device_is_vulkan() ? 1 : 2); i++) {
        const char *dir = i ? DEEPSEEK : QWEN;
        struct moeflux_stats stats;
        struct moeflux_options o = options_of(dir, device_name(), 0);
        float *want = evaluate(&o, ids, 6, 1, false, &stats);
        o.prefer_resident = 1e30f;
        float *got = evaluate(&o, ids, 6, 1, false, &stats);
        assert_memory_equal(got, want, logits_bytes(dir));
        assert_int_equal(stats.n_preferred, 0);
        free(got);
        free(want);
    }
}

static void tokens_of_a_prompt_keep_the_routers_choice(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    struct moeflux_stats stats;
    struct moeflux_options o = options_of(QWEN, device_name(), 0);
    limit_slots(&o, 0.25f, false);
    float *want = evaluate(&o, ids, MAX_TOKENS, MAX_TOKENS / 2, false, &stats);
    o.prefer_resident = 1e30f;
    float *got = evaluate(&o, ids, MAX_TOKENS, MAX_TOKENS / 2, false, &stats);
    assert_memory_equal(got, want, logits_bytes(QWEN));
    assert_true(stats.n_reads > 0 && stats.n_preferred == 0);
    free(got);
    free(want);
}

/* The first token finds nothing in memory, so it is as without. */
static void a_larger_margin_reads_less_and_hits_more(void **state)
{
    (void)state;
    static const float margins[] = {0, 0.02f, 1e30f};
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    for (int i = 0; i < 2; i++)
        for (int side = 0; side < 2; side++) {
            const char *dir = i ? DEEPSEEK : QWEN;
            struct moeflux_stats before = {.read_bytes = UINT64_MAX, .n_misses = 1}, stats;
            for (size_t k = 0; k < sizeof margins / sizeof *margins; k++) {
                struct moeflux_options o = options_of(dir, side ? "cpu" : "reference", margins[k]);
                limit_slots(&o, i ? 0.5f : 0.25f, false);
                free(evaluate(&o, ids, MAX_TOKENS, 1, false, &stats));
                assert_true(stats.read_bytes > 0 && stats.read_bytes < before.read_bytes);
                assert_true(hit_rate(&stats) > hit_rate(&before));
                assert_int_equal(stats.n_preferred > 0, k > 0);
                before = stats;
            }
        }
}

/* Nearly equal scores do not occur. Staged: the device's slots are few, and the host has all experts. */
static void a_margin_that_prefers_nothing_changes_no_bit(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int staged = 0; staged < (device_is_vulkan() ? 2 : 1); staged++) {
            struct moeflux_stats stats;
            struct moeflux_options o = options_of(models[i], device_name(), 0);
            limit_slots(&o, staged ? 4 : 0.75f, staged);
            float *want = evaluate(&o, ids, 8, 1, staged, &stats);
            o.prefer_resident = 1e-20f;
            float *got = evaluate(&o, ids, 8, 1, staged, &stats);
            assert_int_equal(stats.n_preferred, 0);
            assert_true(stats.n_reads > 0);
            if (memcmp(got, want, logits_bytes(models[i])) != 0)
                fail_msg("%s%s: the logits differ", models[i], staged ? ", staged" : "");
            free(got);
            free(want);
        }
}

/* Which copies between two tiers are done when a slot is needed depends on time. */
static void the_same_run_gives_the_same_bits_in_one_tier(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    for (int staged = 0; staged < (device_is_vulkan() ? 2 : 1); staged++) {
        struct moeflux_stats plain, stats, again;
        struct moeflux_options o = options_of(QWEN, device_name(), 0);
        bool has_tiers = limit_slots(&o, 0.125f, staged);
        float *without = evaluate(&o, ids, 6, 1, staged, &plain);
        o.prefer_resident = 1e30f;
        float *want = evaluate(&o, ids, 6, 1, staged, &stats), *got = evaluate(&o, ids, 6, 1, staged, &again);
        assert_true(stats.n_preferred > 0);
        assert_true(stats.read_bytes < plain.read_bytes);
        if (!has_tiers)
            assert_memory_equal(got, want, logits_bytes(QWEN));
        assert_memory_not_equal(without, want, logits_bytes(QWEN));
        free(without);
        free(want);
        free(got);
    }
}

/* There is room for all experts except one, so nothing is evicted in a few tokens: the experts chosen before
 * are resident, on every backend and in both tiers of a device with its own memory. */
static void every_backend_computes_with_the_experts_taken(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    const char *const hosts[] = {"cpu", "reference"};
    for (int i = 0; i < 3; i++) {
        const char *dir = models[i];
        struct moeflux_stats first, stats;
        struct moeflux_options o = options_of(dir, hosts[0], 0.5f);
        limit_slots(&o, 0.99f, false);
        float *want = evaluate(&o, ids, 6, 1, false, &first);
        assert_true(first.n_preferred > (dir == GEMMA ? 0u : 5u));
        for (int staged = 0; staged < (device_is_vulkan() ? 2 : 1); staged++) {
            o.device = device_is_vulkan() ? device_name() : hosts[1];
            limit_slots(&o, 0.99f, staged);
            float *got = evaluate(&o, ids, 6, 1, staged, &stats);
            assert_int_equal(stats.n_preferred, first.n_preferred);
            assert_int_equal(stats.n_misses, first.n_misses);
            for (uint64_t k = 0; k < logits_bytes(dir) / sizeof *got; k++)
                assert_true(fabsf(got[k] - want[k]) <= 2e-4f);
            free(got);
        }
        free(want);
    }
}

/* The CPU computes the experts that replaced others, with a device for the rest. */
static void experts_on_the_cpu_next_to_a_device_are_preferred_too(void **state)
{
    (void)state;
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS);
    struct moeflux_stats first, stats;
    struct moeflux_options o = options_of(QWEN, "cpu", 0.5f);
    limit_slots(&o, 0.99f, false);
    float *want = evaluate(&o, ids, 6, 1, false, &first);
    o.device = device_name();
    o.n_cpu_layers = UINT32_MAX;
    limit_slots(&o, 0.9f, false); /* and room for what the two hand over */
    float *got = evaluate(&o, ids, 6, 1, false, &stats);
    assert_int_equal(stats.n_preferred, first.n_preferred);
    for (uint64_t k = 0; k < logits_bytes(QWEN) / sizeof *got; k++)
        assert_true(fabsf(got[k] - want[k]) <= 2e-4f);
    free(got);
    free(want);
}

static void margins_that_are_none_are_refused(void **state)
{
    (void)state;
    const float bad[] = {NAN, -1, -0.001f, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct moeflux_options o = options_of(QWEN, "reference", bad[i]);
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        assert_int_equal(moeflux_model_open(&m, &o, &e), MOEFLUX_ERR_USAGE);
        assert_non_null(strstr(e.text, "`prefer_resident`"));
        assert_non_null(strstr(e.text, "expected 0 or more"));
        assert_null(m);
    }
}

static struct moeflux_session *session_with(struct moeflux_model **m, float margin, struct moeflux_err *e)
{
    const struct moeflux_options o = options_of(QWEN, "cpu", margin);
    struct moeflux_session *s;
    check_ok(moeflux_model_open(m, &o, e), e);
    check_ok(moeflux_session_new(&s, *m, MAX_TOKENS, e), e);
    return s;
}

static void states_of_other_margins_are_refused(void **state)
{
    (void)state;
    static const float margins[] = {0, 0.5f, 1};
    enum { N = sizeof margins / sizeof *margins };
    char *dir = tmp_tree_new();
    const char *path = tmp_tree_path(dir, "state");
    for (int i = 0; i < N * N; i++) {
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_session *s = session_with(&m, margins[i / N], &e);
        const int32_t ids[] = {5, 6, 7};
        check_ok(moeflux_session_eval(s, ids, 3, &(struct moeflux_outputs){0}, &e), &e);
        check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
        moeflux_session_free(s);
        moeflux_model_close(m);
        s = session_with(&m, margins[i % N], &e);
        assert_int_equal(moeflux_session_load(s, path, &e), i / N == i % N ? 0 : MOEFLUX_ERR_FORMAT);
        if (i / N != i % N)
            assert_non_null(strstr(e.text, "`prefer_resident`"));
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(where_all_experts_are_in_memory_no_bit_changes),
        cmocka_unit_test(tokens_of_a_prompt_keep_the_routers_choice),
        cmocka_unit_test(a_margin_that_prefers_nothing_changes_no_bit),
        cmocka_unit_test(the_same_run_gives_the_same_bits_in_one_tier),
        cmocka_unit_test(every_backend_computes_with_the_experts_taken),
    };
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(experts_on_the_cpu_next_to_a_device_are_preferred_too),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(a_larger_margin_reads_less_and_hits_more),
        cmocka_unit_test(margins_that_are_none_are_refused),
        cmocka_unit_test(states_of_other_margins_are_refused),
    };
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
