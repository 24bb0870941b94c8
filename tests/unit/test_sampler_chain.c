/* Typical-p, n-sigma, min-keep, XTC and DRY against the plain formulas of tests/data/sampler_cases.py,
 * alone, with each other and with a constraint; and the tokens that end a repetition.
 *
 * suites: check fast asan */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/breakers.h"
#include "sample/dry.h"
#include "samplers.h"
#include "text/tokenizer/tokenizer.h"

enum { MAX_IDS = 128, MAX_WORDS = MAX_IDS / 64, MAX_TEXT = 256, MAX_BREAKERS = 8, MAX_PICKS = 64 };

static const struct moeflux_sampler_options plain = {
    .temperature = 1, .top_p = 1, .typical_p = 1, .repeat_penalty = 1};

struct test_case {
    struct moeflux_sampler_options options;
    uint32_t n, n_allowed, n_text, n_picks;
    float logits[MAX_IDS];
    uint64_t allowed[MAX_WORDS];
    int32_t text[MAX_TEXT];
    int32_t picks[MAX_PICKS];
    struct sampler_breaker list[MAX_BREAKERS];
    struct sampler_breakers breakers;
};

static double number(FILE *f)
{
    double x;
    assert_int_equal(fscanf(f, "%lf", &x), 1);
    return x;
}

static uint32_t whole(FILE *f, uint32_t most)
{
    double x = number(f);
    assert_true(x >= 0 && x <= most);
    return (uint32_t)x;
}

static void word(FILE *f, const char *expected)
{
    char found[16];
    assert_int_equal(fscanf(f, "%15s", found), 1);
    assert_string_equal(found, expected);
}

static void read_options(FILE *f, struct moeflux_sampler_options *o)
{
    *o = plain;
    o->temperature = (float)number(f);
    o->top_k = whole(f, MAX_IDS);
    o->top_p = (float)number(f);
    o->min_p = (float)number(f);
    o->typical_p = (float)number(f);
    o->top_n_sigma = (float)number(f);
    o->min_keep = whole(f, MAX_IDS);
    o->xtc_probability = (float)number(f);
    o->xtc_threshold = (float)number(f);
    o->dry_multiplier = (float)number(f);
    o->dry_base = (float)number(f);
    o->dry_allowed_length = whole(f, MAX_TEXT);
    o->dry_penalty_last_n = whole(f, MAX_TEXT);
    o->seed = (uint64_t)number(f);
}

static void read_breakers(FILE *f, struct test_case *c)
{
    c->breakers = (struct sampler_breakers){c->list, whole(f, MAX_BREAKERS)};
    for (size_t i = 0; i < c->breakers.n; i++) {
        struct sampler_breaker *b = &c->list[i];
        b->n_tail = whole(f, SAMPLER_MAX_TAIL) - 1;
        b->head = (int32_t)whole(f, MAX_IDS);
        for (uint32_t k = 0; k < b->n_tail; k++)
            b->tail[k] = (int32_t)whole(f, MAX_IDS);
    }
}

/* Returns false at the end of the file. */
static bool read_case(FILE *f, struct test_case *c)
{
    char first[16];
    if (fscanf(f, "%15s", first) != 1)
        return false;
    assert_string_equal(first, "options");
    *c = (struct test_case){0};
    read_options(f, &c->options);
    word(f, "logits");
    c->n = whole(f, MAX_IDS);
    for (uint32_t i = 0; i < c->n; i++)
        c->logits[i] = (float)number(f);
    word(f, "allowed");
    c->n_allowed = whole(f, MAX_IDS);
    for (uint32_t i = 0; i < c->n_allowed; i++) {
        uint32_t id = whole(f, c->n - 1);
        c->allowed[id / 64] |= (uint64_t)1 << id % 64;
    }
    word(f, "text");
    c->n_text = whole(f, MAX_TEXT);
    for (uint32_t i = 0; i < c->n_text; i++)
        c->text[i] = (int32_t)whole(f, MAX_IDS);
    word(f, "breakers");
    read_breakers(f, c);
    word(f, "picks");
    c->n_picks = whole(f, MAX_PICKS);
    for (uint32_t i = 0; i < 2 * c->n_picks; i++) {
        int32_t x = (int32_t)number(f);
        if (i % 2)
            c->text[c->n_text++ % MAX_TEXT] = x;
        else
            c->picks[i / 2] = x;
    }
    c->n_text -= c->n_picks;
    return true;
}

