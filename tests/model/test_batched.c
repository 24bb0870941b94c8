/* Batched decode: the result of each sequence is batch-invariant.
 *
 * suites: nightly asan-nightly */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "sequence.h"

enum { CONTEXT = 64, ROUNDS = 6, FEW_SLOTS = 24 };
static const char *const MODELS[] = {"tests/models/tiny", "tests/models/qwen-odd/mlx",
                                     "tests/models/qwen3-odd/mlx", "tests/models/deepseek-odd/mlx"};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

/* Sequences of one model, and the logits of each. */
struct group {
    struct sequence q; /* the first */
    uint32_t n;
    struct moeflux_session *list[8];
    float *logits[8];
};

/* The sequences in addition to those of g->q. */
static void open_others(struct group *g)
{
    struct moeflux_err e = {0};
    g->n = moeflux_max_batched(g->q.m);
    assert_int_equal(g->n, 8);
    for (uint32_t i = 0; i < g->n; i++) {
        g->list[i] = g->q.s;
        if (i > 0)
            check_ok(moeflux_session_new(&g->list[i], g->q.m, CONTEXT, &e), &e);
        g->logits[i] = malloc(g->q.vocab * sizeof(float));
    }
}

static void group_open(struct group *g, const char *model, const char *device, uint32_t n_slots)
{
    g->q = sequence_open(model, device, 32, n_slots, CONTEXT);
    open_others(g);
}

/* Opens a model whose experts are read from files and prefetched. device: "cpu", or one that is treated as if
 * it had its own memory. */
static void group_open_streaming(struct group *g, const char *model, const char *device,
                                 enum moeflux_prefetch prefetch, uint32_t n_slots)
{
    bool staged = strcmp(device, "cpu") != 0;
    struct moeflux_options o = {.dir = model,
                                .device = device,
                                .context = CONTEXT,
                                .chunk = 32,
                                .expert_io = MOEFLUX_EXPERT_IO_URING,
                                .prefetch = prefetch,
                                .prompt_type = MOEFLUX_PROMPT_TYPE_F32};
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    check_ok(device_plan_staged(&o, staged, &p, &e), &e);
    o.gpu_memory_bytes =
        p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes + n_slots * p.slot_bytes;
    o.memory_bytes = staged ? 20 * p.slot_bytes : 0;
    check_ok(device_open_staged(&g->q.m, &o, staged, &e), &e);
    check_ok(moeflux_session_new(&g->q.s, g->q.m, CONTEXT, &e), &e);
    g->q.vocab = moeflux_model_get_info(g->q.m).vocab_size;
    open_others(g);
}

static void group_close(struct group *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        free(g->logits[i]);
    for (uint32_t i = 1; i < g->n; i++)
        moeflux_session_free(g->list[i]);
    sequence_close(&g->q);
}

/* Every sequence has a prompt of its own length and text. */
static void read_prompts(struct group *g)
{
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < g->n; i++) {
        int32_t ids[CONTEXT];
        sequence_ids(&g->q, i, ids, 3 + 5 * i);
        check_ok(moeflux_session_clear(g->list[i], &e), &e);
        check_ok(moeflux_session_eval(g->list[i], ids, 3 + 5 * i, &(struct moeflux_outputs){0}, &e), &e);
    }
}

static int32_t token_of(const struct group *g, uint32_t i, uint32_t round)
{
    return (int32_t)((7 + 31 * i + 17 * round) % g->q.vocab);
}

static void eval_alone(struct group *g, uint32_t i, uint32_t round)
{
    struct moeflux_err e = {0};
    int32_t id = token_of(g, i, round);
    check_ok(moeflux_session_eval(g->list[i], &id, 1, &(struct moeflux_outputs){.logits = g->logits[i]}, &e),
             &e);
}

/* All sequences except the r-th take part in round r, so that the neighbours
 * differ; all of them in round 0. */
static void eval_batched(struct group *g, uint32_t round)
{
    struct moeflux_err e = {0};
    struct moeflux_session *list[8];
    float *logits[8];
    int32_t ids[8];
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (round > 0 && i == round % g->n) {
            eval_alone(g, i, round);
            continue;
        }
        list[n] = g->list[i];
        logits[n] = g->logits[i];
        ids[n++] = token_of(g, i, round);
    }
    check_ok(moeflux_eval_batched(list, ids, n, logits, &e), &e);
}

/* The results without batching: [ROUNDS][n][vocab]. */
static uint8_t *logits_alone(struct group *g)
{
    size_t row = g->q.vocab * sizeof(float);
    uint8_t *alone = malloc(ROUNDS * g->n * row);
    read_prompts(g);
    for (uint32_t r = 0; r < ROUNDS; r++)
        for (uint32_t i = 0; i < g->n; i++) {
            eval_alone(g, i, r);
            memcpy(alone + (r * g->n + i) * row, g->logits[i], row);
        }
    return alone;
}

