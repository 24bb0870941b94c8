/* Traces through the cache: counts that are known by hand, the best possible ones by trying everything, the
 * use of layers.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "experts/replay.h"
#include "tmp_tree.h"

static struct trace read_trace(const char *text)
{
    char *dir = tmp_tree_new();
    struct moeflux_err e = {0};
    struct trace t;
    tmp_tree_write_text(dir, "trace", text);
    check_ok(trace_read(&t, tmp_tree_path(dir, "trace"), &e), &e);
    tmp_tree_remove(dir);
    return t;
}

/* One layer, one expert a token: the digits one after the other. */
static struct trace trace_of(const char *digits)
{
    char text[4096] = "moeflux trace 1 1 10 1 1\n";
    size_t n = strlen(text);
    for (; *digits; digits++)
        n += (size_t)snprintf(text + n, sizeof text - n, "0 0 1 %c:1.0\n", *digits);
    snprintf(text + n, sizeof text - n, "end\n");
    return read_trace(text);
}

static uint64_t hits(const struct trace *t, enum replay_policy policy, uint32_t n_slots)
{
    struct replay_result r;
    struct moeflux_err e = {0};
    check_ok(replay_run(t, policy, n_slots, &r, NULL, &e), &e);
    assert_int_equal(r.n_hits + r.n_misses, t->n_uses);
    return r.n_hits;
}

static void expect_hits(const char *digits, uint32_t n_slots, uint64_t lru, uint64_t lfu, uint64_t best)
{
    struct trace t = trace_of(digits);
    assert_int_equal(hits(&t, REPLAY_LRU, n_slots), lru);
    assert_int_equal(hits(&t, REPLAY_LFU, n_slots), lfu);
    assert_int_equal(hits(&t, REPLAY_BEST, n_slots), best);
    trace_free(&t);
}

static void hits_are_those_counted_by_hand(void **state)
{
    (void)state;
    /* A ring larger than the cache: what is needed next is what LRU has just thrown away. */
    expect_hits("012012", 2, 0, 0, 2);
    /* 0 was used twice, so LFU keeps it. */
    expect_hits("0012021", 2, 2, 3, 3);
    /* 0 has three uses that never come again: LFU keeps it in vain, and 1 and 2 take turns. */
    expect_hits("000121212", 2, 2 + 4, 2, 2 + 4);
    /* The page references of the textbooks (Belady's optimum: 9 faults of 20, LRU: 12). */
    struct trace t = trace_of("70120304230321201701");
    assert_int_equal(hits(&t, REPLAY_LRU, 3), 20 - 12);
    assert_int_equal(hits(&t, REPLAY_BEST, 3), 20 - 9);
    trace_free(&t);
}

static void a_cache_for_all_misses_each_expert_once(void **state)
{
    (void)state;
    struct trace t = trace_of("70120304230321201701");
    for (int p = 0; p < REPLAY_POLICIES; p++)
        assert_int_equal(hits(&t, (enum replay_policy)p, 10), 20 - 6);
    trace_free(&t);
}

/* Numbers that look random, the same in every run. */
static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

enum { LAYERS = 2, EXPERTS = 4, TOP_K = 2 };

static struct trace random_trace(uint64_t seed, uint32_t n_tokens)
{
    char *text = malloc(64 + (size_t)n_tokens * LAYERS * 64);
    size_t n = (size_t)sprintf(text, "moeflux trace 1 %d %d %d 1\n", LAYERS, EXPERTS, TOP_K);
    for (uint32_t i = 0; i < n_tokens; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            /* Squares make some experts more likely than others. */
            uint32_t a = draw(&seed, EXPERTS) * draw(&seed, EXPERTS) / EXPERTS, b = draw(&seed, EXPERTS - 1);
            n += (size_t)sprintf(text + n, "%u %u 1 %u:0.5 %u:0.5\n", layer, i, a, b + (b >= a));
        }
    strcpy(text + n, "end\n");
    struct trace t = read_trace(text);
    free(text);
    return t;
}

/* The fewest misses of steps from `at` on when the cache holds the set `has`, by trying everything that may
 * stay. */
static uint32_t fewest(const struct trace *t, uint64_t at, uint32_t has, uint32_t n_slots, int32_t *known)
{
    if (at == t->n_steps)
        return 0;
    int32_t *memo = &known[at << (LAYERS * EXPERTS) | has];
    if (*memo >= 0)
        return (uint32_t)*memo;
    uint32_t needs = 0, best = UINT32_MAX;
    const struct trace_step *s = &t->steps[at];
    for (uint32_t i = 0; i < s->n; i++)
        needs |= 1u << (s->layer * EXPERTS + t->experts[s->first + i]);
    uint32_t misses = (uint32_t)__builtin_popcount(needs & ~has), others = has & ~needs;
    for (uint32_t stays = others;; stays = (stays - 1) & others) {
        if (__builtin_popcount(stays | needs) <= (int)n_slots) {
            uint32_t all = misses + fewest(t, at + 1, stays | needs, n_slots, known);
            best = all < best ? all : best;
        }
        if (stays == 0)
            break;
    }
    *memo = (int32_t)best;
    return best;
}

static void best_is_what_trying_everything_finds(void **state)
{
    (void)state;
    enum { N = 12 };
    size_t bytes = sizeof(int32_t) * (2 * N << (LAYERS * EXPERTS));
    int32_t *known = malloc(bytes);
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (uint32_t n_slots = TOP_K; n_slots <= 6; n_slots++) {
            struct trace t = random_trace(seed, N);
            memset(known, 255, bytes);
            uint64_t found = t.n_uses - hits(&t, REPLAY_BEST, n_slots);
            assert_int_equal(found, fewest(&t, 0, 0, n_slots, known));
            trace_free(&t);
        }
    free(known);
}

