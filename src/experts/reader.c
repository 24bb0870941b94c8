#include "experts/reader.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/model_dir.h"

struct reader {
    const struct model_dir *model;
    struct pool *pool;
    pthread_mutex_t lock; /* done flags and stats */
    pthread_cond_t finished;
    struct reader_stats stats;
};

struct reader *reader_open(const struct model_dir *m, uint32_t n_threads, struct err *e)
{
    struct reader *r = mem_new(1, sizeof *r, e);
    if (!r)
        return NULL;
    r->model = m;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->finished, NULL);
    r->pool = pool_new(n_threads, e);
    if (!r->pool) {
        reader_close(r);
        return NULL;
    }
    return r;
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    pool_free(r->pool);
    pthread_cond_destroy(&r->finished);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int read_extents(const struct reader *r, struct read_request *q)
{
    struct extent parts[EXPERT_MAX_EXTENTS];
    const struct model_dir *m = r->model;
    uint32_t n = model_dir_expert(m, q->layer, q->expert, parts);
    struct err why = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct model_file *f = &m->files[parts[i].file];
        if (file_read_at(f->fd, f->path, q->dst + parts[i].at, parts[i].bytes, parts[i].off, &why) < 0)
            return err_set(&q->err, ERR_IO, "layer %u expert %u: %.400s", q->layer, q->expert, why.text);
    }
    return model_dir_check_expert(m, q->layer, q->expert, q->dst, &q->err);
}

static void run(struct pool_job *job)
{
    struct read_request *q = (struct read_request *)((char *)job - offsetof(struct read_request, job));
    struct reader *r = q->reader;
    uint64_t start = clock_ns();
    int code = read_extents(r, q);
    pthread_mutex_lock(&r->lock);
    r->stats.busy_ns += clock_ns() - start;
    r->stats.n_reads++;
    r->stats.bytes += code < 0 ? 0 : r->model->expert.bytes;
    q->code = code;
    q->done = true;
    pthread_cond_broadcast(&r->finished);
    pthread_mutex_unlock(&r->lock);
}

void reader_start(struct reader *r, struct read_request *q)
{
    q->reader = r;
    q->done = false;
    q->err = (struct err){0};
    q->job.run = run;
    pool_submit(r->pool, &q->job);
}

int reader_wait(struct reader *r, struct read_request *q, struct err *e)
{
    pthread_mutex_lock(&r->lock);
    while (!q->done)
        pthread_cond_wait(&r->finished, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (q->code < 0 && e)
        *e = q->err;
    return q->code;
}

struct reader_stats reader_get_stats(struct reader *r)
{
    pthread_mutex_lock(&r->lock);
    struct reader_stats s = r->stats;
    pthread_mutex_unlock(&r->lock);
    return s;
}

void reader_reset_stats(struct reader *r)
{
    pthread_mutex_lock(&r->lock);
    r->stats = (struct reader_stats){0};
    pthread_mutex_unlock(&r->lock);
}
