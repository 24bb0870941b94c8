/* Temperature, top_k, top_p, min_p, penalties and seeds of the sampler on the host.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "fuzz.h"
#include "samplers.h"

#define LARGE 248320

static const struct moeflux_sampler_options plain = {
    .temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .seed = 1};

/* Draws and compares the counts with the probabilities: chi-squared over those with weight, none elsewhere.
 * The bound is 6 standard deviations over the mean; the seeds are fixed, so it holds or fails for good. */
static void expect_distribution(struct moeflux_sampler_options o, const float *logits, const double *p,
                                uint32_t n)
{
    enum { DRAWS = 200000 };
    struct sampler *s = samplers_new(&o, n, NULL);
    uint32_t counts[16] = {0};
    double chi = 0.0, n_kept = 0.0;
    for (int i = 0; i < DRAWS; i++)
        counts[samplers_pick(s, logits)]++;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] == 0.0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        double d = counts[i] - DRAWS * p[i];
        chi += d * d / (DRAWS * p[i]);
        n_kept += 1.0;
    }
    double freedom = fmax(n_kept - 1.0, 0.0);
    assert_true(chi <= freedom + 6.0 * sqrt(2.0 * freedom) + 1e-9);
    sampler_free(s);
}

/* log of weights, so that the softmax is the weights over their sum. */
static void to_logits(const double *weights, float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)log(weights[i]);
}

static const double weights[8] = {8, 40, 2, 20, 10, 16, 3, 1}; /* sum 100; order: 1 3 5 4 0 6 2 7 */

static void expect_kept(struct moeflux_sampler_options o, const double *kept, double sum)
{
    float logits[8];
    double p[8];
    to_logits(weights, logits, 8);
    for (int i = 0; i < 8; i++)
        p[i] = kept[i] / sum;
    expect_distribution(o, logits, p, 8);
}

static void draws_follow_the_softmax(void **state)
{
    (void)state;
    expect_kept(plain, weights, 100);
}

static void temperature_flattens_and_sharpens(void **state)
{
    static const float temperatures[] = {0.5f, 2.0f};
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct moeflux_sampler_options o = plain;
        double kept[8], sum = 0.0;
        o.temperature = temperatures[t];
        for (int i = 0; i < 8; i++)
            sum += kept[i] = pow(weights[i], 1.0 / (double)o.temperature);
        expect_kept(o, kept, sum);
    }
}

static void top_k_keeps_the_k_largest(void **state)
{
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.top_k = 3;
    expect_kept(o, (double[8]){0, 40, 0, 20, 0, 16, 0, 0}, 76);
    o.top_k = 1;
    expect_kept(o, (double[8]){0, 1, 0, 0, 0, 0, 0, 0}, 1);
    o.top_k = 8;
    expect_kept(o, weights, 100);
    o.top_k = 4000000000u;
    expect_kept(o, weights, 100);
}

static void top_p_keeps_the_smallest_set_that_reaches_p(void **state)
{
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.top_p = 0.59f;
    expect_kept(o, (double[8]){0, 40, 0, 20, 0, 0, 0, 0}, 60);
    o.top_p = 0.61f;
    expect_kept(o, (double[8]){0, 40, 0, 20, 0, 16, 0, 0}, 76);
    o.top_p = 1e-9f;
    expect_kept(o, (double[8]){0, 1, 0, 0, 0, 0, 0, 0}, 1);
    /* The share of what top-k left: 40 of 76 is less than 0.6, 60 of 76 more. */
    o.top_k = 3;
    o.top_p = 0.6f;
    expect_kept(o, (double[8]){0, 40, 0, 20, 0, 0, 0, 0}, 60);
}

static void min_p_is_relative_to_the_largest(void **state)
{
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.min_p = 0.24f;
    expect_kept(o, (double[8]){0, 40, 0, 20, 10, 16, 0, 0}, 86);
    o.min_p = 1.0f;
    expect_kept(o, (double[8]){0, 1, 0, 0, 0, 0, 0, 0}, 1);
    o.min_p = 0.3f;
    o.top_p = 0.59f;
    expect_kept(o, (double[8]){0, 40, 0, 20, 0, 0, 0, 0}, 60);
    o.min_p = 0.6f;
    o.top_p = 0.9f;
    expect_kept(o, (double[8]){0, 1, 0, 0, 0, 0, 0, 0}, 1);
}

