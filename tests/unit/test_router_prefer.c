/* The choice of experts with some of them in memory, against choices worked out by hand.
 *
 * suites: check fast asan */
#include <math.h>
#include <string.h>

#include "check.h"
#include "ops/router/router.h"
#include "ops/router/prefer.h"

enum { N = 8, MAX_K = 6 };

struct example {
    const char *present; /* a digit for each expert in memory */
    float margin;
    uint32_t n_gone;
    uint32_t idx[MAX_K];
};

/* Logits of the first table: 0 is the best, then 1, ... */
static const float falling[N] = {4, 3, 2.5f, 2, 1.75f, 1.5f, 0, -1};

static void mark(const char *present, bool *is_present)
{
    for (uint32_t i = 0; i < N; i++)
        is_present[i] = strchr(present, (int)('0' + i)) != NULL;
}

/* Makes k experts as the router leaves them; weights that no choice has show whether they were written. */
static uint32_t run(const struct router_shape *s, const float *logits, const float *bias,
                    const struct example *x, uint32_t k, uint32_t *idx, float *weights)
{
    bool is_present[N];
    float room[2 * N];
    const struct router_prefer_call call = {logits, bias, NULL, is_present, x->margin, room};
    mark(x->present, is_present);
    for (uint32_t i = 0; i < k; i++)
        weights[i] = -7;
    return router_prefer(s, &call, k, idx, weights);
}

static void check(const struct router_shape *s, const float *logits, const float *bias, const uint32_t *plain,
                  const struct example *x, uint32_t k)
{
    uint32_t idx[MAX_K];
    float weights[MAX_K];
    memcpy(idx, plain, k * sizeof *idx);
    uint32_t n_gone = run(s, logits, bias, x, k, idx, weights);
    for (uint32_t i = 0; i < k; i++)
        if (idx[i] != x->idx[i] || n_gone != x->n_gone || (n_gone == 0) != (weights[i] == -7))
            fail_msg("present %s, margin %g: place %u is expert %u, expected %u; %u gave way, expected %u",
                     x->present, (double)x->margin, i, idx[i], x->idx[i], n_gone, x->n_gone);
}

static void experts_in_memory_stand_in_within_the_margin(void **state)
{
    (void)state;
    static const struct example four[] = {
        {"0123", 1, 0, {0, 1, 2, 3}},       /* all chosen ones are there */
        {"01234567", 100, 0, {0, 1, 2, 3}}, /* all experts */
        {"", 100, 0, {0, 1, 2, 3}},         /* none */
        {"45", 0, 0, {0, 1, 2, 3}},         /* no margin */
        {"4", 0.25f, 0, {0, 1, 2, 3}},      /* exactly the margin lower */
        {"4", 0.26f, 1, {0, 1, 2, 4}},      /* less far: the worst one gives way */
        {"5", 0.26f, 0, {0, 1, 2, 3}},
        {"45", 0.6f, 1, {0, 1, 2, 4}}, /* then the next best is too far from the next worst */
        {"45", 1.1f, 2, {0, 1, 4, 5}},
        {"34", 0.76f, 1, {0, 1, 3, 4}}, /* 3 is there: 2 is replaced, 4 comes after 3 */
        {"4567", 100, 2, {0, 1, 4, 5}}, /* the best two stay, whatever is there */
        {"67", 2.1f, 1, {0, 1, 2, 6}},
        {"1357", 2.6f, 1, {0, 1, 3, 5}}, /* the best absent one stays, too */
    };
    static const uint32_t plain[] = {0, 1, 2, 3};
    const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = true};
    for (size_t i = 0; i < sizeof four / sizeof *four; i++)
        check(&s, falling, NULL, plain, &four[i], 4);
}

static void of_three_and_fewer_the_best_one_stays(void **state)
{
    (void)state;
    static const uint32_t plain[] = {0, 1, 2};
    static const struct example x[] = {
        {"67", 100, 2, {0, 6, 7}}, {"67", 100, 1, {0, 6}}, {"67", 100, 0, {0}}};
    for (uint32_t k = 3; k > 0; k--) {
        const struct router_shape s = {.n_experts = N, .top_k = k};
        check(&s, falling, NULL, plain, &x[3 - k], k);
    }
}

