#include "model/fused.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/model.h"
#include "model/tensor.h"

/* Returns where the fused matrix's name ends in the tensor's name, before ".weight" and so on; NULL: it is
 * not one of its tensors. */
static const char *tail_of(const struct tensor *t, const struct fused_matrix *f)
{
    const char *tail = strrchr(t->name, '.');
    size_t n = strlen(f->name);
    bool is_its = tail && (size_t)(tail - t->name) >= n && !strncmp(tail - n, f->name, n);
    return is_its ? tail : NULL;
}

/* A fused matrix, and how many of its rows one row of the tensor covers (of_each): 1, except for scales of
 * 8-bit floats. */
struct fusion {
    const struct fused_matrix *matrix;
    const struct config *config;
    uint32_t of_each;
};

static uint64_t rows_of_run(const struct fusion *f, uint32_t run)
{
    return f->matrix->rows(f->config, run) / f->of_each;
}

static uint32_t count_runs(const struct fusion *f)
{
    uint32_t n = 0;
    for (int i = 0; i < FUSED_MAX_PARTS && f->matrix->parts[i].name; i++)
        n += f->matrix->parts[i].n_runs;
    return n;
}

static uint64_t rows_of_block(const struct fusion *f)
{
    uint64_t rows = 0;
    for (uint32_t run = 0; run < count_runs(f); run++)
        rows += rows_of_run(f, run);
    return rows;
}

/* Returns whether each part has the whole tensor: the factor of all scales. */
static bool is_shared(const struct tensor *t)
{
    return str_ends_with(t->name, ".global_scale");
}

/* Describes the rows of one part of `whole`. Its first run is number *run and begins at row *row of a block;
 * both advance. */
static void take_rows(const struct tensor *whole, const struct fusion *f, int part, uint32_t *run,
                      uint64_t *row, struct tensor *out)
{
    uint64_t n_blocks = f->matrix->n_blocks(f->config), row_bytes = whole->bytes / whole->shape[0], rows = 0;
    out->pieces =
        (struct tensor_pieces){f->matrix->parts[part].n_runs, rows_of_block(f) * row_bytes, n_blocks, {{0}}};
    for (uint32_t i = 0; i < out->pieces.n_runs; i++) {
        uint64_t n = rows_of_run(f, (*run)++);
        out->pieces.runs[i].from = *row * row_bytes;
        out->pieces.runs[i].bytes = n * row_bytes;
        *row += n;
        rows += n;
    }
    out->shape[0] = rows * n_blocks;
    out->bytes = out->shape[0] * row_bytes;
}

/* Cuts one part out of `whole`. run, row: see take_rows. */
static int take_part(const struct tensor *whole, const struct fusion *f, int part, uint32_t *run,
                     uint64_t *row, struct tensor *out, struct moeflux_err *e)
{
    const char *tail = tail_of(whole, f->matrix), *name = f->matrix->parts[part].name;
    *out = *whole;
    if (!is_shared(whole))
        take_rows(whole, f, part, run, row, out);
    size_t stem = (size_t)(tail - whole->name) - strlen(f->matrix->name);
    size_t room = strlen(whole->name) + strlen(name) + 1;
    char *full = mem_new(room, 1, e);
    if (!full)
        return ERR_MEMORY;
    snprintf(full, room, "%.*s%s%s", (int)stem, whole->name, name, tail);
    int rc = tensor_set_name(out, full, whole->source, e);
    free(full);
    return rc;
}

static int check_rows(const struct tensor *whole, const struct fusion *f, const char *where,
                      struct moeflux_err *e)
{
    for (uint32_t run = 0; run < count_runs(f); run++) {
        uint32_t rows = f->matrix->rows(f->config, run);
        if (rows % f->of_each != 0)
            return err_set(
                e, ERR_UNSUPPORTED,
                "%s: tensor %s: a scale is for %u rows, expected one that divides the %u of a part", where,
                tensor_label(whole), f->of_each, rows);
    }
    uint64_t rows = rows_of_block(f) * f->matrix->n_blocks(f->config);
    if (rows == 0 || whole->n_dims < 2 || whole->shape[0] != rows || whole->bytes == 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has %" PRIu64 " rows, expected %" PRIu64, where,
                       tensor_label(whole), whole->n_dims ? whole->shape[0] : 0, rows);
    return 0;
}

static int split(struct tensor_list *l, size_t at, const struct fusion *f, const char *where,
                 struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    uint64_t row = 0;
    uint32_t run = 0;
    int rc = is_shared(&whole) ? 0 : check_rows(&whole, f, where, e);
    for (int i = 0; i < FUSED_MAX_PARTS && f->matrix->parts[i].name && rc == 0; i++) {
        struct tensor part;
        rc = take_part(&whole, f, i, &run, &row, &part, e);
        if (rc == 0 && i > 0)
            rc = tensor_list_add(l, &part, e);
        else if (rc == 0)
            l->items[at] = part;
    }
    if (l->items[at].name != whole.name)
        free(whole.name);
    return rc;
}

int fused_split(struct tensor_list *l, const struct fused_matrix *fused, const struct config *c,
                uint32_t fp8_rows, const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* parts are appended after these */
    for (size_t i = 0; i < n; i++) {
        struct fusion x = {NULL, c, str_ends_with(l->items[i].name, "_scale_inv") ? fp8_rows : 1};
        for (const struct fused_matrix *f = fused; f && f->name && x.of_each > 0; f++)
            if (tail_of(&l->items[i], f)) {
                x.matrix = f;
                int rc = split(l, i, &x, where, e);
                if (rc < 0)
                    return rc;
                break;
            }
    }
    return 0;
}
