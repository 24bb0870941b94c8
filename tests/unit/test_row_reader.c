/* Reads of many small pieces in every mode: what arrives, and what a cut or replaced file, an error or a stop
 * gives.
 *
 * suites: check fast asan tsan */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "experts/row_reader.h"
#include "tmp_tree.h"

/* The file ends inside a block of every size. */
enum { BYTES = 300013, N = 700, MAX_BYTES = 640 };

struct files {
    char *tmp;
    struct open_file files[2];
    struct model_dir dir;
    uint8_t *bytes[2];
    uint64_t expert_bytes; /* row_reader_options' */
};
static struct files all;

static int make_files(void **state)
{
    (void)state;
    all.tmp = tmp_tree_new();
    uint32_t random = 1;
    for (int i = 0; i < 2; i++) {
        struct moeflux_err e;
        all.bytes[i] = malloc(BYTES);
        for (uint32_t k = 0; k < BYTES; k++)
            all.bytes[i][k] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
        const char *path = tmp_tree_path(all.tmp, i ? "second" : "first");
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        check_ok(file_write(fd, path, all.bytes[i], BYTES, &e), &e);
        check_ok(file_sync(fd, path, &e), &e);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        all.files[i] =
            (struct open_file){.path = (char *)path, .fd = fd, .bytes = BYTES, .written = st.st_mtim};
    }
    all.dir = (struct model_dir){.files = all.files, .n_files = 2};
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        close(all.files[i].fd);
        free(all.bytes[i]);
    }
    tmp_tree_remove(all.tmp);
    return 0;
}

/* --- the system --- */

static int no_direct_from = -1;  /* direct reads of this file and those after it fail; -1: of none */
static int no_direct_read;       /* how many have failed */
static atomic_int n_read_errors; /* so many reads that wait for the disk fail */

static int number_of(int fd)
{
    char at[64], path[4096];
    snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(at, path, sizeof path);
    return n == (ssize_t)strlen(all.files[1].path) && !memcmp(path, all.files[1].path, (size_t)n);
}

/* Replace the system's, with its headers' names. */
ssize_t pread(int fd, void *buf, size_t nbytes, off_t offset)
{
    struct iovec to = {buf, nbytes};
    if (no_direct_from >= 0 && fcntl(fd, F_GETFL) & O_DIRECT && number_of(fd) >= no_direct_from) {
        no_direct_read++;
        errno = EINVAL;
        return -1;
    }
    return preadv(fd, &to, 1, offset);
}

ssize_t preadv2(int fp, const struct iovec *iovec, int count, off_t offset, int flags)
{
    bool fails = atomic_load(&n_read_errors) > 0;
    if (!fails)
        return preadv(fp, iovec, count, offset);
    if (!(flags & RWF_NOWAIT))
        atomic_fetch_sub(&n_read_errors, 1);
    errno = flags & RWF_NOWAIT ? EAGAIN : EIO;
    return -1;
}

/* --- the readers --- */

static int try_mode(enum reader_mode mode, struct row_reader **r, struct moeflux_err *e)
{
    static const bool is_read[2] = {true, true};
    const struct row_reader_options o = {
        .mode = mode, .max_bytes = MAX_BYTES, .host_bytes = 1 << 20, .expert_bytes = all.expert_bytes};
    return row_reader_open(r, &all.dir, is_read, &o, e);
}

/* Opens a reader. NULL: the system does not have the mode, which is reported. */
static struct row_reader *open_mode(enum reader_mode mode)
{
    struct moeflux_err e;
    struct row_reader *r = NULL;
    int rc = try_mode(mode, &r, &e);
    if (rc == ERR_UNSUPPORTED && (mode == READER_URING || mode == READER_DIRECT)) {
        printf("SKIP CASE: %s\n", e.text);
        return NULL;
    }
    check_ok(rc, &e);
    assert_true(mode == READER_AUTO ? row_reader_get_mode(r) != READER_AUTO : row_reader_get_mode(r) == mode);
    return r;
}

static int by_place(const void *a, const void *b)
{
    const struct row_piece *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->off > y->off) - (x->off < y->off);
}

/* Random pieces: some overlap, some are adjacent, two end with their files. */
static void draw(struct row_piece *pieces, uint8_t *room, bool sorted)
{
    uint32_t random = 5;
    for (uint32_t i = 0; i < N; i++) {
        random = random * 1664525u + 1013904223u;
        struct row_piece *p = &pieces[i];
        p->file = random >> 31;
        p->bytes = 1 + (random >> 8) % MAX_BYTES;
        random = random * 1664525u + 1013904223u;
        p->off = i < 2 ? BYTES - p->bytes : (random >> 8) % (BYTES - p->bytes);
        if (i > 2 && i % 3 == 0) {
            p->file = p[-1].file;
            p->off = size_min(p[-1].off + p[-1].bytes, BYTES - p->bytes);
        }
        p->dst = room + (uint64_t)i * MAX_BYTES;
    }
    if (sorted)
        qsort(pieces, N, sizeof *pieces, by_place);
}

static void pieces_arrive_in_every_mode(void **state)
{
    (void)state;
    static const atomic_bool stops;
    struct row_piece pieces[N] = {0};
    uint8_t *room = malloc((size_t)N * MAX_BYTES);
    for (int k = 0; k < 2 * (READER_DIRECT + 1); k++) {
        struct moeflux_err e;
        struct row_reader *r = open_mode((enum reader_mode)(k / 2));
        draw(pieces, room, k % 2);
        for (uint32_t n = r ? N : 0; n > 0; n /= 3) {
            memset(room, 0, (size_t)N * MAX_BYTES);
            check_ok(row_reader_read(r, pieces, n, &stops, &e), &e);
            for (uint32_t i = 0; i < n; i++)
                assert_memory_equal(pieces[i].dst, all.bytes[pieces[i].file] + pieces[i].off,
                                    pieces[i].bytes);
        }
        row_reader_close(r);
    }
    free(room);
}