static void greedy_takes_the_lowest_index_of_the_maximum(void **state)
{
    static const float logits[] = {-0.0f, 1.5f, -INFINITY, 3.0f, 3.0f, 2.0f};
    static const float zeros[] = {-1.0f, -0.0f, 0.0f};
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.temperature = 0.0f;
    struct sampler *s = samplers_new(&o, 6, NULL);
    assert_int_equal(samplers_pick(s, logits), 3);
    sampler_free(s);
    s = samplers_new(&o, 3, NULL);
    assert_int_equal(samplers_pick(s, zeros), 1);
    sampler_free(s);
}

static void ties_at_the_edge_go_to_the_lowest_index(void **state)
{
    static const float logits[6] = {1.0f, 2.0f, 1.0f, 1.0f, 2.0f, 1.0f};
    (void)state;
    for (int by_p = 0; by_p < 2; by_p++) {
        struct moeflux_sampler_options o = plain;
        /* Weights 1, e, 1, 1, e, 1: the first three are 1, 4, 0 with 0.68 of the sum. */
        o.top_k = by_p ? 0 : 3;
        o.top_p = by_p ? 0.6f : 1.0f;
        struct sampler *s = samplers_new(&o, 6, NULL);
        bool seen[6] = {false};
        for (int i = 0; i < 1000; i++)
            seen[samplers_pick(s, logits)] = true;
        assert_true(seen[0] && seen[1] && seen[4]);
        assert_false(seen[2] || seen[3] || seen[5]);
        sampler_free(s);
    }
}

static void repeat_penalty_counts_each_recent_token_once(void **state)
{
    /* Weights 4, 4, 1/4, 1 with a penalty of 2: a positive logit is halved, a negative one doubled. */
    float logits[4] = {logf(4), logf(4), -logf(4), 0};
    static const int32_t accepted[] = {1, 2, 2, 3, 100, -1};
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.repeat_penalty = 2.0f;
    o.repeat_last = 6;
    struct sampler *s = samplers_new(&o, 4, NULL);
    uint32_t counts[4] = {0};
    for (int i = 0; i < 6; i++)
        sampler_accept(s, accepted[i]);
    for (int i = 0; i < 200000; i++)
        counts[samplers_pick(s, logits)]++;
    /* Now 4, 2, 1/16, 1 of 7.0625; 5 standard deviations of the counts are below 1200. */
    assert_in_range(counts[0], 113274 - 1200, 113274 + 1200);
    assert_in_range(counts[1], 56637 - 1200, 56637 + 1200);
    assert_in_range(counts[2], 1770 - 250, 1770 + 250);
    assert_in_range(counts[3], 28319 - 1000, 28319 + 1000);
    sampler_free(s);
}

static void repeat_last_forgets_older_tokens(void **state)
{
    static const float logits[3] = {3.0f, 2.0f, 1.0f};
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.temperature = 0.0f;
    o.repeat_penalty = 10.0f;
    o.repeat_last = 2;
    struct sampler *s = samplers_new(&o, 3, NULL);
    assert_int_equal(samplers_pick(s, logits), 0);
    sampler_accept(s, 0);
    assert_int_equal(samplers_pick(s, logits), 1);
    sampler_accept(s, 0);
    sampler_accept(s, 1);
    assert_int_equal(samplers_pick(s, logits), 2);
    sampler_accept(s, 2);
    assert_int_equal(samplers_pick(s, logits), 0);
    sampler_accept(s, 0);
    sampler_reset(s);
    assert_int_equal(samplers_pick(s, logits), 0);
    sampler_free(s);
}

static void fill(float *logits, uint32_t n, uint64_t seed)
{
    struct fuzz f = {seed};
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)fuzz_below(&f, 1 << 20) / (1 << 16) - 8.0f;
}

