/* The choice of a token on a device: the same as the sampler's on the host.
 *
 * suites: nightly vulkan */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "check.h"
#include "device.h"
#include "fuzz.h"
#include "ops/sample/sample.h"

enum { ROWS = 16, BATCH = 50, MAX_LAST = 70 };

struct room {
    struct exec *x;
    struct sample op;
    uint32_t n;
    struct exec_buffer logits, blocked, recent, last, scratch, id, results;
    float *rows; /* [ROWS][n] */
};

static void new_buffer(struct room *r, struct exec_buffer *b, uint64_t bytes)
{
    struct moeflux_err e = {0};
    check_ok(exec_buffer_new(r->x, b, EXEC_HOST, bytes, &e), &e);
}

static void open_room(struct room *r, const char *device, uint32_t n)
{
    struct moeflux_err e = {0};
    *r = (struct room){.n = n};
    check_ok(exec_open(&r->x, &(struct exec_options){.device = device, .shelf = device_shelf()}, &e), &e);
    check_ok(sample_open(&r->op, r->x, n, &e), &e);
    new_buffer(r, &r->logits, (uint64_t)ROWS * n * 4);
    new_buffer(r, &r->blocked, size_round_up(n, 64) / 8);
    new_buffer(r, &r->recent, BATCH * MAX_LAST * 4);
    new_buffer(r, &r->last, BATCH * 4);
    new_buffer(r, &r->scratch, sample_scratch(n));
    new_buffer(r, &r->id, BATCH * 4);
    new_buffer(r, &r->results, BATCH * 8);
    r->rows = (float *)(void *)r->logits.host;
}

static void close_room(struct room *r)
{
    struct exec_buffer *all[] = {&r->logits,  &r->blocked, &r->recent, &r->last,
                                 &r->scratch, &r->id,      &r->results};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(r->x, all[i]);
    exec_close(r->x);
}

/* Rows with many equal logits, with few large ones, with -infinity, denormals and zeros of both signs. */
static void fill_rows(struct room *r, uint64_t seed)
{
    struct fuzz f = {seed};
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < r->n; i++) {
            float v = (float)fuzz_below(&f, 1 << 20) / (1 << 16) - 8.0f;
            uint64_t kind = fuzz_below(&f, 64);
            v = row % 4 == 1 ? floorf(v) : row % 4 == 2 ? v * fabsf(v) : row % 4 == 3 ? v * 0.05f : v;
            v = kind == 0 ? -INFINITY : kind == 1 ? 0.0f : kind == 2 ? -0.0f : kind == 3 ? 1e-40f * v : v;
            r->rows[(uint64_t)row * r->n + i] = v;
        }
}

/* Records the choice by the sampler's rule of place `at` in the batch. */
static void record(struct room *r, const struct sampler *s, uint32_t at, const struct sampler_rule *rule,
                   uint32_t row, int32_t last)
{
    int32_t *recent = (int32_t *)(void *)r->recent.host + (uint64_t)at * MAX_LAST;
    uint32_t n = rule->repeat_last ? sampler_recent(s, NULL, recent) : 0;
    ((int32_t *)(void *)r->last.host)[at] = last;
    sample_run(&r->op, r->x,
               &(struct sample_call){.rule = rule,
                                     .logits = r->logits.address + (uint64_t)row * r->n * 4,
                                     .blocked = r->blocked.address,
                                     .recent = r->recent.address + (uint64_t)at * MAX_LAST * 4,
                                     .last = r->last.address + (uint64_t)at * 4,
                                     .scratch = r->scratch.address,
                                     .id = r->id.address + (uint64_t)at * 4,
                                     .result = r->results.address + (uint64_t)at * 8,
                                     .n_recent = n});
}

