/* The reader through reader.h: every mode brings the same bytes, whatever the system does on the way.
 *
 * suites: check fast asan tsan */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#include "base/mem.h"
#include "check.h"
#include "convert/convert.h"
#include "experts/reader.h"
#include "model/expert_places.h"
#include "read_fixture.h"
#include "tmp_tree.h"

static const char ODD[] = "tests/models/qwen-odd/mlx";

static void open_packed_for_direct(struct fixture *f)
{
    open_packed(f, TINY);
    if (can_open(&f->model, READER_DIRECT))
        return;
    close_packed(f);
    print_message("SKIP direct reads of sectors do not work on $TMPDIR\n");
    skip();
}

static void all_modes_can_be_tested_here(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    bool ring = can_open(&f.model, READER_URING), direct = can_open(&f.model, READER_DIRECT);
    close_packed(&f);
    if (!ring)
        print_message("SKIP io_uring is forbidden here: mode uring is not tested\n");
    if (!direct)
        print_message("SKIP direct reads of sectors do not work on $TMPDIR: mode direct is not tested\n");
    if (!ring || !direct)
        skip();
}

/* --- equal bytes --- */

static void read_all(const struct model_dir *m, enum reader_mode mode, uint32_t n_threads,
                     uint32_t piece_bytes)
{
    struct reader *r =
        open_reader(m, &(struct reader_options){
                           .mode = mode, .n_threads = n_threads, .depth = 3, .piece_bytes = piece_bytes});
    assert_int_equal(reader_get_mode(r), mode);
    uint32_t n_layers = 0, n = m->config.n_experts;
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
        if (!config_has_experts(&m->config, layer))
            continue;
        read_and_compare(r, m, layer, n);
        bytes += n * m->experts[layer].bytes;
        n_layers++;
    }
    struct reader_stats s = reader_get_stats(r);
    assert_int_equal(s.n_reads, n_layers * n);
    assert_int_equal(s.bytes, bytes);
    assert_true(s.busy_ns > 0 && s.in_flight_ns >= s.busy_ns);
    assert_int_equal(s.n_failed + s.n_dropped, 0);
    reader_close(r);
}

static void read_all_modes(const struct model_dir *m)
{
    struct mode_list usable = modes_of(m);
    for (uint32_t i = 0; i < usable.n; i++) {
        read_all(m, usable.modes[i], 1, 0);
        read_all(m, usable.modes[i], 4, 0);
        read_all(m, usable.modes[i], 4, PAGE);
    }
}

static void every_mode_brings_the_same_bytes(void **state)
{
    (void)state;
    /* Experts of GGUF files and published checkpoints lie at any byte; some have rules. */
    const char *dirs[] = {TINY,
                          ODD,
                          "tests/models/gguf/qwen3moe.gguf",
                          "tests/models/gguf/deepseek2-00001-of-00002.gguf",
                          "tests/models/gptoss/mxfp4",
                          "tests/models/sources/kimi/hf",
                          "tests/models/sources/v4/hf"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        struct model_dir m;
        struct moeflux_err e = {0};
        check_ok(model_dir_open(&m, dirs[i], &e), &e);
        read_all_modes(&m);
        model_dir_close(&m);
        struct fixture f;
        open_packed(&f, dirs[i]);
        read_all_modes(&f.model);
        close_packed(&f);
    }
}

struct places {
    atomic_uint n_moved, n_matching, n_copied;
};

/* Counts runs that do not begin at a block of the file, those that begin at the same place of a block of the
 * slot, and those of the latter that are copied there. */
static int64_t see_places(void *ctx, const struct read_part *p, uint8_t *dst, int64_t result)
{
    struct places *s = ctx;
    const struct extent *x = &p->extent;
    if (p->n_stalls == 0 && result > 0) { /* it comes again, to the same place */
        memset(dst, POISON, (size_t)result);
        return -EAGAIN;
    }
    if (p->n_done == 0 && x->off % EXPERT_BLOCK) {
        bool matches = x->off % EXPERT_BLOCK == x->at % EXPERT_BLOCK;
        s->n_moved++;
        s->n_matching += matches;
        s->n_copied += matches && p->staged;
    }
    return result;
}

