/* Memory of slots that comes chunk by chunk from a thread of its own.
 *
 * suites: check fast asan */
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "exec/exec.h"
#include "experts/cache.h"
#include "experts/growing.h"
#include "experts/slots.h"

enum { N_SLOTS = 20, PER_CHUNK = 3, EXPERT_BYTES = 5000, PAGE = 4096 };

struct fixture {
    struct exec *x;
    struct slots slots;
    struct growing *growing;
};

static void open_fixture(struct fixture *f, uint32_t n_first, uint64_t expert_bytes)
{
    struct moeflux_err e = {0};
    check_ok(exec_open(&f->x, &(struct exec_options){.device = "cpu", .n_threads = 1}, &e), &e);
    check_ok(slots_open_growing(&f->slots, f->x, N_SLOTS, n_first, expert_bytes,
                                PER_CHUNK * slots_stride(expert_bytes), &e),
             &e);
    f->growing = growing_new(&f->slots, &e);
    assert_non_null(f->growing);
}

static void close_fixture(struct fixture *f)
{
    growing_free(f->growing);
    slots_close(&f->slots);
    exec_close(f->x);
}

static uint64_t held_bytes(const struct fixture *f)
{
    struct exec_stats s;
    exec_get_stats(f->x, &s);
    return s.held_bytes;
}

static void nothing_grows_that_was_not_asked_for(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2, EXPERT_BYTES);
    assert_int_equal(slots_usable(&f.slots), PER_CHUNK);
    assert_int_equal(growing_take(f.growing), 0);
    assert_int_equal(growing_await(f.growing), 0);
    assert_true(growing_has_more(f.growing));
    assert_int_equal(held_bytes(&f), PER_CHUNK * slots_stride(EXPERT_BYTES));
    close_fixture(&f);
}

static void slots_grow_to_their_number_and_no_further(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 1, EXPERT_BYTES);
    uint32_t n = slots_usable(&f.slots);
    while (growing_has_more(f.growing)) {
        growing_request(f.growing, 2);
        n += growing_await(f.growing);
        assert_int_equal(slots_usable(&f.slots), n);
    }
    assert_int_equal(n, N_SLOTS);
    assert_int_equal(held_bytes(&f), N_SLOTS * slots_stride(EXPERT_BYTES));
    growing_request(f.growing, 2);
    assert_int_equal(growing_await(f.growing), 0);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        memset(slots_host(&f.slots, i), (int)i, EXPERT_BYTES);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        assert_int_equal(slots_host(&f.slots, i)[EXPERT_BYTES - 1], i);
    close_fixture(&f);
}

static void chunks_that_nobody_took_are_given_back(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 1, EXPERT_BYTES);
    growing_request(f.growing, 3);
    close_fixture(&f);
}

/* More than the system has. */
static void where_memory_is_refused_growing_ends(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 0, (UINT64_C(1) << 63) - 2 * PAGE);
    growing_request(f.growing, 1);
    assert_int_equal(growing_await(f.growing), 0);
    assert_false(growing_has_more(f.growing));
    assert_int_equal(slots_usable(&f.slots), 0);
    assert_int_equal(held_bytes(&f), 0);
    close_fixture(&f);
}

static void a_cache_uses_the_slots_that_were_added(void **state)
{
    (void)state;
    struct ranking r;
    struct moeflux_err e = {0};
    struct expert_key gone;
    uint32_t slot;
    check_ok(ranking_open(&r, 1, 8, 0, &e), &e);
    struct cache *c = cache_new_growing(4, 1, 1, &r, &e);
    assert_non_null(c);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 0}, &slot, &gone, &e), CACHE_MISS);
    assert_int_equal(cache_pin(c, (struct expert_key){0, 1}, &slot, &gone, &e), ERR_NO_FIT);
    cache_grow(c, 3);
    assert_int_equal(cache_n_empty(c), 3);
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(cache_pin(c, (struct expert_key){0, i}, &slot, &gone, &e), CACHE_MISS);
        assert_int_equal(slot, i);
        assert_int_equal(gone.layer, UINT32_MAX);
    }
    assert_int_equal(cache_n_full(c), 0);
    for (uint32_t i = 0; i < 4; i++)
        cache_publish(c, i);
    assert_int_equal(cache_n_full(c), 4);
    for (uint32_t i = 0; i < 4; i++)
        cache_unpin(c, i);
    assert_true(cache_evict(c, &gone, &slot));
    assert_int_equal(cache_n_full(c), 3);
    cache_free(c);
    ranking_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_grows_that_was_not_asked_for),
                                       cmocka_unit_test(slots_grow_to_their_number_and_no_further),
                                       cmocka_unit_test(chunks_that_nobody_took_are_given_back),
                                       cmocka_unit_test(where_memory_is_refused_growing_ends),
                                       cmocka_unit_test(a_cache_uses_the_slots_that_were_added)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