static void no_policy_has_more_hits_than_the_best(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct trace t = random_trace(seed, 200);
        for (uint32_t n_slots = TOP_K; n_slots <= LAYERS * EXPERTS; n_slots++)
            for (int p = 0; p < REPLAY_BEST; p++)
                assert_true(hits(&t, (enum replay_policy)p, n_slots) <= hits(&t, REPLAY_BEST, n_slots));
        trace_free(&t);
    }
}

static uint64_t hits_ahead(const struct trace *t, uint32_t n_tokens, uint32_t n_slots)
{
    struct replay_result r;
    struct moeflux_err e = {0};
    check_ok(replay_ahead(t, n_tokens, n_slots, &r, &e), &e);
    assert_int_equal(r.n_hits + r.n_misses, t->n_uses);
    return r.n_hits;
}

/* 0, 1, 2, 3 in turn and three slots. One evaluation ahead: what came just now has no known use and goes, but
 * not the next one. */
static void what_is_known_ahead_stays(void **state)
{
    (void)state;
    struct trace t = trace_of("0123012301230123");
    assert_int_equal(hits(&t, REPLAY_LRU, 3), 0);
    assert_int_equal(hits_ahead(&t, 3, 3), hits(&t, REPLAY_BEST, 3));
    assert_true(hits_ahead(&t, 1, 3) <= hits_ahead(&t, 3, 3));
    trace_free(&t);
}

static void more_of_the_future_is_more_hits_up_to_the_best(void **state)
{
    (void)state;
    enum { N = 200 };
    uint64_t sums[4] = {0}, best = 0, none = 0;
    static const uint32_t known[] = {1, 2, 4, N};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct trace t = random_trace(seed, N);
        none += hits(&t, REPLAY_FREQUENCY, 6);
        best += hits(&t, REPLAY_BEST, 6);
        for (int i = 0; i < 4; i++)
            sums[i] += hits_ahead(&t, known[i], 6);
        trace_free(&t);
    }
    assert_true(none < sums[0] && sums[0] < sums[1] && sums[1] < sums[2] && sums[2] <= best);
    assert_int_equal(sums[3], best);
}

/* An evaluation that needs more experts than there are slots computes in rounds. */
static void an_evaluation_larger_than_the_cache_is_replayed(void **state)
{
    (void)state;
    struct trace t = read_trace("moeflux trace 1 1 8 2 1\n"
                                "0 0 3 0:0.5 1:0.5\n0 1 3 2:0.5 3:0.5\n0 2 3 4:0.5 1:0.5\n"
                                "0 3 1 4:0.5 5:0.5\nend\n");
    for (int p = 0; p < REPLAY_POLICIES; p++)
        assert_int_equal(hits(&t, (enum replay_policy)p, 2), 1);
    struct replay_result all, layer;
    struct moeflux_err e = {0};
    check_ok(replay_run(&t, REPLAY_LRU, 8, &all, &layer, &e), &e);
    assert_int_equal(all.n_misses, 6);
    assert_int_equal(all.n_single_hits, 1);
    assert_int_equal(all.n_single_misses, 1);
    assert_memory_equal(&all, &layer, sizeof all);
    trace_free(&t);
}

static void covers_are_the_fewest_experts_of_a_share(void **state)
{
    (void)state;
    static const uint32_t counts[3 * 5] = {10, 50, 0, 30, 10, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
    struct replay_layer l[3];
    struct moeflux_err e = {0};
    check_ok(replay_cover(3, 5, counts, l, &e), &e);
    assert_int_equal(l[0].n_uses, 100);
    assert_int_equal(l[0].n_used, 4);
    assert_int_equal(l[0].cover[0], 1);
    assert_int_equal(l[0].cover[1], 2);
    assert_int_equal(l[0].cover[2], 4);
    assert_int_equal(l[1].n_uses, 0);
    assert_int_equal(l[1].cover[2], 0);
    assert_int_equal(l[2].cover[0], 3);
    assert_int_equal(l[2].cover[1], 4);
    assert_int_equal(l[2].cover[2], 5);
}

static void reuse_is_counted_in_evaluations(void **state)
{
    (void)state;
    /* 0 comes again after 1, 2, 2 and 2 evaluations, 1 after 4. */
    struct trace t = trace_of("00102010");
    struct replay_layer l;
    struct moeflux_err e = {0};
    check_ok(replay_layers(&t, &l, &e), &e);
    assert_int_equal(l.n_uses, 8);
    assert_int_equal(l.n_used, 3);
    assert_int_equal(l.reuse_median, 2);
    assert_int_equal(l.reuse_90, 2);
    trace_free(&t);
    t = trace_of("01230");
    check_ok(replay_layers(&t, &l, &e), &e);
    assert_int_equal(l.reuse_median, 4);
    assert_int_equal(l.reuse_90, 4);
    trace_free(&t);
    t = trace_of("0123");
    check_ok(replay_layers(&t, &l, &e), &e);
    assert_int_equal(l.reuse_median, 0);
    trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_those_counted_by_hand),
        cmocka_unit_test(a_cache_for_all_misses_each_expert_once),
        cmocka_unit_test(best_is_what_trying_everything_finds),
        cmocka_unit_test(no_policy_has_more_hits_than_the_best),
        cmocka_unit_test(what_is_known_ahead_stays),
        cmocka_unit_test(more_of_the_future_is_more_hits_up_to_the_best),
        cmocka_unit_test(an_evaluation_larger_than_the_cache_is_replayed),
        cmocka_unit_test(covers_are_the_fewest_experts_of_a_share),
        cmocka_unit_test(reuse_is_counted_in_evaluations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
