/* Which experts a layer is likely to choose, for one sequence and for several together.
 *
 * suites: check fast asan */
#include "experts/predictor.h"

#include "args.h"
#include "check.h"

enum { LAYERS = 2, TOP_K = 3, MOST = 4 };

static struct predictor predictor_of(enum predictor_kind kind)
{
    struct predictor p;
    struct moeflux_err e = {0};
    check_ok(predictor_open(&p, kind, LAYERS, TOP_K, MOST, &e), &e);
    return p;
}

static void names_are(const struct predictor *p, const uint32_t *expected, uint32_t n)
{
    assert_int_equal(p->n_named, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(p->named[i], expected[i]);
}

static void a_single_sequence_has_its_router_s_order_then_what_was_chosen_before(void **state)
{
    (void)state;
    static const uint32_t before[TOP_K] = {4, 9, 2}, early[TOP_K] = {7, 2, 5};
    struct predictor p = predictor_of(PREDICT_BOTH);
    predictor_observe(&p, 1, before, 1);
    predictor_predict(&p, 1, early, 1);
    names_are(&p, (const uint32_t[]){7, 2, 5, 4, 9}, 5);
    predictor_predict(&p, 0, early, 1);
    names_are(&p, early, TOP_K);
    predictor_predict(&p, 1, NULL, 1);
    names_are(&p, before, TOP_K);
    predictor_close(&p);
}

static void what_several_sequences_want_comes_first_and_once(void **state)
{
    (void)state;
    static const uint32_t early[3 * TOP_K] = {1, 8, 3, 6, 3, 8, 5, 3, 2};
    struct predictor p = predictor_of(PREDICT_ROUTER);
    predictor_predict(&p, 0, early, 3);
    /* 3 is wanted by three and 8 by two; 1, 6 and 5 are the first of one, 2 is the last of one. */
    names_are(&p, (const uint32_t[]){3, 8, 1, 6, 5, 2}, 6);
    predictor_close(&p);
}

static void each_sequence_has_choices_of_its_own_before(void **state)
{
    (void)state;
    static const uint32_t before[2 * TOP_K] = {1, 2, 3, 4, 1, 5};
    struct predictor p = predictor_of(PREDICT_PREVIOUS);
    predictor_observe(&p, 0, before, 2);
    predictor_predict(&p, 0, NULL, 2);
    names_are(&p, (const uint32_t[]){1, 4, 2, 3, 5}, 5);
    /* Nothing was seen of the third. */
    predictor_predict(&p, 0, NULL, 3);
    names_are(&p, (const uint32_t[]){1, 4, 2, 3, 5}, 5);
    predictor_forget(&p, 0);
    predictor_predict(&p, 0, NULL, 2);
    names_are(&p, before + TOP_K, TOP_K);
    predictor_close(&p);
}

static void sequences_are_remembered_while_others_are_evaluated(void **state)
{
    (void)state;
    static const uint32_t one[TOP_K] = {1, 2, 3}, others[2 * TOP_K] = {7, 8, 9, 6, 5, 4};
    struct predictor p = predictor_of(PREDICT_PREVIOUS);
    predictor_select(&p, (const uint32_t[]){5}, 1);
    predictor_observe(&p, 1, one, 1);
    predictor_select(&p, (const uint32_t[]){2, PREDICTOR_PLACES - 1}, 2);
    predictor_predict(&p, 1, NULL, 2);
    assert_int_equal(p.n_named, 0);
    predictor_observe(&p, 1, others, 2);
    predictor_select(&p, (const uint32_t[]){5}, 1);
    predictor_predict(&p, 1, NULL, 1);
    names_are(&p, one, TOP_K);
    /* The other group. */
    predictor_select(&p, (const uint32_t[]){PREDICTOR_PLACES - 1, 5}, 2);
    predictor_predict(&p, 1, NULL, 2);
    names_are(&p, (const uint32_t[]){6, 1, 5, 2, 4, 3}, 6);
    predictor_close(&p);
}

static void different_experts_are_counted_and_choices_may_end_early(void **state)
{
    (void)state;
    static const uint32_t early[2 * TOP_K] = {1, 2, NO_EXPERT, 2, 3, 4},
                                    choice[2 * TOP_K] = {2, 1, 7, 2, NO_EXPERT, NO_EXPERT};
    struct predictor p = predictor_of(PREDICT_ROUTER);
    predictor_predict(&p, 0, early, 2);
    names_are(&p, (const uint32_t[]){2, 1, 3, 4}, 4);
    predictor_observe(&p, 1, choice, 2); /* another layer's: the prediction was in vain */
    assert_int_equal(p.n_predicted, 0);
    predictor_predict(&p, 0, early, 2);
    predictor_observe(&p, 0, choice, 2);
    assert_int_equal(p.n_predicted, 4);
    assert_int_equal(p.n_predictable, 3);
    assert_int_equal(p.n_right, 2);
    predictor_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_sequence_has_its_router_s_order_then_what_was_chosen_before),
        cmocka_unit_test(what_several_sequences_want_comes_first_and_once),
        cmocka_unit_test(each_sequence_has_choices_of_its_own_before),
        cmocka_unit_test(sequences_are_remembered_while_others_are_evaluated),
        cmocka_unit_test(different_experts_are_counted_and_choices_may_end_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
