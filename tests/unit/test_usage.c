/* Files of use counts through usage.h: what was written is read, anything else is refused and changes
 * nothing.
 *
 * suites: check fast asan */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "experts/usage.h"
#include "tmp_tree.h"

enum { LAYERS = 3, EXPERTS = 5, ALL = LAYERS * EXPERTS };

static const uint32_t SOME[ALL] = {0, 7, 0, 0, 1, 0, 0, 0, 0, 0, 4294967295u, 2, 0, 0, 7};
static const char SOME_TEXT[] = "moeflux usage 1 3 5\n0 1 7\n0 4 1\n2 0 4294967295\n2 1 2\n2 4 7\nend\n";

struct place {
    char *dir;
    const char *file;
};

static struct place new_place(void)
{
    struct place p = {.dir = tmp_tree_new()};
    p.file = tmp_tree_path(p.dir, "usage");
    return p;
}

static uint32_t n_files(const char *dir)
{
    uint32_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));)
        n += x->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The text is refused with `part` in the error's text, and the counts stay. */
static void refused_bytes(const struct place *p, const char *text, size_t n, const char *part)
{
    uint32_t counts[ALL];
    struct moeflux_err e = {0};
    memcpy(counts, SOME, sizeof counts);
    tmp_tree_write(p->dir, "usage", text, n);
    int rc = usage_read(p->file, LAYERS, EXPERTS, counts, &e);
    if (rc != ERR_FORMAT || !strstr(e.text, p->file) || !strstr(e.text, part))
        fail_msg("\"%s\": %d, %s; expected %s", text, rc, e.text, part);
    assert_memory_equal(counts, SOME, sizeof counts);
}

static void refused(const struct place *p, const char *text, const char *part)
{
    refused_bytes(p, text, strlen(text), part);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t counts[ALL] = {0};
    check_ok(usage_write(p.file, LAYERS, EXPERTS, SOME, &e), &e);
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, SOME_TEXT);
    free(text);
    assert_int_equal(usage_read(p.file, LAYERS, EXPERTS, counts, &e), 1);
    assert_memory_equal(counts, SOME, sizeof counts);
    assert_int_equal(n_files(p.dir), 1);
    tmp_tree_remove(p.dir);
}

static void a_table_without_counts_is_a_file_too(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t none[ALL] = {0}, counts[ALL];
    memcpy(counts, SOME, sizeof counts);
    check_ok(usage_write(p.file, LAYERS, EXPERTS, none, &e), &e);
    assert_int_equal(usage_read(p.file, LAYERS, EXPERTS, counts, &e), 1);
    assert_memory_equal(counts, SOME, sizeof counts);
    tmp_tree_remove(p.dir);
}

/* The widest numbers in every place: the bound on the file's size must let them through. */
static void the_longest_file_is_read(void **state)
{
    (void)state;
    enum { N = 300 };
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t *full = malloc(sizeof(uint32_t[N * N])), *counts = calloc(N * N, sizeof *counts);
    memset(full, 255, sizeof(uint32_t[N * N]));
    check_ok(usage_write(p.file, N, N, full, &e), &e);
    assert_int_equal(usage_read(p.file, N, N, counts, &e), 1);
    assert_memory_equal(counts, full, sizeof(uint32_t[N * N]));
    free(full);
    free(counts);
    tmp_tree_remove(p.dir);
}

static void counts_add_up_and_stop_at_the_largest(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t counts[ALL] = {[0] = 5, [1] = 10, [10] = 1};
    tmp_tree_write_text(p.dir, "usage", SOME_TEXT);
    assert_int_equal(usage_read(p.file, LAYERS, EXPERTS, counts, &e), 1);
    assert_int_equal(counts[0], 5);
    assert_int_equal(counts[1], 17);
    assert_int_equal(counts[10], UINT32_MAX);
    tmp_tree_remove(p.dir);
}

static void a_missing_file_is_not_a_fault(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t counts[ALL];
    memcpy(counts, SOME, sizeof counts);
    assert_int_equal(usage_read(p.file, LAYERS, EXPERTS, counts, &e), 0);
    assert_int_equal(e.code, 0);
    assert_memory_equal(counts, SOME, sizeof counts);
    tmp_tree_remove(p.dir);
}

static void what_is_not_a_file_is_a_fault(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t counts[ALL] = {0};
    assert_int_equal(usage_read(p.dir, LAYERS, EXPERTS, counts, &e), ERR_IO);
    assert_non_null(strstr(e.text, p.dir));
    assert_int_equal(usage_write(p.dir, LAYERS, EXPERTS, counts, &e), ERR_IO);
    assert_non_null(strstr(e.text, p.dir));
    tmp_tree_remove(p.dir);
}

static void a_file_of_another_shape_is_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, "moeflux usage 1 3 6\nend\n", "moeflux usage 1 3 5");
    refused(&p, "moeflux usage 1 4 5\nend\n", "\"moeflux usage 1 4 5\"");
    refused(&p, "moeflux usage 2 3 5\nend\n", "line 1");
    refused(&p, "moeflux usage 1 3 5 \nend\n", "line 1");
    refused(&p, "moeflux usage 1 3 5\r\nend\n", "line 1");
    refused(&p, "\n", "line 1");
    tmp_tree_remove(p.dir);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    for (size_t n = 0; n < sizeof SOME_TEXT - 1; n++)
        refused_bytes(&p, SOME_TEXT, n, n > strlen("moeflux usage 1 3 5") ? "the file was cut" : "line 1");
    tmp_tree_remove(p.dir);
}

