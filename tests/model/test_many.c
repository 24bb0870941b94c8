/* Batched decode of more sequences than exact arithmetic computes at once: the result of each sequence is
 * batch-invariant, and in exact arithmetic that of the sequence alone.
 *
 * suites: vulkan cpu asan */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine/run/batched.h"
#include "sample/sampler.h"
#include "sequence.h"

enum { MANY = 19, CONTEXT = 64, CHUNK = 32, ROUNDS = 3 };

struct crowd {
    struct moeflux_model *m;
    uint32_t vocab;
    struct moeflux_session *list[MANY];
    float *logits[MANY];
};

/* slots: experts that have memory on the device; 0: all. */
static void crowd_open(struct crowd *c, const char *model, uint32_t slots)
{
    struct moeflux_err e = {0};
    struct moeflux_plan p;
    struct moeflux_options o = {
        .dir = model, .device = device_name(), .context = CONTEXT, .chunk = CHUNK, .n_parallel = MANY};
    check_ok(device_make_plan(&o, &p, &e), &e);
    if (slots)
        *(device_is_vulkan() ? &o.gpu_memory_bytes : &o.memory_bytes) =
            (device_is_vulkan() ? p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes : 0) +
            slots * p.slot_bytes;
    check_ok(device_open_model(&c->m, &o, &e), &e);
    c->vocab = moeflux_model_get_info(c->m).vocab_size;
    assert_int_equal(moeflux_max_batched(c->m), MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        check_ok(moeflux_session_new(&c->list[i], c->m, CONTEXT, &e), &e);
        c->logits[i] = malloc(c->vocab * sizeof(float));
    }
}

static void crowd_close(struct crowd *c)
{
    for (uint32_t i = 0; i < MANY; i++) {
        free(c->logits[i]);
        moeflux_session_free(c->list[i]);
    }
    moeflux_model_close(c->m);
}

/* Every sequence gets a prompt of its own length and text. */
static void read_prompts(struct crowd *c)
{
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < MANY; i++) {
        int32_t ids[MANY + 1];
        for (uint32_t k = 0; k <= i; k++)
            ids[k] = (int32_t)((5 + 13 * i + 29 * k) % c->vocab);
        check_ok(moeflux_session_clear(c->list[i], &e), &e);
        check_ok(moeflux_session_eval(c->list[i], ids, 1 + i, &(struct moeflux_outputs){0}, &e), &e);
    }
}

static int32_t token_of(const struct crowd *c, uint32_t i, uint32_t round)
{
    return (int32_t)((7 + 31 * i + 17 * round) % c->vocab);
}

/* Evaluates a token of `n` sequences from `first` on, with the last one first. */
static void eval_some(struct crowd *c, uint32_t first, uint32_t n, uint32_t round)
{
    struct moeflux_err e = {0};
    struct moeflux_session *list[MANY];
    float *logits[MANY];
    int32_t ids[MANY];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = first + n - 1 - i;
        list[i] = c->list[from];
        logits[i] = c->logits[from];
        ids[i] = token_of(c, from, round);
    }
    check_ok(moeflux_eval_batched(list, ids, n, logits, &e), &e);
}

static void eval_alone(struct crowd *c, uint32_t i, uint32_t round)
{
    struct moeflux_err e = {0};
    int32_t id = token_of(c, i, round);
    if (moeflux_batched_is_exact(c->m))
        check_ok(
            moeflux_session_eval(c->list[i], &id, 1, &(struct moeflux_outputs){.logits = c->logits[i]}, &e),
            &e);
    else
        check_ok(moeflux_eval_batched(&c->list[i], &id, 1, &c->logits[i], &e), &e);
}

/* Returns the logits of each sequence alone, [ROUNDS][MANY][vocab]. */
static float *logits_alone(struct crowd *c)
{
    float *alone = malloc(sizeof(float) * ROUNDS * MANY * c->vocab), *to = alone;
    read_prompts(c);
    for (uint32_t r = 0; r < ROUNDS; r++)
        for (uint32_t i = 0; i < MANY; i++, to += c->vocab) {
            eval_alone(c, i, r);
            memcpy(to, c->logits[i], c->vocab * sizeof(float));
        }
    return alone;
}

/* All together, then one and the others, then in two groups. */
static void check_together(struct crowd *c, const float *alone)
{
    static const uint32_t cuts[ROUNDS] = {MANY, 1, 10};
    read_prompts(c);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        eval_some(c, 0, cuts[r], r);
        if (cuts[r] < MANY)
            eval_some(c, cuts[r], MANY - cuts[r], r);
        for (uint32_t i = 0; i < MANY; i++, alone += c->vocab)
            assert_memory_equal(c->logits[i], alone, c->vocab * sizeof(float));
    }
}

