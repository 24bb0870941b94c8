/* linear_turned.h - products with a stack of matrices from the left, each matrix stored by rows and its groups along them:
 *   y[t][h * y_step + c] = sum_r W[h * step + r][c] x[t][h * x_step + r],   r < rows, c < cols, h < n_stacked
 * The stack may be one of linear.h, too. Every number of tokens goes through float32. */
#ifndef MOEFLUX_OPS_LINEAR_TURNED_H
#define MOEFLUX_OPS_LINEAR_TURNED_H

#include <stdint.h>

#include "ops/exec.h"
#include "ops/matvec.h"

struct moeflux_err;

struct linear_turned {
    struct kernel one, many; /* tokens in a workgroup: 1, LINEAR_TURNED_MANY */
    struct weights w;        /* the first matrix */
    uint32_t n_stacked, step;
    uint32_t lanes; /* of a workgroup, with eight columns each; the others share them */
};

struct linear_turned_call {
    uint64_t x, y;                               /* addresses: f32 [n][x_stride], [n][y_stride] */
    uint32_t x_stride, y_stride, x_step, y_step; /* x's are multiples of 4 */
    uint32_t n;
};

/* ERR_UNSUPPORTED unless the rows are a multiple of 4 and the columns one of 64. Nothing is to be closed. */
int linear_turned_open(struct linear_turned *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                       uint32_t step, struct moeflux_err *e);
void linear_turned_run(const struct linear_turned *op, struct exec *x, const struct linear_turned_call *call);

#endif
