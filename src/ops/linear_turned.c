#include "ops/linear_turned.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

/* Matrix h: sums [n][cols]; row: room for one of its rows. */
static void ref_matrix(const struct linear_turned_args *a, uint32_t h, double *sums, double *row)
{
    const struct weights w = {a->weight, a->scales, a->biases, h * a->step + a->rows, a->cols, a->format};
    const float *x = ref_floats(a->x) + (uint64_t)h * a->x_step;
    float *y = ref_floats_mut(a->y) + (uint64_t)h * a->y_step;
    memset(sums, 0, (size_t)a->n * a->cols * sizeof *sums);
    for (uint32_t r = 0; r < a->rows; r++) {
        matvec_ref_row(&w, h * a->step + r, row);
        for (uint32_t t = 0; t < a->n; t++)
            for (uint32_t c = 0; c < a->cols; c++)
                sums[(uint64_t)t * a->cols + c] += row[c] * (double)x[(uint64_t)t * a->x_stride + r];
    }
    for (uint32_t t = 0; t < a->n; t++)
        for (uint32_t c = 0; c < a->cols; c++)
            y[(uint64_t)t * a->y_stride + c] = (float)sums[(uint64_t)t * a->cols + c];
}

static void turned_ref(const void *args)
{
    const struct linear_turned_args *a = args;
    double *sums = calloc((size_t)a->n * a->cols, sizeof *sums), *row = calloc(a->cols, sizeof *row);
    for (uint32_t h = 0; sums && row && h < a->n_stacked; h++)
        ref_matrix(a, h, sums, row);
    free(sums);
    free(row);
}

/* What either kernel computes in a workgroup is set; this makes it for one token and for many. */
static int make_kernels(struct linear_turned *op, struct exec *x, const char *name, uint32_t *spec,
                        uint32_t n_spec, struct err *e)
{
    enum { TOKENS_SPEC = 3 };
    const uint32_t bytes = sizeof(struct linear_turned_args);
    int rc = exec_kernel(x, &op->one, name, turned_ref, bytes, spec, n_spec, e);
    spec[TOKENS_SPEC] = LINEAR_TURNED_MANY;
    return rc < 0 ? rc : exec_kernel_later(x, &op->many, name, turned_ref, bytes, spec, n_spec, e);
}

int linear_turned_open(struct linear_turned *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                       uint32_t step, struct err *e)
{
    enum { LANES = 32 };
    struct exec_caps caps = exec_get_caps(x);
    bool is_uneven = w->rows % 4 || w->cols % 64;
    *op = (struct linear_turned){.w = *w, .n_stacked = n_stacked, .step = step};
    if (w->rows == 0 || w->cols == 0 || (is_uneven && !weights_are_plain(w)))
        return err_set(e, ERR_UNSUPPORTED,
                       "turned product: a quantised matrix is [%u][%u], expected multiples of 4 and 64",
                       w->rows, w->cols);
    /* A software device has a core or two: no slices, whose sums it would have to add up. */
    uint32_t group = caps.is_cpu ? caps.subgroup_size : (uint32_t)size_min(256, caps.max_workgroup);
    group = (uint32_t)size_max(group - group % caps.subgroup_size, caps.subgroup_size);
    uint32_t lanes = (uint32_t)size_min(LANES, group);
    uint32_t spec[] = {caps.subgroup_size, group, 1u << w->format, 1, lanes};
    op->cols = is_uneven ? group : 8 * lanes;
    return is_uneven ? make_kernels(op, x, "linear_turned_plain", spec, 4, e)
                     : make_kernels(op, x, "linear_turned", spec, 5, e);
}

void linear_turned_run(const struct linear_turned *op, struct exec *x, const struct linear_turned_call *call)
{
    const struct linear_turned_args a = {.weight = op->w.weight,
                                         .scales = op->w.scales,
                                         .biases = op->w.biases,
                                         .x = call->x,
                                         .y = call->y,
                                         .format = op->w.format,
                                         .rows = op->w.rows,
                                         .cols = op->w.cols,
                                         .step = op->step,
                                         .x_stride = call->x_stride,
                                         .y_stride = call->y_stride,
                                         .x_step = call->x_step,
                                         .y_step = call->y_step,
                                         .n = call->n,
                                         .n_stacked = op->n_stacked};
    bool is_one = call->n == 1;
    exec_run(x, is_one ? &op->one : &op->many, &a, div_up(op->w.cols, op->cols),
             is_one ? 1 : div_up(call->n, LINEAR_TURNED_MANY), op->n_stacked);
}
