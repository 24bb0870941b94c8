/* Experts of each layer in two parts: one on the CPU, the other on a GPU, which lavapipe stands for. What
 * they compute is held to the references in test_golden.c. MOEFLUX_DEVICE names another device than the
 * default one.
 *
 * suites: check vulkan parts long asan-nightly tsan-nightly */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/run/verify.h"
#include "engine/test_hooks.h"
#include "little_memory.h"
#include "moeflux.h"
#include "sequence.h"
#include "tmp_tree.h"

static const char QWEN[] = "tests/models/qwen-odd/mlx", DEEPSEEK[] = "tests/models/deepseek-odd/mlx";

/* Chunks of 16 and more tokens have other kernels than smaller ones. */
enum { CHUNK = 24, N_PROMPT = 29, N_DECODE = 5, N_ROWS = N_DECODE + 1, CONTEXT = 96 };

static struct moeflux_options options_of(const char *dir, float share)
{
    return (struct moeflux_options){
        .dir = dir, .device = device_name(), .chunk = CHUNK, .cpu_share = share, .context = CONTEXT};
}

static struct sequence open_it(const struct moeflux_options *o, bool staged)
{
    struct sequence q;
    struct moeflux_err e = {0};
    check_ok(device_open_staged(&q.m, o, staged, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    return q;
}

/* Logits after a prompt of n tokens and after each of N_DECODE: rows [N_ROWS][vocab], to be freed. */
static float *evaluate(const struct moeflux_options *o, uint32_t n, bool staged, struct moeflux_stats *stats)
{
    int32_t ids[CONTEXT];
    struct sequence q = open_it(o, staged);
    float *rows = calloc((size_t)N_ROWS * q.vocab, sizeof *rows);
    assert_true(n + N_DECODE <= CONTEXT);
    sequence_ids(&q, 1, ids, n + N_DECODE);
    sequence_eval(&q, ids, n, rows);
    for (uint32_t i = 0; i < N_DECODE; i++)
        sequence_eval(&q, ids + n + i, 1, rows + (size_t)(i + 1) * q.vocab);
    moeflux_model_get_stats(q.m, stats);
    sequence_close(&q);
    return rows;
}

static struct moeflux_needs needs_of(const char *dir)
{
    struct moeflux_needs n;
    struct moeflux_err e = {0};
    check_ok(moeflux_get_needs(dir, &n, &e), &e);
    return n;
}

/* The tokens of a chunk whose experts a device with memory of its own computes alone. */
static uint32_t large_chunk(const struct moeflux_needs *n)
{
    enum { TOKENS_OF_AN_EXPERT = 8, LEAST = 16 };
    uint32_t large = (TOKENS_OF_AN_EXPERT * n->n_experts + n->top_k - 1) / n->top_k;
    return large > LEAST ? large : LEAST;
}

/* Memory, reads ahead, threads. is_tier: the device has little memory, and the host room for all. */
struct place {
    bool staged, is_little, is_tier;
    enum moeflux_prefetch prefetch;
    uint32_t n_threads;
};

static void check_place(struct moeflux_options o, const struct place *at, const float *want,
                        const struct moeflux_stats *usual)
{
    struct moeflux_stats stats;
    if (at->is_little)
        little_memory(&o, at->staged);
    if (at->is_tier)
        o.memory_bytes = 0;
    o.prefetch = at->prefetch;
    o.n_threads = at->n_threads;
    float *got = evaluate(&o, N_PROMPT, at->staged, &stats);
    if (memcmp(got, want, (size_t)N_ROWS * needs_of(o.dir).vocab_size * sizeof *got) != 0)
        fail_msg("%s, share %g, staged %d, little memory %d: other logits", o.dir, (double)o.cpu_share,
                 at->staged, at->is_little);
    assert_int_equal(stats.n_cpu_experts, usual->n_cpu_experts);
    bool has_many = needs_of(o.dir).n_experts > 5; /* more than the least memory holds */
    assert_true(!at->is_little || !has_many || stats.n_reads > 0);
    assert_true(!at->is_tier || !has_many || stats.n_promoted > 0);
    free(got);
}

static void check_places(const char *dir, float share, const struct place *places, size_t n)
{
    struct moeflux_stats usual;
    const struct moeflux_needs needs = needs_of(dir);
    struct moeflux_options o = options_of(dir, share);
    if (o.chunk >= large_chunk(&needs))
        o.chunk = large_chunk(&needs) - 1;
    float *want = evaluate(&o, N_PROMPT, false, &usual);
    assert_true(usual.n_cpu_experts > 0);
    for (size_t i = 0; i < n; i++)
        check_place(o, &places[i], want, &usual);
    free(want);
}

static void logits_do_not_depend_on_the_cache(void **state)
{
    (void)state;
    static const struct place places[] = {
        {.is_little = true},
        {.staged = true},
        {.staged = true, .is_little = true},
        {.staged = true, .is_little = true, .is_tier = true},
        {.staged = true, .is_little = true, .prefetch = MOEFLUX_PREFETCH_NONE, .n_threads = 1},
        {.is_little = true, .prefetch = MOEFLUX_PREFETCH_BOTH, .n_threads = 3},
    };
    check_places(QWEN, 0.5f, places, sizeof places / sizeof *places);
}

/* Latents and groups of experts; biases; experts that read a latent; several residual streams and n-gram
 * rows; experts that ids name; norms after the parts; attention over blocks of layers. */
static void nor_do_other_families(void **state)
{
    (void)state;
    static const struct place places[] = {
        {.is_little = true},
        {.staged = true, .is_little = true},
        {.staged = true, .is_little = true, .is_tier = true},
    };
    static const char *const dirs[] = {
        "tests/models/deepseek-odd/mlx",     "tests/models/families/gptoss-odd",
        "tests/models/families/nemo-latent", "tests/models/families/qw4-odd",
        "tests/models/families/v4-odd",      "tests/models/families/gemma4-odd",
        "tests/models/families/k3-plain",

        "tests/models/sources/v41/hf"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        check_places(dirs[i], i % 2 ? 0.4f : 0.7f, places, sizeof places / sizeof *places);
}

/* One expert on the CPU, all but one, and what lies between. */
static void any_share_agrees_with_the_device(void **state)
{
    (void)state;
    static const float shares[] = {1e-6f, 0.3f, 0.5f, 0.75f, 0.999999f};
    const struct moeflux_needs n = needs_of(QWEN);
    struct moeflux_stats stats;
    struct moeflux_options o = options_of(QWEN, 0);
    float *want = evaluate(&o, N_PROMPT, false, &stats);
    uint64_t before = 0, all = (uint64_t)(N_PROMPT + N_DECODE) * n.n_expert_layers * n.top_k;
    assert_int_equal(stats.n_cpu_experts, 0);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        o.cpu_share = shares[i];
        struct sequence q = {.vocab = n.vocab_size};
        float *got = evaluate(&o, N_PROMPT, false, &stats);
        for (uint32_t r = 0; r < N_ROWS; r++)
            assert_true(sequence_distance(&q, want + (size_t)r * q.vocab, got + (size_t)r * q.vocab) < 1e-4f);
        assert_true(stats.n_cpu_experts > before && stats.n_cpu_experts < all);
        before = stats.n_cpu_experts;
        free(got);
    }
    free(want);
}

/* Tokens of several sequences at once have the bits of each alone. */
static void check_batch(const char *dir, bool is_little)
{
    enum { N = 5, N_TOKENS = 3 };
    struct moeflux_session *list[N];
    struct moeflux_err e = {0};
    struct moeflux_options o = options_of(dir, 0.5f);
    if (is_little)
        little_memory(&o, false);
    struct sequence q = open_it(&o, false);
    float *alone = malloc(N * N_TOKENS * q.vocab * sizeof *alone), *logits[N];
    for (uint32_t i = 0; i < N; i++) {
        int32_t ids[8 + N_TOKENS];
        sequence_ids(&q, i, ids, 8 + N_TOKENS);
        check_ok(moeflux_session_clear(q.s, &e), &e);
        sequence_eval(&q, ids, 8, NULL);
        for (uint32_t t = 0; t < N_TOKENS; t++)
            sequence_eval(&q, ids + 8 + t, 1, alone + (size_t)(t * N + i) * q.vocab);
        check_ok(moeflux_session_new(&list[i], q.m, CONTEXT, &e), &e);
        check_ok(moeflux_session_eval(list[i], ids, 8, &(struct moeflux_outputs){0}, &e), &e);
        logits[i] = malloc(q.vocab * sizeof *logits[i]);
    }
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        int32_t next[N];
        for (uint32_t i = 0; i < N; i++) {
            int32_t ids[8 + N_TOKENS];
            sequence_ids(&q, i, ids, 8 + N_TOKENS);
            next[i] = ids[8 + t];
        }
        check_ok(moeflux_eval_batched(list, next, N, logits, &e), &e);
        for (uint32_t i = 0; i < N; i++)
            assert_memory_equal(logits[i], alone + (size_t)(t * N + i) * q.vocab,
                                q.vocab * sizeof *logits[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        moeflux_session_free(list[i]);
        free(logits[i]);
    }
    free(alone);
    sequence_close(&q);
}

static void a_batch_has_the_bits_of_its_tokens_alone(void **state)
{
    (void)state;
    check_batch(QWEN, false);
    check_batch(QWEN, true);
}

/* Many sequences in matrix arithmetic: the device computes its part in rounds, the CPU token by token. A
 * token's logits do not depend on its neighbours. */
static void check_many(bool is_little)
{
    enum { N = 12, N_FEW = 2, N_BEFORE = 6 };
    const struct test_hooks hooks = {.batches_as_prompts = true, .shelf = device_shelf()};
    struct moeflux_err e = {0};
    struct moeflux_options o = options_of(QWEN, 0.5f);
    struct moeflux_session *list[2 * N];
    int32_t next[2 * N];
    float *logits[2 * N];
    if (is_little)
        little_memory(&o, false);
    o.n_parallel = 2 * N;
    struct sequence q = {0};
    check_ok(test_hooks_open(&q.m, &o, &hooks, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    for (uint32_t i = 0; i < 2 * N; i++) {
        int32_t ids[N_BEFORE + 1];
        sequence_ids(&q, i % N, ids, N_BEFORE + 1);
        check_ok(moeflux_session_new(&list[i], q.m, CONTEXT, &e), &e);
        check_ok(moeflux_session_eval(list[i], ids, N_BEFORE, &(struct moeflux_outputs){0}, &e), &e);
        next[i] = ids[N_BEFORE];
        logits[i] = malloc(q.vocab * sizeof *logits[i]);
    }
    check_ok(moeflux_eval_batched(list, next, N, logits, &e), &e);
    for (uint32_t i = N; i < 2 * N; i += N_FEW)
        check_ok(moeflux_eval_batched(list + i, next + i, N_FEW, logits + i, &e), &e);
    for (uint32_t i = 0; i < 2 * N; i++) {
        if (i < N)
            assert_memory_equal(logits[i], logits[i + N], q.vocab * sizeof *logits[i]);
        moeflux_session_free(list[i]);
    }
    for (uint32_t i = 0; i < 2 * N; i++)
        free(logits[i]);
    moeflux_model_close(q.m);
}

static void many_sequences_do_not_change_one_another(void **state)
{
    (void)state;
    check_many(false);
    check_many(true);
}

/* A chain of drafts: the tokens that follow have the bits of single ones. */
static void check_chain(const struct moeflux_options *o, bool staged)
{
    enum { N = 6, N_RIGHT = 4 };
    int32_t ids[N_PROMPT + N], draft[N];
    const uint32_t *result;
    struct moeflux_err e = {0};
    struct sequence q = open_it(o, staged);
    float *alone = malloc(N * q.vocab * sizeof *alone);
    sequence_ids(&q, 3, ids, N_PROMPT + N);
    sequence_eval(&q, ids, N_PROMPT, NULL);
    for (uint32_t i = 0; i < N; i++) {
        sequence_eval(&q, ids + N_PROMPT + i, 1, alone + (size_t)i * q.vocab);
        draft[i] = i < N_RIGHT ? ids[N_PROMPT + i] : (ids[N_PROMPT + i] + 1) % (int32_t)q.vocab;
    }
    check_ok(moeflux_session_clear(q.s, &e), &e);
    sequence_eval(&q, ids, N_PROMPT, NULL);
    int n = verify_run(q.s, draft, N, NULL, &e);
    check_ok(n, &e);
    assert_true(n > 1 || o->gpu_memory_bytes);
    for (int i = 0; i < N_RIGHT && i < n; i++) {
        assert_true(verify_has(q.s, draft[i]));
        assert_memory_equal(verify_take(q.s, &result), alone + (size_t)i * q.vocab, q.vocab * sizeof *alone);
    }
    free(alone);
    sequence_close(&q);
}

static void a_chain_has_the_bits_of_its_tokens_alone(void **state)
{
    (void)state;
    struct moeflux_options o = options_of(QWEN, 0.5f);
    check_chain(&o, false);
    check_chain(&o, true);
    little_memory(&o, false);
    check_chain(&o, false);
}

/* A token's batches are those of a model whose experts are all on the CPU: of each layer the choice and
 * what the device computes meanwhile, and the head. It is so too where the device reads experts in host
 * memory. Slow tokens have more or fewer, as they can be interrupted. */
static void check_batches(const struct moeflux_options *o, bool staged)
{
    enum { MOST_TOKENS = 60 };
    struct sequence q = open_it(o, staged);
    uint32_t n_batches = 2 * moeflux_model_get_info(q.m).n_layers + 1;
    struct moeflux_stats stats = {0};
    float *logits = malloc(q.vocab * sizeof *logits);
    for (int32_t i = 0; i < MOST_TOKENS && stats.n_submits != n_batches; i++) {
        moeflux_model_reset_stats(q.m);
        sequence_eval(&q, &i, 1, logits);
        moeflux_model_get_stats(q.m, &stats);
    }
    assert_int_equal(stats.n_submits, n_batches);
    free(logits);
    sequence_close(&q);
}

static void the_device_does_not_wait_for_the_cpu(void **state)
{
    (void)state;
    struct moeflux_options o = options_of(QWEN, 0);
    o.n_cpu_layers = UINT32_MAX;
    check_batches(&o, false);
    o = options_of(QWEN, 0.5f);
    check_batches(&o, false);
    little_memory(&o, true);
    o.memory_bytes = 0;
    check_batches(&o, true);
}

/* The device computes both parts from copies, where it has memory of its own: the logits are those of a
 * device that computes everything. */
static void large_chunks_are_the_devices(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        float share;
        bool is_little;
    } cases[] = {{QWEN, 0.5f, true}, {DEEPSEEK, 0.25f, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct moeflux_needs n = needs_of(cases[i].dir);
        uint32_t n_large = large_chunk(&n);
        struct moeflux_stats stats, with_fewer;
        struct moeflux_options o = options_of(cases[i].dir, 0);
        o.chunk = n_large;
        float *want = evaluate(&o, n_large, true, &stats);
        o.cpu_share = cases[i].share;
        if (cases[i].is_little)
            little_memory(&o, true);
        float *got = evaluate(&o, n_large, true, &stats);
        assert_memory_equal(got, want, n.vocab_size * sizeof *got);
        assert_in_range(stats.n_cpu_experts, 1, (uint64_t)N_DECODE * n.n_expert_layers * n.top_k);
        free(evaluate(&o, n_large - 1, true, &with_fewer));
        assert_true(with_fewer.n_cpu_experts > stats.n_cpu_experts);
        free(want);
        free(got);
    }
}

static void two_devices_have_the_logits_of_one(void **state)
{
    (void)state;
    char both[64];
    struct moeflux_stats stats;
    struct moeflux_options o = options_of(QWEN, 0.5f);
    const char *one = device_name() ? device_name() : "0";
    float *want = evaluate(&o, N_PROMPT, false, &stats);
    uint64_t n_cpu_experts = stats.n_cpu_experts;
    snprintf(both, sizeof both, "%.20s,%.20s", one, one);
    o.device = both;
    float *got = evaluate(&o, N_PROMPT, false, &stats);
    assert_memory_equal(got, want, (size_t)N_ROWS * needs_of(QWEN).vocab_size * sizeof *got);
    assert_int_equal(stats.n_cpu_experts, n_cpu_experts);
    free(want);
    free(got);
}

static void resident_experts_of_both_parts_are_preferred(void **state)
{
    (void)state;
    struct moeflux_stats stats;
    for (int staged = 0; staged < 2; staged++) {
        struct moeflux_options o = options_of(QWEN, 0.5f);
        o.prefer_resident = 1000;
        little_memory(&o, staged);
        free(evaluate(&o, N_PROMPT, staged, &stats));
        assert_true(stats.n_preferred > 0);
    }
}

static void the_plan_says_where_experts_go(void **state)
{
    (void)state;
    const struct moeflux_needs n = needs_of(QWEN);
    for (int staged = 0; staged < 2; staged++)
        for (int i = 0; i < 3; i++) {
            static const float shares[] = {0.01f, 0.5f, 0.99f};
            const uint32_t on_cpu[] = {1, n.n_experts / 2, n.n_experts - 1};
            struct moeflux_err e = {0};
            struct moeflux_plan p;
            struct moeflux_stats s;
            const struct moeflux_options o = options_of(QWEN, shares[i]);
            check_ok(device_plan_staged(&o, staged, &p, &e), &e);
            assert_int_equal(p.n_cpu_layers, n.n_layers);
            assert_true(p.cpu_share == shares[i]);
            assert_int_equal(p.n_cpu_experts, (uint64_t)n.n_expert_layers * on_cpu[i]);
            assert_int_equal(p.n_cpu_slots, p.n_cpu_experts);
            assert_int_equal(p.n_slots + p.n_cpu_slots, (uint64_t)n.n_expert_layers * n.n_experts);
            assert_true(p.experts_resident && p.cpu_scratch_bytes > 0);
            struct sequence q = open_it(&o, staged);
            moeflux_model_get_stats(q.m, &s);
            assert_true(moeflux_model_get_info(q.m).cpu_share == shares[i]);
            sequence_close(&q);
            assert_int_equal(s.n_slots, p.n_slots + p.n_cpu_slots);
            assert_int_equal(s.n_cpu_slots, p.n_cpu_slots);
        }
}

/* Each choice is counted by one side, and read again by the side that has the expert. */
static void usage_counts_each_choice_once(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new(), line[64];
    struct moeflux_err e = {0};
    const struct moeflux_needs n = needs_of(QWEN);
    const char *path = tmp_tree_path(tmp, "usage");
    struct moeflux_options o = options_of(QWEN, 0.5f);
    little_memory(&o, false);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        unsigned layer, expert, count, all = 0;
        o.usage = turn == 2 ? path : NULL;
        struct sequence q = open_it(&o, false);
        sequence_eval(&q, &(int32_t){5}, 1, NULL);
        check_ok(moeflux_model_save_usage(q.m, path, &e), &e);
        sequence_close(&q);
        FILE *f = fopen(path, "r");
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "%u %u %u", &layer, &expert, &count) == 3)
                all += count;
        fclose(f);
        assert_int_equal(all, turn * n.top_k * n.n_expert_layers);
    }
    tmp_tree_remove(tmp);
}

static void wrong_shares_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        float share;
        uint32_t n_cpu_layers;
        const char *text;
    } cases[] = {
        {NULL, -0.5f, 0, "`cpu_share` -0.5, expected at least 0 and less than 1"},
        {NULL, 1, 0, "`cpu_share` 1, expected"},
        {NULL, 0.0f / 0.0f, 0, "`cpu_share`"},
        {NULL, 0.5f, 2, "`cpu_share` and `n_cpu_layers` exclude each other"},
        {"cpu", 0.5f, 0, "`cpu_share` needs a GPU"},
        {"reference", 0.5f, 0, "`cpu_share` needs a GPU"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_plan p;
        struct moeflux_options o = options_of(QWEN, cases[i].share);
        o.n_cpu_layers = cases[i].n_cpu_layers;
        o.device = cases[i].device ? cases[i].device : o.device;
        sequence_refused(device_open_model(&m, &o, &e), &e, ERR_USAGE, cases[i].text);
        sequence_refused(device_make_plan(&o, &p, &e), &e, ERR_USAGE, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest first[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_cache),
        cmocka_unit_test(any_share_agrees_with_the_device),
        cmocka_unit_test(a_batch_has_the_bits_of_its_tokens_alone),
        cmocka_unit_test(the_device_does_not_wait_for_the_cpu),
        cmocka_unit_test(the_plan_says_where_experts_go),
        cmocka_unit_test(wrong_shares_are_refused),
    };
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(nor_do_other_families),
        cmocka_unit_test(many_sequences_do_not_change_one_another),
        cmocka_unit_test(a_chain_has_the_bits_of_its_tokens_alone),
        cmocka_unit_test(large_chunks_are_the_devices),
        cmocka_unit_test(two_devices_have_the_logits_of_one),
        cmocka_unit_test(resident_experts_of_both_parts_are_preferred),
        cmocka_unit_test(usage_counts_each_choice_once),
    };
    int failed = device_runs_part("first") ? cmocka_run_group_tests(first, NULL, NULL) : 0;
    return failed + (device_runs_part("rest") ? cmocka_run_group_tests(rest, NULL, NULL) : 0);
}