static void runs_of_a_gguf_file_need_no_copy(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    struct places s = {0};
    const struct reader_hook hook = {see_places, &s};
    check_ok(model_dir_open(&m, "tests/models/gguf/qwen3moe.gguf", &e), &e);
    assert_true(m.experts[0].owns_blocks);
    if (can_open(&m, READER_DIRECT)) {
        struct reader *r =
            open_reader(&m, &(struct reader_options){.mode = READER_DIRECT, .n_threads = 2, .hook = &hook});
        read_and_compare(r, &m, 0, m.config.n_experts);
        reader_close(r);
        assert_true(s.n_matching > 0 && s.n_matching <= s.n_moved);
        assert_int_equal(s.n_copied, 0);
    }
    model_dir_close(&m);
}

/* --- the page cache, which the system fills and empties as it likes --- */

static atomic_int page_cache_errno; /* 0: it has everything */

/* Replaces the system's, with its header's names: a read that must not wait brings
 * everything, or fails. */
ssize_t preadv2(int fp, const struct iovec *iovec, int count, off_t offset, int flags)
{
    if ((flags & RWF_NOWAIT) && page_cache_errno) {
        errno = page_cache_errno;
        return -1;
    }
    return preadv(fp, iovec, count, offset);
}

/* --- a system that does its worst --- */

struct trouble {
    pthread_mutex_t lock;
    uint32_t layer, expert; /* whom it is for; UINT32_MAX: all */
    int number;             /* the errno to give */
    uint32_t n_left;        /* how often; 0: no more */
    uint32_t least;         /* bring so many bytes or some more, not all; 0: all */
    uint32_t random, n_calls;
};

static int64_t make_trouble(void *ctx, const struct read_part *p, uint8_t *dst, int64_t result)
{
    struct trouble *t = ctx;
    const struct read_request *q = p->request;
    bool meant = t->expert == UINT32_MAX || (q->layer == t->layer && q->expert == t->expert);
    pthread_mutex_lock(&t->lock);
    t->n_calls++;
    bool now = meant && t->n_left > 0;
    t->n_left -= now;
    t->random = t->random * 1103515245u + 12345;
    uint32_t random = t->random >> 8;
    pthread_mutex_unlock(&t->lock);
    if (!now)
        return result;
    /* What did not come must be read again: the bytes are spoilt. */
    int64_t n = t->number                       ? 0
                : t->least && result > t->least ? t->least + random % (result - t->least)
                                                : result;
    if (result > n)
        memset(dst + n, POISON, (size_t)(result - n));
    return t->number ? -t->number : n;
}

static struct reader *open_troubled(const struct model_dir *m, enum reader_mode mode, uint32_t piece_bytes,
                                    struct trouble *t, struct reader_hook *hook)
{
    pthread_mutex_init(&t->lock, NULL);
    *hook = (struct reader_hook){make_trouble, t};
    return open_reader(
        m, &(struct reader_options){.mode = mode, .n_threads = 4, .piece_bytes = piece_bytes, .hook = hook});
}

static void short_reads_are_continued(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct reader_hook hook;
        /* A direct read that brings less than a block has made no way. */
        struct trouble t = {.expert = UINT32_MAX, .least = mode == READER_DIRECT ? 512 : 1, .n_left = 100};
        struct reader *r = open_troubled(&f.model, mode, 0, &t, &hook);
        read_and_compare(r, &f.model, 1, 32);
        assert_int_equal(t.n_left, 0);
        assert_true(reader_get_stats(r).n_continued > 50);
        reader_close(r);
    }
    close_packed(&f);
}

/* Brings eleven blocks of 512 and a piece of each read until the last. */
static int64_t cut_in_a_block(void *ctx, const struct read_part *p, uint8_t *dst, int64_t result)
{
    (void)ctx;
    (void)p;
    int64_t n = 6000;
    if (result <= n)
        return result;
    memset(dst + n, POISON, (size_t)(result - n));
    return n;
}

