/* Device slots for experts: which expert is found, pinned and evicted.
 *
 * suites: check fast asan */
#include <math.h>

#include "check.h"
#include "experts/cache.h"

enum { N_LAYERS = 3, N_EXPERTS = 8 };

/* A cache with the ranking that decides which expert is evicted. */
struct setup {
    struct ranking ranking;
    struct cache *cache;
};

static void open_setup(struct setup *s, uint32_t n_slots, double half_life)
{
    struct moeflux_err e = {0};
    check_ok(ranking_open(&s->ranking, N_LAYERS, N_EXPERTS, half_life, &e), &e);
    s->cache = cache_new(n_slots, N_LAYERS, &s->ranking, &e);
    assert_non_null(s->cache);
}

static void close_setup(struct setup *s)
{
    cache_free(s->cache);
    ranking_close(&s->ranking);
}

/* Chooses an expert, as a token does. */
static uint32_t load(struct setup *s, uint32_t layer, uint32_t expert)
{
    const struct expert_key key = {layer, expert};
    struct expert_key gone;
    struct moeflux_err e = {0};
    uint32_t slot;
    ranking_use(&s->ranking, key.layer, &key.expert, 1);
    int rc = cache_pin(s->cache, key, &slot, &gone, &e);
    check_ok(rc, &e);
    if (rc == CACHE_MISS)
        cache_publish(s->cache, slot);
    cache_unpin(s->cache, slot);
    return slot;
}

/* Returns which expert is evicted when `expert` of layer 0 is loaded. */
static uint32_t gone_for(struct setup *s, uint32_t expert)
{
    struct expert_key gone;
    struct moeflux_err e = {0};
    uint32_t slot;
    assert_int_equal(cache_pin(s->cache, (struct expert_key){0, expert}, &slot, &gone, &e), CACHE_MISS);
    cache_abandon(s->cache, slot);
    return gone.expert;
}

static bool has(struct setup *s, uint32_t layer, uint32_t expert)
{
    return cache_has(s->cache, (struct expert_key){layer, expert});
}

static void what_was_loaded_is_found(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 4, 0);
    uint32_t slot = load(&s, 1, 5);
    assert_true(has(&s, 1, 5));
    assert_int_equal(load(&s, 1, 5), slot);
    assert_false(has(&s, 2, 5));
    close_setup(&s);
}

static void without_a_half_life_the_expert_used_longest_ago_leaves(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 2, 0);
    load(&s, 0, 1);
    load(&s, 0, 1);
    load(&s, 0, 2);
    load(&s, 0, 1);
    load(&s, 0, 2);
    assert_int_equal(gone_for(&s, 3), 1);
    close_setup(&s);
}

static void with_a_half_life_an_expert_used_often_stays(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 2, 100);
    for (int i = 0; i < 5; i++)
        load(&s, 0, 1);
    load(&s, 0, 2);
    assert_int_equal(gone_for(&s, 3), 2);
    close_setup(&s);
}

static void an_expert_used_often_long_ago_leaves_at_last(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 2, 4);
    for (int i = 0; i < 5; i++)
        load(&s, 0, 1);
    for (int i = 0; i < 40; i++)
        load(&s, 0, 2);
    assert_int_equal(gone_for(&s, 3), 1);
    close_setup(&s);
}

/* Against a search through all experts, over thousands of uses. */
static void the_least_worth_always_leaves(void **state)
{
    (void)state;
    enum { SLOTS = 7 };
    for (int half_life = 0; half_life <= 20; half_life += 20) {
        struct setup s;
        open_setup(&s, SLOTS, half_life);
        uint32_t random = 1;
        for (int i = 0; i < 5000; i++) {
            random = random * 1664525u + 1013904223u;
            const struct expert_key key = {(random >> 16) % N_LAYERS, (random >> 20) % N_EXPERTS};
            double least = INFINITY;
            uint32_t n = 0;
            for (uint32_t l = 0; l < N_LAYERS; l++)
                for (uint32_t x = 0; x < N_EXPERTS; x++)
                    if (has(&s, l, x)) {
                        n++;
                        least = fmin(least, ranking_worth(&s.ranking, (struct expert_key){l, x}));
                    }
            assert_int_equal(n + cache_n_empty(s.cache), SLOTS);
            if (n == SLOTS)
                assert_true(cache_least_worth(s.cache) == least);
            load(&s, key.layer, key.expert);
        }
        close_setup(&s);
    }
}

static void pin_of_a_full_cache_fails_and_changes_nothing(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 2, 0);
    struct cache *c = s.cache;
    uint32_t a, b, x;
    struct expert_key gone;
    struct moeflux_err e = {0};
    assert_int_equal(cache_pin(c, (struct expert_key){0, 1}, &a, &gone, &e), CACHE_MISS);
    cache_publish(c, a);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 2}, &b, &gone, &e), CACHE_MISS);
    cache_publish(c, b);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 3}, &x, &gone, &e), ERR_NO_FIT);
    assert_false(cache_evict(c, &gone, &x));
    assert_int_equal(cache_pin(c, (struct expert_key){0, 1}, &x, &gone, &e), CACHE_HIT);
    assert_int_equal(x, a);
    cache_unpin(c, a);
    cache_unpin(c, a);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 3}, &x, &gone, &e), CACHE_MISS);
    assert_int_equal(x, a);
    close_setup(&s);
}

static void a_slot_being_filled_is_busy_and_empty_after_a_failure(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 2, 0);
    const struct expert_key key = {0, 2};
    uint32_t slot, same;
    struct expert_key gone;
    struct moeflux_err e = {0};
    assert_int_equal(cache_pin(s.cache, key, &slot, &gone, &e), CACHE_MISS);
    assert_int_equal(cache_pin(s.cache, key, &same, &gone, &e), CACHE_BUSY);
    assert_int_equal(same, slot);
    cache_abandon(s.cache, slot);
    assert_false(has(&s, 0, 2));
    assert_int_equal(cache_n_empty(s.cache), 1);
    cache_unpin(s.cache, slot);
    assert_int_equal(cache_n_empty(s.cache), 2);
    close_setup(&s);
}

static void a_spare_leaves_first_and_a_fresh_one_stays(void **state)
{
    (void)state;
    struct setup s;
    open_setup(&s, 3, 0);
    struct expert_key gone;
    struct moeflux_err e = {0};
    uint32_t slot;
    load(&s, 0, 1);
    load(&s, 0, 2);
    assert_int_equal(cache_pin(s.cache, (struct expert_key){0, 2}, &slot, &gone, &e), CACHE_HIT);
    cache_unpin_spare(s.cache, slot);
    assert_int_equal(cache_pin(s.cache, (struct expert_key){0, 4}, &slot, &gone, &e), CACHE_MISS);
    cache_publish(s.cache, slot);
    cache_unpin_prefetched(s.cache, slot); /* never used, and yet not the first to go */
    assert_int_equal(gone_for(&s, 3), 2);
    load(&s, 0, 5);
    assert_int_equal(gone_for(&s, 3), 1);
    close_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_loaded_is_found),
        cmocka_unit_test(without_a_half_life_the_expert_used_longest_ago_leaves),
        cmocka_unit_test(with_a_half_life_an_expert_used_often_stays),
        cmocka_unit_test(an_expert_used_often_long_ago_leaves_at_last),
        cmocka_unit_test(the_least_worth_always_leaves),
        cmocka_unit_test(pin_of_a_full_cache_fails_and_changes_nothing),
        cmocka_unit_test(a_slot_being_filled_is_busy_and_empty_after_a_failure),
        cmocka_unit_test(a_spare_leaves_first_and_a_fresh_one_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
