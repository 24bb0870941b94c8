/* Mutated files of states: an answer every time; a refused one changes nothing.
 *
 * suites: check fast asan */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "check.h"
#include "fuzz.h"
#include "sequence.h"
#include "small_model.h"
#include "snapshot_writer.h"
#include "tmp_tree.h"

enum { ROUNDS = 2500, ROOM = 2048, CONTEXT = 64, HEADER_3 = 80 };

struct fuzzed {
    const char *file, *copy;
    struct sequence q;
    uint8_t *was; /* what the session in its usual state saves */
    size_t was_bytes;
    uint32_t pos, n_good;
};

/* Empty, or at token 4 with a checkpoint. */
static void usual_state(struct fuzzed *f, bool empty)
{
    static const int32_t ids[] = {11, 12, 13, 14};
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(f->q.s, &e), &e);
    if (!empty) {
        sequence_eval(&f->q, ids, 2, NULL);
        check_ok(moeflux_session_checkpoint(f->q.s, &e), &e);
        sequence_eval(&f->q, ids + 2, 2, NULL);
    }
    f->pos = moeflux_session_position(f->q.s);
    check_ok(moeflux_session_save(f->q.s, f->copy, MOEFLUX_STATE_V3, &e), &e);
    free(f->was);
    f->was = tmp_tree_read(f->copy, &f->was_bytes);
}

static void expect_unchanged(struct fuzzed *f)
{
    struct moeflux_err e = {0};
    size_t n;
    check_ok(moeflux_session_save(f->q.s, f->copy, MOEFLUX_STATE_V3, &e), &e);
    uint8_t *is = tmp_tree_read(f->copy, &n);
    assert_true(n == f->was_bytes && memcmp(is, f->was, n) == 0);
    free(is);
}

static void expect_answer(struct fuzzed *f, bool look_closely)
{
    struct moeflux_err e = {0};
    struct moeflux_state_info info;
    int told = moeflux_read_state_info(f->file, &info, &e);
    assert_true(told == 0 || (e.code == told && e.text[0]));
    e = (struct moeflux_err){0};
    int rc = moeflux_session_load(f->q.s, f->file, &e);
    if (rc < 0) {
        assert_true(e.code == rc && e.text[0] != '\0');
        assert_int_equal(moeflux_session_position(f->q.s), f->pos);
        if (look_closely)
            expect_unchanged(f);
        return;
    }
    int32_t id = 3;
    float logits[SMALL_VOCAB];
    f->n_good++;
    assert_int_equal(told, 0);
    assert_true(moeflux_session_position(f->q.s) <= CONTEXT);
    if (moeflux_session_position(f->q.s) < CONTEXT)
        sequence_eval(&f->q, &id, 1, logits);
    usual_state(f, f->pos == 0);
}

/* Lets the mutations pass the checks, so that the code after them is reached. */
static void repair_checksums(uint8_t *file, size_t n)
{
    if (n < HEADER_3 + 8)
        return;
    uint64_t bytes = n;
    memcpy(file + HEADER_3 - 16, &bytes, sizeof bytes);
    uint64_t check = XXH3_64bits(file, HEADER_3 - 8);
    memcpy(file + HEADER_3 - 8, &check, sizeof check);
    check = XXH3_64bits(file, n - 8);
    memcpy(file + n - 8, &check, sizeof check);
}

/* Written in place: a file system that syncs each replaced file makes thousands of them slow. */
static void write_state(const struct fuzzed *f, const uint8_t *bytes, size_t n)
{
    int fd = open(f->file, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    close(fd);
}

/* Mutates from `from` on. */
static void fuzz_file(struct fuzzed *f, const uint8_t *whole, size_t len, size_t from, size_t to, bool repair)
{
    struct fuzz random = {len + from + repair};
    uint8_t *buf = malloc(len + ROOM);
    assert_non_null(buf);
    f->n_good = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        memcpy(buf, whole, len);
        size_t part = to - from, n = fuzz_mutate(&random, buf + from, part, to == len ? part + ROOM : part);
        if (to < len)
            n = part;
        n += from + (len - to);
        if (repair)
            repair_checksums(buf, n);
        if (n == len && memcmp(buf, whole, n) == 0)
            continue; /* edits that changed nothing */
        write_state(f, buf, n);
        expect_answer(f, i % 100 == 0);
        if (i == ROUNDS / 2)
            usual_state(f, true);
    }
    usual_state(f, false);
    free(buf);
}

static void mutated_states_are_answered(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct fuzzed f = {.file = tmp_tree_path(dir, "state"),
                       .copy = tmp_tree_path(dir, "copy"),
                       .q = sequence_open(small_model_make(dir, 1), "reference", 0, 0, CONTEXT)};
    struct str file = {0};
    usual_state(&f, false);
    for (uint32_t version = 1; version <= 2; version++) {
        size_t header = version == 1 ? 32 : 40;
        snapshot_write(&file, version, 3, NULL);
        fuzz_file(&f, (uint8_t *)file.data, file.len, 0, header, false);
        assert_true(f.n_good < ROUNDS);
        fuzz_file(&f, (uint8_t *)file.data, file.len, header, file.len, false);
        assert_true(f.n_good > 0 && f.n_good < ROUNDS);
    }
    size_t n = f.was_bytes;
    uint8_t *three = malloc(n);
    assert_non_null(three);
    memcpy(three, f.was, n);
    fuzz_file(&f, three, n, 0, n, false);
    assert_int_equal(f.n_good, 0);
    /* The header and the ids; the rest. */
    fuzz_file(&f, three, n, 8, HEADER_3 + 16, true);
    assert_true(f.n_good > 0 && f.n_good < ROUNDS);
    fuzz_file(&f, three, n, HEADER_3, n, true);
    assert_true(f.n_good > 0 && f.n_good < ROUNDS);
    free(three);
    free(f.was);
    str_free(&file);
    sequence_close(&f.q);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_states_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