static void direct_reads_that_end_inside_a_block_go_on_at_its_start(void **state)
{
    (void)state;
    struct fixture f;
    open_packed_for_direct(&f);
    const struct reader_hook hook = {cut_in_a_block, NULL};
    struct reader *r =
        open_reader(&f.model, &(struct reader_options){.mode = READER_DIRECT, .n_threads = 2, .hook = &hook});
    read_and_compare(r, &f.model, 0, 8);
    /* 54 blocks: four times eleven of them, and the rest at once. */
    assert_int_equal(reader_get_stats(r).n_continued, 8 * 4);
    reader_close(r);
    close_packed(&f);
}

static void interrupted_reads_are_repeated(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    static const int numbers[] = {EINTR, EAGAIN};
    struct mode_list usable = modes_of(&f.model);
    for (int i = 0; i < 2; i++)
        for (uint32_t k = 0; k < usable.n; k++) {
            enum reader_mode mode = usable.modes[k];
            struct reader_hook hook;
            struct trouble t = {.expert = UINT32_MAX, .number = numbers[i], .n_left = 100};
            struct reader *r = open_troubled(&f.model, mode, 0, &t, &hook);
            read_and_compare(r, &f.model, 2, 16);
            assert_int_equal(reader_get_stats(r).n_continued, 100);
            reader_close(r);
        }
    close_packed(&f);
}

static void expect_failure(struct reader *r, struct read_request *q, int code, const char *const *words)
{
    struct moeflux_err e = {0};
    assert_int_equal(reader_wait(r, q, &e), code);
    for (; *words; words++)
        if (!strstr(e.text, *words))
            fail_msg("\"%s\" does not say \"%s\"", e.text, *words);
}

/* Reads experts 0 to 15 of layer 1, of which the 5th must fail, then all again, of which none may. */
static void one_of_many_fails(const struct model_dir *m, enum reader_mode mode, uint32_t piece_bytes,
                              int number, uint32_t n_left, const char *const *words)
{
    enum { N = 16 };
    struct reader_hook hook;
    struct trouble t = {.layer = 1, .expert = 5, .number = number, .n_left = n_left};
    struct reader *r = open_troubled(m, mode, piece_bytes, &t, &hook);
    struct read_request *q = new_requests(m, N);
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < N; i++) {
        q[i].layer = 1;
        reader_start(r, &q[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        if (i == 5) {
            expect_failure(r, &q[i], ERR_IO, words);
            continue;
        }
        check_ok(reader_wait(r, &q[i], &e), &e);
        check_bytes(m, &q[i]);
    }
    assert_int_equal(reader_get_stats(r).n_failed, 1);
    assert_int_equal(reader_get_stats(r).n_reads, N - 1);
    t.n_left = 0;
    read_and_compare(r, m, 1, N);
    free_requests(q, N);
    reader_close(r);
}

static void a_failed_read_names_its_expert_and_the_reader_goes_on(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        static const char *const words[] = {
            "layer 1 expert 5", "layer_01.bin", "offset 138240", "27648", "Input/output error", NULL};
        one_of_many_fails(&f.model, mode, 0, EIO, 1 + READER_RETRIES, words);
        static const char *const busy[] = {"layer 1 expert 5", "offset 138240", "unavailable", NULL};
        one_of_many_fails(&f.model, mode, 0, EAGAIN, UINT32_MAX, busy);
    }
    close_packed(&f);
}

struct warnings {
    uint32_t n;
    char text[600];
};

static void keep_warning(void *ctx, const char *text)
{
    struct warnings *w = ctx;
    snprintf(w->text, sizeof w->text, "%s", text);
    w->n++;
}

