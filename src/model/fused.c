#include "model/fused.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/model_dir.h"
#include "model/tensor.h"

/* Where the name of the fused matrix ends in a tensor's name, before ".weight" and so on; NULL: it is none of its tensors. */
static const char *tail_of(const struct tensor *t, const struct fused_matrix *f)
{
    const char *tail = strrchr(t->name, '.');
    size_t n = strlen(f->name);
    bool is_its = tail && (size_t)(tail - t->name) >= n && !strncmp(tail - n, f->name, n);
    return is_its ? tail : NULL;
}

static uint64_t rows_of_block(const struct fused_matrix *f, const struct config *c)
{
    uint64_t rows = 0;
    uint32_t run = 0;
    for (int i = 0; i < FUSED_MAX_PARTS && f->parts[i].name; i++)
        for (uint32_t k = 0; k < f->parts[i].n_runs; k++)
            rows += f->rows(c, run++);
    return rows;
}

/* One part of `whole`, whose runs begin with number *run at row *row of a block; both move on. */
static int take_part(const struct tensor *whole, const struct fused_matrix *f, int part,
                     const struct config *c, uint32_t *run, uint64_t *row, struct tensor *out,
                     struct moeflux_err *e)
{
    uint64_t n_blocks = f->n_blocks(c), row_bytes = whole->bytes / whole->shape[0], rows = 0;
    const char *tail = tail_of(whole, f);
    *out = *whole;
    out->pieces =
        (struct tensor_pieces){f->parts[part].n_runs, rows_of_block(f, c) * row_bytes, n_blocks, {{0}}};
    for (uint32_t i = 0; i < f->parts[part].n_runs; i++) {
        uint64_t n = f->rows(c, (*run)++);
        out->pieces.runs[i].from = *row * row_bytes;
        out->pieces.runs[i].bytes = n * row_bytes;
        *row += n;
        rows += n;
    }
    out->shape[0] = rows * n_blocks;
    out->bytes = out->shape[0] * row_bytes;
    size_t stem = (size_t)(tail - whole->name) - strlen(f->name);
    size_t room = strlen(whole->name) + strlen(f->parts[part].name) + 1;
    out->name = mem_new(room, 1, e);
    if (!out->name)
        return ERR_MEMORY;
    snprintf(out->name, room, "%.*s%s%s", (int)stem, whole->name, f->parts[part].name, tail);
    return 0;
}

static int split(struct tensor_list *l, size_t at, const struct fused_matrix *f, const struct config *c,
                 const char *where, struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    uint64_t rows = rows_of_block(f, c) * f->n_blocks(c), row = 0;
    uint32_t run = 0;
    if (rows == 0 || whole.n_dims != 2 || whole.shape[0] != rows || whole.bytes == 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has %" PRIu64 " rows, expected %" PRIu64, where,
                       whole.name, whole.n_dims ? whole.shape[0] : 0, rows);
    int rc = 0;
    for (int i = 0; i < FUSED_MAX_PARTS && f->parts[i].name && rc == 0; i++) {
        struct tensor part;
        rc = take_part(&whole, f, i, c, &run, &row, &part, e);
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
                const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* parts are added behind */
    for (size_t i = 0; i < n; i++)
        for (const struct fused_matrix *f = fused; f && f->name; f++)
            if (tail_of(&l->items[i], f)) {
                int rc = split(l, i, f, c, where, e);
                if (rc < 0)
                    return rc;
                break;
            }
    return 0;
}
