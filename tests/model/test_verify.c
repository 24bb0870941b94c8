/* Chains of drafted tokens: their logits have the bits of tokens one by one, whatever was accepted, and a
 * refused token leaves no trace.
 *
 * suites: check vulkan cpu long asan */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine/run/verify.h"
#include "engine/session.h"
#include "sequence.h"

enum { PROMPT = 21, TOKENS = 40, CONTEXT = 700, MANY = 620 };

/* All kinds of stores: keys and values, latents, windows, recurrences, indexers, compressed rows, n-grams. */
static const char *const MODELS[] = {
    "tests/models/qwen-odd/mlx",      "tests/models/families/v4-odd",      "tests/models/deepseek-odd/mlx",
    "tests/models/families/m3-odd",   "tests/models/families/qw4-odd",     "tests/models/families/glm53f-odd",
    "tests/models/families/dsv32",    "tests/models/families/gptoss-odd",  "tests/models/families/ling-odd",
    "tests/models/families/glm5-odd", "tests/models/families/next-odd",    "tests/models/families/gemma4-odd",
    "tests/models/families/mimo-odd", "tests/models/families/kimilin-odd", "tests/models/families/glm-odd",
    "tests/models/qwen3-odd/mlx",     "tests/models/families/minimax-odd", "tests/models/families/kimi25-odd",
    "tests/models/families/nemo-odd", "tests/models/families/nemo-latent", "tests/models/families/v41-odd",
    "tests/models/sources/v41/hf",    "tests/models/families/k3-plain"};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS, ON_SOFTWARE = 1 };

static uint32_t n_models(void)
{
    return device_is_vulkan() && device_is_software() ? ON_SOFTWARE : N_MODELS;
}

static int32_t *make_ids(const struct sequence *q, uint32_t n)
{
    int32_t *ids = malloc((n + VERIFY_ROWS) * sizeof *ids);
    sequence_ids(q, 3, ids, n + VERIFY_ROWS); /* a chain may go past the last one */
    return ids;
}

/* The logits after each of TOKENS tokens that follow the first `at`, evaluated one by one. */
static float *one_by_one(struct sequence *q, const int32_t *ids, uint32_t at)
{
    float *rows = malloc(sizeof(float) * TOKENS * q->vocab);
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(q->s, &e), &e);
    sequence_eval(q, ids, at, NULL);
    for (uint32_t i = 0; i < TOKENS; i++)
        sequence_eval(q, ids + at + i, 1, rows + (size_t)i * q->vocab);
    return rows;
}

static void expect_row(const struct sequence *q, const float *rows, uint32_t i, const float *got,
                       const char *model)
{
    if (memcmp(rows + (size_t)i * q->vocab, got, q->vocab * sizeof(float)) != 0)
        fail_msg("%s: token %u after the prompt has other logits", model, i);
}

/* Evaluates a chain of n tokens of which the first n_right follow, and takes those. Returns how many: fewer
 * if the memory that was given has no room for the states. */
static uint32_t chain(struct sequence *q, const int32_t *ids, uint32_t n, uint32_t n_right, const float *rows,
                      uint32_t i, const char *model)
{
    int32_t draft[VERIFY_ROWS];
    const uint32_t *result;
    struct moeflux_err e = {0};
    uint32_t before = moeflux_session_position(q->s);
    for (uint32_t k = 0; k < n; k++)
        draft[k] = k < n_right ? ids[k] : (int32_t)(((uint32_t)ids[k] + 1) % q->vocab);
    int got = verify_run(q->s, draft, n, NULL, &e);
    check_ok(got, &e);
    assert_in_range(got, q->m->stages[0].most_bytes ? 0 : n, n);
    n = (uint32_t)got;
    n_right = n_right < n ? n_right : n;
    assert_int_equal(moeflux_session_position(q->s), before);
    for (uint32_t k = 0; k < n_right; k++) {
        assert_true(verify_has(q->s, ids[k]));
        expect_row(q, rows, i + k, verify_take(q->s, &result), model);
    }
    if (n_right < n)
        assert_false(verify_has(q->s, ids[n_right]));
    assert_int_equal(moeflux_session_position(q->s), before + n_right);
    return n_right;
}

/* Chains of all lengths with all numbers of right tokens, single tokens in between. */
static void check_chains(struct sequence *q, const int32_t *ids, uint32_t at, const char *model)
{
    float *rows = one_by_one(q, ids, at), *row = malloc(q->vocab * sizeof(float));
    struct moeflux_err e = {0};
    uint32_t most = verify_most(q->m);
    assert_int_equal(most, VERIFY_ROWS);
    for (uint32_t skew = 0; skew < 4; skew++) {
        check_ok(moeflux_session_clear(q->s, &e), &e);
        sequence_eval(q, ids, at, NULL);
        for (uint32_t i = 0, turn = skew; i < TOKENS; turn++) {
            uint32_t n = 1 + turn * 5 % most, n_right = 1 + turn * (3 + skew) % n;
            if (i + n_right > TOKENS)
                break;
            n_right = chain(q, ids + at + i, n, n_right, rows, i, model);
            i += n_right;
            if ((n_right > 0 && turn % 3) || i == TOKENS)
                continue;
            sequence_eval(q, ids + at + i, 1, row);
            expect_row(q, rows, i++, row, model);
        }
    }
    free(row);
    free(rows);
}

