#include "experts/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "experts/reader_pool.h"
#include "experts/reader_ring.h"
#include "experts/reader_work.h"

static const char *const MODE_NAMES[] = {"auto", "mmap", "pread", "uring", "direct"};

struct reader {
    struct reader_work work;
    struct reader_pool *pool; /* or */
    struct reader_ring *ring;
    enum reader_mode mode;
    uint64_t host_bytes;
    char why[1024]; /* "a; b": why this mode */
    char text[1200];
};

const char *reader_mode_name(enum reader_mode mode)
{
    return MODE_NAMES[mode];
}

/* --- opening --- */

static void add_reason(struct reader *r, const char *text)
{
    size_t n = strlen(r->why);
    snprintf(r->why + n, sizeof r->why - n, "%s%s", n ? "; " : "", text);
}

static int open_files(struct reader *r, enum reader_mode mode, const struct reader_options *o,
                      struct moeflux_err *e)
{
    struct reader_files *f = &r->work.files;
    if (mode == READER_MMAP) {
        int rc = reader_files_open_mapped(f, r->work.model, e);
        f->shares = o->shares;
        return rc;
    }
    if (mode == READER_DIRECT)
        return reader_files_open_direct(f, r->work.model, o->n_regions ? o->regions[0].base : NULL, e);
    return reader_files_open(f, r->work.model, e);
}

/* Returns the number of directories that experts are spread over. Each counts as a disk and is kept as busy
 * as a single one. */
static uint32_t n_disks(const struct reader *r)
{
    return r->work.model->parts.spread.n_parts;
}

static int open_pool(struct reader *r, const struct reader_options *o, struct moeflux_err *e)
{
    r->pool = reader_pool_new(&r->work, o->n_threads * n_disks(r), e);
    return r->pool ? 0 : ERR_MEMORY;
}

static int open_ring(struct reader *r, const struct reader_options *o, struct moeflux_err *e)
{
    uint32_t depth = o->depth ? o->depth : READER_DEFAULT_DEPTH * n_disks(r);
    int rc = reader_ring_new(&r->ring, &r->work, depth, e);
    struct moeflux_err why;
    if (rc == 0 && o->n_regions && reader_ring_register(r->ring, o->regions, o->n_regions, &why) < 0)
        add_reason(r, why.text);
    return rc == 0 ? reader_ring_start(r->ring, e) : rc;
}

/* Opens the ring, or the pool if io_uring is not available: direct reads do without it, with less depth. */
static int open_ring_or_pool(struct reader *r, const struct reader_options *o, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    int rc = open_ring(r, o, &why);
    if (rc != ERR_UNSUPPORTED) {
        if (rc < 0 && e)
            *e = why;
        return rc;
    }
    add_reason(r, why.text);
    return open_pool(r, o, e);
}

static int open_as(struct reader *r, enum reader_mode mode, const struct reader_options *o,
                   struct moeflux_err *e)
{
    r->mode = mode;
    r->work.piece_bytes = o->piece_bytes          ? o->piece_bytes
                          : mode == READER_DIRECT ? READER_PIECE_BYTES
                                                  : READER_CACHED_PIECE_BYTES;
    int rc = open_files(r, mode, o, e);
    if (rc < 0)
        return rc;
    if (mode == READER_DIRECT)
        rc = open_ring_or_pool(r, o, e);
    else if (mode == READER_URING)
        rc = open_ring(r, o, e);
    else
        rc = open_pool(r, o, e);
    if (rc < 0)
        reader_files_close(&r->work.files);
    return rc;
}

/* Opens the mode if it is available (*opened); else notes why as a reason for the next one. */
static int try_as(struct reader *r, enum reader_mode mode, const struct reader_options *o, bool *opened,
                  struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    char text[560];
    int rc = open_as(r, mode, o, &why);
    *opened = rc == 0;
    if (rc == 0)
        return 0;
    if (rc != ERR_UNSUPPORTED) {
        if (e)
            *e = why;
        return rc;
    }
    snprintf(text, sizeof text, "no %s: %s", MODE_NAMES[mode], why.text);
    add_reason(r, text);
    return 0;
}

static bool fits(const struct reader *r)
{
    return r->work.model->expert_bytes <= r->host_bytes / 4 * 3;
}

static void say_whether_it_fits(struct reader *r)
{
    char text[128];
    uint64_t experts = r->work.model->expert_bytes;
    bool large = experts >= 1000000000;
    snprintf(text, sizeof text, "%.1f %s of experts %s in 3/4 of %.1f GB",
             (double)experts / (large ? 1e9 : 1e6), large ? "GB" : "MB", fits(r) ? "fit" : "do not fit",
             (double)r->host_bytes / 1e9);
    add_reason(r, text);
}