/* The number that a share of the weights left: the entries after them are no experts and do not change. */
static void a_token_with_fewer_experts_keeps_their_number(void **state)
{
    (void)state;
    const struct router_shape s = {.n_experts = N, .top_k = 4, .share = 0.9f};
    uint32_t idx[] = {0, 1, UINT32_MAX, UINT32_MAX};
    float weights[] = {0.7f, 0.3f, 0, 0};
    bool is_present[N];
    float room[2 * N];
    mark("2345", is_present);
    const struct router_prefer_call call = {falling, NULL, NULL, is_present, 1, room};
    assert_int_equal(router_prefer(&s, &call, 2, idx, weights), 1);
    assert_true(idx[0] == 0 && idx[1] == 2 && idx[2] == UINT32_MAX && idx[3] == UINT32_MAX);
    assert_true(weights[2] == 0 && weights[3] == 0);
}

static void of_equal_scores_the_first_expert_is_taken(void **state)
{
    (void)state;
    static const float equal[N] = {1, 1, 1, 1, 1, 1, 1, 0};
    static const uint32_t plain[] = {0, 1, 2, 3};
    static const struct example x[] = {
        {"456", 0, 0, {0, 1, 2, 3}}, /* nothing is less than no margin away */
        {"456", 0.1f, 2, {0, 1, 4, 5}},
        {"65", 0.1f, 2, {0, 1, 5, 6}},
        {"26", 0.1f, 1, {0, 1, 2, 6}},
    };
    const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = true};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        check(&s, equal, NULL, plain, &x[i], 4);
}

static void weights_are_those_of_the_experts_taken(void **state)
{
    (void)state;
    const struct example x = {"5", 0.6f, 1, {0}};
    for (int norm = 0; norm < 2; norm++) {
        const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = norm};
        uint32_t idx[] = {0, 1, 2, 3};
        float weights[4];
        double sum = 0;
        assert_int_equal(run(&s, falling, NULL, &x, 4, idx, weights), 1);
        for (uint32_t i = 0; i < (norm ? 4u : (uint32_t)N); i++)
            sum += exp((double)falling[norm ? idx[i] : i]);
        assert_int_equal(idx[3], 5);
        for (uint32_t i = 0; i < 4; i++)
            assert_true(fabs((double)weights[i] - exp((double)falling[idx[i]]) / sum) < 1e-7);
    }
}

static void weights_are_multiplied_by_their_experts_factors(void **state)
{
    (void)state;
    static const float factors[N] = {0.5f, 2, 3, 1, 1, 7, 1, 1};
    const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = true};
    bool is_present[N];
    float room[2 * N], weights[2][4];
    mark("5", is_present);
    for (int i = 0; i < 2; i++) {
        uint32_t idx[] = {0, 1, 2, 3};
        const struct router_prefer_call call = {falling, NULL, i ? factors : NULL, is_present, 0.6f, room};
        assert_int_equal(router_prefer(&s, &call, 4, idx, weights[i]), 1);
        assert_int_equal(idx[3], 5);
        for (uint32_t k = 0; i && k < 4; k++)
            assert_true(weights[1][k] == weights[0][k] * factors[idx[k]]);
    }
}

/* Sigmoids by hand: of the logits 0 and +-ln 3. The groups are {0..3} and {4..7}; of one of two the second
 * leaves, where the best two of the first are better. */