static void failed_reads_are_tried_again_with_one_warning(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        struct warnings told = {0};
        struct trouble t = {.layer = 1, .expert = 5, .number = EIO, .n_left = READER_RETRIES};
        const struct reader_hook hook = {make_trouble, &t};
        pthread_mutex_init(&t.lock, NULL);
        struct reader *r = open_reader(&f.model, &(struct reader_options){.mode = usable.modes[k],
                                                                          .n_threads = 4,
                                                                          .hook = &hook,
                                                                          .warning = {keep_warning, &told}});
        read_and_compare(r, &f.model, 1, 16);
        assert_int_equal(t.n_left, 0);
        t.n_left = READER_RETRIES;
        read_and_compare(r, &f.model, 1, 16);
        assert_int_equal(reader_get_stats(r).n_retried, 2 * READER_RETRIES);
        assert_int_equal(reader_get_stats(r).n_failed, 0);
        assert_int_equal(told.n, 1);
        if (!strstr(told.text,
                    "layer_01.bin: 0 of 27648 bytes at offset 138240: Input/output error; the read is"))
            fail_msg("found \"%s\"", told.text);
        reader_close(r);
    }
    close_packed(&f);
}

/* An expert of 27,648 bytes in pieces of a page: whichever fails, the expert does, and the others are not
 * touched. */
static void a_failed_piece_fails_the_expert(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        static const char *const words[] = {"layer 1 expert 5", "layer_01.bin", "Input/output error", NULL};
        one_of_many_fails(&f.model, usable.modes[k], PAGE, EIO, UINT32_MAX, words);
    }
    close_packed(&f);
}

static void pieces_are_as_large_as_asked_for(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++)
        for (uint32_t pages = 1; pages <= 8; pages += 3) {
            struct reader *r = open_reader(&f.model, &(struct reader_options){.mode = usable.modes[k],
                                                                              .n_threads = 3,
                                                                              .piece_bytes = pages * PAGE});
            read_and_compare(r, &f.model, 0, 2);
            assert_int_equal(reader_get_stats(r).n_parts, 2 * ((27648 + pages * PAGE - 1) / (pages * PAGE)));
            reader_close(r);
        }
    close_packed(&f);
}

/* Reads an expert of 27,648 bytes in pieces of a page where the page cache answers so; one thread, or the
 * ring's. */
static void read_in_pieces(int answer, uint64_t n_parts)
{
    static const enum reader_mode modes[] = {READER_PREAD, READER_URING};
    struct fixture f;
    open_packed(&f, TINY);
    for (int i = 0; i < 2; i++) {
        if (!can_open(&f.model, modes[i]))
            continue;
        struct reader *r = open_reader(
            &f.model, &(struct reader_options){.mode = modes[i], .n_threads = 1, .piece_bytes = PAGE});
        page_cache_errno = answer;
        read_and_compare(r, &f.model, 2, 1);
        page_cache_errno = 0;
        assert_int_equal(reader_get_stats(r).n_parts, n_parts);
        reader_close(r);
    }
    close_packed(&f);
}

/* The first piece finds that the disk is needed, and takes the others over. */
static void what_the_page_cache_lacks_is_one_read(void **state)
{
    (void)state;
    read_in_pieces(EAGAIN, 1);
}

static void where_the_file_system_cannot_tell_pieces_are_read(void **state)
{
    (void)state;
    read_in_pieces(EOPNOTSUPP, (27648 + PAGE - 1) / PAGE);
}

/* Nine extents: one fails, and none of the others may still be written to afterwards. */
static void a_failed_extent_fails_the_expert(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, TINY, &e), &e);
    struct mode_list usable = modes_of(&m);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        static const char *const words[] = {"layer 1 expert 5", "model.safetensors", "Input/output error",
                                            NULL};
        one_of_many_fails(&m, mode, 0, EIO, UINT32_MAX, words);
    }
    model_dir_close(&m);
}

struct slow {
    atomic_uint n_ended; /* how many of the other reads ended */
    uint32_t n_others;
    bool again; /* the slow one is put back; else it keeps its thread */
};