static void run_case(const struct test_case *c, int number_of_case)
{
    struct moeflux_sampler_options o = c->options;
    struct moeflux_err e = {0};
    struct sampler *s = sampler_new(&o, &c->breakers, c->n, NULL, &e);
    assert_non_null(s);
    /* After a reset the same comes again. */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < c->n_text; i++)
            sampler_accept(s, c->text[i]);
        sampler_set_mask(s, c->n_allowed < c->n ? c->allowed : NULL);
        for (uint32_t k = 0; k < c->n_picks; k++) {
            int32_t id = samplers_pick(s, c->logits);
            if (c->picks[k] >= 0 && id != c->picks[k])
                fail_msg("case %d, pick %u: %d, expected %d", number_of_case, k, id, c->picks[k]);
            sampler_accept(s, c->text[c->n_text + k]);
        }
        sampler_reset(s);
    }
    sampler_free(s);
}

static void every_formula_chooses_what_the_plain_one_does(void **state)
{
    (void)state;
    struct test_case c;
    char line[256];
    int n = 0;
    FILE *f = fopen("tests/data/sampler_cases.txt", "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    while (read_case(f, &c))
        run_case(&c, n++);
    fclose(f);
    assert_true(n >= 60);
}

static void xtc_drops_the_likeliest_as_often_as_asked(void **state)
{
    enum { PICKS = 20000 };
    static const float logits[3] = {4, 3, 0};
    struct moeflux_sampler_options o = plain;
    uint32_t first = 0;
    (void)state;
    o.xtc_probability = 0.25f;
    o.xtc_threshold = 0.1f;
    struct sampler *s = samplers_new(&o, 3, NULL);
    for (int i = 0; i < PICKS; i++)
        first += samplers_pick(s, logits) == 0;
    /* 3/4 of 0.7214; the deviation is below 71. */
    assert_in_range(first, (uint32_t)(PICKS * 0.5411) - 400, (uint32_t)(PICKS * 0.5411) + 400);
    sampler_free(s);
}

/* An option at the value that means "off" must leave the sampling to a device, any other one must not. */
static void a_device_gets_only_what_it_can_do(void **state)
{
    struct moeflux_sampler_options o = plain;
    (void)state;
    o.top_n_sigma = -1;
    o.xtc_threshold = 0.1f;
    o.min_keep = 1;
    o.dry_base = 1.75f;
    o.dry_penalty_last_n = 64;
    struct moeflux_sampler_options on[6] = {o, o, o, o, o, o};
    on[0].typical_p = 0.9f;
    on[1].top_n_sigma = 1;
    on[2].min_keep = 2;
    on[3].xtc_probability = 0.1f;
    on[4].dry_multiplier = 0.8f;
    on[5].presence_penalty = 1;
    struct sampler *s = samplers_new(&o, 8, NULL);
    assert_false(sampler_next_rule(s, 0).host_only);
    sampler_free(s);
    for (int i = 0; i < 6; i++) {
        s = samplers_new(&on[i], 8, NULL);
        assert_true(sampler_next_rule(s, 0).host_only);
        sampler_free(s);
    }
}

static void what_is_out_of_range_is_named(void **state)
{
    struct moeflux_sampler_options bad[7];
    static const char *const names[7] = {
        "typical_p",      "top_n_sigma", "xtc_probability",      "xtc_threshold",
        "dry_multiplier", "dry_base",    "dry_sequence_breakers"};
    static const char LONG[] = "a text of more than forty bytes, which no breaker may have";
    (void)state;
    for (int i = 0; i < 7; i++) {
        bad[i] = plain;
        bad[i].dry_penalty_last_n = 1;
    }
    bad[0].typical_p = 1.5f;
    bad[1].top_n_sigma = NAN;
    bad[2].xtc_probability = -0.1f;
    bad[3].xtc_threshold = 2;
    bad[4].dry_multiplier = -1;
    bad[5].dry_multiplier = 1;
    bad[5].dry_base = 0.5f;
    bad[6].dry_sequence_breakers = (const char *const[]){LONG};
    bad[6].n_dry_sequence_breakers = 1;
    for (int i = 0; i < 7; i++) {
        struct moeflux_err e = {0};
        assert_int_equal(sampler_check(&bad[i], &e), ERR_USAGE);
        assert_non_null(strstr(e.text, names[i]));
    }
}

static bool has_text(const struct tokenizer *t, int32_t id, const char *text)
{
    const char *bytes = NULL;
    size_t n = tokenizer_bytes(t, id, &bytes);
    return n && memmem(bytes, n, text, strlen(text));
}

/* Returns whether a token and the tail after it are the bytes up to the end of `text`. */
static bool completes(const struct tokenizer *t, const struct sampler_breaker *b, const char *text)
{
    char all[512];
    size_t at = 0;
    for (uint32_t i = 0; i <= b->n_tail; i++) {
        const char *bytes = NULL;
        size_t n = tokenizer_bytes(t, i ? b->tail[i - 1] : b->head, &bytes);
        assert_true(at + n < sizeof all);
        memcpy(all + at, bytes, n);
        at += n;
    }
    size_t len = strlen(text);
    return at >= len && memcmp(all + at - len, text, len) == 0;
}

static void breakers_are_the_tokens_that_contain_or_begin_them(void **state)
{
    static const char *const texts[] = {"\n", "th", " the"};
    struct moeflux_err e = {0};
    (void)state;
    struct tokenizer *t = tokenizer_open("tests/models/tiny/tokenizer.json", &e);
    assert_non_null(t);
    for (size_t k = 0; k < 3; k++) {
        struct moeflux_sampler_options o = plain;
        struct sampler_breakers b;
        uint32_t n_single = 0, n_with = 0;
        o.dry_multiplier = 1;
        o.dry_penalty_last_n = 64;
        o.dry_sequence_breakers = &texts[k];
        o.n_dry_sequence_breakers = 1;
        check_ok(breakers_make(t, &o, &b, &e), &e);
        for (size_t i = 0; i < b.n; i++) {
            bool single = b.all[i].n_tail == 0;
            n_single += single;
            assert_true(single ? has_text(t, b.all[i].head, texts[k]) : completes(t, &b.all[i], texts[k]));
        }
        for (int32_t id = 0; id < tokenizer_n_ids(t); id++)
            n_with += has_text(t, id, texts[k]);
        assert_true(n_with > 0);
        assert_int_equal(n_single, n_with);
        assert_true(strlen(texts[k]) == 1 ? b.n == n_with : b.n > n_with);
        breakers_free(&b);
        o.dry_multiplier = 0;
        check_ok(breakers_make(t, &o, &b, &e), &e);
        assert_int_equal(b.n, 0);
    }
    tokenizer_free(t);
}

static void breakers_are_made_once_for_the_same_texts(void **state)
{
    struct breakers_cache cache = {0};
    const struct sampler_breakers *first, *again;
    struct moeflux_sampler_options o = plain;
    struct moeflux_err e = {0};
    char colon[] = ":";
    (void)state;
    struct tokenizer *t = tokenizer_open("tests/models/tiny/tokenizer.json", &e);
    assert_non_null(t);
    o.dry_sequence_breakers = (const char *const[]){colon};
    o.n_dry_sequence_breakers = 1;
    o.dry_penalty_last_n = 64;
    check_ok(breakers_cache_get(&cache, t, &o, &first, &e), &e);
    assert_true(!first && !cache.made.n);
    o.dry_multiplier = 1;
    check_ok(breakers_cache_get(&cache, t, &o, &first, &e), &e);
    const struct sampler_breaker *made = first->all;
    const size_t n = first->n;
    assert_true(n > 0);
    check_ok(breakers_cache_get(&cache, t, &o, &again, &e), &e);
    assert_ptr_equal(again->all, made);
    /* The texts are compared, not their addresses. */
    colon[0] = 'e';
    check_ok(breakers_cache_get(&cache, t, &o, &again, &e), &e);
    assert_int_not_equal(again->n, n);
    breakers_cache_free(&cache);
    tokenizer_free(t);
}

/* The text is 8 times "0 1 2 3": a repetition of up to 28 tokens, whose penalty is 2^(28 - 2) or less. */
static void a_breaker_counts_from_its_last_token(void **state)
{
    struct sampler_breaker list[2] = {{.head = 1, .n_tail = 1, .tail = {2}}, {.head = 9}};
    const struct sampler_breakers breakers = {list, 2};
    struct moeflux_sampler_options o = plain;
    struct moeflux_err e = {0};
    (void)state;
    o.dry_multiplier = 1;
    o.dry_base = 2;
    o.dry_penalty_last_n = 64;
    for (uint32_t allowed = 0; allowed <= 3; allowed++) {
        o.dry_allowed_length = allowed;
        struct dry *d = dry_new(&o, &breakers, 16, &e);
        assert_non_null(d);
        for (int i = 0; i < 32; i++)
            dry_accept(d, i % 4);
        /* The last breaker is "1 2": one token, 3, comes after it. */
        uint64_t found = *dry_find(d);
        assert_int_equal(found & 1, allowed <= 1);
        if (allowed <= 1)
            assert_true(dry_penalty(d, 0) == (allowed ? 1.0f : 2.0f));
        dry_free(d);
        d = dry_new(&o, NULL, 16, &e);
        for (int i = 0; i < 32; i++)
            dry_accept(d, i % 4);
        assert_true(*dry_find(d) & 1);
        assert_true(dry_penalty(d, 0) == ldexpf(1, 28 - (int)allowed));
        dry_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_formula_chooses_what_the_plain_one_does),
        cmocka_unit_test(xtc_drops_the_likeliest_as_often_as_asked),
        cmocka_unit_test(a_device_gets_only_what_it_can_do),
        cmocka_unit_test(what_is_out_of_range_is_named),
        cmocka_unit_test(breakers_are_the_tokens_that_contain_or_begin_them),
        cmocka_unit_test(breakers_are_made_once_for_the_same_texts),
        cmocka_unit_test(a_breaker_counts_from_its_last_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
