#include "experts/row_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "experts/reader_files.h"

/* Reads in flight by io_uring, threads without it, and pieces of a mapped file that the system reads ahead:
 * enough for a fast disk, which answers a block in 0.1 ms. */
enum { DEPTH = 128, N_THREADS = 32, MAPPED_AHEAD = 256 };
/* Interruptions of a read without a byte in between, after which it fails. */
enum { MAX_STALLS = 1000 };

/* One read, of some consecutive pieces. */
struct row_op {
    uint8_t *room; /* [slot_bytes], page-aligned */
    uint32_t first, end, file;
    uint32_t n_stalls, n_errors; /* see struct read_part */
    uint64_t off;                /* a whole block */
    uint64_t bytes, n_done;      /* wanted and read, counted from off */
};

struct row_reader {
    const struct model_dir *model;
    enum reader_mode mode;
    int *fds;            /* [model.n_files], owned; -1: no rows */
    struct mapped *maps; /* [model.n_files]; NULL unless mapped */
    uint32_t block;      /* bytes that direct reads are multiples of; otherwise 1 */
    uint64_t slot_bytes;
    uint8_t *room;
    struct row_op *ops; /* [n_ops] */
    uint32_t n_ops;
    struct pool *pool; /* or */
    struct io_uring ring;
    bool has_ring;
    int broken; /* errno of a submission that failed for good */
};

/* The pieces of a call. */
struct batch {
    struct row_reader *reader;
    const struct row_piece *pieces;
    uint32_t n, next;
    const atomic_bool *stops;
    pthread_mutex_t lock; /* guards next and the result, where threads read */
    int code;
    struct moeflux_err err;
};

/* --- a read --- */

static bool is_over(const struct batch *b)
{
    return b->next == b->n || b->code < 0;
}

/* Makes a read of the next piece and those after it that lie in the same blocks. Returns false if there is
 * none. */
static bool begin(struct batch *b, struct row_op *op)
{
    const struct row_reader *r = b->reader;
    if (b->code == 0 && atomic_load(b->stops))
        b->code = err_set(&b->err, ERR_INTERRUPTED, "the read of rows was stopped");
    if (is_over(b))
        return false;
    const struct row_piece *p = &b->pieces[b->next];
    uint64_t end = p->off + p->bytes;
    op->first = b->next;
    op->file = p->file;
    op->off = p->off / r->block * r->block;
    op->n_done = op->n_stalls = op->n_errors = 0;
    while (++b->next < b->n) {
        const struct row_piece *q = &b->pieces[b->next];
        uint64_t later = size_max(end, q->off + q->bytes);
        if (q->file != op->file || q->off < op->off || q->off > size_round_up(end, r->block) ||
            size_round_up(later, r->block) - op->off > r->slot_bytes)
            break;
        end = later;
    }
    op->end = b->next;
    op->bytes = end - op->off;
    return true;
}

static uint32_t n_missing(const struct row_reader *r, const struct row_op *op)
{
    return (uint32_t)size_round_up(op->bytes - op->n_done, r->block);
}

static int fail(struct batch *b, const struct row_op *op, int number)
{
    const char *path = b->reader->model->files[op->file].path;
    struct moeflux_err why;
    errno = number;
    if (number)
        err_errno(&why, ERR_IO, "%.400s: rows at offset %" PRIu64, path, op->off);
    else
        err_set(&why, ERR_IO,
                "%.400s: %" PRIu64 " of %" PRIu64 " bytes of rows at offset %" PRIu64 ", then the file ends",
                path, op->n_done, op->bytes, op->off);
    if (b->code < 0)
        return b->code;
    b->err = why;
    return b->code = ERR_IO;
}

static void hand_out(const struct batch *b, const struct row_op *op, const uint8_t *bytes)
{
    for (uint32_t i = op->first; i < op->end; i++)
        memcpy(b->pieces[i].dst, bytes + (b->pieces[i].off - op->off), b->pieces[i].bytes);
}

