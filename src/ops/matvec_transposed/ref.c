/* The reference implementation of matvec_transposed.h. */
#include <string.h>

#include "ops/matvec_transposed/matvec_transposed.h"
#include "ops/ref.h"

/* Computes matrix h. Scratch: sums [n][cols], row [cols]. */
static void ref_matrix(const struct matvec_transposed *op, const struct matvec_transposed_call *c, uint32_t h,
                       double *sums, double *row)
{
    uint32_t cols = op->w.cols;
    const float *x = host_floats(c->x) + (uint64_t)h * c->x_step;
    float *y = host_floats_mut(c->y) + (uint64_t)h * c->y_step;
    memset(sums, 0, (size_t)c->n * cols * sizeof *sums);
    for (uint32_t r = 0; r < op->w.rows; r++) {
        ref_row(&op->w, h * op->step + r, row);
        for (uint32_t t = 0; t < c->n; t++)
            for (uint32_t i = 0; i < cols; i++)
                sums[(uint64_t)t * cols + i] += row[i] * (double)x[(uint64_t)t * c->x_stride + r];
    }
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t i = 0; i < cols; i++)
            y[(uint64_t)t * c->y_stride + i] = (float)sums[(uint64_t)t * cols + i];
}

int matvec_transposed_ref(const void *self, const void *what, struct host *host)
{
    const struct matvec_transposed *op = self;
    const struct matvec_transposed_call *call = what;
    double *sums = host_scratch(host, (uint64_t)call->n * op->w.cols, sizeof *sums);
    double *row = host_scratch(host, op->w.cols, sizeof *row);
    for (uint32_t h = 0; sums && row && h < op->n_stacked; h++)
        ref_matrix(op, call, h, sums, row);
    return host_error(host);
}
