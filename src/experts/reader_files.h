/* reader_files.h - opens the files that contain a model's experts as a read mode needs them. */
#ifndef MOEFLUX_EXPERTS_READER_FILES_H
#define MOEFLUX_EXPERTS_READER_FILES_H

#include "cpu/mapped.h"
#include "model/model.h"

struct node_shares;

/* One read: n bytes of a file at `off` to dst, part of an expert of the layer. */
struct file_read {
    uint32_t layer, file, n;
    uint64_t off;
    uint8_t *dst;
};

struct reader_files {
    const struct model_dir *model;
    int *fds;            /* [model.n_files]; -1: a file without experts */
    uint32_t block;      /* bytes of a block of direct reads; 0: reads are not direct */
    struct mapped *maps; /* [model.n_files], not open: a file without experts; NULL unless mapped */
    const struct node_shares *shares; /* reader_options'; set after open */
};

/* Uses the model's own descriptors. ERR_MEMORY. */
int reader_files_open(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e);
/* Maps the files read-only, too. ERR_UNSUPPORTED says why it cannot. */
int reader_files_open_mapped(struct reader_files *f, const struct model_dir *m, struct moeflux_err *e);
/* Opens descriptors with O_DIRECT and tries one with a read to `target` (one page; NULL: memory of its own).
 * ERR_UNSUPPORTED says why it cannot: the file system, or the target. */
int reader_files_open_direct(struct reader_files *f, const struct model_dir *m, uint8_t *target,
                             struct moeflux_err *e);
void reader_files_close(struct reader_files *f);

/* Opens one of the model's files again, with additional flags of open(2). Returns the descriptor.
 * ERR_UNSUPPORTED: it cannot be opened so. ERR_IO: the path is another file now. */
int reader_files_open_again(const struct open_file *file, int flags, struct moeflux_err *e);
/* Finds the block size of direct reads, which must be 0 or that of other files, with reads to `target` (one
 * page). *block: the larger of the two. ERR_UNSUPPORTED says why there is none. */
int reader_files_find_block(int fd, const char *path, uint8_t *target, uint32_t *block,
                            struct moeflux_err *e);

/* Copies from a mapped file. Returns the bytes copied, 0 at the end of the file, or -errno. */
int64_t reader_files_copy(const struct reader_files *f, const struct file_read *a);

/* Checks the files of experts. ERR_IO names one that was written since it was opened. */
int reader_files_check(const struct reader_files *f, struct moeflux_err *e);

#endif