static void presence_and_frequency_count_the_tokens_of_the_answer(void **state)
{
    static const float logits[3] = {5.0f, 4.0f, 3.25f};
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.temperature = 0;
    o.presence_penalty = 0.5f;
    o.frequency_penalty = 0.25f;
    struct sampler *s = samplers_new(&o, 3, NULL);
    /* The prompt's do not count. */
    for (int i = 0; i < 9; i++)
        sampler_accept(s, 0);
    assert_int_equal(samplers_pick(s, logits), 0);
    sampler_begin_answer(s);
    /* The logits of 0 are 5, 4.25, 4, 3.75, 3.5, 3.25, 3 and those of 1 are 4, 3.25, 3. On a tie the lower id
     * wins. */
    static const int32_t expected[] = {0, 0, 0, 1, 0, 0, 0, 1, 2};
    for (int i = 0; i < 9; i++) {
        int32_t id = samplers_pick(s, logits);
        assert_int_equal(id, expected[i]);
        sampler_accept(s, id);
    }
    assert_true(sampler_next_rule(s, 0).counts);
    sampler_begin_answer(s);
    assert_int_equal(samplers_pick(s, logits), 0);
    sampler_free(s);
    o.presence_penalty = o.frequency_penalty = 0;
    s = samplers_new(&o, 3, NULL);
    assert_false(sampler_next_rule(s, 0).counts);
    sampler_free(s);
}

static void the_same_seed_gives_the_same_ids(void **state)
{
    static const struct moeflux_sampler_options all[] = {
        {.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .seed = 42},
        {.temperature = 0.7f,
         .top_k = 40,
         .top_p = 0.95f,
         .min_p = 0.05f,
         .repeat_penalty = 1.1f,
         .repeat_last = 64},
        {.temperature = 1.5f, .top_p = 0.9f, .repeat_penalty = 1.0f, .seed = UINT64_MAX},
    };
    float *logits = malloc(LARGE * sizeof *logits);
    (void)state;
    fill(logits, LARGE, 9);
    for (size_t o = 0; o < 3; o++) {
        struct sampler *a = samplers_new(&all[o], LARGE, NULL), *b = samplers_new(&all[o], LARGE, NULL);
        int32_t ids[12];
        bool moved = false;
        for (int i = 0; i < 12; i++) {
            ids[i] = samplers_pick(a, logits);
            assert_int_equal(samplers_pick(b, logits), ids[i]);
            moved = moved || ids[i] != ids[0];
            sampler_accept(a, ids[i]);
            sampler_accept(b, ids[i]);
        }
        assert_true(moved);
        sampler_reset(a);
        for (int i = 0; i < 12; i++) {
            assert_int_equal(samplers_pick(a, logits), ids[i]);
            sampler_accept(a, ids[i]);
        }
        sampler_free(a);
        sampler_free(b);
    }
    free(logits);
}

/* The ids come from a program that follows sampler.h's definition in another language, by sorting. */
static void the_ids_of_a_seed_follow_from_the_definition(void **state)
{
    enum { N = 500, PICKS = 12, CASES = 4 };
    static const struct moeflux_sampler_options options[CASES] = {
        {.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .seed = 42},
        {.temperature = 0.7f,
         .top_k = 20,
         .top_p = 0.9f,
         .min_p = 0.05f,
         .repeat_penalty = 1.3f,
         .repeat_last = 8,
         .seed = 7},
        {.temperature = 1.5f, .top_p = 0.9f, .repeat_penalty = 1.0f, .seed = UINT64_MAX},
        {.temperature = 0.6f,
         .top_p = 1.0f,
         .min_p = 0.1f,
         .repeat_penalty = 1.2f,
         .repeat_last = 3,
         .seed = 5},
    };
    static const int32_t ids[CASES][PICKS] = {
        {348, 59, 99, 140, 12, 420, 82, 403, 137, 290, 82, 244},
        {196, 0, 420, 334, 244, 82, 275, 87, 54, 242, 12, 472},
        {428, 431, 86, 196, 334, 409, 467, 99, 383, 0, 0, 403},
        {196, 356, 69, 16, 59, 201, 483, 250, 215, 285, 242, 54},
    };
    float logits[N];
    (void)state;
    fill(logits, N, 77);
    for (int c = 0; c < CASES; c++) {
        struct sampler *s = samplers_new(&options[c], N, NULL);
        for (int i = 0; i < PICKS; i++) {
            assert_int_equal(samplers_pick(s, logits), ids[c][i]);
            sampler_accept(s, ids[c][i]);
        }
        sampler_free(s);
    }
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void top_k_of_a_large_vocabulary_agrees_with_a_sort(void **state)
{
    static const uint32_t ks[] = {2, 20, 1000, LARGE - 1};
    float *logits = malloc(LARGE * sizeof *logits), *sorted = malloc(LARGE * sizeof *logits);
    (void)state;
    fill(logits, LARGE, 3);
    memcpy(sorted, logits, LARGE * sizeof *logits);
    qsort(sorted, LARGE, sizeof *sorted, descending);
    for (size_t i = 0; i < 4; i++) {
        struct moeflux_sampler_options o = plain;
        o.top_k = ks[i];
        o.temperature = 1000.0f; /* flat: every one that was kept is as likely */
        struct sampler *s = samplers_new(&o, LARGE, NULL);
        for (int d = 0; d < 40; d++)
            assert_true(logits[samplers_pick(s, logits)] >= sorted[ks[i] - 1]);
        sampler_free(s);
    }
    free(sorted);
    free(logits);
}

/* How many of the sorted logits the smallest set needs whose softmax reaches p. */
static uint32_t nucleus(const float *sorted, uint32_t n, float temperature, double p)
{
    double sum = 0.0, reached = 0.0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)(sorted[i] - sorted[0]) / (double)temperature);
    while (kept < n && reached < p * sum)
        reached += exp((double)(sorted[kept++] - sorted[0]) / (double)temperature);
    return kept;
}