/* n tokens of one seed, each after the host's choice before it. */
static void compare(struct room *r, const struct moeflux_sampler_options *o, const uint8_t *allowed,
                    uint32_t n)
{
    struct moeflux_err e = {0};
    struct sampler *s = sampler_new(o, NULL, r->n, allowed, &e);
    if (!s)
        fail_msg("%s", e.text);
    memcpy(r->blocked.host, sampler_blocked(s), r->blocked.bytes);
    int32_t last = 0, want[BATCH];
    for (uint32_t done = 0; done < n; done += BATCH) {
        exec_begin(r->x);
        for (uint32_t i = 0; i < BATCH; i++) {
            const struct sampler_rule rule = sampler_next_rule(s, 0);
            uint32_t row = (done + i) % ROWS;
            assert_true(sample_takes(&r->op, &rule));
            record(r, s, i, &rule, row, last);
            sampler_accept(s, last);
            want[i] = last = sampler_pick(s, r->rows + (uint64_t)row * r->n, &e);
            check_ok(last, &e);
        }
        check_ok(exec_finish(r->x, &e), &e);
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t *found = (const uint32_t *)(const void *)r->results.host + 2 * (size_t)i;
            if (found[1] != SAMPLE_OK || (int32_t)found[0] != want[i] ||
                ((const int32_t *)(const void *)r->id.host)[i] != want[i])
                fail_msg("temperature %g top-k %u top-p %g min-p %g penalty %g last %u: token %u is %u "
                         "(fault %u), "
                         "expected %d",
                         (double)o->temperature, o->top_k, (double)o->top_p, (double)o->min_p,
                         (double)o->repeat_penalty, o->repeat_last, done + i, found[0], found[1], want[i]);
        }
    }
    sampler_free(s);
}

static const struct moeflux_sampler_options OPTIONS[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.top_p = 1, .repeat_penalty = 1.5f, .repeat_last = 64},
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 3},
    {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .repeat_penalty = 1, .seed = 4},
    {.temperature = 0.7f, .top_k = 3, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 7, .seed = 5},
    {.temperature = 1.3f, .top_p = 0.95f, .repeat_penalty = 1, .seed = 6},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 0.7f, .repeat_last = 2, .seed = 7},
    {.temperature = 2, .top_k = 100, .top_p = 0.9f, .min_p = 0.1f, .repeat_penalty = 1, .seed = 8},
    {.temperature = 1e38f, .top_k = 11, .top_p = 0.5f, .repeat_penalty = 1, .seed = 9},
    {.temperature = 1e-30f, .top_p = 0.5f, .repeat_penalty = 1, .seed = UINT64_MAX},
};
enum { N_OPTIONS = sizeof OPTIONS / sizeof *OPTIONS };

/* Draws 100,000 tokens. Software devices take a hundred times longer and draw 2,500. */
static void tokens_of_seeded_runs_are_the_hosts(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct room r;
        /* More of 1,500 ids may be drawn than a workgroup has invocations. */
        open_room(&r, device_name(), seed % 2 ? 1500 : 300);
        fill_rows(&r, seed);
        uint32_t n = exec_get_caps(r.x).is_software ? BATCH : 2000;
        for (size_t i = 0; i < N_OPTIONS; i++)
            compare(&r, &OPTIONS[i], NULL, n);
        close_room(&r);
    }
}

static void vocabularies_of_any_size_are_chosen_from(void **state)
{
    static const uint32_t sizes[] = {1, 31, 128, 2048, 2049, 5000, 70000};
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct room r;
        open_room(&r, device_name(), sizes[k]);
        for (uint32_t i = 0; i < ROWS * r.n; i++)
            r.rows[i] = 0;
        if (r.n > 1)
            fill_rows(&r, k);
        for (size_t i = 0; i < N_OPTIONS; i++)
            compare(&r, &OPTIONS[i], NULL, BATCH);
        close_room(&r);
    }
}

/* Devices that are not software run every rule; the rules themselves are tested above. */
static void a_whole_vocabulary_agrees(void **state)
{
    (void)state;
    struct room r;
    open_room(&r, device_name(), 248320);
    fill_rows(&r, 77);
    for (size_t i = 0; i < N_OPTIONS; i += exec_get_caps(r.x).is_software ? 3 : 1)
        compare(&r, &OPTIONS[i], NULL, BATCH);
    close_room(&r);
}

