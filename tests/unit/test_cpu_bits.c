/* A model's logits on the CPU are the same to the bit whatever computes them: each instruction set, numbers
 * of threads, ways of reading, sizes of the cache, all against one hash that is the same on every processor
 * (tests/lib/cpu_bits.txt). Prompts are float32 throughout; processors with AMX have bits of their own where
 * they need not be, which have a hash too. MOEFLUX_TESTS names a part of the tests, as "tiny*".
 *
 * suites: check fast asan-nightly */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "check.h"
#include "cpu_bits.h"
#include "engine/test_hooks.h"
#include "fake_nodes.h"
#include "moeflux.h"
#include "tmp_tree.h"

/* One token alone, a few, and chunks of many with an end that is none. */
enum { N_PROMPT = 41, CHUNK = 16, N_DECODE = 3, N_ROWS = 2 + N_DECODE };

struct way {
    const char *isa;
    uint32_t n_threads;
    enum moeflux_expert_io io;
    uint32_t slots; /* 0: all experts stay */
    enum moeflux_kv_type cache;
    enum moeflux_prompt_type prompt_type;
};

static void evaluate(struct moeflux_session *s, const int32_t *ids, uint32_t n, float *logits)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){.logits = logits}, &e), &e);
}

/* [N_ROWS][vocab]. root: where memory nodes are looked for. */
static float *run_on(const char *root, const char *dir, const struct way *w, uint32_t *vocab)
{
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    int32_t ids[N_PROMPT + N_DECODE + 3];
    struct moeflux_options o = {.dir = dir,
                                .device = "cpu",
                                .cpu_isa = w->isa,
                                .n_threads = w->n_threads,
                                .expert_io = w->io,
                                .kv_type = w->cache ? w->cache : MOEFLUX_KV_TYPE_F32,
                                .prompt_type = w->prompt_type,
                                .context = 64,
                                .chunk = CHUNK};
    check_ok(moeflux_make_plan(&o, &p, &e), &e);
    o.memory_bytes = w->slots * p.slot_bytes;
    check_ok(test_hooks_open(&m, &o, &(struct test_hooks){.system_root = root}, &e), &e);
    assert_int_equal(strstr(moeflux_model_get_info(m).device, "NUMA nodes") != NULL,
                     root[0] && w->n_threads > 1 && cores_allowed() > 1);
    check_ok(moeflux_session_new(&s, m, 64, &e), &e);
    *vocab = moeflux_model_get_info(m).vocab_size;
    for (uint32_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (int32_t)((i * 7919u + i * i / 3 + 11) % *vocab);
    float *rows = malloc((size_t)N_ROWS * *vocab * sizeof *rows);
    assert_non_null(rows);
    evaluate(s, ids, N_PROMPT, rows);
    evaluate(s, ids + N_PROMPT, 3, rows + *vocab);
    for (uint32_t i = 0; i < N_DECODE; i++)
        evaluate(s, ids + N_PROMPT + 3 + i, 1, rows + (uint64_t)(2 + i) * *vocab);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return rows;
}

static float *run(const char *dir, const struct way *w, uint32_t *vocab)
{
    return run_on("", dir, w, vocab);
}

/* Runs with the fastest set. name: name of the hash, if it has_hash. least: slots of the smallest cache.
 * Returns the logits. */
static float *agree_as(const char *dir, const char *name, bool has_hash, uint32_t least,
                       enum moeflux_kv_type cache, enum moeflux_prompt_type type, uint32_t *n_vocab)
{
    const struct way others[] = {
        {NULL, 2, MOEFLUX_EXPERT_IO_AUTO, 0, cache, type},
        {NULL, 5, MOEFLUX_EXPERT_IO_PREAD, 0, cache, type},
        {NULL, 1, MOEFLUX_EXPERT_IO_PREAD, least, cache, type},
        {NULL, 2, MOEFLUX_EXPERT_IO_MMAP, 2 * least + 1, cache, type},
    };
    uint32_t vocab;
    float *want = run(dir, &(struct way){NULL, 1, MOEFLUX_EXPERT_IO_AUTO, 0, cache, type}, &vocab);
    if (has_hash)
        cpu_bits_check(name, "the fastest set", want, (uint64_t)N_ROWS * vocab);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        float *got = run(dir, &others[i], &vocab);
        char what[96];
        snprintf(what, sizeof what, "%s, %u threads, %u slots", name, others[i].n_threads, others[i].slots);
        cpu_bits_equal(what, "the fastest set", got, want, (uint64_t)N_ROWS * vocab);
        free(got);
    }
    *n_vocab = vocab;
    return want;
}

static void agree(const char *dir, const char *name, uint32_t least, enum moeflux_kv_type cache)
{
    uint32_t vocab, idx = 0;
    float *want = agree_as(dir, name, true, least, cache, MOEFLUX_PROMPT_TYPE_F32, &vocab);
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        /* The bits of its products are held by test_cpu_fixed on every processor. */
        if (isa->gemm_fixed) {
            char own[64];
            snprintf(own, sizeof own, "%s-%s", name, isa->name);
            free(agree_as(dir, own, false, least, cache, MOEFLUX_PROMPT_TYPE_AUTO, &vocab));
        }
        const struct way w = {isa->name, 2, MOEFLUX_EXPERT_IO_AUTO, 0, cache, MOEFLUX_PROMPT_TYPE_F32};
        float *got = run(dir, &w, &vocab);
        cpu_bits_equal(name, isa->name, got, want, (uint64_t)N_ROWS * vocab);
        free(got);
    }
    free(want);
}