/* Flat enough that each member of the set is drawn at least ten times on average. */
static void top_p_of_a_thousand_agrees_with_a_sort(void **state)
{
    enum { N = 1000, DRAWS = 20000 };
    static const float ps[] = {0.02f, 0.3f, 0.5f, 0.77f, 0.9f};
    float logits[N], sorted[N];
    (void)state;
    fill(logits, N, 11);
    memcpy(sorted, logits, sizeof logits);
    qsort(sorted, N, sizeof *sorted, descending);
    for (size_t i = 0; i < 5; i++) {
        struct moeflux_sampler_options o = plain;
        bool seen[N] = {false};
        uint32_t n_seen = 0;
        o.top_p = ps[i];
        o.temperature = 4.0f;
        struct sampler *s = samplers_new(&o, N, NULL);
        uint32_t kept = nucleus(sorted, N, o.temperature, (double)ps[i]);
        for (int d = 0; d < DRAWS; d++) {
            int32_t id = samplers_pick(s, logits);
            assert_true(logits[id] >= sorted[kept - 1]);
            n_seen += !seen[id];
            seen[id] = true;
        }
        assert_int_equal(n_seen, kept);
        sampler_free(s);
    }
}

static void ids_that_are_not_allowed_are_never_chosen(void **state)
{
    enum { N = 131 };
    uint8_t allowed[(N + 7) / 8] = {0};
    float logits[N + 20];
    struct fuzz f = {5};
    (void)state;
    for (int i = 0; i < N + 20; i++) {
        bool yes = i < N && fuzz_below(&f, 3) == 0;
        if (i < N && yes)
            allowed[i / 8] |= (uint8_t)(1 << i % 8);
        /* What may not be chosen is the largest, or no number at all. */
        logits[i] = yes ? (float)(i % 7) : i % 2 ? 100.0f : NAN;
    }
    for (int mode = 0; mode < 4; mode++) {
        struct moeflux_sampler_options o = plain;
        o.temperature = mode == 0 ? 0.0f : 5.0f;
        o.top_k = mode == 1 ? 60 : 0;
        o.top_p = mode == 2 ? 0.9f : 1.0f;
        struct sampler *s = samplers_new(&o, N, allowed);
        for (int i = 0; i < 2000; i++) {
            int32_t id = samplers_pick(s, logits);
            assert_in_range(id, 0, N - 1);
            assert_true(allowed[id / 8] >> id % 8 & 1);
        }
        sampler_free(s);
    }
}

static void a_logit_that_is_no_number_is_an_error(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct moeflux_sampler_options o = plain;
        float logits[100] = {0};
        struct moeflux_err e = {0};
        o.temperature = (float)mode;
        struct sampler *s = samplers_new(&o, 100, NULL);
        logits[77] = NAN;
        assert_int_equal(sampler_pick(s, logits, &e), ERR_DEVICE);
        assert_non_null(strstr(e.text, "77"));
        logits[77] = -NAN;
        assert_int_equal(sampler_pick(s, logits, &e), ERR_DEVICE);
        sampler_free(s);
    }
}

static void minus_infinity_is_never_chosen(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        struct moeflux_sampler_options o = plain;
        float logits[4] = {-INFINITY, 0.0f, -INFINITY, -3.0f};
        struct moeflux_err e = {0};
        o.top_k = k;
        struct sampler *s = samplers_new(&o, 4, NULL);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(samplers_pick(s, logits) & 1, 1);
        logits[1] = logits[3] = -INFINITY;
        assert_int_equal(sampler_pick(s, logits, &e), ERR_DEVICE);
        assert_non_null(strstr(e.text, "-infinity"));
        sampler_free(s);
    }
}

