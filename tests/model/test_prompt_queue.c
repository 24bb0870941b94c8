/* Threads whose prompts and answers are evaluated together: results are batch-invariant.
 *
 * suites: check asan tsan */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"
#include "engine/model.h"
#include "engine/run/stage.h"
#include "engine/test_hooks.h"
#include "exec/backend.h"
#include "generate/answer.h"
#include "generate/batcher.h"
#include "generate/generator.h"
#include "sequence.h"

enum { ASKERS = 9, TURNS = 2, LENGTH = 4, CHUNK = 96, CONTEXT = 256 };

struct asker {
    struct generator g;
    struct batcher_slot slot;
    struct answer answers[TURNS];
    uint32_t idx;
    int rc;
    struct moeflux_err e;
    pthread_t thread;
};

static const struct backend *real_backend;
static uint32_t n_waits; /* the thread with the stage's turn counts */

static int count_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    n_waits++;
    return real_backend->wait(x, ticket, e);
}

static struct moeflux_model *open_model(struct backend *counting)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = "tests/models/tiny",
                                      .device = "cpu",
                                      .context = CONTEXT,
                                      .chunk = CHUNK,
                                      .n_parallel = ASKERS};
    const struct test_hooks hooks = {.batches_as_prompts = true};
    check_ok(test_hooks_open(&m, &o, &hooks, &e), &e);
    real_backend = m->stages[0].exec->backend;
    *counting = *real_backend;
    counting->wait = count_wait;
    m->stages[0].exec->backend = counting;
    return m;
}

static void begin(struct asker *a, const struct generator *g, struct batcher *b, uint32_t idx)
{
    struct moeflux_err e = {0};
    const struct moeflux_sampler_options sampling = {
        .seed = idx, .temperature = idx % 2 ? 0.8f : 0, .top_p = 1, .repeat_penalty = 1};
    *a = (struct asker){.idx = idx};
    generator_share(&a->g, g, 0);
    a->g.logits = malloc(g->info.vocab_size * sizeof(float));
    check_ok(moeflux_session_new(&a->g.sequence, g->model, CONTEXT, &e), &e);
    check_ok(generator_new_sampler(&a->g, &sampling, NULL, 0, &e), &e);
    batcher_bind(b, &a->slot, &a->g);
}

static void end(struct asker *a)
{
    for (uint32_t i = 0; i < TURNS; i++)
        answer_free(&a->answers[i]);
    moeflux_session_free(a->g.sequence);
    generator_unshare(&a->g);
}

/* Prompts of one token and one of more than a chunk among them. */
static void *ask(void *ctx)
{
    struct asker *a = ctx;
    const struct sequence q = {.vocab = a->g.info.vocab_size};
    const struct answer_options o = {.limit = LENGTH, .ignore_eos = true};
    for (uint32_t i = 0; a->rc == 0 && i < TURNS; i++) {
        int32_t ids[CONTEXT];
        uint32_t n = a->idx == 5 ? CHUNK + 9 : 1 + a->idx * 5 + i * 5;
        sequence_ids(&q, a->idx + i, ids, n);
        batcher_expect(&a->slot, true);
        a->rc = generator_eval(&a->g, ids, n, NULL, &a->e);
        if (a->rc == 0)
            a->rc = batcher_answer(&a->slot, &a->answers[i], &a->g, &o, &a->e);
        batcher_expect(&a->slot, false);
    }
    return NULL;
}