static void qwen_odd_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/qwen-odd/mlx", "model-qwen-odd", 3, MOEFLUX_KV_TYPE_F32);
}

static void qwen_odd_with_a_f16_cache_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/qwen-odd/mlx", "model-qwen-odd-f16", 3, MOEFLUX_KV_TYPE_F16);
}

static void a_q8_0_cache_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/qwen-odd/mlx", "model-qwen-odd-q8", 3, MOEFLUX_KV_TYPE_Q8_0);
    agree("tests/models/deepseek-odd/mlx", "model-deepseek-odd-q8", 4, MOEFLUX_KV_TYPE_Q8_0);
    agree("tests/models/families/gptoss-odd", "model-gptoss-odd-q8", 3, MOEFLUX_KV_TYPE_Q8_0);
}

static void deepseek_odd_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/deepseek-odd/mlx", "model-deepseek-odd", 4, MOEFLUX_KV_TYPE_F32);
}

static void deepseek_plain_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/deepseek-plain/mlx", "model-deepseek-plain", 3, MOEFLUX_KV_TYPE_F32);
}

static void qwen3_odd_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/qwen3-odd/mlx", "model-qwen3-odd", 2, MOEFLUX_KV_TYPE_F32);
}

static void qwen3_plain_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/qwen3-plain/mlx", "model-qwen3-plain", 3, MOEFLUX_KV_TYPE_F32);
}

/* Biases and norms of queries and keys in all their forms. */
static void other_families_have_the_same_bits_however_they_run(void **state)
{
    (void)state;
    agree("tests/models/families/glm-odd", "model-glm-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/glm-plain", "model-glm-plain", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/next-odd", "model-next-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/minimax-odd", "model-minimax-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/gptoss-odd", "model-gptoss-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/glmlite-odd", "model-glmlite-odd", 4, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/kimi25-odd", "model-kimi25-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/glm5-mlx", "model-glm5-mlx", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/kimilin-odd", "model-kimilin-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/ling-flash", "model-ling-flash", 4, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/v4-odd", "model-v4-odd", 2, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/v41-odd", "model-v41-odd", 2, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/glm53f-odd", "model-glm53f-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/m3-odd", "model-m3-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/step-plain", "model-step-plain", 4, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/mimo-odd", "model-mimo-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/nemo-odd", "model-nemo-odd", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/nemo-latent", "model-nemo-latent", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/k3-plain", "model-k3-plain", 3, MOEFLUX_KV_TYPE_F32);
    agree("tests/models/families/k3-odd", "model-k3-odd", 2, MOEFLUX_KV_TYPE_F32);
}

static void tiny_has_the_same_bits_however_it_runs(void **state)
{
    (void)state;
    agree("tests/models/tiny", "model-tiny", 4, MOEFLUX_KV_TYPE_F32);
}

static void memory_nodes_change_no_bit(void **state)
{
    (void)state;
    static const char *const models[][2] = {{"tests/models/qwen-odd/mlx", "model-qwen-odd"},
                                            {"tests/models/deepseek-odd/mlx", "model-deepseek-odd"},
                                            {"tests/models/tiny", "model-tiny"}};
    char *root = fake_nodes_new(2);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (uint32_t n_threads = 2; n_threads <= 5; n_threads += 3) {
            const struct way w = {.n_threads = n_threads,
                                  .slots = n_threads == 5 ? 4 : 0,
                                  .prompt_type = MOEFLUX_PROMPT_TYPE_F32};
            uint32_t vocab;
            float *got = run_on(root, models[i][0], &w, &vocab);
            cpu_bits_check(models[i][1], "threads on two nodes", got, (uint64_t)N_ROWS * vocab);
            free(got);
        }
    }
    tmp_tree_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_odd_has_the_same_bits_however_it_runs),
        cmocka_unit_test(qwen_odd_with_a_f16_cache_has_the_same_bits_however_it_runs),
        cmocka_unit_test(a_q8_0_cache_has_the_same_bits_however_it_runs),
        cmocka_unit_test(deepseek_odd_has_the_same_bits_however_it_runs),
        cmocka_unit_test(deepseek_plain_has_the_same_bits_however_it_runs),
        cmocka_unit_test(qwen3_odd_has_the_same_bits_however_it_runs),
        cmocka_unit_test(qwen3_plain_has_the_same_bits_however_it_runs),
        cmocka_unit_test(other_families_have_the_same_bits_however_they_run),
        cmocka_unit_test(tiny_has_the_same_bits_however_it_runs),
        cmocka_unit_test(memory_nodes_change_no_bit),
    };
    const char *wanted = getenv("MOEFLUX_TESTS");
    if (wanted)
        cmocka_set_test_filter(wanted);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
