/* The self-test's cases of the router. */
#include <assert.h>
#include <stdio.h>

#include "ops/router/router.h"
#include "selftest/kernel_test.h"

/* A choice has no error; its weights have one rounding more than their inputs. */
static const double WEIGHTS_BOUND = 2e-6;

/* What a case has but its shape. */
struct router_inputs {
    float lowest_bias;
    bool ties, factors;
    bool by_token; /* the shape's tables have a row for each of a few tokens */
};

/* Returns a table [vocab][row] of different experts in each row. */
static struct test_buffer *random_table(struct kernel_test *l, uint32_t n_experts, uint32_t vocab,
                                        uint32_t row)
{
    enum { MOST = 256 };
    uint32_t ids[MOST];
    assert(vocab * row <= MOST);
    for (uint32_t t = 0; t < vocab; t++)
        for (uint32_t k = 0; k < row; k++)
            ids[t * row + k] = (5 * t + 7 * k + 3) % n_experts;
    return kt_bytes(l, ids, sizeof *ids * vocab * row);
}

static void router_case(struct kernel_test *l, const struct router_shape *c, struct router_inputs in)
{
    enum { TOKENS = 5, VOCAB = 3 };
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t n_experts = c->n_experts, n_groups = c->sigmoid ? c->n_groups : 1;
    struct test_buffer *logits = kt_floats(l, (uint64_t)TOKENS * (n_experts + 3), -4, 4);
    struct test_buffer *bias = kt_floats(l, n_experts, in.lowest_bias, in.lowest_bias + 1);
    struct test_buffer *idx = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    struct test_buffer *weights = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    if (in.ties) {
        logits = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * (n_experts + 3));
        bias = kt_bytes(l, NULL, 4 * (uint64_t)n_experts);
    }
    struct test_buffer *table = in.by_token ? random_table(l, n_experts, VOCAB, c->row) : NULL;
    struct test_buffer *ids = kt_bytes(l, (const int32_t[TOKENS]){2, 0, 1, 1, 2}, TOKENS * sizeof(int32_t));
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct router op;
        if (router_open(&op, l->side[s], c, &l->err) < 0)
            break;
        const struct router_call call = {.logits = logits->on[s].address,
                                         .bias = bias->on[s].address,
                                         .factors = in.factors ? bias->on[s].address : 0,
                                         .table = table ? table->on[s].address : 0,
                                         .ids = ids->on[s].address,
                                         .idx = idx->on[s].address,
                                         .weights = weights->on[s].address,
                                         .n = TOKENS,
                                         .stride = n_experts + 3};
        exec_begin(l->side[s]);
        router_run(&op, l->side[s], &call);
        kt_finish(l, s);
    }
    char shape[128], share[32] = "";
    if (c->share > 0)
        snprintf(share, sizeof share, ", share %g", (double)c->share);
    snprintf(shape, sizeof shape, "%u of %u, %u of %u group%s%s%s%s%s%s%s", c->top_k, n_experts,
             c->sigmoid ? c->keep_groups : 1, n_groups, n_groups > 1 ? "s" : "",
             c->softplus ? ", softplus" : "", in.by_token ? ", by token" : "",
             c->norm ? "" : ", not renormalised", in.ties ? ", all tied" : "", in.factors ? ", factors" : "",
             share);
    double error = kt_difference(l, idx, (uint64_t)TOKENS * c->top_k);
    kt_report(l, c->sigmoid ? "router_sigmoid" : "router_softmax", shape,
              error + kt_error(l, weights, (uint64_t)TOKENS * c->top_k), WEIGHTS_BOUND);
}

/* All of the choice, most of its weights, nearly none. Brief: shares of few experts alone, another kernel. */
static void router_case_with_shares(struct kernel_test *l, const struct router_shape *c, float lowest_bias)
{
    static const float shares[] = {0, 0.75f, 0.01f};
    size_t n = kt_is_brief(l) && c->n_experts > 256 ? 1 : sizeof shares / sizeof *shares;
    for (size_t i = 0; i < n; i++) {
        struct router_shape with = *c;
        with.share = shares[i];
        router_case(l, &with, (struct router_inputs){.lowest_bias = lowest_bias});
    }
}