static void check_batched(struct group *g, const uint8_t *alone)
{
    size_t row = g->q.vocab * sizeof(float);
    read_prompts(g);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        eval_batched(g, r);
        for (uint32_t i = 0; i < g->n; i++) {
            assert_memory_equal(g->logits[i], alone + (r * g->n + i) * row, row);
            assert_int_equal(moeflux_session_position(g->list[i]), 3 + 5 * i + r + 1);
            assert_int_equal(moeflux_session_history(g->list[i])[3 + 5 * i + r], token_of(g, i, r));
        }
    }
}

static void agrees_with_alone(const char *model, const char *device, uint32_t n_slots)
{
    struct group g;
    group_open(&g, model, device, n_slots);
    uint8_t *alone = logits_alone(&g);
    check_batched(&g, alone);
    free(alone);
    group_close(&g);
}

static void batched_sequences_get_the_bits_of_each_alone(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        agrees_with_alone(MODELS[i], "cpu", 0);
}

static void they_do_where_experts_are_streamed(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        agrees_with_alone(MODELS[i], "cpu", FEW_SLOTS);
}

/* Slots for a few tokens' experts, and for most of a layer's. */
static void they_do_whatever_is_read_ahead(void **state)
{
    (void)state;
    static const enum moeflux_prefetch kinds[] = {MOEFLUX_PREFETCH_NONE, MOEFLUX_PREFETCH_PREVIOUS,
                                                  MOEFLUX_PREFETCH_ROUTER, MOEFLUX_PREFETCH_BOTH};
    for (int model = 0; model < 2; model++) {
        struct group g;
        group_open(&g, MODELS[model], "cpu", 0);
        uint8_t *alone = logits_alone(&g);
        group_close(&g);
        for (uint32_t slots = 10; slots <= 60; slots += 25)
            for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
                group_open_streaming(&g, MODELS[model], "cpu", kinds[i], slots);
                check_batched(&g, alone);
                group_close(&g);
            }
        free(alone);
    }
}

/* The cpu sees what an early router chose at once, so every layer of every round is predicted, for all
 * sequences. */
static void experts_of_batched_sequences_are_read_ahead(void **state)
{
    (void)state;
    struct group g;
    struct moeflux_stats t;
    group_open_streaming(&g, MODELS[0], "cpu", MOEFLUX_PREFETCH_ROUTER, 100);
    read_prompts(&g);
    moeflux_model_reset_stats(g.q.m);
    eval_batched(&g, 0);
    moeflux_model_get_stats(g.q.m, &t);
    assert_int_equal(t.n_decode_tokens, g.n);
    assert_int_equal(t.n_predictable, t.n_hits + t.n_misses);
    assert_true(t.n_predicted_right > t.n_predicted / 2);
    assert_true(t.n_prefetched > 0 && t.n_prefetched_used > 0);
    group_close(&g);
}

static void they_do_on_the_reference(void **state)
{
    (void)state;
    agrees_with_alone(MODELS[1], "reference", FEW_SLOTS);
    agrees_with_alone(MODELS[N_MODELS - 1], "reference", 0);
}

/* MOEFLUX_DEVICE's, with kernels. */
static void they_do_on_a_gpu(void **state)
{
    (void)state;
    if (!device_is_vulkan())
        skip();
    for (int i = 1; i < (device_is_software() ? 2 : N_MODELS); i++)
        agrees_with_alone(MODELS[i], device_name(), 0);
}

static void they_do_on_a_gpu_where_experts_are_streamed(void **state)
{
    (void)state;
    if (!device_is_vulkan())
        skip();
    for (int i = 1; i < (device_is_software() ? 2 : N_MODELS); i++)
        agrees_with_alone(MODELS[i], device_name(), FEW_SLOTS);
}

/* Predictions are copied to the host, experts through it. */
static void they_do_on_a_gpu_with_memory_of_its_own(void **state)
{
    (void)state;
    if (!device_is_vulkan())
        skip();
    struct group g;
    struct moeflux_stats t;
    group_open_streaming(&g, MODELS[1], device_name(), MOEFLUX_PREFETCH_NONE, FEW_SLOTS);
    uint8_t *alone = logits_alone(&g);
    group_close(&g);
    group_open_streaming(&g, MODELS[1], device_name(), MOEFLUX_PREFETCH_ROUTER, FEW_SLOTS);
    check_batched(&g, alone);
    moeflux_model_reset_stats(g.q.m);
    eval_batched(&g, 0);
    moeflux_model_get_stats(g.q.m, &t);
    assert_true(t.n_predicted_right > t.n_predicted / 4);
    free(alone);
    group_close(&g);
}