/* Expert 0 comes after all the others, and never if they wait for it. */
static int64_t come_last(void *ctx, const struct read_part *p, uint8_t *dst, int64_t result)
{
    struct slow *s = ctx;
    if (p->request->expert != 0) {
        s->n_ended++;
        return result;
    }
    /* Nothing here is a limit on speed: it only ends a test that hangs. */
    for (uint32_t i = 0; s->n_ended < s->n_others; i++) {
        if (i == 30000)
            return -ETIMEDOUT;
        usleep(10000);
        if (!s->again)
            continue;
        /* What did not come must be read again: the bytes are spoilt. */
        if (result > 0)
            memset(dst, POISON, (size_t)result);
        return -EAGAIN;
    }
    return result;
}

static void slow_reads_do_not_hold_up_the_others(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        struct slow s = {.n_others = 11, .again = mode != READER_MMAP && mode != READER_PREAD};
        const struct reader_hook hook = {come_last, &s};
        struct reader *r =
            open_reader(&f.model, &(struct reader_options){.mode = mode, .n_threads = 4, .hook = &hook});
        read_and_compare(r, &f.model, 0, 12);
        assert_int_equal(s.n_ended, 11);
        reader_close(r);
    }
    close_packed(&f);
}

/* --- files that change --- */

static void cut_a_file(enum reader_mode mode)
{
    static const char *const words[] = {"layer 2 expert 5", "layer_02.bin",
                                        "11760 of 27648 bytes at offset 138240, then the file ends", NULL};
    static const char *const beyond[] = {"layer 2 expert 6", "0 of 27648 bytes at offset 165888", NULL};
    struct fixture f;
    open_packed(&f, TINY);
    struct reader *r = open_reader(&f.model, &(struct reader_options){.mode = mode, .n_threads = 2});
    struct read_request *q = new_requests(&f.model, 7);
    assert_int_equal(truncate(tmp_tree_path(f.dir, "packed_experts/layer_02.bin"), 150000), 0);
    for (uint32_t i = 0; i < 7; i++) {
        q[i].layer = 2;
        reader_start(r, &q[i]);
    }
    expect_failure(r, &q[5], ERR_IO, words);
    expect_failure(r, &q[6], ERR_IO, beyond);
    read_and_compare(r, &f.model, 2, 5);
    read_and_compare(r, &f.model, 3, 32);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(reader_wait(r, &q[i], NULL), 0);
    free_requests(q, 7);
    reader_close(r);
    close_packed(&f);
}

static void spoil_scales(enum reader_mode mode, uint32_t piece_bytes)
{
    static const char *const words[] = {"layer 0 expert ", "not finite", NULL};
    static const uint8_t nan[] = {0xc0, 0x7f};
    struct fixture f;
    open_packed(&f, TINY);
    const struct expert_layout *l = &f.model.experts[0];
    const uint64_t at[] = {l->gate_s, l->up_w - 2, l->up_b, l->down_s, l->bytes - 2};
    struct reader *r = open_reader(
        &f.model, &(struct reader_options){.mode = mode, .n_threads = 2, .piece_bytes = piece_bytes});
    struct read_request *q = new_requests(&f.model, 5);
    FILE *file = fopen(tmp_tree_path(f.dir, "packed_experts/layer_00.bin"), "r+");
    assert_non_null(file);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(fseek(file, (long)(i * l->bytes + at[i]), SEEK_SET), 0);
        assert_int_equal(fwrite(nan, 1, 2, file), 2);
    }
    assert_int_equal(fclose(file), 0);
    for (uint32_t i = 0; i < 5; i++) {
        reader_start(r, &q[i]);
        expect_failure(r, &q[i], ERR_FORMAT, words);
    }
    free_requests(q, 5);
    reader_close(r);
    close_packed(&f);
}

static void a_file_that_is_cut_ends_as_an_error(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        cut_a_file(mode);
    }
    close_packed(&f);
}

static void values_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    open_packed(&f, TINY);
    struct mode_list usable = modes_of(&f.model);
    for (uint32_t k = 0; k < usable.n; k++) {
        enum reader_mode mode = usable.modes[k];
        spoil_scales(mode, 0);
        spoil_scales(mode, PAGE);
    }
    close_packed(&f);
}