static void is_batch_invariant(const char *model, uint32_t slots)
{
    struct crowd c;
    crowd_open(&c, model, 0);
    float *alone = logits_alone(&c);
    check_together(&c, alone);
    crowd_close(&c);
    if (slots) {
        crowd_open(&c, model, slots);
        check_together(&c, alone);
        crowd_close(&c);
    }
    free(alone);
}

static void attention_and_a_recurrence(void **state)
{
    (void)state;
    is_batch_invariant("tests/models/qwen-odd/mlx", 40);
}

static void sinks_and_windows(void **state)
{
    (void)state;
    if (device_is_vulkan() && device_is_software())
        skip();
    is_batch_invariant("tests/models/families/gptoss-odd", 0);
}

static void latents(void **state)
{
    (void)state;
    if (device_is_vulkan() && device_is_software())
        skip();
    is_batch_invariant("tests/models/deepseek-odd/mlx", 40);
}

/* Options that differ from one sequence to the next: greedy, drawn, with penalties, restricted. */
static struct moeflux_sampler *make_sampler(const struct crowd *c, uint32_t i)
{
    struct moeflux_err e = {0};
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    o.temperature = i % 3 == 0 ? 0 : 0.5f + 0.1f * (float)i;
    o.top_k = i % 4 == 1 ? 20 : 0;
    o.repeat_penalty = i % 5 == 2 ? 1.3f : 1;
    o.seed = 40 + i;
    check_ok(moeflux_sampler_new(&s, &o, c->vocab, NULL, &e), &e);
    if (i % 6 == 3) {
        uint64_t *odd = malloc((c->vocab + 63) / 64 * sizeof *odd);
        memset(odd, 0xaa, (c->vocab + 63) / 64 * sizeof *odd);
        moeflux_sampler_restrict(s, odd);
        free(odd);
    }
    return s;
}

/* The same tokens as from the logits of the same evaluations. */
static void each_sequence_is_sampled_by_its_own_rule(void **state)
{
    struct crowd c;
    struct moeflux_err e = {0};
    struct moeflux_sampler *together[MANY], *apart[MANY];
    int32_t ids[MANY], next[MANY];
    (void)state;
    crowd_open(&c, "tests/models/qwen-odd/mlx", 0);
    int32_t *chosen = malloc(sizeof(int32_t) * ROUNDS * MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        together[i] = make_sampler(&c, i);
        apart[i] = make_sampler(&c, i);
        ids[i] = token_of(&c, i, 0);
    }
    read_prompts(&c);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        check_ok(moeflux_step_batched(c.list, ids, MANY, together, next, &e), &e);
        memcpy(chosen + r * MANY, next, sizeof next);
        memcpy(ids, next, sizeof next);
    }
    read_prompts(&c);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        for (uint32_t i = 0; i < MANY; i++)
            ids[i] = r == 0 ? token_of(&c, i, 0) : chosen[(r - 1) * MANY + i];
        check_ok(moeflux_eval_batched(c.list, ids, MANY, c.logits, &e), &e);
        for (uint32_t i = 0; i < MANY; i++) {
            moeflux_sampler_accept(apart[i], ids[i]);
            assert_int_equal(moeflux_sampler_pick(apart[i], c.logits[i], &e), chosen[r * MANY + i]);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        moeflux_sampler_free(together[i]);
        moeflux_sampler_free(apart[i]);
    }
    free(chosen);
    crowd_close(&c);
}

/* The device samples the even sequences, and the logits of the others are those of an evaluation without. */
static void logits_come_beside_choices(void **state)
{
    struct crowd c;
    struct moeflux_err e = {0};
    struct batched_token tokens[MANY];
    struct sampler *samplers[MANY];
    const struct moeflux_sampler_options greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    int32_t next;
    (void)state;
    crowd_open(&c, "tests/models/qwen-odd/mlx", 0);
    read_prompts(&c);
    eval_some(&c, 0, MANY, 0);
    float *want = malloc(sizeof(float) * MANY * c.vocab);
    for (uint32_t i = 0; i < MANY; i++) {
        memcpy(want + (size_t)i * c.vocab, c.logits[i], c.vocab * sizeof(float));
        memset(c.logits[i], 0, c.vocab * sizeof(float));
        samplers[i] = sampler_new(&greedy, NULL, c.vocab, NULL, &e);
        assert_non_null(samplers[i]);
        tokens[i] = (struct batched_token){.session = c.list[i],
                                           .logits = c.logits[i],
                                           .sampler = i % 2 ? NULL : samplers[i],
                                           .id = token_of(&c, i, 0)};
    }
    read_prompts(&c);
    check_ok(batched_eval(tokens, MANY, NULL, 0, NULL, NULL, &e), &e);
    for (uint32_t i = 0; i < MANY; i++) {
        const float *row = want + (size_t)i * c.vocab;
        assert_true(!tokens[i].is_chosen || i % 2 == 0);
        if (!tokens[i].is_chosen)
            assert_memory_equal(c.logits[i], row, c.vocab * sizeof(float));
        check_ok(batched_choose(&tokens[i], samplers[i], &next, &e), &e);
        for (uint32_t k = 0; k < c.vocab; k++)
            assert_true(row[k] <= row[next]);
        sampler_free(samplers[i]);
    }
    /* A device that takes longer leaves all logits to the host (QUICK_NS). */
    assert_true(tokens[0].is_chosen || !device_is_vulkan() || device_is_software());
    free(want);
    crowd_close(&c);
}