static void blocked_ids_are_left_out(void **state)
{
    uint8_t allowed[38] = {0};
    (void)state;
    struct fuzz f = {1};
    struct room r;
    open_room(&r, device_name(), 300);
    fill_rows(&r, 8);
    for (uint32_t i = 0; i < 300; i++)
        allowed[i / 8] |= (uint8_t)((fuzz_below(&f, 3) == 0) << i % 8);
    for (uint32_t i = 0; i < 300; i++)
        if (!(allowed[i / 8] >> i % 8 & 1))
            r.rows[i] = i % 2 ? NAN : INFINITY;
    for (size_t i = 0; i < N_OPTIONS; i++)
        compare(&r, &OPTIONS[i], allowed, 200);
    close_room(&r);
}

/* What device and host say of row 0. */
static void compare_fault(struct room *r, const struct moeflux_sampler_options *o)
{
    struct moeflux_err want = {0}, found = {0};
    struct sampler *s = sampler_new(o, NULL, r->n, NULL, NULL);
    memcpy(r->blocked.host, sampler_blocked(s), r->blocked.bytes);
    const struct sampler_rule rule = sampler_next_rule(s, 0);
    exec_begin(r->x);
    record(r, s, 0, &rule, 0, 5);
    check_ok(exec_finish(r->x, &found), &found);
    assert_int_equal(sampler_pick(s, r->rows, &want), ERR_DEVICE);
    const uint32_t *result = (const uint32_t *)(const void *)r->results.host;
    assert_int_not_equal(result[1], SAMPLE_OK);
    assert_int_equal(sampler_refuse(result[1], result[0], r->n, &found), ERR_DEVICE);
    assert_string_equal(found.text, want.text);
    assert_int_equal(((const int32_t *)(const void *)r->id.host)[0], 0);
    sampler_free(s);
}

static void faults_are_the_hosts(void **state)
{
    (void)state;
    struct room r;
    open_room(&r, device_name(), 5000);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        fill_rows(&r, 5);
        r.rows[4000] = r.rows[3999] = INFINITY;
        compare_fault(&r, &OPTIONS[i]);
        r.rows[4500] = r.rows[4700] = -NAN;
        compare_fault(&r, &OPTIONS[i]);
        for (uint32_t k = 0; k < r.n; k++)
            r.rows[k] = -INFINITY;
        compare_fault(&r, &OPTIONS[i]);
    }
    close_room(&r);
}

static void a_penalty_may_make_a_logit_infinite(void **state)
{
    static const struct moeflux_sampler_options o = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 0.5f, .repeat_last = 4};
    (void)state;
    struct room r;
    open_room(&r, device_name(), 300);
    for (uint32_t i = 0; i < ROWS * r.n; i++)
        r.rows[i] = i % r.n == 0 ? 3e38f : (float)(i % 7);
    compare(&r, &o, NULL, BATCH);
    close_room(&r);
}

static void penalties_of_the_answer_alone_are_left_to_the_host(void **state)
{
    struct moeflux_sampler_options o = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 1.5f, .repeat_last = 4};
    struct moeflux_err e = {0};
    struct room r;
    (void)state;
    open_room(&r, "reference", 300);
    for (int i = 0; i < 3; i++) {
        o.presence_penalty = i == 1 ? 0.5f : 0;
        o.frequency_penalty = i == 2 ? -0.5f : 0;
        struct sampler *s = sampler_new(&o, NULL, r.n, NULL, &e);
        assert_non_null(s);
        const struct sampler_rule rule = sampler_next_rule(s, 0);
        assert_int_equal(sample_takes(&r.op, &rule), i == 0);
        sampler_free(s);
    }
    close_room(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_seeded_runs_are_the_hosts),
        cmocka_unit_test(vocabularies_of_any_size_are_chosen_from),
        cmocka_unit_test(a_whole_vocabulary_agrees),
        cmocka_unit_test(blocked_ids_are_left_out),
        cmocka_unit_test(faults_are_the_hosts),
        cmocka_unit_test(a_penalty_may_make_a_logit_infinite),
        cmocka_unit_test(penalties_of_the_answer_alone_are_left_to_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