void selftest_softmax_cases(struct kernel_test *l)
{
    static const struct router_shape softmax[] = {
        {1, 1, true, false, false, 0, 0, 0, 0, 0},    {12, 3, true, false, false, 0, 0, 0, 0, 0},
        {32, 4, false, false, false, 0, 0, 0, 0, 0},  {256, 8, true, false, false, 0, 0, 0, 0, 0},
        {512, 10, true, false, false, 0, 0, 0, 0, 0}, {40, 16, true, false, false, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof softmax / sizeof *softmax; i++) {
        l->is_rest = softmax[i].n_experts == 256;
        router_case_with_shares(l, &softmax[i], 0);
    }
    l->is_rest = false;
    router_case(l, &(struct router_shape){70, 16, true, false, false, 0, 0, 0, 0, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){70, 16, true, false, false, 0, 0, 0, 0.5f, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){128, 8, true, false, false, 0, 0, 0, 0, 0},
                (struct router_inputs){.factors = true});
    router_case(l, &(struct router_shape){70, 16, true, false, false, 0, 0, 0, 0.5f, 0},
                (struct router_inputs){.factors = true});
}

static void softplus_cases(struct kernel_test *l)
{
    static const struct router_shape shapes[] = {
        {256, 6, true, true, true, 1, 1, 1.5f, 0, 6},
        {60, 5, false, true, true, 1, 1, 2, 0, 9},
        {60, 33, true, true, true, 1, 1, 1, 0.5f, 60},
        {256, 6, true, true, false, 1, 1, 1.5f, 0, 6},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        router_case(l, &shapes[i], (struct router_inputs){.lowest_bias = -0.5f});
        router_case(l, &shapes[i], (struct router_inputs){.by_token = true});
    }
    router_case(l, &shapes[1], (struct router_inputs){.ties = true, .by_token = true});
}

/* Biases below -1 make every score of the choice negative: a group that is set to 0 instead of left out would
 * win. */
void selftest_sigmoid_cases(struct kernel_test *l)
{
    static const struct router_shape shapes[] = {
        {1, 1, true, true, false, 1, 1, 1.0f, 0, 0},     {16, 4, true, true, false, 4, 2, 2.5f, 0, 0},
        {256, 8, true, true, false, 8, 4, 2.5f, 0, 0},   {256, 8, false, true, false, 8, 4, 16.0f, 0, 0},
        {160, 6, false, true, false, 1, 1, 1.0f, 0, 0},  {42, 5, true, true, false, 7, 3, 0.5f, 0, 0},
        {70, 33, true, true, false, 2, 1, 2.5f, 0, 0},   {384, 8, true, true, false, 1, 1, 2.8f, 0, 0},
        {300, 6, true, true, false, 150, 3, 1.0f, 0, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int negative = 0; negative < 2; negative++) {
            l->is_rest = shapes[i].n_experts == 160 || shapes[i].n_experts == 384;
            router_case_with_shares(l, &shapes[i], negative ? -2.5f : -0.5f);
        }
    l->is_rest = false;
    router_case(l, &(struct router_shape){256, 8, true, true, false, 8, 4, 2.5f, 0, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){60, 16, false, true, false, 6, 2, 1.0f, 0, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){60, 16, true, true, false, 6, 2, 1.0f, 0.25f, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){500, 22, true, true, false, 1, 1, 5.0f, 0, 0},
                (struct router_inputs){.ties = true});
    router_case(l, &(struct router_shape){896, 16, true, true, false, 1, 1, 2.5f, 0.5f, 0},
                (struct router_inputs){.lowest_bias = -0.5f});
    softplus_cases(l);
}
