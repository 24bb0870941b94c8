/* Routed experts of the first layers on the CPU, the rest of the model on a GPU, which lavapipe stands for.
 * What they compute is held to the references in test_golden.c. MOEFLUX_DEVICE names another device than the
 * default one.
 *
 * suites: nightly vulkan long */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "little_memory.h"
#include "moeflux.h"
#include "tmp_tree.h"

static const char QWEN[] = "tests/models/qwen-odd/mlx", DEEPSEEK[] = "tests/models/deepseek-odd/mlx";

enum { N_PROMPT = 21, MAX_PROMPT = 64, N_DECODE = 3, N_ROWS = N_DECODE + 1, CHUNK = 8 };

static struct moeflux_options options_of(const char *dir, uint32_t n_cpu_layers)
{
    return (struct moeflux_options){
        .dir = dir, .device = device_name(), .chunk = CHUNK, .n_cpu_layers = n_cpu_layers};
}

static uint32_t n_moe_layers(const struct moeflux_needs *n)
{
    return (uint32_t)(n->token_expert_bytes / n->one_expert_bytes / n->top_k);
}

/* Logits after a prompt of so many tokens and after each of N_DECODE: rows [N_ROWS][vocab], to be freed. */
static float *evaluate_prompt(const struct moeflux_options *o, uint32_t n_prompt, bool staged,
                              struct moeflux_stats *stats)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    int32_t ids[MAX_PROMPT + N_DECODE];
    assert_true(n_prompt <= MAX_PROMPT);
    check_ok(device_open_staged(&m, o, staged, &e), &e);
    uint32_t vocab = moeflux_model_get_info(m).vocab_size;
    float *rows = calloc((size_t)N_ROWS * vocab, sizeof *rows);
    for (uint32_t i = 0; i < n_prompt + N_DECODE; i++)
        ids[i] = (int32_t)((i * 37 + 11) % vocab);
    check_ok(moeflux_session_new(&s, m, MAX_PROMPT + N_DECODE, &e), &e);
    check_ok(moeflux_session_eval(s, ids, n_prompt, &(struct moeflux_outputs){.logits = rows}, &e), &e);
    for (uint32_t i = 0; i < N_DECODE; i++)
        check_ok(moeflux_session_eval(s, ids + n_prompt + i, 1,
                                      &(struct moeflux_outputs){.logits = rows + (size_t)(i + 1) * vocab},
                                      &e),
                 &e);
    moeflux_model_get_stats(m, stats);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return rows;
}

static float *evaluate(const struct moeflux_options *o, bool staged, struct moeflux_stats *stats)
{
    return evaluate_prompt(o, N_PROMPT, staged, stats);
}

/* Also where device memory is apart from host memory, with a host tier of the device's own. */
static void logits_do_not_depend_on_the_budget(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        bool all; /* layers with experts; else one */
    } splits[] = {{QWEN, false}, {DEEPSEEK, true}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        struct moeflux_needs n;
        struct moeflux_err e = {0};
        struct moeflux_stats resident, little;
        check_ok(moeflux_get_needs(splits[i].dir, &n, &e), &e);
        uint32_t n_dense = n.n_layers - n_moe_layers(&n), n_cpu = splits[i].all ? n_moe_layers(&n) : 1;
        struct moeflux_options o = options_of(splits[i].dir, n_dense + n_cpu);
        float *want = evaluate(&o, false, &resident);
        assert_int_equal(resident.n_cpu_experts, (uint64_t)(N_PROMPT + N_DECODE) * n_cpu * n.top_k);
        for (int staged = 0; staged < 2; staged++) {
            little_memory(&o, staged);
            float *got = evaluate(&o, staged, &little);
            assert_memory_equal(got, want, (size_t)N_ROWS * n.vocab_size * sizeof *got);
            assert_int_equal(little.n_cpu_experts, resident.n_cpu_experts);
            assert_true(little.n_cpu_slots < resident.n_cpu_slots);
            assert_true(little.n_reads > 0 && little.n_cpu_slots >= n.top_k);
            free(got);
        }
        free(want);
    }
}

static bool count_down(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    int64_t *left = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    return (*left)-- > 0;
}

