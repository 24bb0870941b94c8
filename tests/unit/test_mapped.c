/* cpu/mapped.h: what becomes of a mapping whose file is cut. base/open_file.h: which changes are noticed.
 * suites: check asan fast */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/open_file.h"
#include "check.h"
#include "cpu/mapped.h"
#include "tmp_tree.h"

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (!mapped_repair(info->si_addr))
        _exit(1);
}

static void pages_that_a_cut_takes_away_become_zeros(void **state)
{
    (void)state;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO}, before;
    struct moeflux_err e = {0};
    struct open_file *files = NULL;
    struct mapped m;
    uint32_t n = 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_bytes = 4 * page - 1;
    char *dir = tmp_tree_new(), *bytes = malloc(n_bytes);
    const char *path = tmp_tree_path(dir, "file");
    memset(bytes, 7, n_bytes);
    tmp_tree_write(dir, "file", bytes, n_bytes);
    check_ok(open_file_add(&files, &n, path, &e), &e);
    check_ok(mapped_open(&m, files[0].fd, files[0].path, files[0].bytes, &e), &e);
    check_ok(open_file_check(&files[0], &e), &e);
    uint64_t n_repaired = mapped_n_repaired();
    assert_int_equal(sigaction(SIGBUS, &action, &before), 0);
    assert_int_equal(truncate(path, (off_t)page), 0);
    assert_int_equal(m.at[page - 1], 7);
    assert_int_equal(m.at[2 * page], 0);
    assert_int_equal(m.at[n_bytes - 1], 0);
    assert_int_equal(sigaction(SIGBUS, &before, NULL), 0);
    assert_int_equal(mapped_n_repaired(), n_repaired + 2);
    assert_int_equal(open_file_check(&files[0], &e), ERR_IO);
    assert_non_null(strstr(e.text, "when it was opened"));
    const uint8_t *at = m.at;
    mapped_close(&m);
    assert_false(mapped_repair(at));
    assert_false(mapped_repair(bytes));
    open_file_close_all(files, n);
    free(bytes);
    tmp_tree_remove(dir);
}

static void a_write_in_place_is_noticed_and_a_replacement_is_not(void **state)
{
    (void)state;
    const struct timespec other[] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct moeflux_err e = {0};
    struct open_file *files = NULL;
    uint32_t n = 0;
    char *dir = tmp_tree_new();
    tmp_tree_write(dir, "file", "old", 3);
    const char *path = tmp_tree_path(dir, "file");
    check_ok(open_file_add(&files, &n, path, &e), &e);
    tmp_tree_write(dir, "new", "new", 3);
    char *fresh = strdup(tmp_tree_path(dir, "new"));
    assert_int_equal(rename(fresh, tmp_tree_path(dir, "file")), 0);
    free(fresh);
    check_ok(open_file_check(&files[0], &e), &e);
    /* The time stands for a write, whose time may be that of the one before. */
    assert_int_equal(futimens(files[0].fd, other), 0);
    assert_int_equal(open_file_check(&files[0], &e), ERR_IO);
    assert_non_null(strstr(e.text, "file was written in place"));
    open_file_close_all(files, n);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_a_cut_takes_away_become_zeros),
        cmocka_unit_test(a_write_in_place_is_noticed_and_a_replacement_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