static void a_sigmoid_takes_its_bias_and_its_groups_into_account(void **state)
{
    (void)state;
    const float up = logf(3), logits[N] = {up, up, 0, -up, up, 0, -up, -up};
    const float bias[N] = {0.3f, 0.2f, 0.1f, 0.3f,
                           0,    0.4f, 0,    0}; /* 1.05 0.95 0.6 0.55 | 0.75 0.9 0.25 0.25 */
    struct router_shape s = {.n_experts = N,
                             .top_k = 3,
                             .norm = true,
                             .sigmoid = true,
                             .n_groups = 2,
                             .keep_groups = 1,
                             .scale = 2};
    static const uint32_t first[] = {0, 1, 2}, all[] = {0, 1, 5};
    static const struct example one[] = {
        {"4567", 100, 0, {0, 1, 2}}, /* their group left */
        {"3", 0.04f, 0, {0, 1, 2}},
        {"3", 0.06f, 1, {0, 1, 3}},
        {"34", 0.06f, 1, {0, 1, 3}},
    };
    static const struct example two[] = {
        {"4", 0.16f, 1, {0, 1, 4}}, {"24", 0.31f, 1, {0, 1, 4}}, {"24", 0.36f, 2, {0, 4, 2}}};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        check(&s, logits, bias, first, &one[i], 3);
    s.keep_groups = 2;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        check(&s, logits, bias, all, &two[i], 3);

    uint32_t idx[] = {0, 1, 5};
    float weights[3]; /* 0.75, 0.75, 0.5 of 2, without the bias */
    assert_int_equal(run(&s, logits, bias, &(struct example){"2", 0.31f, 1, {0}}, 3, idx, weights), 1);
    assert_int_equal(idx[2], 2);
    assert_true(fabsf(weights[0] - 0.75f) < 1e-6f && fabsf(weights[2] - 0.5f) < 1e-6f);
}

static void a_nan_leaves_the_choice_alone(void **state)
{
    (void)state;
    const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = true};
    bool is_present[N];
    float logits[N], room[2 * N];
    uint32_t idx[] = {0, 1, 2, 3};
    float weights[] = {NAN, NAN, NAN, NAN};
    memcpy(logits, falling, sizeof logits);
    logits[6] = NAN;
    mark("4567", is_present);
    const struct router_prefer_call call = {logits, NULL, NULL, is_present, 100, room};
    assert_int_equal(router_prefer(&s, &call, 4, idx, weights), 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(idx[i] == i && isnan(weights[i]));
}

/* Choosing by scores that are `margin` higher for experts in memory, the best ones aside, gives the same. */
static void the_choice_is_that_by_raised_scores(void **state)
{
    (void)state;
    const struct router_shape s = {.n_experts = N, .top_k = 4, .norm = true};
    for (uint32_t set = 0; set < 1u << N; set++)
        for (float margin = 0.1f; margin < 6; margin += 0.3f) {
            bool is_present[N], wanted[N] = {[0] = true, [1] = true};
            float room[2 * N], raised[N], weights[4] = {0};
            uint32_t idx[] = {0, 1, 2, 3};
            for (uint32_t i = 0; i < N; i++) {
                is_present[i] = set >> i & 1;
                raised[i] = falling[i] + (is_present[i] ? margin : 0);
            }
            for (int k = 2; k < 4; k++) {
                uint32_t best = 2;
                while (wanted[best])
                    best++;
                for (uint32_t i = best; i < N; i++)
                    if (!wanted[i] && raised[i] > raised[best])
                        best = i;
                wanted[best] = true;
            }
            const struct router_prefer_call call = {falling, NULL, NULL, is_present, margin, room};
            router_prefer(&s, &call, 4, idx, weights);
            for (uint32_t k = 0; k < 4; k++)
                if (!wanted[idx[k]] || (k > 0 && idx[k] <= idx[k - 1]))
                    fail_msg("set %x, margin %g: expert %u", set, (double)margin, idx[k]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_in_memory_stand_in_within_the_margin),
        cmocka_unit_test(of_three_and_fewer_the_best_one_stays),
        cmocka_unit_test(a_token_with_fewer_experts_keeps_their_number),
        cmocka_unit_test(of_equal_scores_the_first_expert_is_taken),
        cmocka_unit_test(weights_are_those_of_the_experts_taken),
        cmocka_unit_test(weights_are_multiplied_by_their_experts_factors),
        cmocka_unit_test(a_sigmoid_takes_its_bias_and_its_groups_into_account),
        cmocka_unit_test(a_nan_leaves_the_choice_alone),
        cmocka_unit_test(the_choice_is_that_by_raised_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
