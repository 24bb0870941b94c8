#include "ops/linear/linear.h"

#include <string.h>

#include "base/err.h"

static const struct op linear_op = {
    .name = "linear", .vulkan = linear_vulkan, .cpu = linear_cpu, .reference = linear_ref};

static int check(const struct weights *w, uint32_t n, struct moeflux_err *e)
{
    if (n == 0 || n > LINEAR_MAX_SEGMENTS)
        return err_set(e, ERR_UNSUPPORTED, "linear: %u matrices, expected 1 to %d", n, LINEAR_MAX_SEGMENTS);
    for (uint32_t i = 0; i < n; i++) {
        int rc = weights_check(&w[i], "linear", e);
        if (rc < 0)
            return rc;
        if (w[i].cols != w[0].cols)
            return err_set(e, ERR_UNSUPPORTED, "linear: matrix %u is [%u][%u], expected %u columns", i,
                           w[i].rows, w[i].cols, w[0].cols);
    }
    return 0;
}

static int open_all(struct linear *op, struct exec *x, const struct weights *w, uint32_t n,
                    uint32_t n_stacked, uint32_t step, struct moeflux_err *e)
{
    *op = (struct linear){.n_segments = n, .n_stacked = n_stacked, .step = step, .f16_from = UINT32_MAX};
    int rc = check(w, n, e);
    if (rc < 0)
        return rc;
    memcpy(op->w, w, n * sizeof *w);
    op->cols = w[0].cols;
    for (uint32_t i = 0; i < n; i++)
        op->rows += w[i].rows;
    return exec_get_caps(x).is_host ? 0 : linear_vulkan_open(op, x, e);
}

int linear_open(struct linear *op, struct exec *x, const struct weights *w, uint32_t n, struct moeflux_err *e)
{
    return open_all(op, x, w, n, 1, 0, e);
}

int linear_open_stack(struct linear *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                      uint32_t step, struct moeflux_err *e)
{
    return open_all(op, x, w, 1, n_stacked, step, e);
}

void linear_close(struct linear *op, struct exec *x)
{
    exec_buffer_free(x, &op->gpu.segments);
}

bool linear_takes_f16(const struct linear *op, uint32_t n)
{
    return n >= op->f16_from;
}

bool linear_takes_blocked(const struct linear *op, uint32_t n)
{
    return linear_takes_f16(op, n) && linear_vulkan_takes_blocked(op, n);
}

int linear_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e)
{
    return exec_get_caps(x).is_host ? 0 : linear_vulkan_expect_squares(op, x, head_dim, e);
}

bool linear_takes_squares(const struct linear *op)
{
    return op->gpu.head_dim > 0;
}

void linear_run(const struct linear *op, struct exec *x, const struct linear_call *call)
{
    exec_op(x, &linear_op, op, call);
}
