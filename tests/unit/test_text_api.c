/* Tokenizer and sampler through moeflux.h, with the trained model's files.
 *
 * suites: check fast asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "moeflux.h"

static const char PATH[] = "tests/models/tiny/tokenizer.json", TEXT[] = "What is 47 + 38?<|im_end|>";
enum { MAX_IDS = 64 };

static struct moeflux_tokenizer *open_tokenizer(void)
{
    struct moeflux_tokenizer *t;
    struct moeflux_err e = {0};
    check_ok(moeflux_tokenizer_open(&t, PATH, &e), &e);
    return t;
}

static int64_t encode(const struct moeflux_tokenizer *t, bool parse_special, int32_t *ids, size_t cap)
{
    struct moeflux_err e = {0};
    int64_t n = moeflux_tokenizer_encode(t, TEXT, strlen(TEXT), parse_special, ids, cap, &e);
    check_ok((int)n, &e);
    return n;
}

static void the_bytes_of_the_ids_are_the_text(void **state)
{
    (void)state;
    struct moeflux_tokenizer *t = open_tokenizer();
    for (int parse_special = 0; parse_special < 2; parse_special++) {
        int32_t ids[MAX_IDS];
        char text[256] = "";
        int64_t n = encode(t, parse_special, ids, MAX_IDS);
        assert_in_range(n, 2, MAX_IDS);
        for (int64_t i = 0; i < n; i++) {
            const char *bytes;
            size_t len = moeflux_tokenizer_bytes(t, ids[i], &bytes);
            strncat(text, bytes, len);
        }
        assert_string_equal(text, TEXT);
        assert_int_equal(ids[n - 1] == moeflux_tokenizer_special_id(t, "<|im_end|>"), parse_special);
        assert_int_equal(moeflux_tokenizer_is_special(t, ids[n - 1]), parse_special);
    }
    moeflux_tokenizer_close(t);
}

static void a_short_array_gets_the_first_ids_and_the_call_their_number(void **state)
{
    (void)state;
    struct moeflux_tokenizer *t = open_tokenizer();
    int32_t all[MAX_IDS], some[4] = {-7, -7, -7, -7};
    int64_t n = encode(t, true, all, MAX_IDS);
    assert_int_equal(encode(t, true, NULL, 0), n);
    assert_int_equal(encode(t, true, some, 3), n);
    assert_memory_equal(some, all, 3 * sizeof *some);
    assert_int_equal(some[3], -7);
    moeflux_tokenizer_close(t);
}

static void what_the_tokenizer_lacks_is_said(void **state)
{
    (void)state;
    struct moeflux_tokenizer *t = open_tokenizer();
    struct moeflux_err e = {0};
    const char *bytes;
    assert_int_equal(moeflux_tokenizer_special_id(t, "<|no such token|>"), -1);
    assert_int_equal(moeflux_tokenizer_bytes(t, 1 << 30, &bytes), 0);
    assert_int_equal(moeflux_tokenizer_bos(t), -1);
    moeflux_tokenizer_close(t);
    moeflux_tokenizer_close(NULL);
    assert_int_equal(moeflux_tokenizer_open(&t, "tests/models/none/tokenizer.json", &e), MOEFLUX_ERR_IO);
    assert_null(t);
    assert_non_null(strstr(e.text, "tests/models/none"));
    assert_int_equal(moeflux_tokenizer_open(&t, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_null(t);
}

static void the_sampler_chooses_as_its_options_say(void **state)
{
    (void)state;
    enum { N = 40 };
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    float logits[N];
    int32_t first[20];
    for (int i = 0; i < N; i++)
        logits[i] = (float)(i % 7);
    o.temperature = 0;
    check_ok(moeflux_sampler_new(&s, &o, N, NULL, &e), &e);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 6);
    moeflux_sampler_free(s);
    o = moeflux_sampler_defaults();
    o.seed = 5;
    o.repeat_penalty = 1.5f;
    o.repeat_last = 64;
    check_ok(moeflux_sampler_new(&s, &o, N, NULL, &e), &e);
    for (int i = 0; i < 20; i++) {
        first[i] = moeflux_sampler_pick(s, logits, &e);
        assert_in_range(first[i], 0, N - 1);
        moeflux_sampler_accept(s, first[i]);
    }
    moeflux_sampler_reset(s);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(moeflux_sampler_pick(s, logits, &e), first[i]);
        moeflux_sampler_accept(s, first[i]);
    }
    logits[3] = (float)NAN;
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), MOEFLUX_ERR_DEVICE);
    moeflux_sampler_free(s);
    moeflux_sampler_free(NULL);
}

static void penalties_look_at_the_answer_alone(void **state)
{
    enum { N = 8 };
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    const float logits[N] = {0, 3, 2.5f};
    (void)state;
    o.temperature = 0;
    o.presence_penalty = 0.25f;
    o.frequency_penalty = 0.5f;
    check_ok(moeflux_sampler_new(&s, &o, N, NULL, &e), &e);
    moeflux_sampler_accept(s, 1);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 1);
    moeflux_sampler_begin_answer(s);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 1);
    moeflux_sampler_accept(s, 1);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 2);
    moeflux_sampler_accept(s, 2);
    moeflux_sampler_accept(s, 2);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 1);
    moeflux_sampler_begin_answer(s);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 1);
    moeflux_sampler_free(s);
    o.presence_penalty = 3;
    assert_int_equal(moeflux_sampler_new(&s, &o, N, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "presence_penalty is 3, expected -2 to 2"));
}

/* Rows of a padded vocabulary have logits too. */
static void an_id_without_a_token_is_never_chosen(void **state)
{
    (void)state;
    struct moeflux_tokenizer *t = open_tokenizer();
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    const char *bytes;
    uint32_t n = 0;
    while (moeflux_tokenizer_bytes(t, (int32_t)n, &bytes) > 0)
        n++;
    float *logits = calloc(n + 100, sizeof *logits);
    assert_non_null(logits);
    logits[n + 50] = 100;
    logits[n - 1] = 50;
    o.temperature = 0;
    check_ok(moeflux_sampler_new(&s, &o, n + 100, t, &e), &e);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), n - 1);
    moeflux_sampler_free(s);
    check_ok(moeflux_sampler_new(&s, &o, n + 100, NULL, &e), &e);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), n + 50);
    moeflux_sampler_free(s);
    o.top_p = 2;
    assert_int_equal(moeflux_sampler_new(&s, &o, n, t, &e), MOEFLUX_ERR_USAGE);
    assert_null(s);
    free(logits);
    moeflux_tokenizer_close(t);
}