static void plus_infinity_is_an_error_that_names_the_index(void **state)
{
    static const float logits[5] = {0.0f, -INFINITY, 1.0f, INFINITY, INFINITY};
    static const uint8_t allowed[1] = {0x07};
    (void)state;
    for (uint32_t k = 0; k < 5; k++)
        for (int greedy = 0; greedy < 2; greedy++) {
            struct moeflux_sampler_options o = plain;
            struct moeflux_err e = {0};
            o.top_k = k;
            o.temperature = greedy ? 0.0f : 1.0f;
            struct sampler *s = samplers_new(&o, 5, NULL);
            assert_int_equal(sampler_pick(s, logits, &e), ERR_DEVICE);
            assert_non_null(strstr(e.text, "token 3 of 5 is +infinity"));
            sampler_free(s);
            /* Ids that cannot be chosen may have any logit. */
            s = samplers_new(&o, 5, allowed);
            assert_true((samplers_pick(s, logits) & ~2) == 0);
            sampler_free(s);
        }
}

static void a_penalty_may_make_a_logit_infinite(void **state)
{
    static const float logits[3] = {0.0f, 3e38f, 1.0f};
    (void)state;
    struct moeflux_sampler_options o = plain;
    o.repeat_penalty = 0.5f;
    o.repeat_last = 4;
    struct sampler *s = samplers_new(&o, 3, NULL);
    sampler_accept(s, 1);
    assert_int_equal(samplers_pick(s, logits), 1);
    sampler_free(s);
}

static void extreme_values_still_give_an_id(void **state)
{
    static const float logits[4] = {-3e38f, 3e38f, 0.0f, 3e38f};
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct moeflux_sampler_options o = plain;
        o.temperature = mode ? 1e-45f : 1e38f;
        struct sampler *s = samplers_new(&o, 4, NULL);
        for (int i = 0; i < 100; i++) {
            int32_t id = samplers_pick(s, logits);
            assert_true(mode == 0 || id == 1 || id == 3);
        }
        sampler_free(s);
    }
}

struct bad_options {
    struct moeflux_sampler_options o;
    const char *name;
};

static void options_out_of_range_are_named(void **state)
{
    static const struct bad_options bad[] = {
        {{.temperature = -0.1f, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.temperature = INFINITY, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.top_p = 0, .repeat_penalty = 1}, "top_p"},
        {{.top_p = 1.01f, .repeat_penalty = 1}, "top_p"},
        {{.top_p = NAN, .repeat_penalty = 1}, "top_p"},
        {{.top_p = 1, .min_p = -0.1f, .repeat_penalty = 1}, "min_p"},
        {{.top_p = 1, .min_p = 1.5f, .repeat_penalty = 1}, "min_p"},
        {{.top_p = 1, .repeat_penalty = 0}, "repeat_penalty"},
        {{.top_p = 1, .repeat_penalty = NAN}, "repeat_penalty"},
        {{.top_p = 1, .repeat_penalty = INFINITY}, "repeat_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .repeat_last = 2000000000}, "repeat_last"},
        {{.top_p = 1, .repeat_penalty = 1, .presence_penalty = 2.1f}, "presence_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .presence_penalty = NAN}, "presence_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .frequency_penalty = -2.1f}, "frequency_penalty"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct moeflux_err e = {0};
        assert_int_equal(sampler_check(&bad[i].o, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, bad[i].name));
        assert_null(sampler_new(&bad[i].o, NULL, 10, NULL, NULL));
    }
    assert_int_equal(sampler_check(&plain, NULL), 0);
}

static void what_a_mask_leaves_out_is_not_chosen_until_it_is_taken_away(void **state)
{
    static const uint8_t allowed[20] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xff};
    static const uint64_t mask[] = {0, 1, 0x10000000003f0001};
    float logits[150] = {[3] = 9, [64] = 1, [144] = 7, [145] = 5, [149] = 2};
    (void)state;
    struct moeflux_sampler_options greedy = plain;
    greedy.temperature = 0;
    struct sampler *s = samplers_new(&greedy, 150, allowed);
    assert_int_equal(samplers_pick(s, logits), 3);
    /* Id 144 is never chosen; bits past the last id do not count. */
    sampler_set_mask(s, mask);
    assert_int_equal(samplers_pick(s, logits), 145);
    sampler_allow(s, 3);
    assert_int_equal(samplers_pick(s, logits), 3);
    sampler_set_mask(s, mask);
    logits[145] = logits[149] = -INFINITY;
    assert_int_equal(samplers_pick(s, logits), 64);
    sampler_set_mask(s, NULL);
    assert_int_equal(samplers_pick(s, logits), 3);
    const uint64_t only_never[3] = {[2] = (uint64_t)1 << 16};
    assert_true(sampler_can_pick(s));
    sampler_set_mask(s, only_never);
    assert_false(sampler_can_pick(s));
    sampler_free(s);
}

