/* matvec_transposed.h - products with a stack of transposed matrices, each stored by rows with its groups
 * along them:
 *   y[t][h * y_step + c] = sum_r W[h * step + r][c] x[t][h * x_step + r],   r < rows, c < cols, h < n_stacked
 * The stack may be one of linear.h, too. Any number of tokens is computed in float32. Plain matrices may have
 * any number of rows and columns; a GPU takes a slow path unless they are multiples of 4 and of
 * PRODUCT_COLS. */
#ifndef MOEFLUX_OPS_MATVEC_TRANSPOSED_MATVEC_TRANSPOSED_H
#define MOEFLUX_OPS_MATVEC_TRANSPOSED_MATVEC_TRANSPOSED_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/weights.h"

struct matvec_transposed {
    struct weights w; /* the first matrix */
    uint32_t n_stacked, step;
    struct {                        /* vulkan */
        struct kernel one, several; /* one token a workgroup, several */
        uint32_t cols, tokens;      /* columns of a workgroup; tokens of one of `several` */
    } gpu;
};

struct matvec_transposed_call {
    uint64_t x, y;                               /* addresses: f32 [n][x_stride], [n][y_stride] */
    uint32_t x_stride, y_stride, x_step, y_step; /* x's are multiples of 4, except on the slow path */
    uint32_t n;
};

/* Opens the operation; there is no close. ERR_UNSUPPORTED: weights_check's reasons, or a quantised matrix
 * whose rows are not a multiple of 4. */
int matvec_transposed_open(struct matvec_transposed *op, struct exec *x, const struct weights *w,
                           uint32_t n_stacked, uint32_t step, struct moeflux_err *e);
void matvec_transposed_run(const struct matvec_transposed *op, struct exec *x,
                           const struct matvec_transposed_call *call);

/* The implementations. */
int matvec_transposed_vulkan_open(struct matvec_transposed *op, struct exec *x, struct moeflux_err *e);
void matvec_transposed_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn matvec_transposed_cpu, matvec_transposed_ref;

#endif
