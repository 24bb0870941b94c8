#include "model/model_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/nvfp4.h"
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

/* Describes the blocks of such a tensor as bytes of the file; unit: the tensor's bytes of a block. */
static struct tensor blocks_of(const struct tensor *t, uint64_t unit)
{
    struct tensor blocks = *t;
    blocks.bytes = t->bytes / unit * NVFP4_BLOCK_BYTES;
    blocks.pieces.period = t->pieces.period / unit * NVFP4_BLOCK_BYTES;
    for (uint32_t i = 0; i < t->pieces.n_runs; i++) {
        blocks.pieces.runs[i].from = t->pieces.runs[i].from / unit * NVFP4_BLOCK_BYTES;
        blocks.pieces.runs[i].bytes = t->pieces.runs[i].bytes / unit * NVFP4_BLOCK_BYTES;
    }
    return blocks;
}

/* Reads codes or scales of NVFP4 blocks. */
static int read_of_blocks(const struct open_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                          uint8_t *dst, struct moeflux_err *e)
{
    enum { AT_ONCE = 256 };
    uint8_t bytes[AT_ONCE * NVFP4_BLOCK_BYTES], taken[AT_ONCE * NVFP4_BLOCK_CODES];
    bool is_codes = t->of_blocks == TENSOR_BLOCK_CODES;
    uint64_t unit = is_codes ? NVFP4_BLOCK_CODES : NVFP4_BLOCK_SCALES, end = from + n;
    const struct tensor blocks = blocks_of(t, unit);
    while (from < end) {
        uint64_t first = from / unit, some = size_min((end + unit - 1) / unit - first, AT_ONCE);
        int rc = read_as_is(files, &blocks, first * NVFP4_BLOCK_BYTES, some * NVFP4_BLOCK_BYTES, bytes, e);
        if (rc < 0)
            return rc;
        nvfp4_split(bytes, 0, some * NVFP4_BLOCK_BYTES, is_codes ? taken : NULL, is_codes ? NULL : taken);
        uint64_t skip = from - first * unit, here = size_min(some * unit - skip, end - from);
        memcpy(dst, taken + skip, here);
        dst += here;
        from += here;
    }
    return 0;
}

int model_file_read(const struct open_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                    void *dst, struct moeflux_err *e)
{
    if (t->of_blocks)
        return read_of_blocks(files, t, from, n, dst, e);
    if (!t->factor.is_there)
        return read_as_is(files, t, from, n, dst, e);
    memcpy(dst, (const uint8_t *)&t->factor.by + from, n);
    return 0;
}
