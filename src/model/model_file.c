#include "model/model_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/tensor.h"

/* Bytes; pieces within a span of this size are fetched by one read. */
enum { NEAR_BYTES = 32768 };

uint64_t model_file_find_piece(const struct tensor_pieces *p, uint64_t from, uint64_t *n, uint64_t *later)
{
    uint32_t run = 0;
    while (from >= p->runs[run].bytes * p->n_blocks) {
        from -= p->runs[run].bytes * p->n_blocks;
        run++;
    }
    uint64_t bytes = p->runs[run].bytes, in_piece = from % bytes;
    *n = bytes - in_piece;
    *later = p->n_blocks - from / bytes - 1;
    return from / bytes * p->period + p->runs[run].from + in_piece;
}

/* Reads at most n bytes of a tensor in pieces, from byte `from`: those that one read fetches. *done counts
 * them. */
static int read_pieces(const struct open_file *f, const struct tensor *t, uint64_t from, uint64_t n,
                       uint8_t *dst, uint64_t *done, struct moeflux_err *e)
{
    const struct tensor_pieces *p = &t->pieces;
    uint8_t near[NEAR_BYTES];
    uint64_t first, later, at = model_file_find_piece(p, from, &first, &later);
    if (first >= n || later == 0 || first + p->period > NEAR_BYTES) {
        *done = size_min(first, n);
        return file_read_at(f->fd, f->path, dst, *done, t->off + at, e);
    }
    uint64_t next, skip, each = 0;
    skip = model_file_find_piece(p, from + first, &each, &next) - at; /* bytes to the second piece */
    uint64_t k = size_min(later, (NEAR_BYTES - skip - each) / p->period + 1);
    k = size_min(k, (n - first) / each);
    uint64_t span = k ? skip + (k - 1) * p->period + each : first;
    int rc = file_read_at(f->fd, f->path, near, span, t->off + at, e);
    memcpy(dst, near, rc < 0 ? 0 : first);
    for (uint64_t i = 0; rc == 0 && i < k; i++)
        memcpy(dst + first + i * each, near + skip + i * p->period, each);
    *done = first + k * each;
    return rc;
}

static int read_as_is(const struct open_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                      void *dst, struct moeflux_err *e)
{
    const struct open_file *f = &files[t->file];
    if (t->pieces.n_runs == 0)
        return file_read_at(f->fd, f->path, dst, n, t->off + from, e);
    int rc = 0;
    for (uint64_t done = 0, some; rc == 0 && done < n; done += some)
        rc = read_pieces(f, t, from + done, n - done, (uint8_t *)dst + done, &some, e);
    return rc;
}

int model_file_read(const struct open_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                    void *dst, struct moeflux_err *e)
{
    if (!t->factor.is_there)
        return read_as_is(files, t, from, n, dst, e);
    memcpy(dst, (const uint8_t *)&t->factor.by + from, n);
    return 0;
}
