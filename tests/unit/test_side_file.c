/* A file that is written under a temporary name and appears whole or not at all.
 *
 * suites: check fast asan */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/side_file.h"
#include "check.h"
#include "tmp_tree.h"

/* ---- what reaches the disk, in which order ---- */

/* The calls that bring a file to its place, with the last part of the names: "sync x; rename x y; ". */
static char calls[4096];
static int sync_error;

static void note(const char *what, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = strlen(calls);
    snprintf(calls + n, sizeof calls - n, "%s %s; ", what, slash ? slash + 1 : path);
}

/* These stand in the place of libc's for the whole program. */
int fsync(int fd)
{
    char name[64], target[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    note("sync", target);
    if (sync_error) {
        errno = sync_error;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *old, const char *new)
{
    note("rename", new);
    return (int)syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}

static const char *tail_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

static void put(const char *path, const char *text)
{
    struct moeflux_err e = {0};
    check_ok(side_file_put(path, 0, text, strlen(text), &e), &e);
}

static void expect_text(const char *path, const char *text)
{
    size_t n;
    uint8_t *is = tmp_tree_read(path, &n);
    assert_string_equal((const char *)is, text);
    free(is);
}

static void the_bytes_are_on_the_disk_before_the_name_and_then_the_name(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    char expected[512];
    calls[0] = '\0';
    put(path, "text");
    snprintf(expected, sizeof expected, "sync file.moeflux-part0; rename file; sync %s; ", tail_of(dir));
    assert_string_equal(calls, expected);
}

static void a_file_that_does_not_reach_the_disk_does_not_replace_the_old_one(void **state)
{
    const char *path = tmp_tree_path(*state, "file");
    struct moeflux_err e = {0};
    put(path, "old");
    sync_error = EIO;
    int rc = side_file_put(path, 0, "new", 3, &e);
    sync_error = 0;
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, "file: sync: Input/output error"));
    expect_text(path, "old");
    assert_int_equal(tmp_tree_count(*state), 1);
    /* What cannot be synced at all is written all the same. */
    sync_error = EINVAL;
    put(path, "new");
    sync_error = 0;
    expect_text(path, "new");
}

/* ---- who may read it ---- */

static unsigned mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

static void a_replaced_file_keeps_its_mode(void **state)
{
    static const unsigned modes[] = {0600, 0644, 0640, 0400, 0755};
    const char *path = tmp_tree_path(*state, "file");
    put(path, "new");
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(mode_of(path), 0666 & ~mask);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        put(path, "newer");
        assert_int_equal(mode_of(path), modes[i]);
    }
}

static void what_replaces_a_private_file_is_private_while_it_is_written(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    struct side_file f;
    struct moeflux_err e = {0};
    put(path, "old");
    assert_int_equal(chmod(path, 0600), 0);
    check_ok(side_file_create(&f, path, 0, &e), &e);
    assert_int_equal(mode_of(tmp_tree_path(dir, "file.moeflux-part0")), 0600);
    side_file_free(&f);
}

static void a_mode_that_is_asked_for_wins(void **state)
{
    const char *path = tmp_tree_path(*state, "file");
    struct moeflux_err e = {0};
    put(path, "old");
    assert_int_equal(chmod(path, 0644), 0);
    check_ok(side_file_put(path, 0600, "new", 3, &e), &e);
    assert_int_equal(mode_of(path), 0600);
}

/* Only root may give a file away. */
static void a_replaced_file_keeps_its_owner_where_that_is_possible(void **state)
{
    const char *path = tmp_tree_path(*state, "file");
    struct stat st;
    put(path, "old");
    if (chown(path, 12345, 54321) < 0)
        skip();
    assert_int_equal(chmod(path, 0660), 0);
    put(path, "new");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_uid, 12345);
    assert_int_equal(st.st_gid, 54321);
    assert_int_equal(st.st_mode & 07777, 0660);
}

