/* Which checkpoints of a sequence are kept and which are dropped.
 *
 * suites: check fast asan */
#include <stdlib.h>

#include "check.h"
#include "engine/state/checkpoints.h"

static void add(struct checkpoints *c, uint32_t pos)
{
    struct moeflux_err e = {0};
    uint8_t *recurrent = malloc(1);
    assert_non_null(recurrent);
    *recurrent = (uint8_t)pos;
    check_ok(checkpoints_add(c, &(struct checkpoint){.pos = pos, .parity = pos & 1, .state = recurrent}, &e),
             &e);
}

/* The positions, and that each still has its own bytes and parity. */
static void expect(const struct checkpoints *c, size_t n, const uint32_t *pos)
{
    assert_int_equal(c->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(c->items[i].pos, pos[i]);
        assert_int_equal(*c->items[i].state, pos[i]);
        assert_int_equal(c->items[i].parity, pos[i] & 1);
    }
}

static void the_least_recently_used_one_leaves(void **state)
{
    (void)state;
    struct checkpoints c = {.cap = 3};
    for (uint32_t pos = 10; pos <= 30; pos += 10)
        add(&c, pos);
    checkpoints_touch(&c, checkpoints_find(&c, 10));
    add(&c, 40);
    expect(&c, 3, (const uint32_t[]){10, 30, 40});
    c.cap = 2;
    checkpoints_trim(&c);
    expect(&c, 2, (const uint32_t[]){10, 40});
    c.cap = 1;
    checkpoints_trim(&c);
    expect(&c, 1, (const uint32_t[]){40});
    checkpoints_free(&c);
}

static void the_last_one_stays_however_old(void **state)
{
    (void)state;
    struct checkpoints c = {.cap = 2};
    add(&c, 20);
    add(&c, 10);
    add(&c, 15);
    expect(&c, 2, (const uint32_t[]){15, 20});
    checkpoints_free(&c);
}

static void they_are_found_by_position(void **state)
{
    (void)state;
    struct checkpoints c = {.cap = 9};
    for (uint32_t pos = 10; pos <= 50; pos += 10)
        add(&c, pos);
    assert_null(checkpoints_find(&c, 19));
    assert_null(checkpoints_before(&c, 9));
    assert_int_equal(checkpoints_before(&c, 10)->pos, 10);
    assert_int_equal(checkpoints_before(&c, 29)->pos, 20);
    assert_int_equal(checkpoints_before(&c, UINT32_MAX)->pos, 50);
    checkpoints_drop(&c, checkpoints_find(&c, 20));
    checkpoints_drop_after(&c, 40);
    expect(&c, 3, (const uint32_t[]){10, 30, 40});
    checkpoints_drop_after(&c, 0);
    expect(&c, 0, NULL);
    checkpoints_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_recently_used_one_leaves),
        cmocka_unit_test(the_last_one_stays_however_old),
        cmocka_unit_test(they_are_found_by_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
