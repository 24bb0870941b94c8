/* Mutated safetensors files and indexes: an answer every time, and tensors inside the file when it is yes.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "fuzz.h"
#include "model/safetensors.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { ROUNDS = 4000, ROOM = 2048 };

static void expect_answer(const char *dir, unsigned *n_good)
{
    struct safetensors s;
    struct moeflux_err e = {0};
    int rc = safetensors_open(&s, dir, &e);
    if (rc < 0) {
        assert_true(e.code == rc && e.text[0] != '\0');
        return;
    }
    for (size_t i = 0; i < s.tensors.n; i++) {
        const struct tensor *t = &s.tensors.items[i];
        assert_true(t->file < s.n_files);
        assert_true(t->off <= s.files[t->file].bytes && t->bytes <= s.files[t->file].bytes - t->off);
    }
    safetensors_close(&s);
    ++*n_good;
}

/* Mutates dir/name, `keep` bytes at its start excepted. */
static void fuzz_file(const char *dir, const char *name, size_t keep, uint64_t seed)
{
    struct fuzz f = {seed};
    size_t len;
    uint8_t *whole = tmp_tree_read(tmp_tree_path(dir, name), &len), *buf = malloc(len + ROOM);
    assert_non_null(buf);
    unsigned n_good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(buf, whole, len);
        size_t n = keep + fuzz_mutate(&f, buf + keep, len - keep, len - keep + ROOM);
        tmp_tree_write(dir, name, buf, n);
        expect_answer(dir, &n_good);
    }
    tmp_tree_write(dir, name, whole, len);
    assert_true(n_good > 0 && n_good < ROUNDS);
    free(buf);
    free(whole);
}

static void mutated_files_and_indexes_are_answered(void **state)
{
    (void)state;
    static const uint8_t data[64] = {0};
    char *dir = tmp_tree_new();
    struct st_writer w = {0};
    st_writer_add(&w, "model.a.weight", "U32", "[2,8]", data, 64);
    st_writer_add(&w, "model.a.scales", "BF16", "[2,1]", data, 4);
    st_writer_add(&w, "model.b", "F32", "[]", data, 4);
    st_writer_finish(&w, dir, "m-1.safetensors");
    st_writer_add(&w, "model.c", "I64", "[1,1,1,1,2]", data, 16);
    st_writer_finish(&w, dir, "m-2.safetensors");
    /* Mutations with and without the length field: a wrong length hides what follows it. */
    fuzz_file(dir, "m-1.safetensors", 0, 1);
    fuzz_file(dir, "m-1.safetensors", 8, 2);
    tmp_tree_write_text(dir, "model.safetensors.index.json",
                        "{\"metadata\": {}, \"weight_map\": {\"model.a.weight\": \"m-1.safetensors\", "
                        "\"model.b\": \"m-1.safetensors\", \"model.c\": \"m-2.safetensors\"}}");
    fuzz_file(dir, "model.safetensors.index.json", 0, 3);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_files_and_indexes_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
