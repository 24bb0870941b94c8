/* reader_split and reader_copy: the caller's threads copy what the page cache holds, and leave the rest to
 * the reader.
 *
 * suites: check fast asan */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "check.h"
#include "convert/convert.h"
#include "experts/reader.h"
#include "model/model_dir.h"
#include "tmp_tree.h"

static const char TINY[] = "tests/models/tiny";
static const char LAYER[] = "packed_experts/layer_00.bin";
enum { PAGE = 4096, POISON = 0xa5, EXPERT = 3 };

/* A packed model, and a request for one of its experts. */
struct fixture {
    char *tmp;
    const char *dir;
    struct model_dir model;
    struct reader *reader;
    struct read_request q;
    uint8_t *want;
};

static void open_fixture(struct fixture *f, enum reader_mode mode)
{
    struct convert_result result;
    struct moeflux_err e = {0};
    *f = (struct fixture){.tmp = tmp_tree_new(), .q.expert = EXPERT};
    f->dir = tmp_tree_path(f->tmp, "packed");
    check_ok(convert_run(&(struct convert_options){.src = TINY, .dst = f->dir}, &result, &e), &e);
    check_ok(model_dir_open(&f->model, f->dir, &e), &e);
    check_ok(reader_open(&f->reader, &f->model, &(struct reader_options){.mode = mode, .n_threads = 2}, &e),
             &e);
    uint64_t bytes = f->model.max_expert_bytes;
    assert_int_equal(posix_memalign((void **)&f->q.dst, PAGE, size_round_up(bytes, PAGE)), 0);
    memset(f->q.dst, POISON, bytes);
    f->want = tmp_tree_read(tmp_tree_path(f->dir, LAYER), NULL);
}

static void close_fixture(struct fixture *f)
{
    reader_close(f->reader);
    model_dir_close(&f->model);
    tmp_tree_remove(f->tmp);
    free(f->q.dst);
    free(f->want);
}

static void copy_all(struct fixture *f)
{
    uint32_t n = reader_split(f->reader, &f->q);
    assert_true(n > 0);
    assert_false(reader_is_done(f->reader, &f->q));
    for (uint32_t i = n; i-- > 0;)
        reader_copy(f->reader, &f->q, i);
}

static void check_bytes(const struct fixture *f)
{
    uint64_t bytes = f->model.max_expert_bytes;
    assert_memory_equal(f->q.dst, f->want + EXPERT * bytes, bytes);
}

static void what_the_page_cache_holds_is_there_after_the_copies(void **state)
{
    (void)state;
    struct fixture f;
    struct moeflux_err e = {0};
    open_fixture(&f, READER_PREAD);
    copy_all(&f);
    assert_true(reader_is_done(f.reader, &f.q));
    check_ok(reader_wait(f.reader, &f.q, &e), &e);
    check_bytes(&f);
    struct reader_stats s = reader_get_stats(f.reader);
    assert_int_equal(s.n_reads, 1);
    assert_int_equal(s.bytes, f.model.max_expert_bytes);
    assert_true(s.busy_ns > 0);
    close_fixture(&f);
}

/* Also for a system that keeps the pages although nobody needs them. */
static void the_rest_is_for_the_reader(void **state)
{
    (void)state;
    struct fixture f;
    struct moeflux_err e = {0};
    open_fixture(&f, READER_PREAD);
    struct extent x[EXPERT_MAX_EXTENTS];
    assert_int_equal(model_dir_expert(&f.model, 0, EXPERT, x), 1);
    int fd = f.model.files[x[0].file].fd;
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    copy_all(&f);
    bool was_there = reader_is_done(f.reader, &f.q);
    if (was_there)
        print_message("SKIP CASE: $TMPDIR keeps its files in memory\n");
    else
        reader_start(f.reader, &f.q);
    check_ok(reader_wait(f.reader, &f.q, &e), &e);
    check_bytes(&f);
    assert_int_equal(reader_get_stats(f.reader).n_reads, 1);
    close_fixture(&f);
}

static void what_is_not_finite_is_refused(void **state)
{
    (void)state;
    static const uint8_t nan[] = {0xc0, 0x7f};
    struct fixture f;
    struct moeflux_err e = {0};
    open_fixture(&f, READER_PREAD);
    FILE *file = fopen(tmp_tree_path(f.dir, LAYER), "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)((EXPERT + 1) * f.model.max_expert_bytes - 2), SEEK_SET), 0);
    assert_int_equal(fwrite(nan, 1, 2, file), 2);
    assert_int_equal(fclose(file), 0);
    copy_all(&f);
    assert_true(reader_is_done(f.reader, &f.q));
    assert_int_equal(reader_wait(f.reader, &f.q, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "layer 0 expert 3"));
    assert_int_equal(reader_get_stats(f.reader).n_failed, 1);
    close_fixture(&f);
}

/* The reader tells how a file that was cut ends. */
static void a_file_that_was_cut_is_for_the_reader(void **state)
{
    (void)state;
    struct fixture f;
    struct moeflux_err e = {0};
    open_fixture(&f, READER_PREAD);
    uint64_t end = (EXPERT + 1) * f.model.max_expert_bytes;
    assert_int_equal(truncate(tmp_tree_path(f.dir, LAYER), (off_t)end - 1), 0);
    copy_all(&f);
    assert_false(reader_is_done(f.reader, &f.q));
    reader_start(f.reader, &f.q);
    assert_int_equal(reader_wait(f.reader, &f.q, &e), ERR_IO);
    assert_non_null(strstr(e.text, "then the file ends"));
    close_fixture(&f);
}

static void mapped_files_are_not_split(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, READER_MMAP);
    assert_int_equal(reader_split(f.reader, &f.q), 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_page_cache_holds_is_there_after_the_copies),
        cmocka_unit_test(the_rest_is_for_the_reader),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(a_file_that_was_cut_is_for_the_reader),
        cmocka_unit_test(mapped_files_are_not_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
