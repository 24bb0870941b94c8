/* Beginnings that prompts have in common: places where prompts are cut, and who computes a beginning.
 *
 * suites: check fast asan tsan */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "generate/prefix.h"
#include "generate/shared_prefixes.h"
#include "moeflux.h"
#include "small_model.h"
#include "tmp_tree.h"

enum { N = 150, N_THREADS = 6 };

static struct moeflux_model *model;
static char *dir;
static const struct moeflux_outputs none;

static int open_model(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    dir = tmp_tree_new();
    const struct moeflux_options o = {.dir = small_model_make(dir, 1),
                                      .device = "cpu",
                                      .context = N_THREADS * SMALL_CONTEXT,
                                      .n_threads = 2};
    check_ok(moeflux_model_open(&model, &o, &e), &e);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    moeflux_model_close(model);
    tmp_tree_remove(dir);
    return 0;
}

/* ---- places ---- */

static void a_prompt_is_cut_at_its_cuts_and_into_chunks(void **state)
{
    (void)state;
    struct prefix_cuts c = {0};
    prefix_cut_at(&c, PREFIX_LEAST_CUT - 1, 1000);
    prefix_cut_at(&c, 1000, 1000);
    assert_int_equal(c.n, 0);
    prefix_cut_at(&c, 300, 1000);
    prefix_cut_at(&c, 300 + PREFIX_LEAST_CUT - 1, 1000);
    prefix_cut_at(&c, 500, 1000);
    prefix_cut_at(&c, 800, 1000);
    assert_int_equal(c.n, 2);
    /* chunk, position, the last place up to it */
    static const uint32_t cases[][3] = {{128, 299, 256}, {128, 300, 300}, {128, 428, 428}, {128, 499, 428},
                                        {128, 500, 500}, {128, 755, 628}, {0, 299, 299},   {0, 755, 755}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(prefix_place(&c, cases[i][0], cases[i][1]), cases[i][2]);
}

static void two_prompts_are_cut_alike_up_to_the_first_cut_of_one_alone(void **state)
{
    (void)state;
    const struct prefix_cuts no = {0}, a = {1, {300}}, b = {2, {300, 600}}, c = {1, {200}};
    assert_int_equal(prefix_cut_alike(&no, &no, 900), 900);
    assert_int_equal(prefix_cut_alike(&a, &a, 900), 900);
    assert_int_equal(prefix_cut_alike(&a, &no, 900), 300);
    assert_int_equal(prefix_cut_alike(&a, &b, 900), 600);
    assert_int_equal(prefix_cut_alike(&b, &a, 900), 600);
    assert_int_equal(prefix_cut_alike(&b, &c, 900), 200);
    assert_int_equal(prefix_cut_alike(&b, &b, 250), 250);
}

/* ---- who computes ---- */

static void fill(int32_t *ids, int32_t kind)
{
    for (int32_t i = 0; i < N; i++)
        ids[i] = (i * 7 + kind * 3) % SMALL_VOCAB;
}

struct user {
    pthread_t thread;
    struct shared_prefixes *q;
    int32_t kind;
    bool gives_up; /* if it is the one who computes */
    bool may_not;  /* it may not hold a beginning */
    float logits[SMALL_VOCAB];
};
static atomic_uint n_computed, n_given_up;

/* Evaluates a beginning, its own or a shared one, and a token of its own after it. */
static void *use(void *ctx)
{
    struct user *u = ctx;
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    enum shared_prefix found;
    int32_t ids[N], last = u->kind;
    fill(ids, u->kind);
    check_ok(moeflux_session_new(&s, model, SMALL_CONTEXT, &e), &e);
    check_ok(shared_prefixes_take(u->q, s, ids, N, !u->may_not, &found, &e), &e);
    assert_false(u->may_not && found == SHARED_PREFIX_OURS);
    if (found == SHARED_PREFIX_OURS && u->gives_up) {
        atomic_fetch_add(&n_given_up, 1);
        shared_prefixes_give_up(u->q, ids, N);
    }
    if (found != SHARED_PREFIX_HELD) {
        check_ok(moeflux_session_eval(s, ids, N, &none, &e), &e);
        atomic_fetch_add(&n_computed, 1);
    }
    if (found == SHARED_PREFIX_OURS && !u->gives_up)
        shared_prefixes_give(u->q, s, ids, N);
    check_ok(moeflux_session_eval(s, &last, 1, &(struct moeflux_outputs){.logits = u->logits}, &e), &e);
    moeflux_session_free(s);
    return NULL;
}

static void run(struct user *users, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(users[i].thread, NULL);
}

static void one_computes_it_for_all(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct shared_prefixes *q;
    static struct user users[N_THREADS], alone;
    check_ok(shared_prefixes_new(&q, model, SMALL_CONTEXT, &e), &e);
    atomic_store(&n_computed, 0);
    for (uint32_t i = 0; i < N_THREADS; i++)
        users[i] = (struct user){.q = q, .kind = 1 + (int32_t)i % 2};
    run(users, N_THREADS);
    assert_int_equal(atomic_load(&n_computed), 2);
    shared_prefixes_free(q);
    check_ok(shared_prefixes_new(&q, model, SMALL_CONTEXT, &e), &e);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        alone = (struct user){.q = q, .kind = users[i].kind, .gives_up = true};
        run(&alone, 1);
        assert_memory_equal(alone.logits, users[i].logits, sizeof alone.logits);
    }
    shared_prefixes_free(q);
}