/* Wherever it stops: between the layers, or while the CPU computes. */
static void an_interrupted_prompt_goes_on_where_it_stopped(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    int64_t left = INT64_MAX;
    struct moeflux_options o = options_of(QWEN, 3);
    int32_t ids[N_PROMPT];
    int n_stopped = 0;
    o.progress = (struct moeflux_progress){count_down, &left};
    check_ok(device_open_model(&m, &o, &e), &e);
    check_ok(moeflux_session_new(&s, m, 64, &e), &e);
    uint32_t vocab = moeflux_model_get_info(m).vocab_size;
    float *want = calloc(vocab, sizeof *want), *got = calloc(vocab, sizeof *got);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)((i * 37 + 11) % vocab);
    check_ok(moeflux_session_eval(s, ids, N_PROMPT, &(struct moeflux_outputs){.logits = want}, &e), &e);
    for (int64_t calls = 1; calls < 200; calls += 17) {
        check_ok(moeflux_session_clear(s, &e), &e);
        left = calls;
        int rc = moeflux_session_eval(s, ids, N_PROMPT, &(struct moeflux_outputs){.logits = got}, &e);
        left = INT64_MAX;
        if (rc == 0)
            break;
        assert_int_equal(rc, ERR_INTERRUPTED);
        n_stopped++;
        uint32_t at = moeflux_session_position(s);
        assert_true(at < N_PROMPT && at % CHUNK == 0);
        check_ok(
            moeflux_session_eval(s, ids + at, N_PROMPT - at, &(struct moeflux_outputs){.logits = got}, &e),
            &e);
        assert_memory_equal(got, want, vocab * sizeof *got);
    }
    assert_true(n_stopped > 3);
    free(want);
    free(got);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void experts_of_small_chunks_never_cross_the_bus(void **state)
{
    (void)state;
    struct moeflux_needs n;
    struct moeflux_err e = {0};
    struct moeflux_stats s;
    check_ok(moeflux_get_needs(QWEN, &n, &e), &e);
    struct moeflux_options o = options_of(QWEN, UINT32_MAX);
    little_memory(&o, true);
    free(evaluate(&o, true, &s));
    assert_int_equal(s.n_promoted + s.n_demoted + s.n_host_slots, 0);
    assert_int_equal(s.n_slots, s.n_cpu_slots);
    assert_true(s.n_reads > 0);
}

/* Their experts are copied to the device, where that has memory of its own: the logits are those of a device
 * that computes everything, whatever the memory, and those of two devices of the kind. */
static void large_chunks_are_the_devices(void **state)
{
    (void)state;
    enum { TOKENS_OF_AN_EXPERT = 8, PROMPT_SLOTS = 64 };
    static const struct {
        const char *dir;
        bool all, little; /* layers with experts, else one; memory */
        bool twice;       /* whether it runs on two devices */
    } splits[] = {{QWEN, true, true, false}, {DEEPSEEK, false, false, true}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        struct moeflux_needs n;
        struct moeflux_err e = {0};
        struct moeflux_stats stats;
        check_ok(moeflux_get_needs(splits[i].dir, &n, &e), &e);
        uint32_t n_dense = n.n_layers - n_moe_layers(&n), n_cpu = splits[i].all ? n_moe_layers(&n) : 1;
        uint32_t n_large = (TOKENS_OF_AN_EXPERT * n.n_experts + n.top_k - 1) / n.top_k;
        struct moeflux_options o = options_of(splits[i].dir, 0);
        o.chunk = n_large;
        float *want = evaluate_prompt(&o, n_large, true, &stats);
        o.n_cpu_layers = n_dense + n_cpu;
        if (splits[i].little)
            little_memory(&o, true);
        char both[64];
        const char *one = device_name() ? device_name() : "0";
        snprintf(both, sizeof both, "%.20s,%.20s", one, one);
        o.device = splits[i].twice ? both : o.device;
        float *got = evaluate_prompt(&o, n_large, true, &stats);
        assert_memory_equal(got, want, n.vocab_size * sizeof *got);
        assert_int_equal(stats.n_cpu_experts, (uint64_t)N_DECODE * n_cpu * n.top_k);
        assert_true(n_cpu * n.n_experts <= PROMPT_SLOTS || stats.n_promoted > 0);
        free(evaluate_prompt(&o, n_large - 1, true, &stats));
        assert_int_equal(stats.n_cpu_experts, (uint64_t)(n_large - 1 + N_DECODE) * n_cpu * n.top_k);
        free(want);
        free(got);
    }
}

/* A token's batches: the first layer's choice, its shared expert, the CPU's sum with two layers, the others.
 * Slow tokens have more or fewer, as they can be interrupted. */
static void the_device_begins_before_the_last_layer_is_recorded(void **state)
{
    (void)state;
    enum { MOST_TOKENS = 60, N_BATCHES = 4 };
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_stats stats = {0};
    const struct moeflux_options o = options_of(QWEN, 1);
    check_ok(device_open_model(&m, &o, &e), &e);
    float *logits = calloc(moeflux_model_get_info(m).vocab_size, sizeof *logits);
    assert_true(moeflux_model_get_info(m).n_layers > 3);
    check_ok(moeflux_session_new(&s, m, MOST_TOKENS, &e), &e);
    for (int32_t i = 0; i < MOST_TOKENS && stats.n_submits != N_BATCHES; i++) {
        moeflux_model_reset_stats(m);
        check_ok(moeflux_session_eval(s, &i, 1, &(struct moeflux_outputs){.logits = logits}, &e), &e);
        moeflux_model_get_stats(m, &stats);
    }
    assert_int_equal(stats.n_submits, N_BATCHES);
    moeflux_session_free(s);
    moeflux_model_close(m);
    free(logits);
}