/* What one sequence does wrong is named. */
static void errors_name_the_sequence(void **state)
{
    enum { N = 3 };
    struct crowd c;
    struct moeflux_err e = {0};
    int32_t ids[N] = {1, 2, 3}, next[N], expected[N];
    struct moeflux_sampler *samplers[N];
    const struct moeflux_sampler_options usual = moeflux_sampler_defaults();
    (void)state;
    crowd_open(&c, "tests/models/qwen-odd/mlx", 0);
    uint64_t *none = calloc(c.vocab / 64 + 1, sizeof *none);
    for (uint32_t i = 0; i < N; i++)
        check_ok(moeflux_sampler_new(&samplers[i], &usual, c.vocab, NULL, &e), &e);
    /* None changes if one cannot be evaluated. */
    ids[1] = -1;
    sequence_refused(moeflux_step_batched(c.list, ids, N, samplers, next, &e), &e, ERR_USAGE, "sequence 1: ");
    sequence_refused(moeflux_eval_batched(c.list, ids, N, c.logits, &e), &e, ERR_USAGE, "sequence 1: ");
    ids[1] = 2;
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(moeflux_session_position(c.list[i]), 0);
    check_ok(moeflux_step_batched(c.list, ids, N, samplers, expected, &e), &e);
    /* All others go on if one has no choice. */
    for (uint32_t i = 0; i < N; i++) {
        check_ok(moeflux_session_clear(c.list[i], &e), &e);
        moeflux_sampler_reset(samplers[i]);
        next[i] = 0;
    }
    expected[1] = -1;
    moeflux_sampler_restrict(samplers[1], none);
    sequence_refused(moeflux_step_batched(c.list, ids, N, samplers, next, &e), &e, ERR_USAGE, "sequence 1: ");
    assert_memory_equal(next, expected, sizeof next);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(moeflux_session_position(c.list[i]), 1);
        moeflux_sampler_free(samplers[i]);
    }
    free(none);
    crowd_close(&c);
}

static void more_than_the_model_was_opened_for_is_refused(void **state)
{
    struct crowd c;
    struct moeflux_err e = {0};
    struct moeflux_session *list[MANY + 1];
    float *logits[MANY + 1];
    int32_t ids[MANY + 1] = {0};
    (void)state;
    crowd_open(&c, "tests/models/qwen-odd/mlx", 0);
    for (uint32_t i = 0; i <= MANY; i++) {
        list[i] = c.list[i % MANY];
        logits[i] = c.logits[i % MANY];
    }
    sequence_refused(moeflux_eval_batched(list, ids, MANY + 1, logits, &e), &e, MOEFLUX_ERR_USAGE,
                     "expected 1 to 19");
    struct moeflux_sampler *small, *samplers[1];
    const struct moeflux_sampler_options usual = moeflux_sampler_defaults();
    check_ok(moeflux_sampler_new(&small, &usual, c.vocab - 1, NULL, &e), &e);
    samplers[0] = small;
    sequence_refused(moeflux_step_batched(list, ids, 1, samplers, ids, &e), &e, MOEFLUX_ERR_USAGE,
                     "sampler 0");
    moeflux_sampler_free(small);
    struct moeflux_options o = {.dir = "tests/models/qwen-odd/mlx",
                                .device = device_name(),
                                .prefer_resident = 0.1f,
                                .n_parallel = MANY};
    struct moeflux_model *m;
    check_ok(device_open_model(&m, &o, &e), &e);
    assert_int_equal(moeflux_max_batched(m), 1);
    assert_true(moeflux_batched_is_exact(m)); /* one at a time, as without n_parallel */
    moeflux_model_close(m);
    o.n_parallel = MOEFLUX_MAX_PARALLEL + 1;
    sequence_refused(moeflux_model_open(&m, &o, &e), &e, MOEFLUX_ERR_USAGE, "n_parallel");
    crowd_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_and_a_recurrence),
        cmocka_unit_test(each_sequence_is_sampled_by_its_own_rule),
        cmocka_unit_test(logits_come_beside_choices),
        cmocka_unit_test(sinks_and_windows),
        cmocka_unit_test(latents),
        cmocka_unit_test(errors_name_the_sequence),
        cmocka_unit_test(more_than_the_model_was_opened_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
