/* Choices on the device: the same tokens as the host's, and a session that knows nothing of a token that was
 * begun in vain.
 *
 * suites: nightly vulkan long asan-nightly */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "sequence.h"

enum { CONTEXT = 260, PROMPT = 5, STEPS = 12 };
static const char *const MODELS[] = {"tests/models/qwen-odd/mlx", "tests/models/deepseek-odd/mlx"};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

static struct moeflux_sampler *new_sampler(const struct sequence *q, const struct moeflux_sampler_options *o)
{
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_sampler_new(&s, o, q->vocab, NULL, &e), &e);
    return s;
}

static struct moeflux_sampler_options greedy(void)
{
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    o.temperature = 0;
    return o;
}

static int32_t step(struct sequence *q, struct moeflux_sampler *s, int32_t id, bool more)
{
    struct moeflux_err e = {0};
    int32_t next = -1;
    check_ok(moeflux_session_step(q->s, id, s, more, &next, &e), &e);
    assert_in_range(next, 0, q->vocab - 1);
    return next;
}

/* The same on the host. */
static int32_t step_apart(struct sequence *q, struct moeflux_sampler *s, int32_t id)
{
    struct moeflux_err e = {0};
    float *logits = malloc(q->vocab * sizeof *logits);
    sequence_eval(q, &id, 1, logits);
    moeflux_sampler_accept(s, id);
    int32_t next = moeflux_sampler_pick(s, logits, &e);
    check_ok(next, &e);
    free(logits);
    return next;
}

/* An empty sequence, then the prompt. */
static void restart(struct sequence *q)
{
    struct moeflux_err e = {0};
    int32_t ids[PROMPT];
    check_ok(moeflux_session_clear(q->s, &e), &e);
    sequence_ids(q, 1, ids, PROMPT);
    sequence_eval(q, ids, PROMPT, NULL);
}

/* n tokens from id 1 on, each the choice of the one before. */
static void run_apart(struct sequence *q, const struct moeflux_sampler_options *o, int32_t *ids, int n)
{
    struct moeflux_sampler *s = new_sampler(q, o);
    ids[0] = 1;
    for (int i = 0; i + 1 < n; i++)
        ids[i + 1] = step_apart(q, s, ids[i]);
    moeflux_sampler_free(s);
}

static void check_same_tokens(struct sequence *models, const struct moeflux_sampler_options *o, bool more)
{
    for (int i = 0; i < N_MODELS; i++) {
        struct sequence *q = &models[i];
        struct moeflux_sampler *s = new_sampler(q, o);
        int32_t want[STEPS], id = 1;
        restart(q);
        run_apart(q, o, want, STEPS);
        restart(q);
        for (int k = 1; k < STEPS; k++) {
            id = step(q, s, id, more);
            assert_int_equal(id, want[k]);
        }
        moeflux_sampler_free(s);
    }
}

static void greedy_tokens_are_those_of_the_host(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    check_same_tokens(*state, &o, true);
    check_same_tokens(*state, &o, false);
}

