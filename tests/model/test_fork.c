/* Sequences that begin with the same tokens share their memory, and each goes on as if it were alone.
 *
 * suites: vulkan cpu asan */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine/session.h"
#include "sequence.h"

/* Rows, recurrences, windows; latents, compressed rows, indexers, n-grams. A fork is the same on every
 * device: software Vulkan devices, which take long to open a model, have the first ones. */
static const char *const models[] = {
    "tests/models/qwen3-odd/mlx",    "tests/models/qwen-odd/mlx",        "tests/models/families/gptoss-odd",
    "tests/models/deepseek-odd/mlx", "tests/models/families/v4-odd",     "tests/models/families/glm53f-odd",
    "tests/models/families/qw4-odd", "tests/models/families/gemma4-odd", "tests/models/sources/v41/hf"};
enum { N_MODELS = sizeof models / sizeof *models, N_ON_VULKAN = 3, CONTEXT = 640 };
/* A block has 256 positions: the prompt ends inside the second one. */
enum { N = 260, AT = 240, N_ROWS = 4, N_MORE = 8 };

struct pair {
    struct sequence q;          /* the sequence that is forked: has the prompt, with a checkpoint at AT */
    struct moeflux_session *to; /* empty */
    int32_t ids[N];
    /* [N_ROWS][vocab]: what go_on gives after n tokens of the prompt in a sequence that was never forked */
    float *after_n, *after_at;
    float *got;
};

static void read_prompt(struct pair *p, struct moeflux_session *s)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_eval(s, p->ids, AT, &(struct moeflux_outputs){0}, &e), &e);
    check_ok(moeflux_session_checkpoint(s, &e), &e);
    check_ok(moeflux_session_eval(s, p->ids + AT, N - AT, &(struct moeflux_outputs){0}, &e), &e);
}

/* Evaluates other tokens: five at once, then three singly. */
static void go_on(struct pair *p, struct moeflux_session *s, float *rows)
{
    struct moeflux_err e = {0};
    int32_t ids[N_MORE];
    sequence_ids(&p->q, 5, ids, N_MORE);
    struct moeflux_outputs out = {0};
    out.logits = rows;
    for (uint32_t i = 0, at = 0; i < N_ROWS; i++) {
        uint32_t n = i == 0 ? N_MORE - N_ROWS + 1 : 1;
        check_ok(moeflux_session_eval(s, ids + at, n, &out, &e), &e);
        at += n;
        out.logits += p->q.vocab;
    }
}

static float *rows_new(const struct pair *p)
{
    float *rows = malloc(N_ROWS * p->q.vocab * sizeof *rows);
    assert_non_null(rows);
    return rows;
}

static struct pair pair_open(const char *model)
{
    struct pair p = {.q = sequence_open(model, NULL, 0, 0, CONTEXT)};
    struct moeflux_err e = {0};
    p.after_n = rows_new(&p);
    p.after_at = rows_new(&p);
    p.got = rows_new(&p);
    sequence_ids(&p.q, 3, p.ids, N);
    check_ok(moeflux_session_new(&p.to, p.q.m, CONTEXT, &e), &e);
    read_prompt(&p, p.to);
    go_on(&p, p.to, p.after_n);
    check_ok(moeflux_session_restore(p.to, AT, &e), &e);
    go_on(&p, p.to, p.after_at);
    check_ok(moeflux_session_clear(p.to, &e), &e);
    read_prompt(&p, p.q.s);
    return p;
}

static void pair_close(struct pair *p)
{
    free(p->after_n);
    free(p->after_at);
    free(p->got);
    moeflux_session_free(p->to);
    sequence_close(&p->q);
}

/* Asserts that the sequence has n tokens of the prompt, and goes on as one that evaluated them. */
static void check_goes_on(struct pair *p, struct moeflux_session *s, uint32_t n)
{
    assert_int_equal(moeflux_session_position(s), n);
    assert_memory_equal(moeflux_session_history(s), p->ids, n * sizeof *p->ids);
    go_on(p, s, p->got);
    assert_memory_equal(p->got, n == N ? p->after_n : p->after_at, N_ROWS * p->q.vocab * sizeof(float));
}

static void check_forks(struct pair *p)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_fork(p->to, p->q.s, N, &e), &e);
    check_goes_on(p, p->to, N);
    /* The other place is a checkpoint; what was in the sequence is gone. */
    check_ok(moeflux_session_fork(p->to, p->q.s, AT, &e), &e);
    check_goes_on(p, p->to, AT);
}

