#include "check.h"
#include "experts/cache.h"

static struct cache *new_cache(uint32_t n_slots)
{
    struct err e = {0};
    struct cache *c = cache_new(n_slots, 3, 8, &e);
    assert_non_null(c);
    return c;
}

static uint32_t load(struct cache *c, uint32_t layer, uint32_t expert)
{
    uint32_t slot;
    struct cache_key gone;
    struct err e = {0};
    int rc = cache_pin(c, (struct cache_key){layer, expert}, &slot, &gone, &e);
    check_ok(rc, &e);
    if (rc == CACHE_MISS)
        cache_publish(c, slot);
    cache_unpin(c, slot);
    return slot;
}

static int state_of(struct cache *c, uint32_t layer, uint32_t expert)
{
    uint32_t slot;
    struct cache_key gone;
    struct err e = {0};
    int rc = cache_pin(c, (struct cache_key){layer, expert}, &slot, &gone, &e);
    if (rc == CACHE_MISS)
        cache_abandon(c, slot);
    else if (rc == CACHE_HIT)
        cache_unpin(c, slot);
    return rc;
}

static void what_was_loaded_is_found(void **state)
{
    (void)state;
    struct cache *c = new_cache(4);
    uint32_t slot = load(c, 1, 5);
    assert_int_equal(state_of(c, 1, 5), CACHE_HIT);
    assert_int_equal(load(c, 1, 5), slot);
    assert_int_equal(state_of(c, 2, 5), CACHE_MISS);
    cache_free(c);
}

static void the_expert_used_longest_ago_leaves(void **state)
{
    (void)state;
    struct cache *c = new_cache(2);
    uint32_t slot;
    struct cache_key gone;
    struct err e = {0};
    load(c, 0, 1);
    load(c, 0, 2);
    load(c, 0, 1);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 3}, &slot, &gone, &e), CACHE_MISS);
    assert_int_equal(gone.layer, 0);
    assert_int_equal(gone.expert, 2);
    cache_publish(c, slot);
    cache_unpin(c, slot);
    assert_int_equal(state_of(c, 0, 1), CACHE_HIT);
    assert_int_equal(state_of(c, 0, 2), CACHE_MISS);
    cache_free(c);
}

static void pin_of_a_full_cache_fails_and_changes_nothing(void **state)
{
    (void)state;
    struct cache *c = new_cache(2);
    uint32_t a, b, x;
    struct cache_key gone;
    struct err e = {0};
    assert_int_equal(cache_pin(c, (struct cache_key){0, 1}, &a, &gone, &e), CACHE_MISS);
    cache_publish(c, a);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 2}, &b, &gone, &e), CACHE_MISS);
    cache_publish(c, b);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 3}, &x, &gone, &e), ERR_NO_FIT);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 1}, &x, &gone, &e), CACHE_HIT);
    assert_int_equal(x, a);
    cache_unpin(c, a);
    cache_unpin(c, a);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 3}, &x, &gone, &e), CACHE_MISS);
    assert_int_equal(x, a);
    cache_free(c);
}

static void an_abandoned_slot_is_empty_and_taken_next(void **state)
{
    (void)state;
    struct cache *c = new_cache(2);
    uint32_t slot, next;
    struct cache_key gone;
    struct err e = {0};
    load(c, 0, 1);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 2}, &slot, &gone, &e), CACHE_MISS);
    cache_abandon(c, slot);
    assert_int_equal(cache_pin(c, (struct cache_key){0, 2}, &next, &gone, &e), CACHE_MISS);
    assert_int_equal(next, slot);
    assert_int_equal(gone.layer, UINT32_MAX);
    cache_publish(c, next);
    cache_unpin(c, next);
    assert_int_equal(state_of(c, 0, 1), CACHE_HIT);
    cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_loaded_is_found),
        cmocka_unit_test(the_expert_used_longest_ago_leaves),
        cmocka_unit_test(pin_of_a_full_cache_fails_and_changes_nothing),
        cmocka_unit_test(an_abandoned_slot_is_empty_and_taken_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
