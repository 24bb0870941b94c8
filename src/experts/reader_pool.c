#include "experts/reader_pool.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

struct reader_pool {
    struct reader_work *work;
    uint32_t n_threads;
    pthread_t *threads;
};

/* Reads what the page cache has of the part, without waiting. Returns the bytes read, or -errno. */
static int64_t read_cached(const struct reader_work *w, const struct file_read *a)
{
    struct iovec to = {a->dst, a->n};
    ssize_t n = preadv2(w->files.fds[a->file], &to, 1, (off_t)a->off, RWF_NOWAIT);
    return n < 0 ? -errno : n;
}

static int64_t read_some(struct reader_work *w, struct read_part *p)
{
    struct file_read a = reader_work_next_read(w, p);
    if (w->files.maps)
        return reader_files_copy(&w->files, &a);
    if (reader_work_tries_cached(w, p)) {
        int64_t cached = read_cached(w, &a);
        if (cached == a.n)
            return cached;
        if (cached >= 0 || cached == -EAGAIN)
            reader_work_take_over(w, p);
        p->waits = true; /* also if the file system does not support RWF_NOWAIT */
        a = reader_work_next_read(w, p);
    }
    ssize_t n = pread(w->files.fds[a.file], a.dst, a.n, (off_t)a.off);
    return n < 0 ? -errno : n;
}

static void *worker(void *arg)
{
    struct reader_work *w = arg;
    struct read_part *p;
    while ((p = reader_work_take(w)))
        while (reader_work_finish_read(w, p, read_some(w, p)))
            ;
    return NULL;
}

struct reader_pool *reader_pool_new(struct reader_work *w, uint32_t n_threads, struct moeflux_err *e)
{
    struct reader_pool *p = mem_new(1, sizeof *p, e);
    if (!p)
        return NULL;
    p->work = w;
    w->depth = n_threads;
    p->threads = mem_new(n_threads, sizeof *p->threads, e);
    if (!p->threads)
        goto fail;
    for (; p->n_threads < n_threads; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, worker, w) != 0) {
            err_set(e, ERR_MEMORY, "thread %u of %u could not be started", p->n_threads + 1, n_threads);
            goto fail;
        }
    return p;
fail:
    reader_pool_free(p);
    return NULL;
}

void reader_pool_free(struct reader_pool *p)
{
    if (!p)
        return;
    reader_work_stop(p->work);
    for (uint32_t i = 0; p->threads && i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p);
}
