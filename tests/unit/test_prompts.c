/* Prompts from the inside: however a prompt is cut - in chunks, in submissions, in alternation - the logits
 * and the states that it leaves are those of token after token. On a Vulkan device what depends on its
 * kernels and submissions, on hosts the rest too. MOEFLUX_DEVICE names another device; an argument or
 * MOEFLUX_TESTS a part of the tests, as "odd*".
 *
 * suites: gpu vulkan cpu long asan-nightly */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "check.h"
#include "device.h"
#include "engine/sequence.h"
#include "tmp_tree.h"

static const char ODD[] = "tests/models/qwen-odd/mlx", TINY[] = "tests/models/tiny",
                  HEADS[] = "tests/models/qwen3-odd/mlx";
/* The prompts reach into the KV cache's second block, of 256 tokens. */
enum { MAX_VOCAB = 2048, N_PROMPT = 320 };

/* Bound of float32 kernels, relative to the largest number compared. */
#define BOUND 1e-4

struct talk {
    struct moeflux_model *m;
    struct moeflux_session *s;
    uint32_t vocab;
    float logits[MAX_VOCAB];
};

static void start_with(struct talk *t, const char *dir, uint32_t chunk, struct moeflux_progress progress)
{
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = dir,
                                      .chunk = chunk,
                                      .context = 1024,
                                      .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                      .kv_type = MOEFLUX_KV_TYPE_F32,
                                      .progress = progress,
                                      .device = device_name()};
    check_ok(device_open_model(&t->m, &o, &e), &e);
    assert_false(moeflux_model_get_info(t->m).f16_products);
    t->vocab = moeflux_model_get_info(t->m).vocab_size;
    assert_true(t->vocab <= MAX_VOCAB);
    check_ok(moeflux_session_new(&t->s, t->m, 1024, &e), &e);
}

static void start(struct talk *t, const char *dir, uint32_t chunk)
{
    start_with(t, dir, chunk, (struct moeflux_progress){0});
}

static void end(struct talk *t)
{
    moeflux_session_free(t->s);
    moeflux_model_close(t->m);
}

static int32_t id_at(const struct talk *t, uint32_t pos)
{
    return (int32_t)((pos * 7919u + pos * pos % 31 + 13) % t->vocab);
}

/* Positions from .. to - 1 in one call. */
static void eval(struct talk *t, uint32_t from, uint32_t to)
{
    int32_t ids[1024];
    struct moeflux_err e = {0};
    assert_int_equal(moeflux_session_position(t->s), from);
    for (uint32_t i = from; i < to; i++)
        ids[i - from] = id_at(t, i);
    check_ok(moeflux_session_eval(t->s, ids, to - from, &(struct moeflux_outputs){.logits = t->logits}, &e),
             &e);
}