static int open_auto(struct reader *r, const struct reader_options *o, struct moeflux_err *e)
{
    static const enum reader_mode order[] = {READER_DIRECT, READER_URING, READER_PREAD};
    bool opened = false;
    int rc = 0;
    say_whether_it_fits(r);
    if (fits(r) && o->in_place)
        rc = try_as(r, READER_MMAP, o, &opened, e);
    if (fits(r) && !opened && rc == 0)
        rc = try_as(r, READER_PREAD, o, &opened, e);
    for (uint32_t i = 0; i < sizeof order / sizeof *order && rc == 0 && !opened; i++)
        rc = try_as(r, order[i], o, &opened, e);
    return rc;
}

static int open_asked(struct reader *r, const struct reader_options *o, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    add_reason(r, "as asked for");
    int rc = open_as(r, o->mode, o, &why);
    if (rc == ERR_UNSUPPORTED)
        return err_set(e, rc, "experts cannot be read by %s: %s", MODE_NAMES[o->mode], why.text);
    if (rc < 0 && e)
        *e = why;
    return rc;
}

static void describe(struct reader *r, bool in_place)
{
    char how[64];
    if (r->pool)
        snprintf(how, sizeof how, "%u thread%s", r->work.depth, r->work.depth == 1 ? "" : "s");
    else
        snprintf(how, sizeof how, "io_uring, depth %u", r->work.depth);
    snprintf(r->text, sizeof r->text, "%s%s (%s): %s", MODE_NAMES[r->mode], in_place ? ", used in place" : "",
             how, r->why);
}

void reader_note_use(struct reader *r, const char *why_copied)
{
    if (why_copied)
        add_reason(r, why_copied);
    describe(r, !why_copied);
}

int reader_open(struct reader **out, const struct model_dir *m, const struct reader_options *o,
                struct moeflux_err *e)
{
    *out = NULL;
    struct reader *r = mem_new(1, sizeof *r, e);
    if (!r)
        return ERR_MEMORY;
    reader_work_init(&r->work, m, o->hook);
    r->work.warning = o->warning;
    r->host_bytes = o->host_bytes;
    int rc = o->mode == READER_AUTO ? open_auto(r, o, e) : open_asked(r, o, e);
    if (rc < 0) {
        reader_close(r);
        return rc;
    }
    describe(r, false);
    *out = r;
    return 0;
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    reader_pool_free(r->pool);
    reader_ring_free(r->ring);
    reader_work_free(&r->work);
    free(r);
}

enum reader_mode reader_get_mode(const struct reader *r)
{
    return r->mode;
}

const char *reader_describe(const struct reader *r)
{
    return r->text;
}

uint8_t *reader_mapping(const struct reader *r, uint32_t file, uint64_t *bytes)
{
    const struct reader_files *f = &r->work.files;
    *bytes = f->model->files[file].bytes;
    return f->maps ? f->maps[file].at : NULL;
}

bool reader_expects_cached(const struct reader *r)
{
    return r->mode == READER_PREAD && fits(r);
}

int reader_check_files(const struct reader *r, struct moeflux_err *e)
{
    return reader_files_check(&r->work.files, e);
}

/* --- requests --- */

void reader_start(struct reader *r, struct read_request *q)
{
    reader_work_add(&r->work, q);
}

uint32_t reader_split(struct reader *r, struct read_request *q)
{
    return r->mode == READER_PREAD ? reader_work_split(&r->work, q) : 0;
}

void reader_copy(struct reader *r, struct read_request *q, uint32_t i)
{
    reader_work_copy(&r->work, q, i);
}

bool reader_is_done(struct reader *r, struct read_request *q)
{
    pthread_mutex_lock(&r->work.lock);
    bool done = q->done;
    pthread_mutex_unlock(&r->work.lock);
    return done;
}

int reader_wait(struct reader *r, struct read_request *q, struct moeflux_err *e)
{
    reader_work_wait(&r->work, q);
    if (q->code < 0 && e)
        *e = q->err;
    return q->code;
}

void reader_demand(struct reader *r, struct read_request *q)
{
    reader_work_demand(&r->work, q);
}

enum reader_cancelled reader_cancel(struct reader *r, struct read_request *q)
{
    return reader_work_cancel(&r->work, q);
}

/* --- stats --- */

struct reader_stats reader_get_stats(struct reader *r)
{
    pthread_mutex_lock(&r->work.lock);
    struct reader_stats s = r->work.stats;
    pthread_mutex_unlock(&r->work.lock);
    return s;
}

void reader_reset_stats(struct reader *r)
{
    pthread_mutex_lock(&r->work.lock);
    r->work.stats = (struct reader_stats){0};
    pthread_mutex_unlock(&r->work.lock);
}
