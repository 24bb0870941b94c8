#include "model/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/model_dir_find.h"
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

static int add_shard(struct table *t, size_t *cap, const struct matrix *w, uint32_t first,
                     struct moeflux_err *e)
{
    void *shards = t->shards;
    int rc = mem_grow(&shards, cap, t->n_shards + 1, sizeof *t->shards, e);
    t->shards = shards;
    if (rc == 0)
        t->shards[t->n_shards++] = (struct table_shard){*w, first};
    if (rc == 0)
        t->row_bytes = (uint32_t)size_max(t->row_bytes, format_all_bytes(format_of(w->format), t->cols));
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

/* The same position of a row in its codes, scales and biases. */
uint32_t table_find_row(const struct table *t, uint32_t row, struct table_run out[TABLE_RUNS])
{
    const struct table_shard *s = shard_of(t, row);
    const struct format *f = format_of(s->matrix.format);
    const struct tensor *parts[TABLE_RUNS] = {s->matrix.weight, s->matrix.scales, s->matrix.biases};
    uint64_t at = (uint64_t)(row - s->first) * t->cols;
    uint32_t n = 0;
    for (int i = 0; i < TABLE_RUNS; i++)
        if (parts[i])
            out[n++] = (struct table_run){
                .file = parts[i]->file,
                .bytes = (uint32_t)(i ? format_scale_bytes(f, t->cols) : format_code_bytes(f, t->cols)),
                .off = parts[i]->off + (i ? format_scale_bytes(f, at) : format_code_bytes(f, at))};
    return n;
}

int table_decode(const struct table *t, const struct model_dir *m, uint32_t row, const uint8_t *raw,
                 float *out, struct moeflux_err *e)
{
    const struct table_shard *s = shard_of(t, row);
    const struct format *f = format_of(s->matrix.format);
    uint64_t codes = format_code_bytes(f, t->cols), scales = format_scale_bytes(f, t->cols);
    uint8_t copy[4 * TABLE_MAX_COLS];
    memcpy(copy, raw, format_all_bytes(f, t->cols));
    format_decode(f, copy, copy + codes, copy + codes + scales, 0, t->cols, out);
    if (float_all_finite(out, t->cols))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: row %u is not finite",
                   m->files[s->matrix.weight->file].path, s->matrix.weight->name, row - s->first);
}