/* The largest difference, relative to the largest of `want`. */
static double relative_error(const float *got, const float *want, uint64_t n)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]) && isfinite(want[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    assert_true(largest > 0);
    return worst / largest;
}

/* --- chunks --- */

static void chunks_agree(const char *dir, const uint32_t *chunks, size_t n_chunks, uint32_t n)
{
    static float want[2][MAX_VOCAB];
    for (size_t i = 0; i < n_chunks; i++) {
        struct talk t;
        double error[2];
        start(&t, dir, chunks[i]);
        for (uint32_t j = 0; j < 2; j++) { /* the prompt, and one token that builds on what it left */
            eval(&t, j ? n : 0, n + j);
            if (i == 0)
                memcpy(want[j], t.logits, sizeof want[j]);
            error[j] = relative_error(t.logits, want[j], t.vocab);
        }
        printf("%s, chunks of %3u: %.1e, %.1e\n", dir, chunks[i], error[0], error[1]);
        assert_true(error[0] <= BOUND && error[1] <= BOUND);
        end(&t);
    }
}

/* A few tokens, and tiles of which the last is not full. Token after token, and into the KV cache's second
 * block: an_odd_prompt_leaves_the_states_of_its_tokens. */
static void odd_chunks_agree(void **state)
{
    (void)state;
    chunks_agree(ODD, (const uint32_t[]){65, 7}, 2, device_is_vulkan() ? 80 : N_PROMPT);
}

static void odd_chunks_of_other_sizes_agree(void **state)
{
    (void)state;
    chunks_agree(ODD, (const uint32_t[]){1, 2, 3, 7, 8, 64, 65, N_PROMPT}, 8, N_PROMPT);
}

static void tiny_chunks_agree(void **state)
{
    (void)state;
    chunks_agree(TINY, (const uint32_t[]){1, 64, N_PROMPT}, 3, N_PROMPT);
}

/* --- the state after a prompt --- */

static float *read_back(struct talk *t, const struct exec_buffer *b)
{
    struct moeflux_err e = {0};
    float *to = malloc(b->bytes);
    assert_non_null(to);
    check_ok(exec_read(t->m->stages[0].exec, b, 0, to, b->bytes, &e), &e);
    return to;
}

/* Compares the current one of two convolution windows and the delta states.
 * recurrent = [layer][window, window, state]. */
static double recurrent_error(struct talk *a, struct talk *b)
{
    const struct config *c = &a->m->dir.config;
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    uint64_t window = (uint64_t)(d->conv_kernel - 1) * config_conv_dim(d);
    uint64_t delta = (uint64_t)d->n_v_heads * d->v_head_dim * d->k_head_dim;
    float *x = read_back(a, &a->s->on[0].recurrent), *y = read_back(b, &b->s->on[0].recurrent), *from = x,
          *with = y;
    double worst = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (config_mixer(c, i)->kind == PART_ATTENTION)
            continue;
        worst =
            fmax(worst, relative_error(from + a->s->parity * window, with + b->s->parity * window, window));
        worst = fmax(worst, relative_error(from + 2 * window, with + 2 * window, delta));
        from += 2 * window + delta;
        with += 2 * window + delta;
    }
    assert_int_equal((uint64_t)(from - x) * sizeof(float), a->s->on[0].recurrent.bytes);
    free(x);
    free(y);
    return worst;
}

/* Keys and values of positions below n: block = [layer][keys, values][position][head][head_dim]. */
static double kv_error(struct talk *a, struct talk *b, uint32_t n)
{
    const struct config *c = &a->m->dir.config;
    const struct gqa_config *g = &config_first(c, PART_ATTENTION)->gqa;
    uint64_t row = (uint64_t)g->n_kv_heads * g->head_dim, half = row << KV_BLOCK_SHIFT;
    double worst = 0;
    assert_true(a->s->n_blocks == b->s->n_blocks && a->s->n_blocks == div_up(n, 1u << KV_BLOCK_SHIFT));
    for (uint32_t i = 0; i < a->s->n_blocks; i++) {
        uint64_t here = size_min(n - (i << KV_BLOCK_SHIFT), 1u << KV_BLOCK_SHIFT);
        const struct exec_buffer *of_a = &a->s->on[0].tables[ARCH_ROWS].blocks[i]->buffer;
        float *x = read_back(a, of_a), *y = read_back(b, &b->s->on[0].tables[ARCH_ROWS].blocks[i]->buffer);
        for (uint64_t at = 0; at < of_a->bytes / sizeof(float); at += half)
            worst = fmax(worst, relative_error(x + at, y + at, here * row));
        free(x);
        free(y);
    }
    return worst;
}

static void states_agree(const char *dir, uint32_t chunk)
{
    enum { N = 270 };
    struct talk a, b;
    start(&a, dir, chunk);
    start(&b, dir, chunk);
    eval(&a, 0, N);
    for (uint32_t i = 0; i < N; i++)
        eval(&b, i, i + 1);
    double recurrent = recurrent_error(&a, &b), kv = kv_error(&a, &b, N);
    double logits = relative_error(a.logits, b.logits, a.vocab);
    printf("%s, chunks of %u: windows and delta states %.1e, keys and values %.1e, logits %.1e\n", dir, chunk,
           recurrent, kv, logits);
    assert_true(recurrent <= BOUND && kv <= BOUND && logits <= BOUND);
    end(&a);
    end(&b);
}

static void an_odd_prompt_leaves_the_states_of_its_tokens(void **state)
{
    (void)state;
    states_agree(ODD, 65);
}

