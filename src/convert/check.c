#include "convert/check.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "convert/hash.h"
#include "convert/json.h"
#include "convert/work.h"
#include "model/drafter.h"
#include "model/spread.h"

#define MAX_CHECKSUMS ((uint64_t)1 << 20)

struct entry {
    char *path;
    uint64_t bytes, xxh3;
    struct moeflux_err fault; /* code 0: the file is as it was written */
};

struct check {
    struct convert_work work;
    struct entry *entries;
    size_t n, cap;
    uint64_t bytes;
};

/* --- expected files --- */

/* Returns whether it is a path within the directory. */
static bool is_inside(const char *name)
{
    return name[0] && name[0] != '/' && strcmp(name, "..") != 0 && strncmp(name, "../", 3) != 0 &&
           !strstr(name, "/../");
}

static int add_entry(struct check *c, const char *dir, const char *name, const json_t *sum, const char *where,
                     struct moeflux_err *e)
{
    const char *hex = json_string_value(json_object_get(sum, "xxh3"));
    const json_t *bytes = json_object_get(sum, "bytes");
    if (!is_inside(name) || !hex || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16 ||
        !json_is_integer(bytes) || json_integer_value(bytes) < 0)
        return err_set(e, ERR_FORMAT, "%s: %s: expected a name in the directory with bytes and xxh3", where,
                       name);
    void *entries = c->entries;
    int rc = mem_grow(&entries, &c->cap, c->n + 1, sizeof *c->entries, e);
    c->entries = entries;
    if (rc < 0)
        return rc;
    struct entry x = {.path = file_join(dir, name, e),
                      .bytes = (uint64_t)json_integer_value(bytes),
                      .xxh3 = strtoull(hex, NULL, 16)};
    if (!x.path)
        return ERR_MEMORY;
    c->entries[c->n++] = x;
    c->bytes += x.bytes;
    return 0;
}

static int add_file(struct check *c, const char *dir, const char *path, struct moeflux_err *e)
{
    json_t *root = NULL;
    const char *name;
    json_t *sum;
    if (!file_exists(path))
        return err_set(e, ERR_IO, "%s: no " CONVERT_CHECKSUMS ", which moeflux convert writes", dir);
    int rc = json_read_file(path, MAX_CHECKSUMS, JSON_MAX_SMALL, &root, e);
    json_t *files = json_object_get(root, "files");
    if (rc == 0 && !json_is_text(json_object_get(root, "algorithm"), "XXH3-64"))
        rc = err_set(e, ERR_FORMAT, "%s: expected the algorithm XXH3-64", path);
    if (rc == 0 && json_object_size(files) == 0)
        rc = err_set(e, ERR_FORMAT, "%s: no files", path);
    if (rc == 0)
        json_object_foreach(files, name, sum)
        {
            rc = add_entry(c, dir, name, sum, path, e);
            if (rc < 0)
                break;
        }
    json_decref(root);
    return rc;
}

static int add_dir(struct check *c, const char *dir, struct moeflux_err *e)
{
    char *path = file_join(dir, CONVERT_CHECKSUMS, e);
    int rc = path ? add_file(c, dir, path, e) : ERR_MEMORY;
    free(path);
    return rc;
}

/* Adds the files of the layer of multi-token prediction, if the model has it. */
static int add_drafter(struct check *c, const char *dir, struct moeflux_err *e)
{
    char *own = file_join(dir, DRAFTER_DIR, e);
    int rc = own ? 0 : ERR_MEMORY;
    if (rc == 0 && file_exists(own))
        rc = add_dir(c, own, e);
    free(own);
    return rc;
}

static int add_dirs(struct check *c, struct convert_check *o, struct moeflux_err *e)
{
    struct spread_dirs dirs;
    int rc = file_is_dir(o->dir)
                 ? spread_read(&dirs, o->dir, e)
                 : err_set(e, ERR_IO, "%s: expected the directory of a converted model", o->dir);
    if (rc < 0)
        return rc;
    o->n_dirs = dirs.spread.n_parts;
    for (uint32_t i = 0; i < o->n_dirs && rc == 0; i++) {
        rc = i ? spread_check_part(&dirs, i, e) : 0;
        if (rc == 0)
            rc = add_dir(c, i ? dirs.paths[i] : o->dir, e);
    }
    spread_free(&dirs);
    return rc < 0 ? rc : add_drafter(c, o->dir, e);
}

/* --- found files --- */

static int check_entry(struct check *c, const struct entry *x, struct moeflux_err *e)
{
    uint64_t bytes, xxh3 = 0;
    int fd = file_open_read(x->path, &bytes, e);
    if (fd < 0)
        return fd;
    /* A hint to drop the file from the page cache, so that the disk itself is checked. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    int rc = bytes == x->bytes
                 ? convert_hash_file(fd, x->path, bytes, &c->work, &xxh3, e)
                 : err_set(e, ERR_IO, "%s: %" PRIu64 " bytes, expected %" PRIu64, x->path, bytes, x->bytes);
    close(fd);
    if (rc == 0 && xxh3 != x->xxh3)
        rc = err_set(e, ERR_IO, "%s: checksum %016" PRIx64 ", expected %016" PRIx64, x->path, xxh3, x->xxh3);
    return rc;
}

/* Checks one file. A bad one does not end the work, since all bad ones are counted. */
static void do_entry(void *ctx, uint32_t i)
{
    struct check *c = ctx;
    struct entry *x = &c->entries[i];
    struct moeflux_err e = {0};
    if (convert_work_ok(&c->work) && check_entry(c, x, &e) < 0)
        x->fault = e;
}

static int tell(const struct check *c, struct moeflux_err *e)
{
    const struct entry *first = NULL;
    uint32_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        n += c->entries[i].fault.code != 0;
        first = first || !c->entries[i].fault.code ? first : &c->entries[i];
    }
    if (n > 1)
        return err_set(e, ERR_IO, "%s (and %" PRIu32 " more of %zu files)", first->fault.text, n - 1, c->n);
    return n ? err_set(e, ERR_IO, "%s", first->fault.text) : 0;
}

int convert_check(struct convert_check *o, struct moeflux_err *e)
{
    struct check c = {.n = 0};
    int rc = add_dirs(&c, o, e);
    if (rc == 0)
        rc = convert_work_start(&c.work, o->n_threads, 0, &o->progress, e);
    if (rc == 0) {
        convert_work_step(&c.work, "verifying", c.bytes);
        pool_for(c.work.pool, (uint32_t)c.n, do_entry, &c);
        rc = convert_work_result(&c.work, e);
    }
    if (rc == 0)
        rc = tell(&c, e);
    o->n_files = (uint32_t)c.n;
    o->bytes = c.bytes;
    convert_work_end(&c.work);
    for (size_t i = 0; i < c.n; i++)
        free(c.entries[i].path);
    free(c.entries);
    return rc;
}
