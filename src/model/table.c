#include "model/table.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/tensor.h"

#define TABLE ".ple.ple_embedding.ngram_embedding"

/* Bytes of codes, of scales or of biases in a row: at most TABLE_MAX_COLS numbers of four bytes. */
enum { TABLE_MAX_COLS = 4096 };
/* Rows that the disk reads concurrently: they lie far apart, and each would cost a latency. */
enum { AT_ONCE = 256 };

bool table_has(const char *name)
{
    return strstr(name, TABLE ".") != NULL;
}

uint32_t table_format(uint32_t format, uint64_t cols)
{
    const struct format *f = format_of(format);
    if (format_takes_cols(f, cols))
        return format;
    return f->scheme == SCHEME_AFFINE && cols % 32 == 0 ? format_find_affine(f->bits, 32, f->scale)
                                                        : FORMAT_NONE;
}

void table_name(uint32_t layer, char *name)
{
    snprintf(name, TABLE_NAME, "model.layers.%u" TABLE, layer);
}

const struct ngram_config *table_of_layer(const struct config *c, uint32_t layer)
{
    for (uint32_t b = 0; b < c->layers[layer].n_blocks; b++)
        if (config_part(c, layer, b)->kind == PART_NGRAMS)
            return &config_part(c, layer, b)->ngrams;
    return NULL;
}

static int add_shard(struct table *t, size_t *cap, const struct matrix *w, uint32_t first,
                     struct moeflux_err *e)
{
    void *shards = t->shards;
    int rc = mem_grow(&shards, cap, t->n_shards + 1, sizeof *t->shards, e);
    t->shards = shards;
    if (rc == 0)
        t->shards[t->n_shards++] = (struct table_shard){*w, first};
    return rc;
}

/* Finds one tensor, or shards 0, 1 and so on until the table is complete. */
static int find_shards(struct table *t, const struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    char whole[TABLE_NAME], base[TABLE_NAME + 24], name[sizeof base + 8];
    size_t cap = 0;
    uint64_t first = 0;
    table_name(layer, whole);
    snprintf(name, sizeof name, "%s.weight", whole);
    bool is_whole = model_dir_find(m, name) != NULL;
    while (first < t->hash.n_rows) {
        struct matrix w;
        snprintf(base, sizeof base, "%s", whole);
        if (!is_whole)
            snprintf(base, sizeof base, "%s.shard_%u", whole, t->n_shards);
        snprintf(name, sizeof name, "%s.weight", base);
        const struct tensor *weight = model_dir_find(m, name);
        uint64_t rows = weight ? tensor_rows(weight) : t->hash.n_rows - first;
        if (rows == 0 || rows > t->hash.n_rows - first)
            rows = t->hash.n_rows - first; /* the message about the shape names them */
        int rc = model_dir_matrix(m, base, (uint32_t)rows, t->cols, &w, e);
        if (rc == 0 && w.format == FORMAT_NONE)
            rc = err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: F8_E4M3, expected BF16, F16 or F32", m->path,
                         name);
        if (rc == 0)
            rc = add_shard(t, &cap, &w, (uint32_t)first, e);
        if (rc < 0)
            return rc;
        first += rows;
    }
    return 0;
}

int table_open(struct table *t, const struct model_dir *m, uint32_t layer, const struct ngram_config *c,
               struct moeflux_err *e)
{
    *t = (struct table){0};
    int rc = ngram_hash_make(&t->hash, &c->table, e);
    if (rc < 0)
        return rc;
    t->cols = c->inner / t->hash.n_heads;
    if (t->cols > TABLE_MAX_COLS)
        return err_set(e, ERR_UNSUPPORTED, "%s: n-gram rows of %u numbers, expected at most %d", m->path,
                       t->cols, TABLE_MAX_COLS);
    rc = find_shards(t, m, layer, e);
    if (rc < 0)
        table_close(t);
    return rc;
}

void table_close(struct table *t)
{
    free(t->shards);
    *t = (struct table){0};
}

static const struct table_shard *shard_of(const struct table *t, uint32_t row)
{
    uint32_t lo = 0, hi = t->n_shards;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->shards[mid].first <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &t->shards[lo];
}

static int read_row(const struct model_dir *m, const struct table_shard *s, uint32_t row, uint32_t cols,
                    float *out, struct moeflux_err *e)
{
    uint8_t codes[4 * TABLE_MAX_COLS], scales[TABLE_MAX_COLS], biases[TABLE_MAX_COLS];
    const struct matrix *w = &s->matrix;
    const struct format *f = format_of(w->format);
    uint64_t at = (uint64_t)(row - s->first) * cols, n_scales = format_scale_bytes(f, cols);
    int rc = model_dir_read(m, w->weight, format_code_bytes(f, at), format_code_bytes(f, cols), codes, e);
    if (rc == 0 && w->scales)
        rc = model_dir_read(m, w->scales, format_scale_bytes(f, at), n_scales, scales, e);
    if (rc == 0 && w->biases)
        rc = model_dir_read(m, w->biases, format_scale_bytes(f, at), n_scales, biases, e);
    if (rc < 0)
        return rc;
    format_decode(f, codes, scales, biases, 0, cols, out);
    for (uint32_t i = 0; i < cols; i++)
        if (!isfinite(out[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %u is not finite",
                           m->files[w->weight->file].path, w->weight->name, row - s->first);
    return 0;
}

static void expect_bytes(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n)
{
    if (t && t->pieces.n_runs == 0)
        (void)posix_fadvise(m->files[t->file].fd, (off_t)(t->off + from), (off_t)n, POSIX_FADV_WILLNEED);
}

/* Makes the system begin to read a row, without waiting for it. */
static void expect_row(const struct model_dir *m, const struct table_shard *s, uint32_t row, uint32_t cols)
{
    const struct matrix *w = &s->matrix;
    const struct format *f = format_of(w->format);
    uint64_t at = (uint64_t)(row - s->first) * cols, n_scales = format_scale_bytes(f, cols);
    expect_bytes(m, w->weight, format_code_bytes(f, at), format_code_bytes(f, cols));
    expect_bytes(m, w->scales, format_scale_bytes(f, at), n_scales);
    expect_bytes(m, w->biases, format_scale_bytes(f, at), n_scales);
}

int table_read(const struct table *t, const struct model_dir *m, const uint32_t *rows, uint64_t n, float *out,
               struct moeflux_err *e)
{
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        for (uint64_t k = i; i % AT_ONCE == 0 && k < n && k < i + AT_ONCE; k++)
            expect_row(m, shard_of(t, rows[k]), rows[k], t->cols);
        rc = read_row(m, shard_of(t, rows[i]), rows[i], t->cols, out + i * t->cols, e);
    }
    return rc;
}