static void a_tiny_prompt_leaves_the_states_of_its_tokens(void **state)
{
    (void)state;
    states_agree(TINY, 512);
}

/* --- turns --- */

static void an_odd_later_turn_may_begin_anywhere(void **state)
{
    (void)state;
    static const uint32_t turns[] = {1, 3, 31, 32, 33, 64, 255, 256, 257, 318};
    enum { N = 320 };
    static float want[MAX_VOCAB];
    struct talk t;
    struct moeflux_err e = {0};
    start(&t, ODD, 32);
    eval(&t, 0, N);
    memcpy(want, t.logits, sizeof want);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        check_ok(moeflux_session_clear(t.s, &e), &e);
        eval(&t, 0, turns[i]);
        eval(&t, turns[i], N);
        assert_true(relative_error(t.logits, want, t.vocab) <= BOUND);
    }
    end(&t);
}

/* --- submissions --- */

/* The time of a submission: usual, and next to none. */
enum { WHOLE_NS = 200000000, CUT_NS = 20000 };

/* Every dispatch runs in pieces if a submission has next to no time: the results must not show it. */
static void odd_submissions_in_pieces_change_nothing(void **state)
{
    (void)state;
    static float want[MAX_VOCAB];
    struct moeflux_stats whole, cut;
    struct talk t;
    struct moeflux_err e = {0};
    start(&t, ODD, 64);
    for (uint32_t i = 0; i < 3; i++) { /* the first times kernels are tried out */
        check_ok(moeflux_session_clear(t.s, &e), &e);
        moeflux_model_reset_stats(t.m);
        eval(&t, 0, 66);
    }
    memcpy(want, t.logits, sizeof want);
    moeflux_model_get_stats(t.m, &whole);
    exec_set_pace(t.m->stages[0].exec, CUT_NS);
    check_ok(moeflux_session_clear(t.s, &e), &e);
    moeflux_model_reset_stats(t.m);
    eval(&t, 0, 66);
    moeflux_model_get_stats(t.m, &cut);
    printf("%u dispatches in %u submissions, cut: %u in %u\n", (uint32_t)whole.n_dispatches,
           (uint32_t)whole.n_submits, (uint32_t)cut.n_dispatches, (uint32_t)cut.n_submits);
    assert_true(cut.n_submits > 4 * whole.n_submits);
    /* A discrete device's dispatches stay whole. */
    if (exec_get_caps(t.m->stages[0].exec).is_unified)
        assert_true(cut.n_dispatches > 2 * whole.n_dispatches);
    assert_memory_equal(t.logits, want, t.vocab * sizeof *want);
    end(&t);
}

/* The report counts down; at 1, and then always, it says stop. 0: never. */
static bool goes_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    uint32_t *left = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    *left -= *left > 1;
    return *left != 1;
}

/* Evaluates the next token, cut as on a slow device. stop: the report that stops it; 0: none. */
static int eval_cut(struct talk *t, uint32_t *left, uint32_t stop, struct moeflux_err *e)
{
    struct exec *x = t->m->stages[0].exec;
    int32_t id = id_at(t, moeflux_session_position(t->s));
    exec_set_pace(x, CUT_NS);
    t->m->step_ns = UINT64_MAX;
    *left = stop;
    int rc = moeflux_session_eval(t->s, &id, 1, &(struct moeflux_outputs){.logits = t->logits}, e);
    *left = 0;
    t->m->step_ns = 0;
    exec_set_pace(x, WHOLE_NS);
    return rc;
}

/* Attention's last workgroup of a token knows itself by a counter in memory. The tokens see enough positions
 * for several workgroups. */