/* Takes the result of a read, bytes or -errno. Returns 0 if it goes on, 1 if it is complete, or an error. */
static int advance(const struct row_reader *r, struct row_op *op, int64_t result, int *number)
{
    *number = 0;
    if (result == -EINTR || result == -EAGAIN) {
        *number = (int)-result;
        return ++op->n_stalls > MAX_STALLS ? ERR_IO : 0;
    }
    if (result < 0) {
        *number = (int)-result;
        return op->n_errors++ < READER_RETRIES ? 0 : ERR_IO;
    }
    uint64_t there = op->n_done + (uint64_t)result;
    if (there >= op->bytes)
        return 1;
    there = there / r->block * r->block;
    if (there == op->n_done)
        return ERR_IO;
    op->n_done = there;
    op->n_stalls = 0;
    return 0;
}

/* --- by io_uring --- */

static void prepare(struct row_reader *r, struct row_op *op)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* each op has one entry at most */
    io_uring_prep_read(sqe, r->fds[op->file], op->room + op->n_done, n_missing(r, op), op->off + op->n_done);
    io_uring_sqe_set_data(sqe, op);
}

/* Submits what is prepared and waits for some of it. Returns how many the system has in flight after a
 * failure for good, otherwise n. */
static uint32_t submit(struct batch *b, uint32_t n)
{
    struct row_reader *r = b->reader;
    bool is_last = is_over(b);
    int rc = io_uring_submit_and_wait(&r->ring, is_last ? n : n / 4 + 1);
    if (rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM)
        return n;
    r->broken = -rc;
    errno = -rc;
    if (b->code == 0)
        b->code = err_errno(&b->err, ERR_IO, "io_uring: rows cannot be read");
    return n - io_uring_sq_ready(&r->ring);
}

/* Takes what is finished. Idle ops go to `idle` [*n_idle]. */
static void complete(struct batch *b, struct row_op **idle, uint32_t *n_idle)
{
    struct row_reader *r = b->reader;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&r->ring, &cqe) == 0) {
        struct row_op *op = io_uring_cqe_get_data(cqe);
        int number, rc = advance(r, op, cqe->res, &number);
        io_uring_cqe_seen(&r->ring, cqe);
        if (rc == 0 && !r->broken) {
            prepare(r, op);
            continue;
        }
        if (rc < 0)
            fail(b, op, number);
        else if (rc == 1)
            hand_out(b, op, op->room);
        idle[(*n_idle)++] = op;
    }
}

static void read_by_ring(struct batch *b)
{
    struct row_reader *r = b->reader;
    struct row_op *idle[DEPTH];
    uint32_t n_idle = 0, n_lost = 0;
    while (n_idle < r->n_ops) {
        idle[n_idle] = &r->ops[n_idle];
        n_idle++;
    }
    for (;;) {
        while (!r->broken && n_idle > 0 && begin(b, idle[n_idle - 1]))
            prepare(r, idle[--n_idle]);
        uint32_t n = r->n_ops - n_idle - n_lost;
        if (n == 0)
            return;
        if (r->broken) {
            struct io_uring_cqe *cqe;
            (void)io_uring_wait_cqe(&r->ring, &cqe);
        } else {
            n_lost = n - submit(b, n);
        }
        complete(b, idle, &n_idle);
    }
}

/* --- by threads --- */

/* Reads an op with or without waiting for the disk. Returns 1, ERR_INTERRUPTED if it would have to wait, or
 * an error. */
static int read_op(const struct row_reader *r, struct row_op *op, int flags, int *number)
{
    int rc = 0;
    while (rc == 0) {
        struct iovec to = {op->room + op->n_done, n_missing(r, op)};
        ssize_t n = preadv2(r->fds[op->file], &to, 1, (off_t)(op->off + op->n_done), flags);
        if (flags && (n < 0 || (uint64_t)n < op->bytes - op->n_done))
            return ERR_INTERRUPTED;
        rc = advance(r, op, n < 0 ? -errno : n, number);
    }
    return rc;
}

static void read_some(void *ctx, uint32_t i)
{
    struct batch *b = ctx;
    struct row_op *op = &b->reader->ops[i];
    pthread_mutex_lock(&b->lock);
    while (begin(b, op)) {
        pthread_mutex_unlock(&b->lock);
        int number, rc = read_op(b->reader, op, 0, &number);
        if (rc == 1)
            hand_out(b, op, op->room);
        pthread_mutex_lock(&b->lock);
        if (rc < 0)
            fail(b, op, number);
    }
    pthread_mutex_unlock(&b->lock);
}