static void if_one_gives_up_another_one_computes_it(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct shared_prefixes *q;
    static struct user users[N_THREADS];
    check_ok(shared_prefixes_new(&q, model, SMALL_CONTEXT, &e), &e);
    atomic_store(&n_given_up, 0);
    for (uint32_t i = 0; i < N_THREADS; i++)
        users[i] = (struct user){.q = q, .kind = 1, .gives_up = true};
    run(users, N_THREADS);
    assert_int_equal(atomic_load(&n_given_up), N_THREADS);
    assert_false(shared_prefixes_shrink(q));
    shared_prefixes_free(q);
}

/* One who may not hold a beginning still takes one that is there. */
static void without_leave_to_hold_one_none_is_held(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct shared_prefixes *q;
    static struct user u;
    check_ok(shared_prefixes_new(&q, model, SMALL_CONTEXT, &e), &e);
    atomic_store(&n_computed, 0);
    for (uint32_t i = 0; i < 4; i++) {
        u = (struct user){.q = q, .kind = 1, .may_not = i != 2};
        run(&u, 1);
        assert_int_equal(atomic_load(&n_computed), i < 3 ? i + 1 : 3);
    }
    assert_true(shared_prefixes_shrink(q));
    assert_false(shared_prefixes_shrink(q));
    shared_prefixes_free(q);
}

static void the_least_recently_used_one_leaves(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct shared_prefixes *q;
    static struct user u;
    check_ok(shared_prefixes_new(&q, model, SMALL_CONTEXT, &e), &e);
    atomic_store(&n_computed, 0);
    /* Four are held; the fifth one is in the place of 2. */
    static const int32_t kinds[] = {1, 2, 3, 4, 1, 5, 1, 3, 4, 5};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        u = (struct user){.q = q, .kind = kinds[i]};
        run(&u, 1);
    }
    assert_int_equal(atomic_load(&n_computed), 5);
    u = (struct user){.q = q, .kind = 2};
    run(&u, 1);
    assert_int_equal(atomic_load(&n_computed), 6);
    for (int i = 0; i < 4; i++)
        assert_true(shared_prefixes_shrink(q));
    assert_false(shared_prefixes_shrink(q));
    shared_prefixes_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_cut_at_its_cuts_and_into_chunks),
        cmocka_unit_test(two_prompts_are_cut_alike_up_to_the_first_cut_of_one_alone),
        cmocka_unit_test(one_computes_it_for_all),
        cmocka_unit_test(if_one_gives_up_another_one_computes_it),
        cmocka_unit_test(without_leave_to_hold_one_none_is_held),
        cmocka_unit_test(the_least_recently_used_one_leaves),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