static void odd_tokens_stopped_anywhere_do_not_change_later_ones(void **state)
{
    (void)state;
    enum { FIRST = 200, TOKENS = 96, TRIED = 3 };
    static float want[TOKENS][MAX_VOCAB];
    struct talk t;
    struct moeflux_err e = {0};
    uint32_t left = 0, n = TRIED;
    int rc = ERR_INTERRUPTED;
    start_with(&t, HEADS, 64, (struct moeflux_progress){goes_on, &left});
    eval(&t, 0, FIRST);
    for (uint32_t i = 0; i < TOKENS; i++) {
        eval(&t, FIRST + i, FIRST + i + 1);
        memcpy(want[i], t.logits, sizeof want[i]);
    }
    check_ok(moeflux_session_clear(t.s, &e), &e);
    eval(&t, 0, FIRST);
    for (uint32_t i = 0; i < TRIED; i++) /* the first times kernels are tried out */
        check_ok(eval_cut(&t, &left, 0, &e), &e);
    for (; rc == ERR_INTERRUPTED && n < TOKENS; n++) {
        rc = eval_cut(&t, &left, n - TRIED + 1, &e);
        if (rc == ERR_INTERRUPTED)
            eval(&t, FIRST + n, FIRST + n + 1);
        if (memcmp(t.logits, want[n], t.vocab * sizeof(float)) != 0)
            fail_msg("a token stopped at report %u differs", n - TRIED + 1);
    }
    printf("stopped at %u reports\n", n - TRIED);
    assert_true(n - TRIED > 20);
    end(&t);
}

/* --- memory --- */

/* All buffers of a model whose sequence has grown to its longest, against the plan's sum. The rows of the KV
 * cache are reserved, not computed. */
static void memory_is_as_planned(const char *dir, uint32_t context, uint32_t chunk, uint32_t n_slots)
{
    struct moeflux_err e = {0};
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_plan p;
    struct exec_stats held;
    struct moeflux_options o = {.dir = dir,
                                .context = context,
                                .chunk = chunk,
                                .expert_io = MOEFLUX_EXPERT_IO_PREAD,
                                .device = device_name()};
    check_ok(device_make_plan(&o, &p, &e), &e);
    o.memory_bytes = n_slots * p.slot_bytes;
    check_ok(device_make_plan(&o, &p, &e), &e);
    check_ok(device_open_model(&m, &o, &e), &e);
    check_ok(moeflux_session_new(&s, m, context, &e), &e);
    check_ok(sequence_reserve(s, context, &e), &e);
    exec_get_stats(m->stages[0].exec, &held);
    /* Without the driver's own: what is held are our buffers. */
    uint64_t planned =
        p.weights_bytes + p.state_bytes + p.activation_bytes + (p.n_slots + p.n_host_slots) * p.slot_bytes;
    double off = ((double)held.held_bytes - (double)planned) / (double)planned;
    printf("%s, %u tokens, chunks of %u, %u experts: planned %.3f MB, held %.3f MB, %+.1f %%\n", dir, context,
           p.chunk, (uint32_t)p.n_slots, (double)planned / 1e6, (double)held.held_bytes / 1e6, 100 * off);
    assert_true(fabs(off) <= 0.05);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void memory_at_32768_tokens_is_as_planned(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "model");
    tmp_tree_copy(TINY, dir);
    tmp_tree_replace(dir, "config.json", "\"max_position_embeddings\": 8192",
                     "\"max_position_embeddings\": 32768");
    memory_is_as_planned(dir, 32768, 32, 0);
    memory_is_as_planned(dir, 32768, 512, 0);
    memory_is_as_planned(dir, 32768, 64, 40);
    /* A model that does not say how long its context may be. */
    tmp_tree_replace(dir, "config.json", "\"max_position_embeddings\": 32768",
                     "\"max_position_unheard_of\": 1");
    memory_is_as_planned(dir, 32768, 512, 0);
    tmp_tree_remove(tmp);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(odd_chunks_agree),
        cmocka_unit_test(an_odd_prompt_leaves_the_states_of_its_tokens),
        cmocka_unit_test(memory_at_32768_tokens_is_as_planned),
    };
    /* A host runs everything at once: it has no submissions. */
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(odd_submissions_in_pieces_change_nothing),
        cmocka_unit_test(odd_tokens_stopped_anywhere_do_not_change_later_ones),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(odd_chunks_of_other_sizes_agree),
        cmocka_unit_test(tiny_chunks_agree),
        cmocka_unit_test(a_tiny_prompt_leaves_the_states_of_its_tokens),
        cmocka_unit_test(an_odd_later_turn_may_begin_anywhere),
    };
    const char *wanted = argc > 1 ? argv[1] : getenv("MOEFLUX_TESTS");
    if (wanted)
        cmocka_set_test_filter(wanted);
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
