#include "convert/convert_verify.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "convert/convert_experts.h"
#include "convert/convert_hash.h"

enum { SAMPLES = 4 };

struct verify {
    const struct convert_plan *plan;
    const struct convert_target *target;
    struct convert_work *work;
};

static int check_sum(const struct verify *v, const struct convert_sum *s, const char *path,
                     struct moeflux_err *e)
{
    uint64_t bytes, xxh3 = 0;
    int fd = file_open_read(path, &bytes, e);
    if (fd < 0)
        return fd;
    /* A hint: what was synced is dropped and comes from the disk. */
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
    const struct convert_sum *s = &v->target->sums[i];
    struct moeflux_err e;
    if (!convert_work_ok(v->work))
        return;
    char *path = file_join(v->target->partial, s->name, &e);
    int rc = path ? check_sum(v, s, path, &e) : ERR_MEMORY;
    free(path);
    if (rc < 0)
        convert_work_fail(v->work, rc, &e);
}

static int compare_expert(const struct verify *v, int fd, const char *path, uint32_t layer, uint32_t expert,
                          struct convert_scratch s, uint8_t *found, struct moeflux_err *e)
{
    uint64_t bytes = v->plan->experts[layer].bytes;
    int rc = convert_experts_make(v->plan, layer, expert, s.out, s.in, e);
    if (rc == 0)
        rc = file_read_at(fd, path, found, bytes, expert * bytes, e);
    if (rc == 0 && memcmp(found, s.out, bytes) != 0) {
        unlink(path);
        return err_set(e, ERR_IO, "%s: expert %u differs from the source; deleted, run again", path, expert);
    }
    return rc;
}

/* Serial over the experts of a layer and over the layers: 4 of hundreds, not worth a second scratch per worker. */
static int check_layer(const struct verify *v, uint32_t layer, struct convert_scratch s, uint8_t *found,
                       struct moeflux_err *e)
{
    char name[CONVERT_NAME];
    uint32_t n = v->plan->src.config.n_experts;
    const uint32_t samples[SAMPLES] = {0, n > 1, n / 2, n - 1};
    convert_experts_name(layer, name);
    char *path = file_join(v->target->partial, name, e);
    int fd = path ? file_open_read(path, NULL, e) : ERR_MEMORY;
    int rc = fd < 0 ? fd : 0;
    for (int i = 0; i < SAMPLES && rc == 0; i++)
        rc = compare_expert(v, fd, path, layer, samples[i], s, found, e);
    if (fd >= 0)
        close(fd);
    free(path);
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

int convert_verify(const struct convert_plan *p, const struct convert_target *t, struct convert_work *w,
                   struct moeflux_err *e)
{
    struct verify v = {p, t, w};
    uint64_t total = 0;
    for (size_t i = 0; i < t->n_sums; i++)
        total += t->sums[i].bytes;
    convert_work_step(w, "verifying", total);
    pool_for(w->pool, (uint32_t)t->n_sums, do_sum, &v);
    int rc = convert_work_result(w, e);
    return rc < 0 ? rc : check_samples(&v, e);
}
