#include "read_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "check.h"
#include "convert/convert.h"
#include "model/model_dir_read.h"
#include "tmp_tree.h"

static const enum reader_mode MODES[] = {READER_MMAP, READER_PREAD, READER_URING, READER_DIRECT};
_Static_assert(sizeof MODES / sizeof *MODES == N_MODES, "all modes");

void open_packed(struct fixture *f, const char *src)
{
    struct convert_result result;
    struct moeflux_err e = {0};
    *f = (struct fixture){.tmp = tmp_tree_new()};
    f->dir = tmp_tree_path(f->tmp, "packed");
    check_ok(convert_run(&(struct convert_options){.src = src, .dst = f->dir, .n_threads = 1}, &result, &e),
             &e);
    check_ok(model_dir_open(&f->model, f->dir, &e), &e);
}

void close_packed(struct fixture *f)
{
    model_dir_close(&f->model);
    tmp_tree_remove(f->tmp);
}

struct read_request *new_requests(const struct model_dir *m, uint32_t n)
{
    struct read_request *q = calloc(n, sizeof *q);
    assert_non_null(q);
    for (uint32_t i = 0; i < n; i++) {
        void *dst;
        uint64_t bytes = size_round_up(m->max_expert_bytes, PAGE);
        assert_int_equal(posix_memalign(&dst, PAGE, bytes), 0);
        memset(dst, POISON, bytes);
        q[i].dst = dst;
        q[i].expert = i;
    }
    return q;
}

void free_requests(struct read_request *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(q[i].dst);
    free(q);
}

void check_bytes(const struct model_dir *m, const struct read_request *q)
{
    uint64_t bytes = m->experts[q->layer].bytes;
    struct moeflux_err e = {0};
    uint8_t *want = malloc(bytes);
    assert_non_null(want);
    memset(want, POISON, bytes); /* parts that no extent fills stay as they are */
    check_ok(model_dir_read_expert(m, q->layer, q->expert, 0, bytes, want, &e), &e);
    struct extent x[EXPERT_MAX_EXTENTS];
    uint32_t n = m->experts[q->layer].owns_blocks ? model_dir_expert(m, q->layer, q->expert, x) : 0;
    for (uint32_t i = 0; i < n; i++) /* around it are other bytes of its blocks */
        assert_memory_equal(q->dst + x[i].at, want + x[i].at, x[i].bytes);
    if (!m->experts[q->layer].owns_blocks)
        assert_memory_equal(q->dst, want, bytes);
    free(want);
}

struct reader *open_reader(const struct model_dir *m, const struct reader_options *o)
{
    struct reader *r;
    struct moeflux_err e = {0};
    check_ok(reader_open(&r, m, o, &e), &e);
    return r;
}

void read_and_compare(struct reader *r, const struct model_dir *m, uint32_t layer, uint32_t n)
{
    struct read_request *q = new_requests(m, n);
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < n; i++) {
        q[i].layer = layer;
        reader_start(r, &q[i]);
    }
    for (uint32_t i = n; i-- > 0;) {
        check_ok(reader_wait(r, &q[i], &e), &e);
        assert_true(reader_is_done(r, &q[i]));
        check_bytes(m, &q[i]);
    }
    free_requests(q, n);
}

bool can_open(const struct model_dir *m, enum reader_mode mode)
{
    struct reader *r;
    struct moeflux_err e = {0};
    int rc = reader_open(&r, m, &(struct reader_options){.mode = mode, .n_threads = 1}, &e);
    if (rc == 0)
        reader_close(r);
    else if (rc != ERR_UNSUPPORTED || (mode != READER_URING && mode != READER_DIRECT))
        fail_msg("%s", e.text);
    return rc == 0;
}

struct mode_list modes_of(const struct model_dir *m)
{
    struct mode_list l = {0};
    for (uint32_t i = 0; i < N_MODES; i++)
        if (can_open(m, MODES[i]))
            l.modes[l.n++] = MODES[i];
    return l;
}
