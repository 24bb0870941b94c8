#include "convert/work.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"

/* Bytes of all scratch memory. The rest of the program is small, and 1 GiB is promised. */
#define SCRATCH_BUDGET ((uint64_t)640 << 20)

enum { MAX_THREADS = 64, IN_BYTES = CONVERT_BLOCK * 4 };

static uint32_t choose_threads(uint32_t asked, uint64_t scratch_bytes)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t n = asked ? asked : cores > 0 ? (uint64_t)cores : 1;
    n = size_min(size_min(n, MAX_THREADS), SCRATCH_BUDGET / scratch_bytes);
    return (uint32_t)size_max(n, 1);
}

int convert_work_start(struct convert_work *w, uint32_t n_threads, uint64_t out_bytes,
                       const struct moeflux_progress *progress, struct moeflux_err *e)
{
    *w = (struct convert_work){.progress = progress};
    out_bytes = size_max(out_bytes, IN_BYTES);
    uint32_t n = choose_threads(n_threads, IN_BYTES + out_bytes);
    w->free_scratch = mem_new(n, sizeof *w->free_scratch, e);
    if (!w->free_scratch)
        return ERR_MEMORY;
    pthread_mutex_init(&w->lock, NULL);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *scratch = mem_new(IN_BYTES + out_bytes, 1, e);
        if (!scratch)
            goto fail;
        w->free_scratch[w->n_free++] = scratch;
    }
    w->pool = pool_new(n, e);
    if (w->pool)
        return 0;
fail:
    convert_work_end(w);
    return ERR_MEMORY;
}

void convert_work_end(struct convert_work *w)
{
    uint8_t **scratch = w->free_scratch;
    if (!scratch)
        return;
    pool_free(w->pool);
    for (uint32_t i = 0; i < w->n_free; i++)
        free(scratch[i]);
    free(scratch);
    pthread_mutex_destroy(&w->lock);
    *w = (struct convert_work){0};
}

void convert_work_step(struct convert_work *w, const char *what, uint64_t total)
{
    w->what = what;
    w->done = 0;
    w->total = total;
}

struct convert_scratch convert_work_take(struct convert_work *w)
{
    pthread_mutex_lock(&w->lock);
    uint8_t *p = w->free_scratch[--w->n_free];
    pthread_mutex_unlock(&w->lock);
    return (struct convert_scratch){p, p + IN_BYTES};
}

void convert_work_give(struct convert_work *w, struct convert_scratch s)
{
    pthread_mutex_lock(&w->lock);
    w->free_scratch[w->n_free++] = s.in;
    pthread_mutex_unlock(&w->lock);
}

bool convert_work_ok(struct convert_work *w)
{
    pthread_mutex_lock(&w->lock);
    bool ok = w->rc == 0;
    pthread_mutex_unlock(&w->lock);
    return ok;
}

static void fail_locked(struct convert_work *w, int rc, const struct moeflux_err *e)
{
    if (w->rc < 0)
        return;
    w->rc = rc;
    w->err = *e;
}

void convert_work_fail(struct convert_work *w, int rc, const struct moeflux_err *e)
{
    pthread_mutex_lock(&w->lock);
    fail_locked(w, rc, e);
    pthread_mutex_unlock(&w->lock);
}

void convert_work_advance(struct convert_work *w, uint64_t step, uint64_t bytes_read, uint64_t bytes_written)
{
    pthread_mutex_lock(&w->lock);
    w->done += step;
    w->bytes_read += bytes_read;
    w->bytes_written += bytes_written;
    if (w->rc == 0 && !progress_report(w->progress, w->what, "B", w->done, w->total)) {
        struct moeflux_err e;
        fail_locked(w, err_set(&e, ERR_INTERRUPTED, "%s: interrupted", w->what), &e);
    }
    pthread_mutex_unlock(&w->lock);
}

void convert_work_add_error(struct convert_work *w, enum convert_class kind, const struct convert_error *x)
{
    pthread_mutex_lock(&w->lock);
    convert_error_add(&w->errors.of[kind], x);
    pthread_mutex_unlock(&w->lock);
}

int convert_work_result(struct convert_work *w, struct moeflux_err *e)
{
    if (w->rc < 0 && e)
        *e = w->err;
    return w->rc;
}