/* Position, and what the next token gives. */
static void is_unchanged(struct group *g, uint32_t i, uint32_t pos)
{
    float *expected = malloc(g->q.vocab * sizeof *expected);
    assert_int_equal(moeflux_session_position(g->list[i]), pos);
    eval_alone(g, i, 0);
    memcpy(expected, g->logits[i], g->q.vocab * sizeof *expected);
    read_prompts(g);
    eval_alone(g, i, 0);
    assert_memory_equal(g->logits[i], expected, g->q.vocab * sizeof *expected);
    read_prompts(g);
    free(expected);
}

static void what_cannot_be_batched_is_refused_and_nothing_changes(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct group g;
    group_open(&g, "tests/models/qwen-odd/mlx", "cpu", 0);
    read_prompts(&g);
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct moeflux_session *twice[] = {g.list[0], g.list[1], g.list[0]};
    sequence_refused(moeflux_eval_batched(twice, ids, 3, g.logits, &e), &e, MOEFLUX_ERR_USAGE, "the same");
    sequence_refused(moeflux_eval_batched(g.list, ids, g.n + 1, g.logits, &e), &e, MOEFLUX_ERR_USAGE,
                     "sequences, expected 1 to");
    sequence_refused(moeflux_eval_batched(g.list, ids, 0, g.logits, &e), &e, MOEFLUX_ERR_USAGE,
                     "no sequences");
    ids[1] = -1;
    sequence_refused(moeflux_eval_batched(g.list, ids, 2, g.logits, &e), &e, MOEFLUX_ERR_USAGE,
                     "token 0 is -1");
    is_unchanged(&g, 0, 3);
    is_unchanged(&g, 1, 8);
    group_close(&g);
}

/* Goes on `left` times. */
static bool countdown(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    int *left = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    return (*left)-- > 0;
}

static void open_pair(struct group *g, int *left)
{
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = "tests/models/qwen-odd/mlx",
                                .device = "cpu",
                                .context = CONTEXT,
                                .chunk = 32,
                                .progress = {countdown, left}};
    *left = INT_MAX;
    check_ok(device_open_model(&g->q.m, &o, &e), &e);
    g->q.vocab = moeflux_model_get_info(g->q.m).vocab_size;
    for (g->n = 0; g->n < 2; g->n++) {
        check_ok(moeflux_session_new(&g->list[g->n], g->q.m, CONTEXT, &e), &e);
        g->logits[g->n] = malloc(g->q.vocab * sizeof(float));
    }
}

static void close_pair(struct group *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        free(g->logits[i]);
        moeflux_session_free(g->list[i]);
    }
    moeflux_model_close(g->q.m);
}

/* Both get the logits of empty sequences. */
static void are_empty(struct group *g)
{
    float *alone = malloc(g->q.vocab * sizeof *alone);
    for (uint32_t i = 0; i < g->n; i++) {
        struct moeflux_err e = {0};
        assert_int_equal(moeflux_session_position(g->list[i]), 0);
        eval_alone(g, i, 0);
        memcpy(alone, g->logits[i], g->q.vocab * sizeof *alone);
        check_ok(moeflux_session_clear(g->list[i], &e), &e);
        eval_alone(g, i, 0);
        assert_memory_equal(g->logits[i], alone, g->q.vocab * sizeof *alone);
    }
    free(alone);
}

/* Stopped at every place; the first evaluation of a model is one that may be. */
static void an_interruption_changes_no_sequence(void **state)
{
    (void)state;
    int n_stopped = 0;
    for (int rc = MOEFLUX_ERR_INTERRUPTED; rc; n_stopped += rc != 0) {
        struct moeflux_err e = {0};
        struct group g;
        int left;
        open_pair(&g, &left);
        const int32_t ids[] = {token_of(&g, 0, 0), token_of(&g, 1, 0)};
        left = n_stopped;
        rc = moeflux_eval_batched(g.list, ids, 2, g.logits, &e);
        assert_true(rc == 0 || rc == MOEFLUX_ERR_INTERRUPTED);
        left = INT_MAX;
        if (rc)
            are_empty(&g);
        close_pair(&g);
    }
    print_message("stopped at %d places\n", n_stopped);
    assert_true(n_stopped > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_sequences_get_the_bits_of_each_alone),
        cmocka_unit_test(they_do_where_experts_are_streamed),
        cmocka_unit_test(they_do_whatever_is_read_ahead),
        cmocka_unit_test(experts_of_batched_sequences_are_read_ahead),
        cmocka_unit_test(they_do_on_the_reference),
        cmocka_unit_test(they_do_on_a_gpu),
        cmocka_unit_test(they_do_on_a_gpu_where_experts_are_streamed),
        cmocka_unit_test(they_do_on_a_gpu_with_memory_of_its_own),
        cmocka_unit_test(an_interruption_changes_no_sequence),
        cmocka_unit_test(what_cannot_be_batched_is_refused_and_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
