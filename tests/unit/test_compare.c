/* What --compare is made of: the divergence of two rows, means and their errors, words as of a shell, rows in
 * a file.
 *
 * suites: check fast asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cli/measure/compare.h"
#include "cli/measure/row_file.h"
#include "cli/measure/scoring.h"
#include "cli/options/words.h"
#include "tmp_tree.h"

/* ---- divergence ---- */

enum { N = 1000 };

static double log_sum_of(const float *row)
{
    long double sum = 0;
    for (int i = 0; i < N; i++)
        sum += expl((long double)row[i] - 90);
    return (double)(logl(sum) + 90);
}

/* Follows the definition: probabilities first. */
static double divergence_of(const float *p, const float *q)
{
    long double sums[2] = {0}, kl = 0;
    for (int i = 0; i < N; i++) {
        sums[0] += expl((long double)p[i] - 90);
        sums[1] += expl((long double)q[i] - 90);
    }
    for (int i = 0; i < N; i++) {
        long double a = expl((long double)p[i] - 90) / sums[0], b = expl((long double)q[i] - 90) / sums[1];
        kl += a * logl(a / b);
    }
    return (double)kl;
}

static void divergence_is_that_of_the_definition(void **state)
{
    (void)state;
    float p[N], q[N];
    unsigned seed = 7;
    for (double spread = 1e-3; spread < 20; spread *= 10) {
        for (int i = 0; i < N; i++) {
            seed = seed * 1664525u + 1013904223u;
            p[i] = (float)(seed >> 8) / 16777216.0f * 100;
            q[i] = p[i] + (float)(spread * ((i * 37 % 101) / 50.0 - 1));
        }
        double want = divergence_of(p, q), got = compare_divergence(p, log_sum_of(p), q, log_sum_of(q), N);
        /* The logarithms of up to 100 are good for some 1e-14. */
        if (!(fabs(got - want) <= 1e-12 * want + 1e-13))
            fail_msg("spread %g: %.17g, expected %.17g", spread, got, want);
        assert_true(compare_divergence(p, log_sum_of(p), p, log_sum_of(p), N) == 0);
    }
}

/* ---- means ---- */

static void the_error_of_a_large_mean_keeps_its_digits(void **state)
{
    (void)state;
    struct average a = {0};
    assert_true(isnan(average_error(&a)));
    average_add(&a, 1e9 + 4);
    assert_true(isnan(average_error(&a)));
    static const double more[] = {1e9 + 7, 1e9 + 13, 1e9 + 16};
    for (int i = 0; i < 3; i++)
        average_add(&a, more[i]);
    /* Variance 30 of four numbers: the square root of 30 / 4. */
    assert_true(a.n == 4 && a.mean == 1e9 + 10);
    assert_true(fabs(average_error(&a) - sqrt(7.5)) < 1e-12);
}

static void all_tokens_but_the_first_of_each_window_count(void **state)
{
    (void)state;
    for (size_t n = 0; n < 40; n++)
        for (uint32_t context = 2; context < 12; context++) {
            uint64_t want = 0;
            for (size_t i = 0; i < n; i++)
                want += i % context != 0;
            assert_int_equal(scoring_count(n, context), want);
        }
}

/* ---- words ---- */

static void words_are_a_shell_s(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n;
        const char *words[4];
    } cases[] = {
        {"", 0, {0}},
        {" \t\n ", 0, {0}},
        {"a", 1, {"a"}},
        {"-m dir  --kv-type\tf32 ", 4, {"-m", "dir", "--kv-type", "f32"}},
        {"'a b' \"c d\"e", 2, {"a b", "c de"}},
        {"a\\ b \\'c\\\\", 2, {"a b", "'c\\"}},
        {"'a\\' \"\\\"\\\\\\n\"", 2, {"a\\", "\"\\\\n"}},
        {"'' a", 2, {"", "a"}},
        {"a b c d", 4, {"a", "b", "c", "d"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words w = {0};
        struct moeflux_err e = {0};
        check_ok(words_split(&w, cases[i].text, &e), &e);
        assert_int_equal(w.argc, cases[i].n + 1);
        assert_string_equal(w.argv[0], "");
        for (int k = 0; k < cases[i].n; k++)
            assert_string_equal(w.argv[k + 1], cases[i].words[k]);
        assert_null(w.argv[w.argc]);
        words_free(&w);
    }
}

static void words_that_do_not_end_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"'", "a 'b", "\"b\\\"", "a\\", "\"a'b", "a b\\"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct words w = {0};
        struct moeflux_err e = {0};
        assert_int_equal(words_split(&w, texts[i], &e), ERR_USAGE);
        assert_non_null(strstr(e.text, texts[i][strlen(texts[i]) - 1] == '\\' ? "follows" : "second"));
        assert_null(w.argv);
    }
}

/* ---- rows ---- */

static void rows_come_back_and_the_file_has_no_name(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct row_file f;
    struct moeflux_err e = {0};
    float row[N], back[N];
    assert_int_equal(setenv("TMPDIR", dir, 1), 0);
    check_ok(row_file_open(&f, "rows", 3, N, &e), &e);
    assert_int_equal(tmp_tree_count(dir), 0);
    for (uint64_t idx = 0; idx < 3; idx++) {
        for (int i = 0; i < N; i++)
            row[i] = (float)(idx * N) + (float)i;
        check_ok(row_file_write(&f, 2 - idx, row, &e), &e);
    }
    for (uint64_t idx = 0; idx < 3; idx++) {
        check_ok(row_file_read(&f, idx, back, &e), &e);
        for (int i = 0; i < N; i++)
            assert_true(back[i] == (float)((2 - idx) * N) + (float)i);
    }
    assert_int_equal(row_file_read(&f, 3, back, &e), ERR_IO);
    assert_non_null(strstr(e.text, dir));
    row_file_close(&f);
    row_file_close(&f);
    unsetenv("TMPDIR");
    tmp_tree_remove(dir);
}

/* A token of the largest models takes 1 MB: a size that no disk holds is reported with both sizes. */
static void what_does_not_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct row_file f;
    struct moeflux_err e = {0};
    assert_int_equal(setenv("TMPDIR", dir, 1), 0);
    static const uint64_t too_many[] = {(uint64_t)1 << 40, UINT64_MAX};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(row_file_open(&f, "the rows", too_many[i], 248320, &e), ERR_NO_FIT);
        assert_non_null(strstr(e.text, dir));
        assert_non_null(strstr(e.text, "the rows take "));
        assert_non_null(strstr(e.text, " are free (TMPDIR names another place)"));
        assert_true(f.fd < 0);
    }
    assert_int_equal(tmp_tree_count(dir), 0);
    assert_int_equal(setenv("TMPDIR", tmp_tree_path(dir, "none"), 1), 0);
    assert_int_equal(row_file_open(&f, "the rows", 1, 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "/none: a temporary file: "));
    unsetenv("TMPDIR");
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divergence_is_that_of_the_definition),
        cmocka_unit_test(the_error_of_a_large_mean_keeps_its_digits),
        cmocka_unit_test(all_tokens_but_the_first_of_each_window_count),
        cmocka_unit_test(words_are_a_shell_s),
        cmocka_unit_test(words_that_do_not_end_are_refused),
        cmocka_unit_test(rows_come_back_and_the_file_has_no_name),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