/* Steps that a busy machine makes slow are the host's; not all of them can be. */
static void a_device_that_holds_all_experts_chooses(void **state)
{
    (void)state;
    const struct moeflux_sampler_options o = greedy();
    struct moeflux_stats stats;
    struct moeflux_err e = {0};
    struct sequence q = {0};
    const struct moeflux_options options = {.dir = MODELS[0], .device = device_name(), .profile = true};
    check_ok(device_open_model(&q.m, &options, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    struct moeflux_sampler *s = new_sampler(&q, &o);
    uint64_t n = 0;
    for (int k = 0, id = 1; k < CONTEXT - 1 && n == 0; k++) {
        id = step(&q, s, id, true);
        moeflux_model_get_stats(q.m, &stats);
        for (uint32_t i = 0; i < stats.n_ops; i++)
            n += strcmp(stats.ops[i].name, "sample_largest") == 0 ? stats.ops[i].n : 0;
    }
    assert_true(n > 0);
    moeflux_sampler_free(s);
    sequence_close(&q);
}

static void a_repeat_penalty_is_the_hosts(void **state)
{
    static const uint32_t last[] = {2, 64};
    struct moeflux_sampler_options o = greedy();
    o.repeat_penalty = 1.7f;
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        o.repeat_last = last[i];
        check_same_tokens(*state, &o, true);
    }
}

static void sampled_tokens_are_those_of_the_host(void **state)
{
    static const struct moeflux_sampler_options all[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.temperature = 0.7f,
         .top_k = 20,
         .top_p = 0.8f,
         .repeat_penalty = 1.1f,
         .repeat_last = 64,
         .seed = 2},
        {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.02f, .repeat_penalty = 1, .seed = 3},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_same_tokens(*state, &all[i], true);
}

/* The logits of another token after `n` steps equal those of a sequence without steps. */
static void check_after(struct sequence *q, const int32_t *ids, int n)
{
    size_t bytes = q->vocab * sizeof(float);
    float *found = malloc(bytes), *want = malloc(bytes);
    const int32_t other = 7;
    sequence_eval(q, &other, 1, found);
    assert_int_equal(moeflux_session_position(q->s), PROMPT + n + 1);
    restart(q);
    for (int i = 0; i < n; i++)
        sequence_eval(q, &ids[i], 1, want);
    sequence_eval(q, &other, 1, want);
    assert_memory_equal(found, want, bytes);
    free(found);
    free(want);
}

static void a_token_begun_in_vain_leaves_no_trace(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    for (int i = 0; i < N_MODELS; i++)
        for (int n = 2; n < 6; n++) {
            struct sequence *q = (struct sequence *)*state + i;
            struct moeflux_sampler *s = new_sampler(q, &o);
            int32_t ids[6] = {1};
            restart(q);
            for (int k = 0; k < n; k++)
                ids[k + 1] = step(q, s, ids[k], true);
            check_after(q, ids, n);
            moeflux_sampler_free(s);
        }
}

static void a_checkpoint_amid_steps_is_exact(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    struct moeflux_err e = {0};
    struct sequence *q = *state;
    restart(q);
    struct moeflux_sampler *s = new_sampler(q, &o);
    int32_t ids[9] = {1};
    for (int k = 0; k < 4; k++)
        ids[k + 1] = step(q, s, ids[k], true);
    check_ok(moeflux_session_checkpoint(q->s, &e), &e);
    for (int k = 4; k < 8; k++)
        ids[k + 1] = step(q, s, ids[k], true);
    check_ok(moeflux_session_restore(q->s, PROMPT + 4, &e), &e);
    for (int k = 4; k < 8; k++)
        assert_int_equal(step(q, s, ids[k], true), ids[k + 1]);
    check_ok(moeflux_session_truncate(q->s, PROMPT + 4, &e), &e);
    check_after(q, ids, 4);
    moeflux_sampler_free(s);
}

static void another_token_or_sampler_than_the_one_in_flight_is_obeyed(void **state)
{
    struct moeflux_sampler_options o = moeflux_sampler_defaults(), other = o;
    other.repeat_penalty = 3;
    other.repeat_last = 8;
    struct sequence *q = *state;
    restart(q);
    struct moeflux_sampler *a = new_sampler(q, &o), *b = new_sampler(q, &other), *host_a = new_sampler(q, &o),
                           *host_b = new_sampler(q, &other);
    int32_t given[8] = {1, 0, 0, 30, 0, 5, 6, 0}, want[8], found[8];
    for (int twice = 0; twice < 2; twice++) {
        int32_t *out = twice ? found : want, id = 1;
        for (int k = 0; k < 8; k++) {
            bool is_b = k == 2 || k > 5;
            id = given[k] ? given[k] : id;
            out[k] = id = twice ? step(q, is_b ? b : a, id, true) : step_apart(q, is_b ? host_b : host_a, id);
        }
        restart(q);
    }
    assert_memory_equal(found, want, sizeof want);
    moeflux_sampler_free(a);
    moeflux_sampler_free(b);
    moeflux_sampler_free(host_a);
    moeflux_sampler_free(host_b);
}

static void two_sessions_by_turns_do_not_meet(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    struct moeflux_err e = {0};
    struct sequence *q = *state, r = *q;
    restart(q);
    int32_t want[2][STEPS];
    run_apart(q, &o, want[0], STEPS);
    restart(q);
    check_ok(moeflux_session_new(&r.s, q->m, CONTEXT, &e), &e);
    run_apart(&r, &o, want[1], STEPS);
    check_ok(moeflux_session_clear(r.s, &e), &e);
    struct moeflux_sampler *s[2] = {new_sampler(q, &o), new_sampler(q, &o)};
    for (int k = 0; k + 1 < STEPS; k++) {
        assert_int_equal(step(q, s[0], want[0][k], true), want[0][k + 1]);
        for (int twice = 0; twice < 1 + k % 2 && k + 2 < STEPS; twice++)
            if (moeflux_session_position(r.s) < STEPS - 1) {
                uint32_t at = moeflux_session_position(r.s);
                assert_int_equal(step(&r, s[1], want[1][at], true), want[1][at + 1]);
            }
    }
    moeflux_session_free(r.s); /* while a token is in flight */
    moeflux_sampler_free(s[0]);
    moeflux_sampler_free(s[1]);
}

static void a_full_context_ends_the_steps(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    struct moeflux_err e = {0};
    struct sequence *q = *state;
    int32_t ids[CONTEXT - STEPS], id = 1;
    check_ok(moeflux_session_clear(q->s, &e), &e);
    sequence_ids(q, 1, ids, CONTEXT - STEPS);
    sequence_eval(q, ids, CONTEXT - STEPS, NULL);
    struct moeflux_sampler *s = new_sampler(q, &o);
    while (moeflux_session_position(q->s) < CONTEXT)
        id = step(q, s, id, true);
    sequence_refused(moeflux_session_step(q->s, id, s, true, &id, &e), &e, MOEFLUX_ERR_USAGE,
                     "do not fit the context");
    moeflux_sampler_free(s);
}

static void a_sampler_of_other_ids_is_refused(void **state)
{
    const struct moeflux_sampler_options o = greedy();
    struct moeflux_err e = {0};
    struct sequence *q = *state, more = *q;
    restart(q);
    more.vocab++;
    struct moeflux_sampler *s = new_sampler(&more, &o);
    int32_t id;
    sequence_refused(moeflux_session_step(q->s, 1, s, true, &id, &e), &e, MOEFLUX_ERR_USAGE,
                     "ids, the model has");
    assert_int_equal(moeflux_session_position(q->s), PROMPT);
    moeflux_sampler_free(s);
}

static int open_models(void **state)
{
    struct sequence *all = *state = malloc(N_MODELS * sizeof *all);
    for (int i = 0; i < N_MODELS; i++)
        all[i] = sequence_open(MODELS[i], NULL, 0, 0, CONTEXT);
    return 0;
}

static int close_models(void **state)
{
    for (int i = 0; i < N_MODELS; i++)
        sequence_close((struct sequence *)*state + i);
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_are_those_of_the_host),
        cmocka_unit_test(a_device_that_holds_all_experts_chooses),
        cmocka_unit_test(a_repeat_penalty_is_the_hosts),
        cmocka_unit_test(sampled_tokens_are_those_of_the_host),
        cmocka_unit_test(a_token_begun_in_vain_leaves_no_trace),
        cmocka_unit_test(a_checkpoint_amid_steps_is_exact),
        cmocka_unit_test(another_token_or_sampler_than_the_one_in_flight_is_obeyed),
        cmocka_unit_test(two_sessions_by_turns_do_not_meet),
        cmocka_unit_test(a_full_context_ends_the_steps),
        cmocka_unit_test(a_sampler_of_other_ids_is_refused),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