/* Runs as a user who is not in the file's group: its members would else be those of another group. */
static void a_group_that_cannot_be_kept_gets_no_more_than_everybody(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    int status;
    put(path, "old");
    if (chown(path, 12345, 54321) < 0 || chown(dir, 12345, 12345) < 0)
        skip();
    assert_int_equal(chmod(path, 0664), 0);
    pid_t child = fork();
    if (child == 0) {
        struct moeflux_err e = {0};
        if (syscall(SYS_setgroups, 0, NULL) || setgid(12345) || setuid(12345))
            _exit(2);
        _exit(side_file_put(path, 0, "new", 3, &e) < 0 ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(mode_of(path), 0644);
}

/* ---- what is left over ---- */

static void what_a_dead_writer_left_goes_with_the_next_file(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    tmp_tree_write_text(dir, "file.moeflux-part0", "left");
    tmp_tree_write_text(dir, "file.moeflux-part3", "left");
    tmp_tree_write_text(dir, "file.moeflux-part15", "left");
    tmp_tree_write_text(dir, "file.moeflux-partner", "mine");
    tmp_tree_write_text(dir, "filed.moeflux-part0", "another's");
    put(path, "text");
    expect_text(path, "text");
    assert_int_equal(tmp_tree_count(dir), 3);
    expect_text(tmp_tree_path(dir, "file.moeflux-partner"), "mine");
    expect_text(tmp_tree_path(dir, "filed.moeflux-part0"), "another's");
}

static void what_a_dead_writer_left_can_be_cleared_alone(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    struct side_file f;
    struct moeflux_err e = {0};
    tmp_tree_write_text(dir, "file.moeflux-part0", "left");
    check_ok(side_file_create(&f, path, 0, &e), &e);
    tmp_tree_write_text(dir, "file.moeflux-part1", "left");
    side_file_clear(path);
    assert_int_equal(tmp_tree_count(dir), 1);
    check_ok(side_file_commit(&f, &e), &e);
    side_file_free(&f);
    assert_int_equal(tmp_tree_count(dir), 1);
    expect_text(path, "");
}

static void a_link_under_the_temporary_name_is_not_followed(void **state)
{
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    tmp_tree_write_text(dir, "precious", "mine");
    assert_int_equal(symlink(tmp_tree_path(dir, "precious"), tmp_tree_path(dir, "file.moeflux-part0")), 0);
    put(path, "text");
    expect_text(tmp_tree_path(dir, "precious"), "mine");
    expect_text(path, "text");
}

static void names_tell_temporary_files(void **state)
{
    (void)state;
    assert_true(side_file_is_temporary("a.bin.moeflux-part0"));
    assert_true(side_file_is_temporary("a.moeflux-part15"));
    assert_false(side_file_is_temporary("a.moeflux-part"));
    assert_false(side_file_is_temporary("a.moeflux-part1.gz"));
    assert_false(side_file_is_temporary("a.part0"));
}

/* ---- several writers ---- */

static void writers_at_the_same_time_have_a_file_each_and_the_last_one_stays(void **state)
{
    enum { N = 16 };
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    struct side_file f[N], more;
    struct moeflux_err e = {0};
    for (int i = 0; i < N; i++)
        check_ok(side_file_create(&f[i], path, 0, &e), &e);
    assert_int_equal(side_file_create(&more, path, 0, &e), ERR_IO);
    assert_non_null(strstr(e.text, "16 programs are writing it already"));
    side_file_free(&more);
    assert_int_equal(tmp_tree_count(dir), N);
    for (int i = 0; i < N; i++) {
        char text[8];
        int n = snprintf(text, sizeof text, "%d", i);
        assert_int_equal(write(f[i].fd, text, (size_t)n), n);
    }
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0)
            check_ok(side_file_commit(&f[i], &e), &e);
        side_file_free(&f[i]);
    }
    expect_text(path, "15");
    assert_int_equal(tmp_tree_count(dir), 1);
}

enum { LENGTH = 20000 };

/* Files of one letter, over and over; a failure is what the parent looks for. */
static void write_for_ever(const char *path, char letter, int *n_failed)
{
    static char text[LENGTH];
    struct moeflux_err e;
    memset(text, letter, sizeof text);
    /* None outlives a test that failed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        if (side_file_put(path, 0, text, sizeof text, &e) < 0 && __sync_fetch_and_add(n_failed, 1) == 0)
            fprintf(stderr, "%s\n", e.text);
}

static bool is_whole(const char *path)
{
    size_t n;
    uint8_t *is = tmp_tree_read(path, &n);
    bool ok = n == LENGTH;
    for (size_t i = 0; ok && i < n; i++)
        ok = is[i] == is[0];
    free(is);
    return ok;
}

/* Two that live on, among others that are killed: a writer whose file is taken for a dead one's fails to
 * rename it. */
static void killed_writers_leave_nothing_and_cost_living_ones_nothing(void **state)
{
    enum { KILLS = 300, ALIVE = 2 };
    const char *dir = *state, *path = tmp_tree_path(dir, "file");
    int *n_failed = mmap(NULL, sizeof *n_failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t alive[ALIVE];
    uint32_t random = 1;
    assert_true(n_failed != MAP_FAILED);
    *n_failed = 0;
    tmp_tree_write(dir, "file", (char[LENGTH]){0}, LENGTH);
    for (int i = 0; i < ALIVE; i++)
        if ((alive[i] = fork()) == 0)
            write_for_ever(path, (char)('A' + i), n_failed);
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            write_for_ever(path, (char)('a' + i % 26), n_failed);
        random = random * 1664525 + 1013904223;
        usleep(random >> 20);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_true(is_whole(path));
    }
    assert_int_equal(*n_failed, 0);
    for (int i = 0; i < ALIVE; i++) {
        kill(alive[i], SIGKILL);
        assert_int_equal(waitpid(alive[i], NULL, 0), alive[i]);
    }
    put(path, "last");
    assert_int_equal(tmp_tree_count(dir), 1);
    munmap(n_failed, sizeof *n_failed);
}

static void what_is_no_regular_file_is_refused(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    assert_int_equal(side_file_put("/dev/null", 0, "x", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "expected a regular file"));
    assert_int_equal(side_file_put("/no/where", 0, "x", 1, &e), ERR_IO);
}

static int make_dir(void **state)
{
    *state = tmp_tree_new();
    return 0;
}

static int remove_dir(void **state)
{
    tmp_tree_remove(*state);
    return 0;
}

#define in_dir(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_dir(the_bytes_are_on_the_disk_before_the_name_and_then_the_name),
        in_dir(a_file_that_does_not_reach_the_disk_does_not_replace_the_old_one),
        in_dir(a_replaced_file_keeps_its_mode),
        in_dir(what_replaces_a_private_file_is_private_while_it_is_written),
        in_dir(a_mode_that_is_asked_for_wins),
        in_dir(a_replaced_file_keeps_its_owner_where_that_is_possible),
        in_dir(a_group_that_cannot_be_kept_gets_no_more_than_everybody),
        in_dir(what_a_dead_writer_left_goes_with_the_next_file),
        in_dir(what_a_dead_writer_left_can_be_cleared_alone),
        in_dir(a_link_under_the_temporary_name_is_not_followed),
        cmocka_unit_test(names_tell_temporary_files),
        in_dir(writers_at_the_same_time_have_a_file_each_and_the_last_one_stays),
        in_dir(killed_writers_leave_nothing_and_cost_living_ones_nothing),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