/* What one sequence writes, others with the same beginning do not see. */
static void check_writes(struct pair *p)
{
    struct moeflux_session *third;
    struct moeflux_err e = {0};
    int32_t other[N - AT + 4];
    sequence_ids(&p->q, 9, other, N - AT + 4);
    check_ok(moeflux_session_new(&third, p->q.m, CONTEXT, &e), &e);
    check_ok(moeflux_session_fork(p->to, p->q.s, N, &e), &e);
    check_ok(moeflux_session_fork(third, p->to, N, &e), &e);
    /* Goes back into a block that all of them have, and over its end. */
    check_ok(moeflux_session_restore(p->q.s, AT, &e), &e);
    check_ok(moeflux_session_eval(p->q.s, other, N - AT + 4, &(struct moeflux_outputs){0}, &e), &e);
    check_goes_on(p, p->to, N);
    moeflux_session_free(p->to);
    p->to = third;
    check_ok(moeflux_session_restore(p->q.s, AT, &e), &e);
    check_goes_on(p, p->q.s, AT);
    check_goes_on(p, third, N);
}

/* Goes back to the checkpoint and evaluates tokens of the prompt singly; then `to` is a fork, and is cut. */
static void read_singly(struct pair *p, struct moeflux_session *to, float *rows)
{
    enum { SINGLE = 6, CUT = 2 };
    struct moeflux_err e = {0};
    check_ok(moeflux_session_restore(p->q.s, AT, &e), &e);
    for (uint32_t i = AT; i < AT + SINGLE; i++)
        sequence_eval(&p->q, p->ids + i, 1, NULL);
    if (to) {
        check_ok(moeflux_session_fork(to, p->q.s, AT + SINGLE, &e), &e);
        check_ok(moeflux_session_truncate(to, AT + SINGLE - CUT, &e), &e);
    }
    go_on(p, p->q.s, rows);
}

/* A sequence without a checkpoint evaluates its tokens again when it is cut, in a chunk, which may give other
 * bits than single tokens. The sequence that it was forked from keeps its own. */
static void check_cut(struct pair *p)
{
    read_singly(p, NULL, p->after_n);
    read_singly(p, p->to, p->got);
    assert_memory_equal(p->got, p->after_n, N_ROWS * p->q.vocab * sizeof(float));
}

static void each_goes_on_as_if_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < (device_is_vulkan() ? N_ON_VULKAN : N_MODELS); i++) {
        struct pair p = pair_open(models[i]);
        check_forks(&p);
        check_writes(&p);
        check_cut(&p);
        pair_close(&p);
    }
}

static uint64_t state_bytes(const struct sequence *q)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < q->m->n_stages; i++)
        bytes += q->m->stages[i].state_bytes;
    return bytes;
}

static void rows_are_in_memory_once(void **state)
{
    (void)state;
    struct pair p = pair_open(models[0]);
    struct moeflux_err e = {0};
    int32_t more = 1;
    uint64_t block = p.q.m->stages[0].view.sizes.kv_block;
    assert_true(block > 0);
    moeflux_session_free(p.to);
    uint64_t alone = state_bytes(&p.q);
    check_ok(moeflux_session_new(&p.to, p.q.m, CONTEXT, &e), &e);
    uint64_t before = state_bytes(&p.q);
    check_ok(moeflux_session_fork(p.to, p.q.s, N, &e), &e);
    assert_int_equal(state_bytes(&p.q), before);
    /* The second block gets a row. */
    check_ok(moeflux_session_eval(p.to, &more, 1, &(struct moeflux_outputs){0}, &e), &e);
    assert_int_equal(state_bytes(&p.q), before + block);
    moeflux_session_free(p.to);
    p.to = NULL;
    assert_int_equal(state_bytes(&p.q), alone);
    pair_close(&p);
}

static void what_cannot_be_forked_is_refused(void **state)
{
    (void)state;
    struct pair p = pair_open(models[1]), other = pair_open(models[0]);
    struct moeflux_session *small;
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&small, p.q.m, AT - 1, &e), &e);
    sequence_refused(moeflux_session_fork(p.to, p.q.s, N + 1, &e), &e, ERR_USAGE, "261");
    sequence_refused(moeflux_session_fork(p.to, p.q.s, AT + 1, &e), &e, ERR_USAGE, "checkpoint");
    sequence_refused(moeflux_session_fork(p.q.s, p.q.s, AT, &e), &e, ERR_USAGE, "itself");
    sequence_refused(moeflux_session_fork(small, p.q.s, AT, &e), &e, ERR_USAGE, "context");
    sequence_refused(moeflux_session_fork(p.to, other.q.s, N, &e), &e, ERR_USAGE, "models");
    check_ok(moeflux_session_fork(p.to, p.q.s, 0, &e), &e);
    assert_int_equal(moeflux_session_position(p.to), 0);
    check_goes_on(&p, p.q.s, N);
    moeflux_session_free(small);
    pair_close(&other);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_goes_on_as_if_alone),
        cmocka_unit_test(rows_are_in_memory_once),
        cmocka_unit_test(what_cannot_be_forked_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
