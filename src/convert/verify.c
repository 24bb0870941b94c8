#include "convert/verify.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "convert/experts.h"
#include "convert/hash.h"

enum { SAMPLES = 4 };

struct verify {
    const struct convert_plan *plan;
    const struct convert_parts *parts;
    struct convert_work *work;
};

static int check_sum(const struct verify *v, const struct convert_sum *s, const char *path,
                     struct moeflux_err *e)
{
    uint64_t bytes, xxh3 = 0;
    int fd = file_open_read(path, &bytes, e);
    if (fd < 0)
        return fd;
    /* A hint to drop the file from the page cache, so that it is read from the disk. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    int rc = bytes == s->bytes
                 ? convert_hash_file(fd, path, bytes, v->work, &xxh3, e)
                 : err_set(e, ERR_IO, "%s: %" PRIu64 " bytes, expected %" PRIu64, path, bytes, s->bytes);
    close(fd);
    if (rc == 0 && xxh3 != s->xxh3) {
        unlink(path);
        return err_set(e, ERR_IO, "%s: checksum %016" PRIx64 ", expected %016" PRIx64 "; deleted, run again",
                       path, xxh3, s->xxh3);
    }
    return rc;
}

static void do_sum(void *ctx, uint32_t i)
{
    const struct verify *v = ctx;
    const struct convert_target *t = v->parts->targets;
    struct moeflux_err e;
    if (!convert_work_ok(v->work))
        return;
    /* i counts through the sums of all parts. */
    for (; i >= t->n_sums; t++)
        i -= (uint32_t)t->n_sums;
    const struct convert_sum *s = &t->sums[i];
    char *path = file_join(t->partial, s->name, &e);
    int rc = path ? check_sum(v, s, path, &e) : ERR_MEMORY;
    free(path);
    if (rc < 0)
        convert_work_fail(v->work, rc, &e);
}

/* A layer's files, one in each part. */
struct layer_files {
    int fds[SPREAD_MAX_PARTS]; /* < 0: not open */
    char *paths[SPREAD_MAX_PARTS];
};

static int compare_expert(const struct verify *v, const struct layer_files *f, uint32_t layer,
                          uint32_t expert, struct convert_scratch s, uint8_t *found, struct moeflux_err *e)
{
    const struct spread spread = convert_parts_spread(v->parts, layer);
    uint64_t bytes = v->plan->experts[layer].bytes;
    int rc = convert_experts_make(v->plan, layer, expert, s.out, s.in, NULL, e);
    for (uint32_t i = 0; i < spread_n_pieces(&spread, bytes) && rc == 0; i++) {
        struct spread_piece x = spread_piece(&spread, bytes, expert, i);
        const char *path = f->paths[x.part];
        rc = file_read_at(f->fds[x.part], path, found, x.bytes, x.off, e);
        if (rc == 0 && memcmp(found, s.out + x.at, x.bytes) != 0) {
            unlink(path);
            return err_set(e, ERR_IO, "%s: expert %u differs from the source; deleted, run again", path,
                           expert);
        }
    }
    return rc;
}

static int open_layer(const struct verify *v, uint32_t layer, struct layer_files *f, struct moeflux_err *e)
{
    char name[CONVERT_NAME];
    convert_experts_name(layer, name);
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        f->fds[i] = -1;
    for (uint32_t i = 0; i < v->parts->spread.n_parts; i++) {
        f->paths[i] = file_join(v->parts->targets[i].partial, name, e);
        f->fds[i] = f->paths[i] ? file_open_read(f->paths[i], NULL, e) : ERR_MEMORY;
        if (f->fds[i] < 0)
            return f->fds[i];
    }
    return 0;
}

static void close_layer(struct layer_files *f)
{
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++) {
        if (f->fds[i] >= 0)
            close(f->fds[i]);
        free(f->paths[i]);
    }
}

/* Checks experts of a layer, one after the other: 4 of hundreds are not worth a second scratch per worker. */
static int check_layer(const struct verify *v, uint32_t layer, struct convert_scratch s, uint8_t *found,
                       struct moeflux_err *e)
{
    uint32_t n = v->plan->src.config.n_experts;
    const uint32_t samples[SAMPLES] = {0, n > 1, n / 2, n - 1};
    struct layer_files f = {{0}, {NULL}};
    int rc = open_layer(v, layer, &f, e);
    for (int i = 0; i < SAMPLES && rc == 0; i++)
        rc = compare_expert(v, &f, layer, samples[i], s, found, e);
    close_layer(&f);
    return rc;
}

static int check_samples(const struct verify *v, struct moeflux_err *e)
{
    const struct config *c = &v->plan->src.config;
    uint8_t *found = malloc(v->plan->max_expert_bytes);
    if (!found)
        return err_set(e, ERR_MEMORY, "out of memory for an expert");
    struct convert_scratch s = convert_work_take(v->work);
    int rc = 0;
    for (uint32_t i = 0; i < c->n_layers && rc == 0; i++) {
        if (!config_has_experts(c, i))
            continue;
        rc = check_layer(v, i, s, found, e);
        convert_work_advance(v->work, 0, 0, 0);
        if (rc == 0)
            rc = convert_work_result(v->work, e);
    }
    convert_work_give(v->work, s);
    free(found);
    return rc;
}

int convert_verify(const struct convert_plan *p, const struct convert_parts *parts, struct convert_work *w,
                   struct moeflux_err *e)
{
    struct verify v = {p, parts, w};
    uint64_t total = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < parts->spread.n_parts; i++) {
        const struct convert_target *t = &parts->targets[i];
        for (size_t k = 0; k < t->n_sums; k++)
            total += t->sums[k].bytes;
        n += t->n_sums;
    }
    convert_work_step(w, "verifying", total);
    pool_for(w->pool, (uint32_t)n, do_sum, &v);
    int rc = convert_work_result(w, e);
    return rc < 0 ? rc : check_samples(&v, e);
}