/* Some file systems accept the flag and refuse every read. */
static void auto_reads_through_the_page_cache_if_a_file_cannot_be_read_directly(void **state)
{
    (void)state;
    static const atomic_bool stops;
    struct row_piece pieces[N] = {0};
    uint8_t *room = malloc((size_t)N * MAX_BYTES);
    struct moeflux_err e;
    for (no_direct_from = 0; no_direct_from < 2; no_direct_from++) {
        /* The table alone is too large for the page cache, then the experts next to it. */
        int n_before = no_direct_read;
        all.dir.table_bytes = no_direct_from ? 0 : 1 << 20;
        all.expert_bytes = no_direct_from ? 1 << 20 : 0;
        struct row_reader *r = open_mode(READER_AUTO);
        assert_int_not_equal(row_reader_get_mode(r), READER_DIRECT);
        assert_true(no_direct_read > n_before || n_before == 0); /* it was tried, if the system has it */
        draw(pieces, room, true);
        check_ok(row_reader_read(r, pieces, N, &stops, &e), &e);
        for (uint32_t i = 0; i < N; i++)
            assert_memory_equal(pieces[i].dst, all.bytes[pieces[i].file] + pieces[i].off, pieces[i].bytes);
        row_reader_close(r);
        assert_int_equal(try_mode(READER_DIRECT, &r, &e), ERR_UNSUPPORTED);
    }
    if (!no_direct_read)
        printf("SKIP CASE: %s has no O_DIRECT\n", all.tmp);
    no_direct_from = -1;
    all.dir.table_bytes = all.expert_bytes = 0;
    free(room);
}

static void a_read_that_fails_is_tried_again(void **state)
{
    (void)state;
    static const atomic_bool stops;
    struct moeflux_err e;
    uint8_t byte = 0;
    const struct row_piece piece = {.off = 1000, .bytes = 1, .dst = &byte};
    struct row_reader *r = open_mode(READER_PREAD);
    atomic_store(&n_read_errors, READER_RETRIES);
    check_ok(row_reader_read(r, &piece, 1, &stops, &e), &e);
    assert_int_equal(byte, all.bytes[0][1000]);
    atomic_store(&n_read_errors, READER_RETRIES + 1);
    assert_int_equal(row_reader_read(r, &piece, 1, &stops, &e), ERR_IO);
    assert_non_null(strstr(e.text, all.files[0].path));
    assert_non_null(strstr(e.text, strerror(EIO)));
    row_reader_close(r);
}

static void a_replaced_file_is_refused_in_every_mode(void **state)
{
    (void)state;
    const char *aside = tmp_tree_path(all.tmp, "aside");
    assert_int_equal(rename(all.files[1].path, aside), 0);
    tmp_tree_write(all.tmp, "second", all.bytes[1], BYTES);
    for (int fits = 0; fits < 2; fits++) {
        all.dir.table_bytes = fits ? 0 : 1 << 20;
        for (enum reader_mode mode = READER_AUTO; mode <= READER_DIRECT; mode++) {
            struct moeflux_err e;
            struct row_reader *r;
            int rc = try_mode(mode, &r, &e);
            if (rc == ERR_UNSUPPORTED && mode == READER_DIRECT)
                continue; /* the first file cannot be read so */
            assert_int_equal(rc, ERR_IO);
            assert_null(r);
            assert_non_null(strstr(e.text, "second was replaced by another file"));
        }
    }
    assert_int_equal(rename(aside, all.files[1].path), 0);
}

static void a_stopped_read_starts_nothing(void **state)
{
    (void)state;
    static const atomic_bool stops = true;
    struct row_piece pieces[N] = {0};
    uint8_t *room = calloc(N, MAX_BYTES);
    draw(pieces, room, true);
    for (enum reader_mode mode = READER_MMAP; mode <= READER_DIRECT; mode++) {
        struct moeflux_err e;
        struct row_reader *r = open_mode(mode);
        if (r)
            assert_int_equal(row_reader_read(r, pieces, N, &stops, &e), ERR_INTERRUPTED);
        row_reader_close(r);
    }
    for (size_t i = 0; i < (size_t)N * MAX_BYTES; i++)
        assert_int_equal(room[i], 0);
    free(room);
}

/* Must be the last test: it cuts the second file. */
static void a_cut_file_is_named(void **state)
{
    (void)state;
    static const atomic_bool stops;
    struct row_reader *readers[READER_DIRECT + 1] = {NULL};
    struct row_piece pieces[N] = {0};
    uint8_t *room = malloc((size_t)N * MAX_BYTES);
    draw(pieces, room, true);
    for (enum reader_mode mode = READER_MMAP; mode <= READER_DIRECT; mode++)
        readers[mode] = open_mode(mode);
    assert_int_equal(ftruncate(all.files[1].fd, BYTES / 2), 0);
    for (enum reader_mode mode = READER_MMAP; mode <= READER_DIRECT; mode++) {
        struct moeflux_err e;
        if (!readers[mode])
            continue;
        assert_int_equal(row_reader_read(readers[mode], pieces, N, &stops, &e), ERR_IO);
        assert_non_null(strstr(e.text, all.files[1].path));
        row_reader_close(readers[mode]);
    }
    free(room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_arrive_in_every_mode),
        cmocka_unit_test(auto_reads_through_the_page_cache_if_a_file_cannot_be_read_directly),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(a_replaced_file_is_refused_in_every_mode),
        cmocka_unit_test(a_stopped_read_starts_nothing),
        cmocka_unit_test(a_cut_file_is_named),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