static void a_file_that_was_replaced_is_not_read_directly(void **state)
{
    (void)state;
    struct fixture f;
    struct reader *r;
    struct moeflux_err e = {0};
    open_packed_for_direct(&f);
    const char *file = tmp_tree_path(f.dir, "packed_experts/layer_00.bin");
    size_t n;
    uint8_t *bytes = tmp_tree_read(file, &n);
    assert_int_equal(unlink(file), 0);
    tmp_tree_write(f.dir, "packed_experts/layer_00.bin", bytes, n);
    assert_int_equal(
        reader_open(&r, &f.model, &(struct reader_options){.mode = READER_DIRECT, .n_threads = 1}, &e),
        ERR_IO);
    assert_non_null(strstr(e.text, "replaced"));
    free(bytes);
    close_packed(&f);
}

/* --- which mode --- */

static void direct_reads_need_aligned_memory(void **state)
{
    (void)state;
    struct fixture f;
    open_packed_for_direct(&f);
    struct reader *r = open_reader(&f.model, &(struct reader_options){.mode = READER_DIRECT, .n_threads = 1});
    struct read_request *q = new_requests(&f.model, 2);
    static const char *const words[] = {"layer 0 expert 0", "4096", NULL};
    q[0].dst += 512;
    reader_start(r, &q[0]);
    expect_failure(r, &q[0], ERR_USAGE, words);
    q[0].dst -= 512;
    read_and_compare(r, &f.model, 0, 2);
    free_requests(q, 2);
    reader_close(r);
    close_packed(&f);
}

static void a_mode_that_cannot_be_had_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct fixture f;
    struct reader *r;
    struct moeflux_err e = {0};
    open_packed_for_direct(&f);
    void *nowhere = mmap(NULL, READER_TARGET_ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(nowhere != MAP_FAILED);
    const struct reader_region region = {nowhere, READER_TARGET_ALIGN};
    const struct reader_options o = {
        .mode = READER_DIRECT, .n_threads = 1, .regions = &region, .n_regions = 1};
    assert_int_equal(reader_open(&r, &f.model, &o, &e), ERR_UNSUPPORTED);
    assert_null(r);
    assert_non_null(strstr(e.text, "by direct: the slots' memory cannot be the target"));
    munmap(nowhere, READER_TARGET_ALIGN);
    close_packed(&f);
}

static void check_auto(const struct model_dir *m, uint64_t host_bytes, bool in_place, enum reader_mode mode,
                       const char *word)
{
    const struct reader_options o = {.n_threads = 2, .host_bytes = host_bytes, .in_place = in_place};
    struct reader *r = open_reader(m, &o);
    if (reader_get_mode(r) != mode || !strstr(reader_describe(r), word))
        fail_msg("expected %s because \"%s\", found %s", reader_mode_name(mode), word, reader_describe(r));
    read_and_compare(r, m, 1, 4);
    reader_close(r);
}

static void auto_says_what_it_took_and_why(void **state)
{
    (void)state;
    struct fixture f;
    struct model_dir m;
    struct moeflux_err e = {0};
    open_packed(&f, TINY);
    check_ok(model_dir_open(&m, TINY, &e), &e);
    bool ring = can_open(&m, READER_URING), direct = can_open(&f.model, READER_DIRECT),
         direct_there = can_open(&m, READER_DIRECT);
    uint64_t bytes = f.model.expert_bytes;
    check_auto(&f.model, bytes / 3 * 4 + 8, true, READER_MMAP, "7.1 MB of experts fit in 3/4 of 0.0 GB");
    check_auto(&f.model, bytes / 3 * 4 + 8, false, READER_PREAD, "7.1 MB of experts fit in 3/4 of 0.0 GB");
    check_auto(&f.model, bytes, true,
               direct ? READER_DIRECT
               : ring ? READER_URING
                      : READER_PREAD,
               "7.1 MB of experts do not fit in 3/4 of 0.0 GB");
    check_auto(&m, 4 * bytes, true, READER_MMAP, "mmap (2 threads)");
    check_auto(&m, 4 * bytes, false, READER_PREAD, "pread (2 threads)");
    check_auto(&m, 0, false,
               direct_there ? READER_DIRECT
               : ring       ? READER_URING
                            : READER_PREAD,
               direct_there ? "do not fit in" : "no direct: ");
    model_dir_close(&m);
    close_packed(&f);
}

