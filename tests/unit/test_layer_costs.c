/* How many tokens the layer of multi-token prediction proposes: with simulated times, chains save time where
 * they can, and never cost more than two hundredths.
 *
 * suites: check asan fast */
#include <stdlib.h>

#include "check.h"
#include "generate/layer_costs.h"

/* A machine, a model and a text. Times in units of a token by itself. */
struct world {
    float slope;       /* each further token of a chain */
    float first, next; /* a proposal's first token, each further one */
    float rate;        /* share of right proposals */
    float wait;        /* more that a token by itself takes while hidden states are kept */
};

static uint64_t seed;
static float draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1 << 24);
}

/* The state of a simulated answer, as draft.c has it. */
struct run {
    struct layer_costs costs;
    struct layer_prices prices;
    double time;
    uint32_t most; /* tokens of the longest proposal */
};

static uint64_t ns_of(float time)
{
    return (uint64_t)(1e7f * time * (0.95f + 0.1f * draw()));
}

static uint32_t step(struct run *r, const struct world *w)
{
    uint32_t n = layer_costs_wanted(&r->costs, &r->prices, LAYER_MOST), right = 0;
    if (n == 0) {
        bool rests = layer_costs_rests(&r->costs, &r->prices);
        uint64_t ns = ns_of(rests ? 1 : 1 + w->wait), usual = layer_costs_single(&r->costs, ns, rests);
        r->prices.single_ns =
            r->prices.single_ns ? r->prices.single_ns - r->prices.single_ns / 8 + usual / 8 : usual;
        r->time += (double)ns;
        return 1;
    }
    r->most = n > r->most ? n : r->most;
    uint64_t proposal = ns_of(w->first + w->next * (float)(n - 1)), chain = ns_of(1 + w->slope * (float)n);
    layer_costs_begin(&r->costs, &r->prices, n, proposal);
    r->costs.spent_ns += chain;
    r->prices.slope += (((float)chain / (float)r->prices.single_ns - 1) / (float)n - r->prices.slope) / 4;
    while (right < n && draw() < w->rate)
        right++;
    layer_costs_end(&r->costs, &r->prices, n, right);
    r->time += (double)(proposal + chain);
    return right + 1;
}

/* Returns the time of n tokens over that without drafts. */
static double cost(struct run *r, const struct world *w, uint32_t n)
{
    r->time = 0;
    uint32_t done = 0;
    while (done < n)
        done += step(r, w);
    return r->time / 1e7 / done;
}

static struct run new_run(void)
{
    seed = 11;
    return (struct run){.prices.slope = 0.5f};
}

static void what_does_not_pay_costs_next_to_nothing(void **unused)
{
    (void)unused;
    static const struct world worlds[] = {
        {0.9f, 0.3f, 0.3f, 0.8f, 0},  /* a CPU */
        {0.1f, 0.1f, 0.1f, 0.02f, 0}, /* a layer that is never right */
        {2, 1, 1, 0.9f, 0},
        {0.5f, 0.2f, 0.2f, 0.6f, 0},
        {0.6f, 0.5f, 0.4f, 0.2f, 0.25f}, /* a GPU that otherwise begins the next token at once */
        {0.5f, 0.3f, 0.3f, 0.6f, 0.3f},
    };
    static const uint32_t lengths[] = {30, 100, 300, 3000};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct run r = new_run();
            double most = cost(&r, &worlds[i], lengths[k]);
            if (most > 1.02)
                fail_msg("world %zu, %u tokens: %g of the time", i, lengths[k], most);
        }
}

static void a_layer_that_does_not_pay_rests(void **unused)
{
    (void)unused;
    struct run r = new_run();
    const struct world w = {0.9f, 0.3f, 0.3f, 0.5f, 0};
    cost(&r, &w, 2000);
    uint32_t n_rests = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        n_rests += layer_costs_rests(&r.costs, &r.prices);
        step(&r, &w);
    }
    assert_in_range(n_rests, 900, 999);
}

static void what_pays_is_used_and_the_length_follows_the_shares(void **unused)
{
    (void)unused;
    struct run r = new_run();
    const struct world good = {0.05f, 0.05f, 0.03f, 0.9f, 0}, poor = {0.05f, 0.05f, 0.03f, 0.4f, 0};
    assert_true(cost(&r, &good, 1000) < 0.4);
    assert_true(r.most >= 4);
    assert_true(layer_costs_pays(&r.costs, &r.prices));
    /* the text becomes harder, and easy again */
    cost(&r, &poor, 300);
    r.most = 0;
    assert_true(cost(&r, &poor, 1000) < 0.85);
    assert_in_range(r.most, 1, 3);
    cost(&r, &good, 300);
    assert_true(cost(&r, &good, 1000) < 0.4);
}

static void a_layer_that_pays_later_is_found(void **unused)
{
    (void)unused;
    struct run r = new_run();
    const struct world bad = {0.1f, 0.1f, 0.05f, 0.05f, 0}, good = {0.1f, 0.1f, 0.05f, 0.85f, 0};
    cost(&r, &bad, 2000);
    cost(&r, &good, 3000);
    assert_true(cost(&r, &good, 1000) < 0.6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_pay_costs_next_to_nothing),
        cmocka_unit_test(a_layer_that_does_not_pay_rests),
        cmocka_unit_test(what_pays_is_used_and_the_length_follows_the_shares),
        cmocka_unit_test(a_layer_that_pays_later_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
