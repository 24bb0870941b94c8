/* reader_files.h - the files that hold a model's experts, opened the way a mode reads them. */
#ifndef MOEFLUX_EXPERTS_READER_FILES_H
#define MOEFLUX_EXPERTS_READER_FILES_H

#include "cpu/mapped.h"
#include "model/model.h"

struct node_shares;

/* n bytes of a file at `off` that belong at dst: of one of the layer's experts. */
struct file_read {
    uint32_t layer, file, n;
    uint64_t off;
    uint8_t *dst;
};

struct reader_files {
    const struct model_dir *model;
    int *fds;            /* [model.n_files]; -1: holds no expert */
    uint32_t block;      /* direct reads are made of blocks of so many bytes; 0: reads are not direct */
    struct mapped *maps; /* [model.n_files], not open: holds no expert; NULL unless mapped */
    const struct node_shares *shares; /* reader_options'; set after open */
};

/* The model's own descriptors. ERR_MEMORY. */
int reader_files_open(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e);
/* Mapped read-only besides. ERR_UNSUPPORTED tells why not. */
int reader_files_open_mapped(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e);
/* Descriptors with O_DIRECT, tried with a read to `target` (one page; NULL: some memory). ERR_UNSUPPORTED
 * tells why not: an extent that is not aligned, the file system, or the target. */
int reader_files_open_direct(struct reader_files *f, const struct model_dir *m, uint8_t *target,
                             struct moeflux_err *e);
void reader_files_close(struct reader_files *f);

/* As pread, from a mapped file: the bytes copied, 0 at the end of the file, or -errno. */
int64_t reader_files_copy(const struct reader_files *f, const struct file_read *a);

/* ERR_IO names a mapped file that is shorter than it was at open. */
int reader_files_check_mapped(const struct reader_files *f, struct moeflux_err *e);

#endif