/* The defaults are the program's, so DRY needs the tokenizer for its breakers, or none of them. */
static void breakers_are_the_programs_and_each_is_checked(void **state)
{
    (void)state;
    struct moeflux_tokenizer *t = open_tokenizer();
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    static const char *const bad[][2] = {{":", NULL}, {":", ""}};
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    assert_int_equal(o.n_dry_sequence_breakers, 4);
    assert_string_equal(o.dry_sequence_breakers[0], "\n");
    check_ok(moeflux_sampler_new(&s, &o, 8, NULL, &e), &e);
    moeflux_sampler_free(s);
    o.dry_multiplier = 1;
    check_ok(moeflux_sampler_new(&s, &o, 8, t, &e), &e);
    moeflux_sampler_free(s);
    assert_int_equal(moeflux_sampler_new(&s, &o, 8, NULL, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "tokenizer"));
    o.n_dry_sequence_breakers = 2;
    for (int i = 0; i < 2; i++) {
        o.dry_sequence_breakers = bad[i];
        assert_int_equal(moeflux_sampler_new(&s, &o, 8, t, &e), MOEFLUX_ERR_USAGE);
        assert_non_null(strstr(e.text, "dry_sequence_breakers[1]"));
    }
    o.dry_sequence_breakers = NULL;
    assert_int_equal(moeflux_sampler_new(&s, &o, 8, t, &e), MOEFLUX_ERR_USAGE);
    moeflux_tokenizer_close(t);
}

