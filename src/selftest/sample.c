/* The self-test's cases of the choice of a token: the same id as the reference's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "ops/sample/sample.h"
#include "selftest/kernel_test.h"

enum { RECENT = 20 };

/* n logits, some of them equal, some -infinity, some no number. */
static struct test_buffer *make_logits(struct kernel_test *l, uint32_t n, bool has_nan)
{
    float *v = mem_new(n, sizeof *v, &l->err);
    for (uint32_t i = 0; v && i < n; i++) {
        v[i] = kt_uniform(l, -8, 8);
        v[i] = i % 5 == 0 ? floorf(v[i]) : i % 7 == 3 ? -INFINITY : v[i];
        v[i] = has_nan && i % 11 == 9 ? NAN : v[i];
    }
    struct test_buffer *b = kt_bytes(l, v, v ? n * sizeof *v : 0);
    free(v);
    return b;
}

static void sample_case(struct kernel_test *l, uint32_t n, const struct sampler_rule *rule, const char *what)
{
    uint32_t recent[RECENT + 1], n_words = div_up(n, 64) * 2;
    if (!kt_takes(l, l->is_rest))
        return;
    for (uint32_t i = 0; i <= RECENT; i++)
        recent[i] = (uint32_t)(kt_random(l) % n);
    struct test_buffer *logits = make_logits(l, n, rule->random == 0),
                       *last = kt_bytes(l, recent, sizeof recent),
                       *blocked = kt_bytes(l, NULL, n_words * sizeof(uint32_t)),
                       *scratch = kt_bytes(l, NULL, sample_scratch(n)),
                       *id = kt_bytes(l, NULL, sizeof(uint32_t)),
                       *result = kt_bytes(l, NULL, 2 * sizeof(uint32_t));
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct sample op;
        if (sample_open(&op, l->side[s], n, &l->err) < 0)
            break;
        const struct sample_call call = {.rule = rule,
                                         .logits = logits->on[s].address,
                                         .blocked = blocked->on[s].address,
                                         .recent = last->on[s].address + sizeof(uint32_t),
                                         .last = last->on[s].address,
                                         .scratch = scratch->on[s].address,
                                         .id = id->on[s].address,
                                         .result = result->on[s].address,
                                         .n_recent = RECENT};
        exec_begin(l->side[s]);
        sample_run(&op, l->side[s], &call);
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u ids, %s", n, what);
    double error = kt_difference(l, result, 2);
    kt_report(l, "sample", text, fmax(error, kt_difference(l, id, 1)), 0);
}

/* Several sequences at once, each with a rule of its own: greedy choices and draws alternate. */
static void concurrent_case(struct kernel_test *l, uint32_t n, const struct sampler_rule *rules,
                            uint32_t n_rules)
{
    enum { MOST = 8 };
    struct test_buffer *logits[MOST];
    uint64_t scratch_bytes = size_round_up(sample_scratch(n), 16);
    if (!kt_takes(l, l->is_rest) || n_rules > MOST)
        return;
    for (uint32_t i = 0; i < n_rules; i++)
        logits[i] = make_logits(l, n, rules[i].random == 0);
    struct test_buffer *last = kt_floats(l, RECENT + 1, 0, 0),
                       *blocked = kt_bytes(l, NULL, (uint64_t)div_up(n, 64) * 2 * sizeof(uint32_t)),
                       *scratch = kt_bytes(l, NULL, n_rules * scratch_bytes),
                       *id = kt_bytes(l, NULL, n_rules * sizeof(uint32_t)),
                       *result = kt_bytes(l, NULL, (uint64_t)n_rules * 2 * sizeof(uint32_t));
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct sample op;
        struct sample_call calls[MOST];
        if (sample_open(&op, l->side[s], n, &l->err) < 0)
            break;
        for (uint32_t i = 0; i < n_rules; i++)
            calls[i] =
                (struct sample_call){.rule = &rules[i],
                                     .logits = logits[i]->on[s].address,
                                     .blocked = blocked->on[s].address,
                                     .recent = last->on[s].address + sizeof(uint32_t),
                                     .last = last->on[s].address,
                                     .scratch = scratch->on[s].address + i * scratch_bytes,
                                     .id = id->on[s].address + i * sizeof(uint32_t),
                                     .result = result->on[s].address + (uint64_t)i * 2 * sizeof(uint32_t),
                                     .n_recent = RECENT};
        exec_begin(l->side[s]);
        sample_run_concurrent(&op, l->side[s], calls, n_rules);
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u ids, %u sequences", n, n_rules);
    double error = kt_difference(l, result, (uint64_t)2 * n_rules);
    kt_report(l, "sample", text, fmax(error, kt_difference(l, id, n_rules)), 0);
}

void selftest_sample_cases(struct kernel_test *l)
{
    static const uint32_t sizes[] = {1, 300, 2049, 248320};
    static const struct {
        struct sampler_rule rule;
        const char *what;
    } rules[] = {
        {{.penalty = 1, .inverse_penalty = 1, .random = 1}, "greedy"},
        {{.repeat_last = 21, .penalty = 1.5f, .inverse_penalty = 1 / 1.5f, .random = 1}, "greedy, penalty"},
        {{.penalty = 1, .inverse_penalty = 1, .scale = 2}, "no numbers"},
        {{.penalty = 1, .inverse_penalty = 1, .scale = 0.7f, .random = 0x5555555512345678u}, "all"},
        {{.scale = 2, .top_k = 20, .random = 0xfedcba9876543210u}, "top-k"},
        {{.scale = 1, .top_k = 1000, .top_p = 0xe0000000u, .random = 0x89abcdef01234567u}, "top-k, top-p"},
        {{.scale = 1, .top_p = 0x80000000u, .min_p = 0x1000000u, .random = UINT64_MAX}, "top-p, min-p"},
    };
    enum { N_SIZES = sizeof sizes / sizeof *sizes, N_RULES = sizeof rules / sizeof *rules };
    /* Brief: tests/unit/test_sample.c has one id, too. */
    for (size_t i = kt_is_brief(l); i < N_SIZES; i++)
        for (size_t k = 0; k < N_RULES; k++) {
            l->is_long = i == N_SIZES - 1 && k % (N_RULES - 1) != 0;
            sample_case(l, sizes[i], &rules[k].rule, rules[k].what);
        }
    l->is_long = false;
    struct sampler_rule all[N_RULES];
    for (size_t k = 0; k < N_RULES; k++)
        all[k] = rules[k].rule;
    concurrent_case(l, 300, all, N_RULES);
}
