/* What a run learns about its experts, through context.h, ranking.h and the replay.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "experts/cache.h"
#include "experts/context.h"
#include "experts/replay.h"
#include "tmp_tree.h"

enum { EXPERTS = 6 };

static const float EQUAL[EXPERTS] = {1.0f / 6, 1.0f / 6, 1.0f / 6, 1.0f / 6, 1.0f / 6, 1.0f / 6};

static struct context *new_context(uint32_t top_k)
{
    struct moeflux_err e = {0};
    struct context *c = context_new(2, EXPERTS, top_k, &e);
    assert_non_null(c);
    return c;
}

/* 0, 1, 2 and so on in a ring, in layer 1. */
static void go_round(struct context *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        context_use(c, 1, &(uint32_t){i % EXPERTS}, 1, EQUAL);
}

static void what_comes_sooner_is_worth_more(void **state)
{
    (void)state;
    struct context *c = new_context(1);
    go_round(c, EXPERTS * 400 + 3); /* 2 was the last */
    static const uint32_t order[] = {3, 4, 5, 0, 1, 2};
    for (int i = 0; i + 1 < EXPERTS; i++)
        assert_true(context_worth(c, 1, order[i]) > context_worth(c, 1, order[i + 1]) + 0.05);
    /* Nothing is known of a layer that chose nothing. */
    assert_true(context_worth(c, 0, 3) == 0);
    context_free(c);
}

static void before_anything_is_learnt_the_shares_count(void **state)
{
    (void)state;
    static const float shares[EXPERTS] = {0.5f, 0.3f, 0.1f, 0.05f, 0.05f, 0};
    struct context *c = new_context(1);
    context_use(c, 0, &(uint32_t){3}, 1, shares);
    for (uint32_t i = 0; i + 1 < EXPERTS; i++)
        assert_true(context_worth(c, 0, i) >= context_worth(c, 0, i + 1));
    assert_true(context_worth(c, 0, EXPERTS - 1) == 0);
    context_free(c);
}

static void several_tokens_at_once_teach_nothing(void **state)
{
    (void)state;
    struct context *c = new_context(1), *other = new_context(1);
    go_round(c, EXPERTS * 400 + 3);
    go_round(other, EXPERTS * 400 + 3);
    context_use(c, 1, (const uint32_t[]){0, 4, 5}, 3, EQUAL);
    for (uint32_t i = 0; i + 1 < EXPERTS; i++)
        assert_true(context_worth(c, 1, i) == context_worth(c, 1, i + 1));
    /* Both go on with the same history after as many tokens as are remembered. */
    for (uint32_t i = 3; i < 3 + 60; i++) {
        context_use(c, 1, &(uint32_t){i % EXPERTS}, 1, EQUAL);
        context_use(other, 1, &(uint32_t){i % EXPERTS}, 1, EQUAL);
    }
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_true(context_worth(c, 1, i) - context_worth(other, 1, i) < 0.1 &&
                    context_worth(other, 1, i) - context_worth(c, 1, i) < 0.1);
    context_free(c);
    context_free(other);
}

static void a_reranked_cache_evicts_by_the_new_worths(void **state)
{
    (void)state;
    enum { N = 4 };
    struct ranking r;
    struct moeflux_err e = {0};
    struct expert_key gone;
    uint32_t slot;
    check_ok(ranking_open(&r, 1, N, 1000, &e), &e);
    struct cache *c = cache_new(N, 1, &r, &e);
    assert_non_null(c);
    for (uint32_t i = 0; i < N; i++) {
        ranking_use(&r, 0, &i, 1);
        assert_int_equal(cache_pin(c, (struct expert_key){0, i}, &slot, &gone, &e), CACHE_MISS);
        cache_publish(c, slot);
        cache_unpin(c, slot);
    }
    static const double worths[N] = {7, 3, 9, 5};
    memcpy(r.worth, worths, sizeof worths);
    cache_rerank(c, 0);
    static const uint32_t order[N] = {1, 3, 0, 2};
    assert_true(cache_least_worth(c) == 3);
    for (int i = 0; i < N; i++) {
        assert_true(cache_evict(c, &gone, &slot));
        assert_int_equal(gone.expert, order[i]);
    }
    cache_free(c);
    ranking_close(&r);
}

/* Pinned slots and spare copies are left alone. */
static void a_new_worth_moves_neither_pinned_nor_spare_slots(void **state)
{
    (void)state;
    struct ranking r;
    struct moeflux_err e = {0};
    struct expert_key gone;
    uint32_t pinned, spare;
    check_ok(ranking_open(&r, 1, 3, 1000, &e), &e);
    struct cache *c = cache_new(2, 1, &r, &e);
    assert_non_null(c);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 0}, &pinned, &gone, &e), CACHE_MISS);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 1}, &spare, &gone, &e), CACHE_MISS);
    cache_publish(c, pinned);
    cache_publish(c, spare);
    cache_unpin_spare(c, spare);
    r.worth[0] = r.worth[1] = 5;
    double before = cache_least_worth(c);
    cache_rerank(c, 0);
    assert_true(cache_least_worth(c) == before && before < -1e14);
    assert_true(cache_evict(c, &gone, &spare));
    assert_int_equal(gone.expert, 1);
    assert_false(cache_evict(c, &gone, &spare));
    cache_unpin(c, pinned);
    assert_true(cache_evict(c, &gone, &pinned));
    assert_int_equal(gone.expert, 0);
    cache_free(c);
    ranking_close(&r);
}

/* A ring that is larger than the cache: all are used alike, so only what comes next tells them apart. */
static void a_ring_is_learnt(void **state)
{
    (void)state;
    enum { N = 600, LINE = 16 };
    char *dir = tmp_tree_new(), *text = malloc(64 + N * LINE);
    size_t n = (size_t)snprintf(text, 64, "moeflux trace 1 1 6 1 1\n");
    for (int i = 0; i < N; i++)
        n += (size_t)snprintf(text + n, LINE, "0 0 1 %d:1.0\n", i % EXPERTS);
    snprintf(text + n, LINE, "end\n");
    tmp_tree_write_text(dir, "trace", text);
    struct trace t;
    struct moeflux_err e = {0};
    struct replay_result r[REPLAY_POLICIES];
    check_ok(trace_read(&t, tmp_tree_path(dir, "trace"), &e), &e);
    for (int p = 0; p < REPLAY_POLICIES; p++)
        check_ok(replay_run(&t, (enum replay_policy)p, 3, &r[p], NULL, &e), &e);
    assert_int_equal(r[REPLAY_LRU].n_hits, 0);
    assert_true(r[REPLAY_CONTEXT].n_hits * 10 >= r[REPLAY_BEST].n_hits * 8);
    trace_free(&t);
    free(text);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_sooner_is_worth_more),
        cmocka_unit_test(before_anything_is_learnt_the_shares_count),
        cmocka_unit_test(several_tokens_at_once_teach_nothing),
        cmocka_unit_test(a_reranked_cache_evicts_by_the_new_worths),
        cmocka_unit_test(a_new_worth_moves_neither_pinned_nor_spare_slots),
        cmocka_unit_test(a_ring_is_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
