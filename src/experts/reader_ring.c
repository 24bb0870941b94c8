#include "experts/reader_ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/slice.h"

struct reader_ring {
    struct reader_work *work;
    struct io_uring ring;
    bool has_ring, has_thread;
    pthread_t thread;
    int wake_fd;
    uint64_t wake_count;      /* result of the read of wake_fd; unused */
    struct read_part **batch; /* [n_batch] prepared, not submitted; NULL: the read of wake_fd */
    uint32_t n_batch;
    uint32_t n_in_flight;  /* submitted parts, without the read of wake_fd */
    int broken;            /* errno of a submission that failed for good; nothing is submitted after it */
    struct iovec *regions; /* [n_regions], registered; set before the first read */
    uint32_t n_regions;
};

/* --- submission --- */

/* Prepares the read of wake_fd. There is always a free entry: each part in flight and this read have one at
 * most. */
static void prepare_wake(struct reader_ring *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    io_uring_prep_read(sqe, r->wake_fd, &r->wake_count, sizeof r->wake_count, 0);
    io_uring_sqe_set_data(sqe, NULL);
    r->batch[r->n_batch++] = NULL;
}

/* Returns the registered region that contains the n bytes at `dst`, or -1. */
static int region_of(const struct reader_ring *r, const uint8_t *dst, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_regions; i++) {
        const uint8_t *base = r->regions[i].iov_base;
        if (dst >= base && dst + n <= base + r->regions[i].iov_len)
            return (int)i;
    }
    return -1;
}

/* Tests by an expert's first byte whether the page cache has the expert. The ring gets all its pieces before
 * the first one is read. */
static void look_at_cache(struct reader_ring *r, struct read_part *p)
{
    if (p == p->request->parts && reader_work_tries_cached(r->work, p)) {
        struct file_read a = reader_work_next_read(r->work, p);
        struct iovec to = {a.dst, 1};
        if (preadv2(r->work->files.fds[a.file], &to, 1, (off_t)a.off, RWF_NOWAIT) < 0 && errno == EAGAIN)
            reader_work_take_over(r->work, p);
    }
    p->waits = true;
}

static void prepare(struct reader_ring *r, struct read_part *p)
{
    if (r->broken) {
        reader_work_fail(r->work, p, r->broken);
        return;
    }
    look_at_cache(r, p);
    struct file_read a = reader_work_next_read(r->work, p);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    int region = region_of(r, a.dst, a.n);
    if (region >= 0)
        io_uring_prep_read_fixed(sqe, (int)a.file, a.dst, a.n, a.off, region);
    else
        io_uring_prep_read(sqe, (int)a.file, a.dst, a.n, a.off);
    /* The kernel's workers may block, which a submission may not, and several of them copy from the page
     * cache in parallel. */
    bool blocking = p->n_stalls || !r->work->files.block;
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE | (blocking ? IOSQE_ASYNC : 0));
    io_uring_sqe_set_data(sqe, p);
    r->batch[r->n_batch++] = p;
}

/* Counts what the kernel took of the batch, and keeps the rest. */
static void count_submitted(struct reader_ring *r)
{
    uint32_t n_left = (uint32_t)size_min(io_uring_sq_ready(&r->ring), r->n_batch);
    uint32_t n_sent = r->n_batch - n_left;
    for (uint32_t i = 0; i < n_sent; i++)
        r->n_in_flight += r->batch[i] != NULL;
    memmove(r->batch, r->batch + n_sent, n_left * sizeof *r->batch);
    r->n_batch = n_left;
}

/* Fails all parts that the kernel did not take. Those that it took are waited for, since it may still write
 * them. */
static void break_off(struct reader_ring *r, int number)
{
    r->broken = number;
    for (uint32_t i = 0; i < r->n_batch; i++)
        if (r->batch[i])
            reader_work_fail(r->work, r->batch[i], number);
    r->n_batch = 0;
}

static void submit_and_wait(struct reader_ring *r)
{
    int rc = io_uring_submit_and_wait(&r->ring, 1);
    count_submitted(r);
    reader_work_count_submit(r->work);
    bool passing = rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM;
    if (rc < 0 && !passing)
        break_off(r, -rc);
}

/* --- completion --- */

static void complete(struct reader_ring *r, const struct io_uring_cqe *cqe)
{
    struct read_part *p = io_uring_cqe_get_data(cqe);
    if (!p) {
        if (!r->broken)
            prepare_wake(r);
        return;
    }
    r->n_in_flight--;
    if (reader_work_finish_read(r->work, p, cqe->res))
        prepare(r, p);
}

static void complete_all(struct reader_ring *r)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&r->ring, &cqe) == 0) {
        const struct io_uring_cqe copy = {.user_data = cqe->user_data, .res = cqe->res};
        io_uring_cqe_seen(&r->ring, cqe);
        complete(r, &copy);
    }
}

