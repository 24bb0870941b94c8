/* The reference implementation of linear.h. */
#include <math.h>
#include <stddef.h>

#include "ops/linear/linear.h"
#include "ops/ref.h"

/* Computes segment i of the h-th matrix that takes part of the stack. first: outputs of the segments
 * before. */
static void ref_segment(const struct linear *op, const struct linear_call *c, uint32_t i, uint32_t h,
                        uint32_t first, const double *in, double *row)
{
    uint32_t top = (c->first_stacked + h) * op->step;
    for (uint32_t r = 0; r < op->w[i].rows; r++) {
        ref_row(&op->w[i], top + r, row);
        for (uint32_t t = 0; t < c->n; t++) {
            float *y =
                host_floats_mut(c->y) + (uint64_t)t * c->y_stride + (uint64_t)h * c->y_step + first + r;
            double sum = ref_dot(row, in + (uint64_t)t * op->cols, op->cols);
            *y = (float)(c->add ? (double)*y + sum : sum);
        }
    }
}

/* Applies the norms that heads still lack. */
static void ref_heads(const struct linear_call *c, uint32_t cols, double *in)
{
    const float *squares = host_floats(c->squares);
    for (uint32_t i = 0; i < cols; i++) {
        const float *s = squares + (size_t)(i / c->head_dim) * HEAD_SQUARES;
        double sum = 0;
        for (uint32_t k = 0; k < HEAD_SQUARES; k++)
            sum += (double)s[k];
        in[i] /= sqrt(sum / c->head_dim + (double)c->eps);
    }
}

int linear_ref(const void *self, const void *what, struct host *host)
{
    const struct linear *op = self;
    const struct linear_call *c = what;
    uint32_t n_stacked = c->n_stacked ? c->n_stacked : op->n_stacked;
    double *in = host_scratch(host, (uint64_t)c->n * op->cols, sizeof *in);
    double *row = host_scratch(host, op->cols, sizeof *row);
    for (uint32_t h = 0; in && row && h < n_stacked; h++) {
        uint32_t first = 0;
        for (uint32_t t = 0; t < c->n; t++)
            ref_norm(host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * c->x_step,
                     c->norm ? host_floats(c->norm) : NULL, op->cols, (double)c->eps,
                     in + (uint64_t)t * op->cols);
        if (c->squares)
            ref_heads(c, op->cols, in);
        for (uint32_t i = 0; i < op->n_segments; first += op->w[i++].rows)
            ref_segment(op, c, i, h, first, in, row);
    }
    return host_error(host);
}
