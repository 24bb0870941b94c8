#include "model/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/fp8.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/tensor.h"

#define TABLE ".ple.ple_embedding.ngram_embedding"

enum { TABLE_MAX_COLS = 4096 };

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

/* Finds the scales of 8-bit floats. A single one is read now. */
static int find_fp8(const struct model_dir *m, struct table_shard *s, struct moeflux_err *e)
{
    const struct tensor *w = s->matrix.weight, *scales;
    int rc = fp8_scales(m, w, &scales, e);
    if (rc < 0)
        return rc;
    uint32_t bytes = tensor_dtype_bytes(scales->dtype);
    s->fp8.scales = scales;
    s->fp8.blocks = fp8_blocks_of(m, (uint32_t)w->shape[0], (uint32_t)w->shape[1], scales);
    s->fp8.type = tensor_scale_type(scales->dtype);
    s->fp8.row_bytes = div_up(s->matrix.cols, s->fp8.blocks.cols) * bytes;
    s->fp8.has_only = scales->bytes == bytes;
    return s->fp8.has_only ? model_dir_read(m, scales, 0, bytes, s->fp8.only, e) : 0;
}

static int add_shard(struct table *t, size_t *cap, const struct model_dir *m, const struct matrix *w,
                     uint32_t first, struct moeflux_err *e)
{
    void *shards = t->shards;
    int rc = mem_grow(&shards, cap, t->n_shards + 1, sizeof *t->shards, e);
    t->shards = shards;
    if (rc < 0)
        return rc;
    struct table_shard *s = &t->shards[t->n_shards++];
    *s = (struct table_shard){.matrix = *w, .first = first};
    if (w->weight->dtype == DTYPE_BLOCKS) /* rows of any width; operations would have them widened */
        s->matrix.format = tensor_format(w->weight);
    bool is_fp8 = w->format == FORMAT_NONE;
    rc = is_fp8 ? find_fp8(m, s, e) : 0;
    if (rc < 0)
        return rc;
    uint64_t bytes = is_fp8 ? t->cols + (uint64_t)s->fp8.row_bytes
                            : format_all_bytes(format_of(s->matrix.format), t->cols);
    /* Rows are decoded in place. */
    if (bytes > sizeof(float) * t->cols)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s: a row has %" PRIu64 " bytes with its scales, expected at most %zu",
                       m->files[w->weight->file].path, w->weight->name, bytes, sizeof(float) * t->cols);
    t->row_bytes = (uint32_t)size_max(t->row_bytes, bytes);
    return 0;
}

/* Writes the name of a shard, without ".weight", in the form that the directory has. */
static void name_shard(const struct model_dir *m, uint32_t layer, uint32_t i, char *name, size_t size)
{
    char whole[TABLE_NAME], weight[TABLE_NAME + 32];
    table_name(layer, whole);
    snprintf(weight, sizeof weight, "%s.weight", whole);
    if (model_dir_find(m, weight)) {
        snprintf(name, size, "%s", whole);
        return;
    }
    snprintf(weight, sizeof weight, "%s.shards.0.weight", whole); /* MLX */
    snprintf(name, size, model_dir_find(m, weight) ? "%s.shards.%u" : "%s.shard_%u", whole, i);
}

/* Finds one tensor, or shards 0, 1 and so on until the table is complete. */
static int find_shards(struct table *t, const struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    char base[TABLE_NAME + 24], name[sizeof base + 8];
    size_t cap = 0;
    uint64_t first = 0;
    int rc = 0;
    while (rc == 0 && first < t->hash.n_rows) {
        struct matrix w;
        name_shard(m, layer, t->n_shards, base, sizeof base);
        snprintf(name, sizeof name, "%s.weight", base);
        const struct tensor *weight = model_dir_find(m, name);
        uint64_t rows = weight ? tensor_rows(weight) : t->hash.n_rows - first;
        if (rows == 0 || rows > t->hash.n_rows - first)
            rows = t->hash.n_rows - first; /* the message about the shape names them */
        rc = model_dir_matrix(m, base, (uint32_t)rows, t->cols, &w, e);
        if (rc == 0)
            rc = add_shard(t, &cap, m, &w, (uint32_t)first, e);
        first += rows;
    }
    return rc;
}