static void lines_that_are_not_three_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",
        "0 1",
        "0 1 2 3",
        "0 1 -2",
        "-0 1 2",
        "0 -1 2",
        "+0 1 2",
        "0 1 0",
        "0 1 07",
        "00 1 7",
        "0 01 7",
        "0  1 7",
        " 0 1 7",
        "0 1 7 ",
        "0 1 7.5",
        "0 1 7e",
        "0 1 0x7",
        "a b c",
        "0\t1\t7",
        "0 1 7\r",
        "0 1 4294967296",
        "0 1 99999999999999999999999999999999",
        "4294967296 1 7",
        "0 1",
        "END",
        "end ",
    };
    struct place p = new_place();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[200];
        snprintf(text, sizeof text, "moeflux usage 1 3 5\n0 0 3\n%s\nend\n", lines[i]);
        refused(&p, text, "line 3: expected \"layer expert count\"");
    }
    refused_bytes(&p, "moeflux usage 1 3 5\n0 1\0 7\nend\n", 31, "line 2");
    tmp_tree_remove(p.dir);
}

static void experts_that_the_model_does_not_have_are_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, "moeflux usage 1 3 5\n3 0 1\nend\n", "a layer below 3");
    refused(&p, "moeflux usage 1 3 5\n0 5 1\nend\n", "an expert below 5");
    refused(&p, "moeflux usage 1 3 5\n4294967295 4294967295 1\nend\n", "line 2");
    tmp_tree_remove(p.dir);
}

static void an_expert_comes_once_and_in_order(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, "moeflux usage 1 3 5\n0 1 7\n0 1 7\nend\n", "line 3: expected experts in order");
    refused(&p, "moeflux usage 1 3 5\n0 4 1\n0 1 7\nend\n", "line 3");
    refused(&p, "moeflux usage 1 3 5\n1 0 1\n0 4 7\nend\n", "line 3");
    tmp_tree_remove(p.dir);
}

static void nothing_follows_the_end(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, "moeflux usage 1 3 5\nend\n0 1 7\n", "nothing after");
    refused(&p, "moeflux usage 1 3 5\nend\n\n", "nothing after");
    refused(&p, "moeflux usage 1 3 5\nend\nend", "nothing after");
    tmp_tree_remove(p.dir);
}

static void a_file_that_is_far_too_large_is_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    tmp_tree_write_text(p.dir, "usage", SOME_TEXT);
    assert_int_equal(truncate(p.file, (off_t)1 << 40), 0);
    uint32_t counts[ALL] = {0};
    struct moeflux_err e = {0};
    assert_int_equal(usage_read(p.file, LAYERS, EXPERTS, counts, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "expected at most"));
    tmp_tree_remove(p.dir);
}

/* The limit on a file's size stands for a full disk. */
static void a_failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    uint32_t full[ALL];
    struct rlimit before, little;
    memset(full, 255, sizeof full);
    tmp_tree_write_text(p.dir, "usage", SOME_TEXT);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 64;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    int rc = usage_write(p.file, LAYERS, EXPERTS, full, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, p.file));
    assert_int_equal(n_files(p.dir), 1);
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, SOME_TEXT);
    free(text);
    const char *missing = tmp_tree_path(p.dir, "no/usage");
    assert_int_equal(usage_write(missing, LAYERS, EXPERTS, SOME, &e), ERR_IO);
    assert_non_null(strstr(e.text, missing));
    tmp_tree_remove(p.dir);
}

static void a_link_stays_a_link(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct stat st;
    const char *name = tmp_tree_path(p.dir, "link");
    tmp_tree_write_text(p.dir, "usage", "old");
    assert_int_equal(symlink("usage", name), 0);
    check_ok(usage_write(name, LAYERS, EXPERTS, SOME, &e), &e);
    assert_int_equal(lstat(name, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, SOME_TEXT);
    free(text);
    assert_int_equal(n_files(p.dir), 2);
    tmp_tree_remove(p.dir);
}

static void order_is_by_count_then_layer_then_expert(void **state)
{
    (void)state;
    static const struct expert_key want[] = {{2, 0}, {0, 1}, {2, 4}, {2, 1}, {0, 4}};
    struct expert_key keys[ALL + 1];
    struct moeflux_err e = {0};
    for (uint32_t n = 0; n <= ALL; n++) {
        memset(keys, 255, sizeof keys);
        uint32_t kept = n < 5 ? n : 5;
        assert_int_equal(usage_order(LAYERS, EXPERTS, SOME, keys, n, &e), kept);
        assert_memory_equal(keys, want, kept * sizeof *keys);
        assert_int_equal(keys[kept].layer, UINT32_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_table_without_counts_is_a_file_too),
        cmocka_unit_test(the_longest_file_is_read),
        cmocka_unit_test(counts_add_up_and_stop_at_the_largest),
        cmocka_unit_test(a_missing_file_is_not_a_fault),
        cmocka_unit_test(what_is_not_a_file_is_a_fault),
        cmocka_unit_test(a_file_of_another_shape_is_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(lines_that_are_not_three_numbers_are_refused),
        cmocka_unit_test(experts_that_the_model_does_not_have_are_refused),
        cmocka_unit_test(an_expert_comes_once_and_in_order),
        cmocka_unit_test(nothing_follows_the_end),
        cmocka_unit_test(a_file_that_is_far_too_large_is_refused),
        cmocka_unit_test(a_failed_write_leaves_the_old_file_and_nothing_else),
        cmocka_unit_test(a_link_stays_a_link),
        cmocka_unit_test(order_is_by_count_then_layer_then_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