/* The stage is held until all have begun, so that prompts gather. */
static void ask_together(struct asker *list, struct moeflux_model *m)
{
    stage_take(&m->stages[0]);
    for (uint32_t i = 0; i < ASKERS; i++)
        assert_int_equal(pthread_create(&list[i].thread, NULL, ask, &list[i]), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    stage_give(&m->stages[0]);
    for (uint32_t i = 0; i < ASKERS; i++)
        pthread_join(list[i].thread, NULL);
}

/* Returns how often the device was waited for. */
static uint32_t ask_all(struct asker *list, struct moeflux_model *m, bool prompts_first, bool together)
{
    struct generator g;
    struct batcher *b;
    struct moeflux_err e = {0};
    check_ok(generator_of_models(&g, &m, 1, &e), &e);
    check_ok(generator_prepare(&g, CONTEXT, &e), &e);
    check_ok(batcher_new(&b, m, prompts_first, &e), &e);
    for (uint32_t i = 0; i < ASKERS; i++)
        begin(&list[i], &g, b, i);
    n_waits = 0;
    if (together)
        ask_together(list, m);
    else
        for (uint32_t i = 0; i < ASKERS; i++)
            ask(&list[i]);
    uint32_t n = n_waits;
    batcher_free(b);
    generator_close(&g);
    return n;
}

static void prompts_and_answers_are_those_of_each_alone(void **state)
{
    struct backend counting;
    struct asker alone[ASKERS], together[ASKERS];
    struct moeflux_model *m = open_model(&counting);
    (void)state;
    uint32_t n_alone = ask_all(alone, m, false, false);
    for (int prompts_first = 0; prompts_first < 2; prompts_first++) {
        uint32_t n = ask_all(together, m, prompts_first, true);
        print_message("%u waits together, %u alone\n", n, n_alone);
        assert_true(n < n_alone);
        for (uint32_t i = 0; i < ASKERS; i++) {
            check_ok(alone[i].rc, &alone[i].e);
            check_ok(together[i].rc, &together[i].e);
            for (uint32_t k = 0; k < TURNS; k++) {
                assert_int_equal(alone[i].answers[k].tokens.n, LENGTH);
                assert_int_equal(together[i].answers[k].tokens.n, LENGTH);
                assert_memory_equal(together[i].answers[k].tokens.ids, alone[i].answers[k].tokens.ids,
                                    LENGTH * sizeof(int32_t));
            }
            end(&together[i]);
        }
    }
    for (uint32_t i = 0; i < ASKERS; i++)
        end(&alone[i]);
    m->stages[0].exec->backend = real_backend;
    moeflux_model_close(m);
}

/* Logits after a prompt of which whole chunks were evaluated before, for another one with a common prefix. */
static void reused_chunks_change_nothing(void **state)
{
    enum { REST = 9 };
    struct backend counting;
    struct moeflux_model *m = open_model(&counting);
    struct generator g;
    struct batcher *b;
    struct asker a;
    struct moeflux_err e = {0};
    int32_t ids[2 * CHUNK + REST];
    (void)state;
    check_ok(generator_of_models(&g, &m, 1, &e), &e);
    check_ok(batcher_new(&b, m, false, &e), &e);
    begin(&a, &g, b, 0);
    const struct sequence q = {.vocab = g.info.vocab_size};
    float *whole = malloc(g.info.vocab_size * sizeof *whole);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t rest = i < 2 ? 1 : REST, n_reused = (1 + i % 2) * CHUNK, n = 2 * CHUNK + rest;
        sequence_ids(&q, 3, ids, n);
        check_ok(moeflux_session_clear(a.g.sequence, &e), &e);
        check_ok(generator_eval(&a.g, ids, n, NULL, &e), &e);
        memcpy(whole, a.g.logits, g.info.vocab_size * sizeof *whole);
        check_ok(moeflux_session_clear(a.g.sequence, &e), &e);
        check_ok(generator_feed(&a.g, ids, n_reused, &e), &e);
        check_ok(generator_eval(&a.g, ids + n_reused, n - n_reused, NULL, &e), &e);
        assert_memory_equal(a.g.logits, whole, g.info.vocab_size * sizeof *whole);
    }
    free(whole);
    end(&a);
    batcher_free(b);
    generator_close(&g);
    m->stages[0].exec->backend = real_backend;
    moeflux_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_and_answers_are_those_of_each_alone),
        cmocka_unit_test(reused_chunks_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