static void the_plan_says_where_experts_go(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++)
        for (uint32_t n_cpu = 1; n_cpu <= 100; n_cpu += 99) {
            struct moeflux_err e = {0};
            struct moeflux_needs n;
            struct moeflux_plan p;
            struct moeflux_stats s;
            const struct moeflux_options o = options_of(QWEN, n_cpu);
            check_ok(moeflux_get_needs(QWEN, &n, &e), &e);
            check_ok(device_plan_staged(&o, staged, &p, &e), &e);
            uint32_t on_cpu = n_cpu < n.n_layers ? n_cpu : n.n_layers;
            assert_int_equal(p.n_cpu_layers, on_cpu);
            assert_int_equal(p.n_cpu_experts, (uint64_t)on_cpu * n.n_experts);
            assert_int_equal(p.n_cpu_slots, p.n_cpu_experts);
            assert_int_equal(p.n_slots, (uint64_t)(n.n_layers - on_cpu) * n.n_experts);
            assert_int_equal(p.n_experts, (uint64_t)n.n_layers * n.n_experts);
            assert_true(p.experts_resident && p.cpu_scratch_bytes > 0 && p.expert_io[0]);
            struct moeflux_model *m;
            check_ok(device_open_staged(&m, &o, staged, &e), &e);
            moeflux_model_get_stats(m, &s);
            moeflux_model_close(m);
            assert_int_equal(s.n_slots, p.n_slots + p.n_cpu_slots);
            assert_int_equal(s.n_cpu_slots, p.n_cpu_slots);
        }
}

static void usage_counts_both_sides(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct moeflux_needs n;
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    const char *path = tmp_tree_path(tmp, "usage");
    char line[64];
    uint64_t per_side[2] = {0};
    check_ok(moeflux_get_needs(QWEN, &n, &e), &e);
    struct moeflux_options o = options_of(QWEN, 1);
    little_memory(&o, false);
    for (int turn = 1; turn <= 2; turn++) {
        o.usage = turn == 2 ? path : NULL;
        check_ok(device_open_model(&m, &o, &e), &e);
        check_ok(moeflux_session_new(&s, m, 8, &e), &e);
        check_ok(moeflux_session_eval(s, &(int32_t){5}, 1, &(struct moeflux_outputs){0}, &e), &e);
        check_ok(moeflux_model_save_usage(m, path, &e), &e);
        moeflux_session_free(s);
        moeflux_model_close(m);
        FILE *f = fopen(path, "r");
        unsigned layer, expert, count;
        memset(per_side, 0, sizeof per_side);
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "%u %u %u", &layer, &expert, &count) == 3)
                per_side[layer > 0] += count;
        fclose(f);
        assert_int_equal(per_side[0], (uint64_t)turn * n.top_k);
        assert_int_equal(per_side[1], (uint64_t)turn * n.top_k * (n.n_layers - 1));
    }
    tmp_tree_remove(tmp);
}

static void a_split_without_a_gpu_is_refused(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (size_t i = 0; i < 2; i++) {
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_plan p;
        struct moeflux_options o = options_of(QWEN, 1);
        o.device = devices[i];
        assert_int_equal(device_open_model(&m, &o, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "`n_cpu_layers` needs a GPU"));
        assert_int_equal(device_make_plan(&o, &p, &e), ERR_USAGE);
    }
}

static void too_little_memory_for_both_sides_is_refused(void **state)
{
    (void)state;
    struct moeflux_needs n;
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    check_ok(moeflux_get_needs(QWEN, &n, &e), &e);
    struct moeflux_options o = options_of(QWEN, 1);
    o.memory_bytes = (uint64_t)n.top_k * n.one_expert_bytes;
    assert_int_equal(device_open_model(&m, &o, &e), ERR_NO_FIT);
    assert_non_null(strstr(e.text, "`memory_bytes` is"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_budget),
        cmocka_unit_test(an_interrupted_prompt_goes_on_where_it_stopped),
        cmocka_unit_test(experts_of_small_chunks_never_cross_the_bus),
        cmocka_unit_test(large_chunks_are_the_devices),
        cmocka_unit_test(the_device_begins_before_the_last_layer_is_recorded),
        cmocka_unit_test(the_plan_says_where_experts_go),
        cmocka_unit_test(usage_counts_both_sides),
        cmocka_unit_test(a_split_without_a_gpu_is_refused),
        cmocka_unit_test(too_little_memory_for_both_sides_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