static void a_chain_has_the_bits_of_its_tokens_alone(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < n_models(); k++) {
        struct sequence q = sequence_open(MODELS[k], NULL, 32, 0, CONTEXT);
        int32_t *ids = make_ids(&q, MANY + TOKENS);
        check_chains(&q, ids, PROMPT, MODELS[k]);
        if (!device_is_vulkan() || !device_is_software())
            check_chains(&q, ids, MANY, MODELS[k]);
        free(ids);
        sequence_close(&q);
    }
}

static void chains_are_exact_where_experts_are_read(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 3 && k < n_models(); k++) {
        struct sequence q = sequence_open(MODELS[k], NULL, 32, 24, CONTEXT);
        int32_t *ids = make_ids(&q, PROMPT + TOKENS);
        check_chains(&q, ids, PROMPT, MODELS[k]);
        free(ids);
        sequence_close(&q);
    }
}

/* After a chain that was refused in part, a cut and other tokens leave the bits of a fresh sequence. */
static void a_cut_after_a_chain_is_exact(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < n_models(); k++) {
        struct sequence q = sequence_open(MODELS[k], NULL, 32, 0, CONTEXT);
        struct moeflux_err e = {0};
        int32_t *ids = make_ids(&q, PROMPT + TOKENS);
        float *rows = one_by_one(&q, ids, PROMPT), *row = malloc(q.vocab * sizeof(float));
        check_ok(moeflux_session_clear(q.s, &e), &e);
        sequence_eval(&q, ids, PROMPT, NULL);
        check_ok(moeflux_session_checkpoint(q.s, &e), &e);
        chain(&q, ids + PROMPT, 6, 3, rows, 0, MODELS[k]);
        check_ok(moeflux_session_checkpoint(q.s, &e), &e);
        chain(&q, ids + PROMPT + 3, 8, 8, rows, 3, MODELS[k]);
        check_ok(moeflux_session_truncate(q.s, PROMPT + 3, &e), &e);
        assert_false(verify_has(q.s, ids[PROMPT + 3]));
        sequence_eval(&q, ids + PROMPT + 3, 1, row);
        expect_row(&q, rows, 3, row, MODELS[k]);
        check_ok(moeflux_session_truncate(q.s, PROMPT, &e), &e);
        chain(&q, ids + PROMPT, 2, 1, rows, 0, MODELS[k]);
        free(row);
        free(rows);
        free(ids);
        sequence_close(&q);
    }
}

static void another_evaluation_ends_a_chain(void **state)
{
    (void)state;
    struct sequence q = sequence_open(MODELS[0], NULL, 32, 0, CONTEXT);
    struct moeflux_err e = {0};
    int32_t *ids = make_ids(&q, PROMPT + TOKENS);
    const uint32_t *result;
    sequence_eval(&q, ids, PROMPT, NULL);
    check_ok(verify_run(q.s, ids + PROMPT, 4, NULL, &e), &e);
    verify_take(q.s, &result);
    sequence_eval(&q, ids + PROMPT + 1, 1, NULL);
    assert_false(verify_has(q.s, ids[PROMPT + 2]));
    assert_int_equal(moeflux_session_position(q.s), PROMPT + 2);
    free(ids);
    sequence_close(&q);
}

static void a_chain_ends_with_the_context(void **state)
{
    (void)state;
    struct sequence q = sequence_open(MODELS[0], NULL, 32, 0, PROMPT + 3);
    struct moeflux_err e = {0};
    int32_t *ids = make_ids(&q, PROMPT + TOKENS);
    const uint32_t *result;
    sequence_eval(&q, ids, PROMPT, NULL);
    assert_int_equal(verify_run(q.s, ids + PROMPT, 8, NULL, &e), 3);
    for (uint32_t i = 0; i < 3; i++)
        verify_take(q.s, &result);
    sequence_refused(verify_run(q.s, ids + PROMPT + 3, 1, NULL, &e), &e, ERR_USAGE, "context");
    free(ids);
    sequence_close(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_has_the_bits_of_its_tokens_alone),
        cmocka_unit_test(chains_are_exact_where_experts_are_read),
        cmocka_unit_test(a_cut_after_a_chain_is_exact),
        cmocka_unit_test(another_evaluation_ends_a_chain),
        cmocka_unit_test(a_chain_ends_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