static void options_of_the_sampler_are_found_and_set_by_name(void **state)
{
    (void)state;
    const struct moeflux_sampler_field *all = moeflux_sampler_fields();
    const struct moeflux_sampler_options first = moeflux_sampler_defaults();
    struct moeflux_sampler_options o = first;
    struct moeflux_err e = {0};
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "%.*s", (int)strcspn(all[i].flags, ","), all[i].flags);
        assert_ptr_equal(moeflux_sampler_find(all[i].name), &all[i]);
        assert_ptr_equal(moeflux_sampler_find(flag), &all[i]);
        if (all[i].kind == MOEFLUX_SAMPLER_LIST) {
            assert_int_equal(moeflux_sampler_get(&o, &all[i]), 4);
            assert_int_equal(moeflux_sampler_set(&o, flag, 1, &e), MOEFLUX_ERR_USAGE);
            continue;
        }
        check_ok(moeflux_sampler_set(&o, flag, 1, &e), &e);
        assert_true(moeflux_sampler_get(&o, &all[i]) == 1);
        assert_int_equal(moeflux_sampler_set(&o, flag, all[i].lo - 1, &e), MOEFLUX_ERR_USAGE);
        assert_int_equal(moeflux_sampler_set(&o, flag, all[i].hi * 2, &e), MOEFLUX_ERR_USAGE);
        assert_true(strncmp(e.text, all[i].name, strlen(all[i].name)) == 0);
        assert_true(moeflux_sampler_get(&o, &all[i]) == 1);
    }
    assert_ptr_equal(moeflux_sampler_find("typical"), moeflux_sampler_find("typical_p"));
    assert_null(moeflux_sampler_find("typic"));
    check_ok(moeflux_sampler_check(&o, &e), &e);
    o.top_p = 0;
    assert_int_equal(moeflux_sampler_check(&o, &e), MOEFLUX_ERR_USAGE);
    check_ok(moeflux_sampler_set(&o, "top-p", 0, &e), &e);
    check_ok(moeflux_sampler_check(&o, &e), &e);
    assert_int_equal(moeflux_sampler_set(&o, "top_k", 1.5, &e), MOEFLUX_ERR_USAGE);
}

static void a_bias_counts_for_its_token(void **state)
{
    (void)state;
    static const float logits[8] = {1, 2};
    const struct moeflux_bias bias[] = {{7, 5}}, outside[] = {{8, 5}};
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    o.temperature = 0;
    o.bias = bias;
    o.n_bias = 1;
    check_ok(moeflux_sampler_new(&s, &o, 8, NULL, &e), &e);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), 7);
    moeflux_sampler_free(s);
    o.bias = outside;
    assert_int_equal(moeflux_sampler_new(&s, &o, 8, NULL, &e), MOEFLUX_ERR_USAGE);
}

static void a_set_without_ids_is_told_apart_from_faulty_logits(void **state)
{
    (void)state;
    static const uint64_t none[1] = {0}, past_the_end[1] = {~(uint64_t)0xFF};
    const float logits[8] = {1};
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    struct moeflux_sampler *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_sampler_new(&s, &o, 8, NULL, &e), &e);
    moeflux_sampler_restrict(s, none);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), MOEFLUX_ERR_USAGE);
    assert_non_null(strstr(e.text, "allowed"));
    moeflux_sampler_restrict(s, past_the_end);
    assert_int_equal(moeflux_sampler_pick(s, logits, &e), MOEFLUX_ERR_USAGE);
    moeflux_sampler_restrict(s, NULL);
    assert_true(moeflux_sampler_pick(s, logits, &e) >= 0);
    moeflux_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_the_ids_are_the_text),
        cmocka_unit_test(a_short_array_gets_the_first_ids_and_the_call_their_number),
        cmocka_unit_test(what_the_tokenizer_lacks_is_said),
        cmocka_unit_test(the_sampler_chooses_as_its_options_say),
        cmocka_unit_test(penalties_look_at_the_answer_alone),
        cmocka_unit_test(an_id_without_a_token_is_never_chosen),
        cmocka_unit_test(breakers_are_the_programs_and_each_is_checked),
        cmocka_unit_test(options_of_the_sampler_are_found_and_set_by_name),
        cmocka_unit_test(a_bias_counts_for_its_token),
        cmocka_unit_test(a_set_without_ids_is_told_apart_from_faulty_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