int table_hash(const struct ngram_config *c, struct ngram_hash *out, struct moeflux_err *e)
{
    *out = c->given;
    return c->given.n_rows ? 0 : ngram_hash_make(out, &c->table, e);
}

int table_open(struct table *t, const struct model_dir *m, uint32_t layer, const struct ngram_config *c,
               struct moeflux_err *e)
{
    *t = (struct table){0};
    int rc = table_hash(c, &t->hash, e);
    if (rc < 0)
        return rc;
    t->cols = c->inner / t->hash.n_heads;
    if (t->cols > TABLE_MAX_COLS)
        return err_set(e, ERR_UNSUPPORTED, "%s: n-gram rows of %u numbers, expected at most %d", m->path,
                       t->cols, TABLE_MAX_COLS);
    fp8_values(t->fp8_values);
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

/* Adds the run of `bytes` bytes from `at` on in a tensor, if there is one. */
static uint32_t add_run(const struct tensor *t, uint64_t at, uint64_t bytes, uint32_t n,
                        struct table_run *out)
{
    if (t)
        out[n] = (struct table_run){.file = t->file, .bytes = (uint32_t)bytes, .off = t->off + at};
    return n + (t != NULL);
}

uint32_t table_find_row(const struct table *t, uint32_t row, struct table_run out[TABLE_RUNS])
{
    const struct table_shard *s = shard_of(t, row);
    const struct matrix *w = &s->matrix;
    uint32_t in = row - s->first;
    uint64_t at = (uint64_t)in * t->cols;
    if (w->format == FORMAT_NONE) {
        uint32_t n = add_run(w->weight, at, t->cols, 0, out);
        return s->fp8.has_only
                   ? n
                   : add_run(s->fp8.scales, (uint64_t)(in / s->fp8.blocks.rows) * s->fp8.row_bytes,
                             s->fp8.row_bytes, n, out);
    }
    const struct format *f = format_of(w->format);
    uint64_t scales_at = format_scale_bytes(f, at), scales = format_scale_bytes(f, t->cols);
    uint32_t n = add_run(w->weight, format_code_bytes(f, at), format_code_bytes(f, t->cols), 0, out);
    n = add_run(w->scales, scales_at, scales, n, out);
    return add_run(w->biases, scales_at, scales, n, out);
}

void table_mark_files(const struct table *t, bool *is_read)
{
    for (uint32_t i = 0; i < t->n_shards; i++) {
        struct table_run runs[TABLE_RUNS];
        uint32_t n = table_find_row(t, t->shards[i].first, runs);
        for (uint32_t k = 0; k < n; k++)
            is_read[runs[k].file] = true;
    }
}

int table_decode(const struct table *t, const struct model_dir *m, uint32_t row, const uint8_t *raw,
                 float *out, struct moeflux_err *e)
{
    const struct table_shard *s = shard_of(t, row);
    uint8_t copy[4 * TABLE_MAX_COLS];
    memcpy(copy, raw, t->row_bytes);
    if (s->matrix.format == FORMAT_NONE) {
        const uint8_t *scales = s->fp8.has_only ? s->fp8.only : copy + t->cols;
        fp8_decode(copy, t->fp8_values, scales, s->fp8.type, s->fp8.blocks.cols, t->cols, out);
    } else {
        const struct format *f = format_of(s->matrix.format);
        uint64_t codes = format_code_bytes(f, t->cols), scales = format_scale_bytes(f, t->cols);
        format_decode(f, copy, copy + codes, copy + codes + scales, 0, t->cols, out);
    }
    if (float_all_finite(out, t->cols))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: row %u is not finite",
                   m->files[s->matrix.weight->file].path, s->matrix.weight->name, row - s->first);
}