static void a_vocabulary_with_nothing_to_choose_is_refused(void **state)
{
    static const uint8_t none[2] = {0, 0xfc};
    struct moeflux_err e = {0};
    (void)state;
    assert_null(sampler_new(&plain, NULL, 0, NULL, &e));
    assert_int_equal(e.code, ERR_USAGE);
    /* Bits past the last id do not count. */
    assert_null(sampler_new(&plain, NULL, 10, none, &e));
    assert_int_equal(e.code, ERR_USAGE);
    sampler_free(NULL);
}

static void a_bias_is_added_to_the_logits_of_its_tokens(void **state)
{
    enum { N = 200 };
    const struct moeflux_bias bias[] = {{150, 3.0f}, {3, -100.0f}, {150, 1.0f}, {70, 2.5f}},
                              none[] = {{N, 1.0f}};
    struct moeflux_sampler_options o = {.top_p = 1, .repeat_penalty = 1, .bias = bias, .n_bias = 4};
    struct moeflux_err e = {0};
    float logits[N] = {0};
    (void)state;
    struct sampler *s = sampler_new(&o, NULL, N, NULL, &e);
    assert_non_null(s);
    logits[3] = 50;
    assert_int_equal(sampler_pick(s, logits, &e), 150);
    logits[70] = 2;
    assert_int_equal(sampler_pick(s, logits, &e), 70);
    logits[100] = 5;
    assert_int_equal(sampler_pick(s, logits, &e), 100);
    /* Words of which nothing may be chosen do not shift later ones. */
    uint64_t mask[(N + 63) / 64] = {0, 0, UINT64_MAX, 0};
    sampler_set_mask(s, mask);
    assert_int_equal(sampler_pick(s, logits, &e), 150);
    assert_true(sampler_next_rule(s, 0).counts);
    sampler_free(s);
    o = (struct moeflux_sampler_options){.top_p = 1, .repeat_penalty = 1, .bias = none, .n_bias = 1};
    assert_null(sampler_new(&o, NULL, N, NULL, &e));
    assert_non_null(strstr(e.text, "a bias of token 200, expected 0 to 199"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(temperature_flattens_and_sharpens),
        cmocka_unit_test(top_k_keeps_the_k_largest),
        cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_p),
        cmocka_unit_test(min_p_is_relative_to_the_largest),
        cmocka_unit_test(greedy_takes_the_lowest_index_of_the_maximum),
        cmocka_unit_test(ties_at_the_edge_go_to_the_lowest_index),
        cmocka_unit_test(repeat_penalty_counts_each_recent_token_once),
        cmocka_unit_test(repeat_last_forgets_older_tokens),
        cmocka_unit_test(presence_and_frequency_count_the_tokens_of_the_answer),
        cmocka_unit_test(a_bias_is_added_to_the_logits_of_its_tokens),
        cmocka_unit_test(the_same_seed_gives_the_same_ids),
        cmocka_unit_test(the_ids_of_a_seed_follow_from_the_definition),
        cmocka_unit_test(top_k_of_a_large_vocabulary_agrees_with_a_sort),
        cmocka_unit_test(top_p_of_a_thousand_agrees_with_a_sort),
        cmocka_unit_test(ids_that_are_not_allowed_are_never_chosen),
        cmocka_unit_test(a_logit_that_is_no_number_is_an_error),
        cmocka_unit_test(minus_infinity_is_never_chosen),
        cmocka_unit_test(plus_infinity_is_an_error_that_names_the_index),
        cmocka_unit_test(a_penalty_may_make_a_logit_infinite),
        cmocka_unit_test(extreme_values_still_give_an_id),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(what_a_mask_leaves_out_is_not_chosen_until_it_is_taken_away),
        cmocka_unit_test(a_vocabulary_with_nothing_to_choose_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
