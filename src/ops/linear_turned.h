/* linear_turned.h - products with a stack of matrices from the left, each matrix stored by rows and its groups along them:
 *   y[t][h * y_step + c] = sum_r W[h * step + r][c] x[t][h * x_step + r],   r < rows, c < cols, h < n_stacked
 * The stack may be one of linear.h, too. Every number of tokens goes through float32. Plain matrices may have any number of
 * rows and columns; the product is a slow one where these are no multiples of 4 and 64. */
#ifndef MOEFLUX_OPS_LINEAR_TURNED_H
#define MOEFLUX_OPS_LINEAR_TURNED_H

#include <stdint.h>

#include "ops/exec.h"
#include "ops/matvec.h"

struct err;

struct linear_turned {
    struct kernel one, many; /* tokens in a workgroup: 1, LINEAR_TURNED_MANY */
    struct weights w;        /* the first matrix */
    uint32_t n_stacked, step;
    uint32_t cols; /* of a workgroup */
};

struct linear_turned_call {
    uint64_t x, y;                               /* addresses: f32 [n][x_stride], [n][y_stride] */
    uint32_t x_stride, y_stride, x_step, y_step; /* x's are multiples of 4 unless the product is a slow one */
    uint32_t n;
};

/* ERR_UNSUPPORTED: a quantised matrix whose rows are no multiple of 4 or its columns none of 64. Nothing is to be closed. */
int linear_turned_open(struct linear_turned *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                       uint32_t step, struct err *e);
void linear_turned_run(const struct linear_turned *op, struct exec *x, const struct linear_turned_call *call);

#endif
