#include "experts/reader_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/model_dir_read.h"
#include "experts/reader.h"

enum { PAGE = READER_TARGET_ALIGN, SECTOR = 512 };

static int start(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e)
{
    *f = (struct reader_files){.model = m};
    f->fds = mem_new(m->n_files, sizeof *f->fds, e);
    for (uint32_t i = 0; f->fds && i < m->n_files; i++)
        f->fds[i] = -1;
    return f->fds ? 0 : ERR_MEMORY;
}

/* Handles one extent. */
typedef int extent_fn(struct reader_files *f, const struct extent *x, struct moeflux_err *e);

/* Calls fn for every extent of every expert until it fails. */
static int each_extent(struct reader_files *f, extent_fn *fn, struct moeflux_err *e)
{
    const struct config *c = &f->model->config;
    struct extent parts[EXPERT_MAX_EXTENTS];
    int rc = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        for (uint32_t expert = 0; config_has_experts(c, layer) && expert < c->n_experts; expert++) {
            uint32_t n = model_dir_expert(f->model, layer, expert, parts);
            for (uint32_t i = 0; i < n && rc == 0; i++)
                rc = fn(f, &parts[i], e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int borrow(struct reader_files *f, const struct extent *x, struct moeflux_err *e)
{
    (void)e;
    f->fds[x->file] = f->model->files[x->file].fd;
    return 0;
}

int reader_files_open(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e)
{
    int rc = start(f, m, e);
    return rc < 0 ? rc : each_extent(f, borrow, e);
}

void reader_files_close(struct reader_files *f)
{
    uint32_t n = f->model ? f->model->n_files : 0;
    for (uint32_t i = 0; f->maps && i < n; i++)
        mapped_close(&f->maps[i]);
    for (uint32_t i = 0; f->block && i < n; i++)
        if (f->fds[i] >= 0)
            close(f->fds[i]);
    free(f->maps);
    free(f->fds);
    *f = (struct reader_files){0};
}

/* --- mapped --- */

static int map(struct reader_files *f, const struct extent *x, struct moeflux_err *e)
{
    const struct open_file *file = &f->model->files[x->file];
    if (f->maps[x->file].at)
        return 0;
    f->fds[x->file] = file->fd;
    return mapped_open(&f->maps[x->file], file->fd, file->path, file->bytes, e);
}

int reader_files_open_mapped(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e)
{
    int rc = start(f, m, e);
    if (rc < 0)
        return rc;
    f->maps = mem_new(m->n_files, sizeof *f->maps, e);
    rc = f->maps ? each_extent(f, map, e) : ERR_MEMORY;
    if (rc < 0)
        reader_files_close(f);
    return rc;
}

/* Loads each part of an expert in a plain file by the nodes that read its rows. */
static void fetch_by_node(const struct reader_files *f, const struct mapped *m, const struct expert_layout *l,
                          uint64_t off)
{
    enum { UP = 3 };
    const uint64_t parts[] = {l->gate_w, l->gate_s, l->gate_b, l->up_w,   l->up_s,
                              l->up_b,   l->down_w, l->down_s, l->down_b, l->bytes};
    for (size_t i = f->model->config.gateless ? UP : 0; i + 1 < sizeof parts / sizeof *parts; i++)
        mapped_fetch_by_node(m, off + parts[i], parts[i + 1] - parts[i], f->shares);
}

int64_t reader_files_copy(const struct reader_files *f, const struct file_read *a)
{
    const struct mapped *m = &f->maps[a->file];
    const struct expert_layout *l = &f->model->experts[a->layer];
    if (f->shares && a->dst == m->at + a->off && a->n == l->bytes)
        fetch_by_node(f, m, l, a->off);
    int64_t there = mapped_fetch(m, a->off, a->n);
    if (there <= 0 || a->dst == m->at + a->off)
        return there;
    /* The bytes are in a slot now. Dropping the mapping's pages keeps them out of our memory budget; they
     * stay in the page cache. */
    memcpy(a->dst, m->at + a->off, (size_t)there);
    mapped_drop(m, a->off, (uint64_t)there);
    return mapped_there(m, a->off, (uint64_t)there);
}

int reader_files_check(const struct reader_files *f, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < f->model->n_files && rc == 0; i++)
        rc = f->fds[i] >= 0 ? open_file_check(&f->model->files[i], e) : 0;
    return rc;
}

/* --- direct --- */

int reader_files_open_again(const struct open_file *file, int flags, struct moeflux_err *e)
{
    struct stat now, then;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0)
        return err_errno(e, ERR_UNSUPPORTED, "%s cannot be opened for %sreads", file->path,
                         flags & O_DIRECT ? "direct " : "");
    int rc = file_need_regular(fd, file->path, NULL, e);
    if (rc == 0 && (fstat(fd, &now) < 0 || fstat(file->fd, &then) < 0))
        rc = err_errno(e, ERR_IO, "%s", file->path);
    if (rc == 0 && (now.st_dev != then.st_dev || now.st_ino != then.st_ino))
        rc = err_set(e, ERR_IO, "%s was replaced by another file", file->path);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

static int open_direct(struct reader_files *f, const struct extent *x, struct moeflux_err *e)
{
    if (f->fds[x->file] >= 0)
        return 0;
    int fd = reader_files_open_again(&f->model->files[x->file], O_DIRECT, e);
    f->fds[x->file] = fd < 0 ? -1 : fd;
    return fd < 0 ? fd : 0;
}

/* Finds the block size by trying. File systems may accept the flag and refuse every read; device memory may
 * not be a valid target. */
int reader_files_find_block(int fd, const char *path, uint8_t *target, uint32_t *block, struct moeflux_err *e)
{
    if (*block <= SECTOR && pread(fd, target, SECTOR, SECTOR) >= 0) {
        *block = SECTOR;
        return 0;
    }
    *block = PAGE;
    if (pread(fd, target, PAGE, PAGE) >= 0)
        return 0;
    if (errno == EFAULT)
        return err_set(e, ERR_UNSUPPORTED, "the slots' memory cannot be the target of direct reads");
    return err_errno(e, ERR_UNSUPPORTED, "%s: direct read", path);
}

static int open_all_direct(struct reader_files *f, uint8_t *target, struct moeflux_err *e)
{
    int rc = each_extent(f, open_direct, e);
    for (uint32_t i = 0; i < f->model->n_files && rc == 0; i++)
        if (f->fds[i] >= 0)
            rc = reader_files_find_block(f->fds[i], f->model->files[i].path, target, &f->block, e);
    return rc;
}

int reader_files_open_direct(struct reader_files *f, const struct model_dir *m, uint8_t *target,
                             struct moeflux_err *e)
{
    int rc = start(f, m, e);
    if (rc < 0)
        return rc;
    f->block = SECTOR;
    void *own = NULL;
    if (!target && posix_memalign(&own, PAGE, PAGE) != 0)
        rc = err_set(e, ERR_MEMORY, "out of memory for a page");
    if (rc == 0)
        rc = open_all_direct(f, target ? target : own, e);
    free(own);
    if (rc < 0)
        reader_files_close(f);
    return rc;
}
