/* The fuzzers' targets without a fuzzer: the inputs that they start from, those that once failed
 * (tests/fuzz/inputs, a folder for each target), and some mutations of both. `make fuzz` builds the fuzzers.
 *
 * suites: check fast asan */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "fuzz.h"
#include "fuzz/target.h"
#include "tmp_tree.h"

enum { ROUNDS = 40, ROOM = 1024 };

static const struct target *target_of(const char *name)
{
    const struct target *t = target_all;
    while (t->name && strcmp(t->name, name) != 0)
        t++;
    if (!t->name)
        fail_msg("%s: no target has this name", name);
    return t;
}

static void give(const struct target *t, const char *path, uint64_t seed)
{
    struct fuzz f = {seed};
    size_t n;
    uint8_t *bytes = tmp_tree_read(path, &n), *copy = malloc(n + ROOM);
    assert_non_null(copy);
    t->run(bytes, n);
    /* A model is opened each time. */
    for (int i = 0; i < (t->run == target_model ? ROUNDS / 8 : ROUNDS); i++) {
        memcpy(copy, bytes, n);
        size_t len = fuzz_mutate(&f, copy, n, n + ROOM);
        t->run(copy, len);
    }
    free(copy);
    free(bytes);
}

/* Every file of dir/NAME for all targets. Returns how many there are. */
static size_t give_all(const char *dir)
{
    size_t n = 0;
    for (const struct target *t = target_all; t->name; t++) {
        const char *own = tmp_tree_path(dir, t->name);
        struct dirent **names;
        int found = scandir(own, &names, NULL, alphasort);
        for (int i = 0; i < found; i++) {
            if (names[i]->d_name[0] != '.') {
                give(t, tmp_tree_path(own, names[i]->d_name), n);
                n++;
            }
            free(names[i]);
        }
        if (found >= 0)
            free(names);
    }
    return n;
}

static void inputs_that_fuzzing_starts_from_are_answered(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    target_write_seeds(dir);
    for (const struct target *t = target_all; t->name; t++)
        assert_true(tmp_tree_count(tmp_tree_path(dir, t->name)) > 0);
    assert_true(give_all(dir) >= 40);
    tmp_tree_remove(dir);
}

static void inputs_that_failed_once_are_answered(void **state)
{
    (void)state;
    struct dirent **names;
    int n = scandir("tests/fuzz/inputs", &names, NULL, alphasort);
    assert_true(n > 2);
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.')
            target_of(names[i]->d_name);
        free(names[i]);
    }
    free(names);
    assert_true(give_all("tests/fuzz/inputs") > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_that_fuzzing_starts_from_are_answered),
        cmocka_unit_test(inputs_that_failed_once_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