/* Takes from the page cache what it has at the beginning: if all of it is there, no thread needs to wake. */
static void read_by_threads(struct batch *b)
{
    const struct row_reader *r = b->reader;
    int number, rc = 1;
    while (r->mode == READER_PREAD && rc == 1 && begin(b, r->ops)) {
        rc = read_op(r, r->ops, RWF_NOWAIT, &number);
        if (rc == 1)
            hand_out(b, r->ops, r->ops->room);
        else
            b->next = r->ops->first;
    }
    if (!is_over(b))
        pool_for(r->pool, r->n_ops, read_some, b);
}

/* --- from mapped files --- */

static void expect(const struct batch *b, uint32_t from)
{
    for (uint32_t i = from; i < b->n && i < from + MAPPED_AHEAD; i++) {
        const struct row_piece *p = &b->pieces[i];
        const struct mapped *m = &b->reader->maps[p->file];
        uint64_t start = p->off / m->page * m->page;
        if (p->off + p->bytes <= m->bytes)
            (void)madvise(m->at + start, p->off + p->bytes - start, MADV_WILLNEED);
    }
}

static int64_t fetch(const struct mapped *m, const struct row_op *op)
{
    int64_t there = -EIO;
    for (int i = 0; there < 0 && i <= READER_RETRIES; i++)
        there = mapped_fetch(m, op->off, op->bytes);
    return there;
}

static void read_mapped(struct batch *b)
{
    struct row_op *op = b->reader->ops;
    for (uint32_t ahead = 0; begin(b, op);) {
        const struct mapped *m = &b->reader->maps[op->file];
        if (op->end > ahead) {
            expect(b, op->first);
            ahead = (uint32_t)size_max(op->end, (uint64_t)op->first + MAPPED_AHEAD);
        }
        int64_t there = fetch(m, op);
        if (there == (int64_t)op->bytes) {
            hand_out(b, op, m->at + op->off);
            mapped_drop(m, op->off, op->bytes);
            there = mapped_there(m, op->off, op->bytes);
        }
        if (there != (int64_t)op->bytes) {
            op->n_done = there < 0 ? 0 : (uint64_t)there;
            fail(b, op, there < 0 ? (int)-there : 0);
        }
    }
}

int row_reader_read(struct row_reader *r, const struct row_piece *pieces, uint32_t n,
                    const atomic_bool *stops, struct moeflux_err *e)
{
    struct batch b = {.reader = r, .pieces = pieces, .n = n, .stops = stops};
    if (r->broken) {
        errno = r->broken;
        return err_errno(e, ERR_IO, "io_uring: rows cannot be read");
    }
    for (uint32_t i = 0; i < r->model->n_files; i++) {
        int rc = r->fds[i] >= 0 ? open_file_check(&r->model->files[i], e) : 0;
        if (rc)
            return rc;
    }
    pthread_mutex_init(&b.lock, NULL);
    if (r->maps)
        read_mapped(&b);
    else if (r->has_ring)
        read_by_ring(&b);
    else
        read_by_threads(&b);
    pthread_mutex_destroy(&b.lock);
    if (b.code < 0 && e)
        *e = b.err;
    return b.code;
}

/* --- opening --- */

enum reader_mode row_reader_get_mode(const struct row_reader *r)
{
    return r->mode;
}