/* Waits for what is in flight; fails every later request with the error of the submission. */
static void serve_broken(struct reader_ring *r)
{
    struct io_uring_cqe *cqe;
    struct read_part *p;
    while (r->n_in_flight > 0) {
        (void)io_uring_wait_cqe(&r->ring, &cqe);
        complete_all(r);
    }
    while ((p = reader_work_take(r->work)))
        reader_work_fail(r->work, p, r->broken);
}

static void *serve(void *arg)
{
    struct reader_ring *r = arg;
    bool over = false;
    /* Otherwise the disk is idle while the threads that compute hold all processors. */
    slice_shorten();
    prepare_wake(r);
    while (!over && !r->broken) {
        struct read_part *p;
        while ((p = reader_work_take_or_sleep(r->work, &over)))
            prepare(r, p);
        if (!over)
            submit_and_wait(r);
        complete_all(r);
    }
    if (r->broken)
        serve_broken(r);
    return NULL;
}

/* --- opening --- */

/* Tries a read. Containers may allow a ring and forbid its use, and rings of Linux before 5.6 cannot read
 * like this. */
static int try_ring(struct reader_ring *r, struct moeflux_err *e)
{
    static const uint64_t one = 1;
    struct io_uring_cqe *cqe;
    if (write(r->wake_fd, &one, sizeof one) != sizeof one)
        return err_errno(e, ERR_UNSUPPORTED, "eventfd");
    io_uring_prep_read(io_uring_get_sqe(&r->ring), r->wake_fd, &r->wake_count, sizeof r->wake_count, 0);
    int rc = io_uring_submit_and_wait(&r->ring, 1);
    if (rc >= 0)
        rc = io_uring_peek_cqe(&r->ring, &cqe);
    if (rc >= 0) {
        rc = cqe->res;
        io_uring_cqe_seen(&r->ring, cqe);
    }
    errno = -rc;
    return rc < 0 ? err_errno(e, ERR_UNSUPPORTED, "io_uring cannot be used") : 0;
}

static int open_ring(struct reader_ring *r, uint32_t depth, struct moeflux_err *e)
{
    int rc = io_uring_queue_init(depth + 1, &r->ring, 0);
    errno = -rc;
    if (rc < 0)
        return err_errno(e, ERR_UNSUPPORTED, "io_uring cannot be used");
    r->has_ring = true;
    rc = io_uring_register_files(&r->ring, r->work->files.fds, r->work->model->n_files);
    errno = -rc;
    if (rc < 0)
        return err_errno(e, ERR_UNSUPPORTED, "io_uring cannot register %u files", r->work->model->n_files);
    return try_ring(r, e);
}

static int open_all(struct reader_ring *r, uint32_t depth, struct moeflux_err *e)
{
    r->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (r->wake_fd < 0)
        return err_errno(e, ERR_UNSUPPORTED, "eventfd");
    int rc = open_ring(r, depth, e);
    if (rc < 0)
        return rc;
    r->batch = mem_new(depth + 1, sizeof *r->batch, e);
    if (!r->batch)
        return ERR_MEMORY;
    r->work->wake_fd = r->wake_fd;
    r->work->depth = depth;
    return 0;
}

int reader_ring_register(struct reader_ring *r, const struct reader_region *regions, uint32_t n,
                         struct moeflux_err *e)
{
    struct iovec *all = mem_new(n, sizeof *all, e);
    if (!all)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        all[i] = (struct iovec){regions[i].base, regions[i].bytes};
    int rc = io_uring_register_buffers(&r->ring, all, n);
    if (rc < 0) {
        free(all);
        errno = -rc;
        return err_errno(e, ERR_UNSUPPORTED, "slots not registered");
    }
    r->regions = all;
    r->n_regions = n;
    return 0;
}

int reader_ring_new(struct reader_ring **out, struct reader_work *w, uint32_t depth, struct moeflux_err *e)
{
    *out = NULL;
    struct reader_ring *r = mem_new(1, sizeof *r, e);
    if (!r)
        return ERR_MEMORY;
    r->work = w;
    r->wake_fd = -1;
    int rc = open_all(r, depth, e);
    if (rc < 0)
        reader_ring_free(r);
    else
        *out = r;
    return rc;
}

int reader_ring_start(struct reader_ring *r, struct moeflux_err *e)
{
    r->has_thread = pthread_create(&r->thread, NULL, serve, r) == 0;
    return r->has_thread ? 0 : err_set(e, ERR_MEMORY, "io_uring's thread could not be started");
}

void reader_ring_free(struct reader_ring *r)
{
    if (!r)
        return;
    if (r->has_thread) {
        reader_work_stop(r->work);
        pthread_join(r->thread, NULL);
    }
    if (r->has_ring)
        io_uring_queue_exit(&r->ring);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    r->work->wake_fd = -1;
    free(r->batch);
    free(r->regions);
    free(r);
}
