/* row_reader.h - reads many small pieces of a model's files at once: the rows of n-gram tables.
 *
 * Rows lie far apart, so each costs the latency of a disk. Many are in flight at once, and pieces in the same
 * block are one read. Nothing is cached, except by the system in modes other than direct. A read that fails
 * is tried again, READER_RETRIES times.
 *
 * Not locked: one thread calls. */
#ifndef MOEFLUX_EXPERTS_ROW_READER_H
#define MOEFLUX_EXPERTS_ROW_READER_H

#include <stdatomic.h>

#include "experts/reader.h"

struct row_reader;

struct row_piece {
    uint32_t file, bytes; /* index into model_dir.files; 1 to row_reader_options.max_bytes */
    uint64_t off;         /* bytes from the file's start */
    uint8_t *dst;         /* [bytes]; any alignment */
};

struct row_reader_options {
    /* READER_AUTO: uring if tables and experts fit in 3/4 of host_bytes, else direct. Where direct reads are
     * not possible, uring; without io_uring, pread instead of uring. */
    enum reader_mode mode;
    uint64_t host_bytes; /* auto: host memory available for the page cache */
    uint32_t max_bytes;  /* bytes of the largest piece */
};

/* Opens the files for which is_read [m->n_files] is set. The model directory must outlive the reader.
 * ERR_UNSUPPORTED says why the requested mode is not available. ERR_IO, ERR_MEMORY. */
int row_reader_open(struct row_reader **out, const struct model_dir *m, const bool *is_read,
                    const struct row_reader_options *o, struct moeflux_err *e);
void row_reader_close(struct row_reader *r); /* NULL is legal */
/* Returns the mode in use; never READER_AUTO. */
enum reader_mode row_reader_get_mode(const struct row_reader *r);

/* Reads n pieces. Those that follow each other in the list and in a file share reads, so the list should be
 * sorted by offset. stops: when it becomes true, nothing more is started. ERR_INTERRUPTED: it stopped. ERR_IO
 * names file and offset; a piece past the end of its file is one. */
int row_reader_read(struct row_reader *r, const struct row_piece *pieces, uint32_t n,
                    const atomic_bool *stops, struct moeflux_err *e);

#endif