static void close_files(struct row_reader *r)
{
    for (uint32_t i = 0; r->maps && i < r->model->n_files; i++)
        mapped_close(&r->maps[i]);
    for (uint32_t i = 0; r->fds && i < r->model->n_files; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    free(r->maps);
    free(r->fds);
    r->maps = NULL;
    r->fds = NULL;
}

static int open_file(struct row_reader *r, uint32_t i, uint8_t *page, struct moeflux_err *e)
{
    const struct open_file *file = &r->model->files[i];
    int fd = reader_files_open_again(file, r->mode == READER_DIRECT ? O_DIRECT : 0, e);
    if (fd < 0)
        return fd;
    r->fds[i] = fd;
    if (r->mode == READER_DIRECT)
        return reader_files_find_block(fd, file->path, page, &r->block, e);
    /* The pages around a row are of no use. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return r->maps ? mapped_open(&r->maps[i], fd, file->path, file->bytes, e) : 0;
}

static int open_files(struct row_reader *r, const bool *is_read, struct moeflux_err *e)
{
    uint32_t n = r->model->n_files;
    uint8_t *page = NULL;
    r->block = r->mode == READER_DIRECT ? 0 : 1;
    r->fds = mem_new(n, sizeof *r->fds, e);
    if (!r->fds)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        r->fds[i] = -1;
    if (r->mode == READER_MMAP && !(r->maps = mem_new(n, sizeof *r->maps, e)))
        return ERR_MEMORY;
    if (posix_memalign((void **)&page, READER_TARGET_ALIGN, READER_TARGET_ALIGN) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a page");
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = is_read[i] ? open_file(r, i, page, e) : 0;
    free(page);
    return rc;
}

/* Direct reads do without io_uring, with less depth. */
static int open_ring(struct row_reader *r, struct moeflux_err *e)
{
    int rc = io_uring_queue_init(DEPTH, &r->ring, 0);
    errno = -rc;
    r->has_ring = rc == 0;
    return rc < 0 && r->mode == READER_URING ? err_errno(e, ERR_UNSUPPORTED, "io_uring cannot be used") : 0;
}

static int open_ops(struct row_reader *r, uint32_t max_bytes, struct moeflux_err *e)
{
    r->n_ops = r->maps ? 1 : r->has_ring ? DEPTH : N_THREADS;
    r->slot_bytes = size_round_up((uint64_t)max_bytes + 2ull * READER_TARGET_ALIGN, READER_TARGET_ALIGN);
    r->ops = mem_new(r->n_ops, sizeof *r->ops, e);
    if (!r->ops)
        return ERR_MEMORY;
    if (posix_memalign((void **)&r->room, READER_TARGET_ALIGN, r->n_ops * r->slot_bytes) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for reads of rows");
    for (uint32_t i = 0; i < r->n_ops; i++)
        r->ops[i].room = r->room + i * r->slot_bytes;
    return 0;
}

static void close_all(struct row_reader *r)
{
    if (r->has_ring)
        io_uring_queue_exit(&r->ring);
    r->has_ring = false;
    pool_free(r->pool);
    r->pool = NULL;
    close_files(r);
    free(r->room);
    free(r->ops);
    r->room = NULL;
    r->ops = NULL;
}

static int open_as(struct row_reader *r, enum reader_mode mode, const bool *is_read, uint32_t max_bytes,
                   struct moeflux_err *e)
{
    r->mode = mode;
    int rc = open_files(r, is_read, e);
    if (rc == 0 && (mode == READER_URING || mode == READER_DIRECT))
        rc = open_ring(r, e);
    if (rc == 0 && !r->maps && !r->has_ring)
        rc = (r->pool = pool_new(N_THREADS, e)) ? 0 : ERR_MEMORY;
    if (rc == 0)
        rc = open_ops(r, max_bytes, e);
    if (rc < 0)
        close_all(r);
    return rc;
}

/* The system may drop cached pages for other programs; a model that leaves a quarter of the memory free keeps
 * them. */
static int open_auto(struct row_reader *r, const struct row_reader_options *o, const bool *is_read,
                     struct moeflux_err *e)
{
    static const enum reader_mode order[] = {READER_DIRECT, READER_URING, READER_PREAD};
    bool fits = r->model->table_bytes + o->expert_bytes <= o->host_bytes / 4 * 3;
    int rc = ERR_UNSUPPORTED;
    for (uint32_t i = fits; i < sizeof order / sizeof *order && rc == ERR_UNSUPPORTED; i++)
        rc = open_as(r, order[i], is_read, o->max_bytes, e);
    return rc;
}

int row_reader_open(struct row_reader **out, const struct model_dir *m, const bool *is_read,
                    const struct row_reader_options *o, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    struct row_reader *r = *out = mem_new(1, sizeof *r, e);
    if (!r)
        return ERR_MEMORY;
    r->model = m;
    int rc = o->mode == READER_AUTO ? open_auto(r, o, is_read, &why)
                                    : open_as(r, o->mode, is_read, o->max_bytes, &why);
    if (rc == 0)
        return 0;
    free(r);
    *out = NULL;
    if (rc == ERR_UNSUPPORTED)
        return err_set(e, rc, "n-gram rows cannot be read by %s: %.400s", reader_mode_name(o->mode),
                       why.text);
    if (e)
        *e = why;
    return rc;
}

void row_reader_close(struct row_reader *r)
{
    if (!r)
        return;
    close_all(r);
    free(r);
}
