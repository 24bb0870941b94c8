#include "ops/linear.h"

#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

static void ref_segment(const struct linear_args *a, const struct linear_segment *s, const double *in,
                        double *row)
{
    const struct weights w = {s->weight, s->scales, s->biases, s->rows, a->cols, s->format};
    for (uint32_t r = 0; r < s->rows; r++) {
        matvec_ref_row(&w, r, row);
        for (uint32_t t = 0; t < a->n; t++) {
            float *y = ref_floats_mut(a->y) + (uint64_t)t * a->y_stride + s->first_row + r;
            double sum = matvec_ref_dot(row, in + (uint64_t)t * a->cols, a->cols);
            *y = (float)(a->add ? (double)*y + sum : sum);
        }
    }
}

static void linear_ref(const void *args)
{
    const struct linear_args *a = args;
    const struct linear_segment *segments = (const struct linear_segment *)(uintptr_t)a->segments;
    double *in = calloc((size_t)a->n * a->cols, sizeof *in);
    double *row = calloc(a->cols, sizeof *row);
    if (in && row) {
        for (uint32_t t = 0; t < a->n; t++)
            matvec_ref_norm(ref_floats(a->x) + (uint64_t)t * a->x_stride,
                            a->norm ? ref_floats(a->norm) : NULL, a->cols, (double)a->eps,
                            in + (uint64_t)t * a->cols);
        for (uint32_t i = 0; i < a->n_segments; i++)
            ref_segment(a, &segments[i], in, row);
    }
    free(in);
    free(row);
}

static int check(const struct weights *w, uint32_t n, struct err *e)
{
    if (n == 0 || n > LINEAR_MAX_SEGMENTS)
        return err_set(e, ERR_UNSUPPORTED, "linear: %u matrices, expected 1 to %d", n, LINEAR_MAX_SEGMENTS);
    for (uint32_t i = 0; i < n; i++)
        if (w[i].cols == 0 || w[i].cols % 64 || w[i].cols != w[0].cols || w[i].rows == 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "linear: matrix %u is [%u][%u], expected columns %u, a multiple of 64", i,
                           w[i].rows, w[i].cols, w[0].cols);
    return 0;
}

/* Lays the segments out for a kernel that computes `block` rows a workgroup. Returns the number of workgroups. */
static uint32_t fill_segments(struct linear_segment *s, const struct weights *w, uint32_t n, uint32_t block)
{
    uint32_t row = 0, blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i] = (struct linear_segment){.weight = w[i].weight,
                                       .scales = w[i].scales,
                                       .biases = w[i].biases,
                                       .rows = w[i].rows,
                                       .format = w[i].format,
                                       .first_row = row,
                                       .first_block = blocks};
        row += w[i].rows;
        blocks += div_up(w[i].rows, block);
    }
    return blocks;
}

int linear_open(struct linear *op, struct exec *x, const struct weights *w, uint32_t n, struct err *e)
{
    *op = (struct linear){.n_segments = n};
    int rc = check(w, n, e);
    if (rc < 0)
        return rc;
    op->cols = w[0].cols;
    for (uint32_t i = 0; i < n; i++)
        op->rows += w[i].rows;
    struct matvec_plan one = matvec_plan_for(x, op->rows, op->cols, 1);
    struct matvec_plan many = matvec_plan_for(x, op->rows, op->cols, LINEAR_TOKENS);
    struct linear_segment table[2 * LINEAR_MAX_SEGMENTS];
    op->one_blocks = fill_segments(table, w, n, one.workgroup_rows);
    op->many_blocks = fill_segments(table + n, w, n, many.workgroup_rows);
    rc = exec_buffer_new(x, &op->segments, EXEC_DEVICE, 2 * (uint64_t)n * sizeof *table, e);
    if (rc == 0)
        rc = exec_write(x, &op->segments, 0, table, op->segments.bytes, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->one, "linear", linear_ref, sizeof(struct linear_args), one.spec, 6, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->many, "linear", linear_ref, sizeof(struct linear_args), many.spec, 6, e);
    if (rc < 0)
        linear_close(op, x);
    return rc;
}

void linear_close(struct linear *op, struct exec *x)
{
    exec_buffer_free(x, &op->segments);
}

void linear_run(const struct linear *op, struct exec *x, const struct linear_call *call)
{
    bool many = call->n > 1;
    uint64_t second = (uint64_t)op->n_segments * sizeof(struct linear_segment);
    const struct linear_args a = {.segments = op->segments.address + (many ? second : 0),
                                  .x = call->x,
                                  .norm = call->norm,
                                  .y = call->y,
                                  .n_segments = op->n_segments,
                                  .cols = op->cols,
                                  .x_stride = call->x_stride,
                                  .y_stride = call->y_stride,
                                  .n = call->n,
                                  .add = call->add,
                                  .eps = call->eps};
    if (many)
        exec_run(x, &op->many, &a, op->many_blocks, div_up(call->n, LINEAR_TOKENS), 1);
    else
        exec_run(x, &op->one, &a, op->one_blocks, 1, 1);
}
