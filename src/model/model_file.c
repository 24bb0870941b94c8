#include "model/model_file.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

int model_file_add(struct model_file **files, uint32_t *n, const char *path, struct moeflux_err *e)
{
    struct model_file f = {0};
    struct model_file *grown = realloc(*files, (*n + 1) * sizeof **files);
    if (!grown)
        return err_set(e, ERR_MEMORY, "out of memory for %u open files", *n + 1);
    *files = grown;
    f.fd = file_open_read(path, &f.bytes, e);
    if (f.fd < 0)
        return f.fd;
    f.path = mem_text(path, e);
    if (!f.path) {
        close(f.fd);
        return ERR_MEMORY;
    }
    grown[(*n)++] = f;
    return 0;
}

uint64_t model_file_find_piece(const struct tensor_pieces *p, uint64_t from, uint64_t *n)
{
    uint32_t run = 0;
    while (from >= p->runs[run].bytes * p->n_blocks) {
        from -= p->runs[run].bytes * p->n_blocks;
        run++;
    }
    uint64_t bytes = p->runs[run].bytes, in_piece = from % bytes;
    *n = bytes - in_piece;
    return from / bytes * p->period + p->runs[run].from + in_piece;
}

int model_file_read(const struct model_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                    void *dst, struct moeflux_err *e)
{
    const struct model_file *f = &files[t->file];
    if (t->pieces.n_runs == 0)
        return file_read_at(f->fd, f->path, dst, n, t->off + from, e);
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < n;) {
        uint64_t there, at = model_file_find_piece(&t->pieces, from + done, &there);
        there = size_min(there, n - done);
        rc = file_read_at(f->fd, f->path, (uint8_t *)dst + done, there, t->off + at, e);
        done += there;
    }
    return rc;
}

void model_file_close_all(struct model_file *files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        close(files[i].fd);
        free(files[i].path);
    }
    free(files);
}