/* Makes io_uring_setup fail with `number` for this process and its children, as containers do. */
static void forbid_io_uring(int number)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)number),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static bool reads_right(const struct model_dir *m, const struct reader_options *o, const char *word)
{
    struct reader *r;
    struct moeflux_err e = {0};
    if (reader_open(&r, m, o, &e) < 0)
        return false;
    bool says = strstr(reader_describe(r), word) != NULL;
    read_and_compare(r, m, 0, 8);
    reader_close(r);
    return says;
}

/* Runs in a process that may not use io_uring. Returns 0, or the number of the first fault. */
/* plain: NULL if it can be read directly; packed: NULL if direct reads do not work here. */
static int live_without_io_uring(const struct model_dir *any, const struct model_dir *plain,
                                 const struct model_dir *packed, int number)
{
    struct reader *r;
    struct moeflux_err e = {0};
    forbid_io_uring(number);
    const struct reader_options none = {.n_threads = 3}, uring = {.mode = READER_URING, .n_threads = 3},
                                direct = {.mode = READER_DIRECT, .n_threads = 3};
    if (plain && (!reads_right(plain, &none, "pread (3 threads)") ||
                  !reads_right(plain, &none, "no uring: io_uring cannot")))
        return 1;
    if (packed && (!reads_right(packed, &none, "direct (3 threads)") ||
                   !reads_right(packed, &none, "; io_uring cannot")))
        return 2;
    if (packed && !reads_right(packed, &direct, "direct (3 threads)"))
        return 3;
    if (reader_open(&r, any, &uring, &e) != ERR_UNSUPPORTED || !strstr(e.text, strerror(number)))
        return 4;
    return 0;
}

static void where_io_uring_is_forbidden_threads_read(void **state)
{
    (void)state;
    static const int numbers[] = {EPERM, ENOSYS};
    struct fixture f;
    struct model_dir m;
    struct moeflux_err e = {0};
    open_packed(&f, TINY);
    check_ok(model_dir_open(&m, TINY, &e), &e);
    const struct model_dir *packed = can_open(&f.model, READER_DIRECT) ? &f.model : NULL;
    const struct model_dir *plain = can_open(&m, READER_DIRECT) ? NULL : &m;
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(live_without_io_uring(&m, plain, packed, numbers[i]));
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    model_dir_close(&m);
    close_packed(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_modes_can_be_tested_here),
        cmocka_unit_test(every_mode_brings_the_same_bytes),
        cmocka_unit_test(runs_of_a_gguf_file_need_no_copy),
        cmocka_unit_test(short_reads_are_continued),
        cmocka_unit_test(direct_reads_that_end_inside_a_block_go_on_at_its_start),
        cmocka_unit_test(interrupted_reads_are_repeated),
        cmocka_unit_test(a_failed_read_names_its_expert_and_the_reader_goes_on),
        cmocka_unit_test(failed_reads_are_tried_again_with_one_warning),
        cmocka_unit_test(a_failed_piece_fails_the_expert),
        cmocka_unit_test(pieces_are_as_large_as_asked_for),
        cmocka_unit_test(what_the_page_cache_lacks_is_one_read),
        cmocka_unit_test(where_the_file_system_cannot_tell_pieces_are_read),
        cmocka_unit_test(a_failed_extent_fails_the_expert),
        cmocka_unit_test(slow_reads_do_not_hold_up_the_others),
        cmocka_unit_test(a_file_that_is_cut_ends_as_an_error),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(a_file_that_was_replaced_is_not_read_directly),
        cmocka_unit_test(direct_reads_need_aligned_memory),
        cmocka_unit_test(a_mode_that_cannot_be_had_is_refused_with_the_reason),
        cmocka_unit_test(auto_says_what_it_took_and_why),
        cmocka_unit_test(where_io_uring_is_forbidden_threads_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
