/* linear.h - products of matrices that share an input, fused into one:
 *   y[t] = [W_0; W_1; ...] f(x[t]),  f(x) = x, or rms(x) * norm = x / sqrt(mean(x^2) + eps) * norm
 * Each W_i [rows_i][cols] has its own storage format; where cols is no multiple of PRODUCT_COLS all are
 * plain, and a GPU takes a slow path. The outputs stand one after the other in a row of y. With `add` the
 * result is added to y: the residual connection.
 *
 * A stack is a matrix W whose parts meet different vectors of a token; step >= rows from one part to the
 * next:
 *   y[t][h * y_step + r] = sum_c W[h * step + r][c] x[t][h * x_step + c],   r < rows
 * A call may take some of the stack: its first matrix meets x[t] and gives y[t] from their starts on. */
#ifndef MOEFLUX_OPS_LINEAR_LINEAR_H
#define MOEFLUX_OPS_LINEAR_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"
#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/cast_f16.h"
#include "ops/weights.h"

/* Which kernel a Vulkan device takes, by the number of tokens: kernels/linear/decode_token.comp or, where it
 * does not suit, kernels/linear/decode.comp for one token (gemv), two, and four at a time of up to
 * EXEC_MAX_INVARIANT, each of which gets the bits that it gets alone; kernels/linear/decode.comp or, where
 * rows are few, kernels/linear/prefill_split.comp for four at a time of some more,
 * kernels/linear/prefill.comp (gemm) for many. The last five multiply float16 numbers, which
 * kernels/cast_f16.comp makes of their input first. */
enum linear_path {
    LINEAR_GEMV,
    LINEAR_GEMV_TWO,
    LINEAR_GEMV_FEW,
    LINEAR_GEMV_SOME,
    LINEAR_SPLIT,
    LINEAR_GEMM,
    LINEAR_GEMM_LARGE,
    LINEAR_F16_GEMM_SMALL,
    LINEAR_F16_REGISTERS, /* kernels/lib/gemm_frag.glsl */
    LINEAR_F16_GEMM,
    LINEAR_F16_GEMM_LARGE,
    LINEAR_F16_REGISTERS_LARGE,
    LINEAR_PATHS
};

/* The dispatch of one path. */
struct linear_plan {
    struct kernel kernel;
    uint32_t blocks;                                /* of rows */
    uint32_t later_blocks[LINEAR_MAX_SEGMENTS - 1]; /* see linear_args */
    uint32_t tokens;                                /* of a workgroup */
};

/* Neighbouring matrices that kernels take together: of the usual formats, or of one other. */
struct linear_part {
    struct linear_plan paths[LINEAR_PATHS];
    uint32_t first, n;  /* segments */
    uint32_t row, rows; /* of the output */
    uint64_t segments;  /* the paths' tables, one behind the other */
    /* Of those before LINEAR_GEMV_SOME where kernels/linear/decode_token.comp is their kernel: all but the
     * call's part. base 0: it is not. */
    struct linear_decode_token_args token[LINEAR_GEMV_SOME];
    bool is_long; /* it is kernels/linear/decode_long.comp, with the same arguments */
    struct kernel heads[LINEAR_GEMV_SOME]; /* the same for calls with squares, where head_dim is set */
};

struct linear_vulkan {
    struct linear_part parts[LINEAR_MAX_SEGMENTS];
    uint32_t n_parts;
    uint32_t head_dim;           /* of calls with squares; 0: they are not expected */
    uint32_t from[LINEAR_PATHS]; /* the fewest tokens of each path; UINT32_MAX: the device has it not */
    struct cast_f16 cast;
    struct exec_buffer segments; /* the parts' tables */
};

struct linear {
    struct weights w[LINEAR_MAX_SEGMENTS]; /* of a stack its first matrix */
    uint32_t n_segments, cols, rows; /* rows: of all segments together, in a stack of one of its matrices */
    uint32_t n_stacked, step;
    uint32_t f16_from; /* tokens from which on products may go through float16; UINT32_MAX: never */
    struct linear_vulkan gpu;
};

struct linear_call {
    uint64_t x, norm, y; /* addresses: f32 [n][x_stride]; f32 [cols] or 0; f32 [n][y_stride] */
    uint32_t x_stride, y_stride, n;
    /* of a stack; 0: all meet one vector. x, x_stride and x_step are multiples of 4 floats unless the path is
     * the slow one */
    uint32_t x_step, y_step;
    uint32_t first_stacked, n_stacked; /* of a stack: which; n_stacked 0: all */
    uint32_t chunk; /* where the call is a part of a chunk: its tokens, which choose the path; 0: n does */
    bool add;
    float eps; /* of the norm */
    /* f32 [n][cols / head_dim][HEAD_SQUARES]: x is made of heads of head_dim channels that lack the factor of
     * their norm, f = 1 / sqrt(sum of the head's squares / head_dim + eps). Where linear_takes_squares,
     * without norm. 0: none */
    uint64_t squares;
    uint32_t head_dim;
    /* f16 [n][cols], of a stack [n][n_stacked * x_step]: products may go through float16 where the device is
     * fast at it. 0: float32 throughout */
    uint64_t f16_scratch;
    /* f16_scratch has x in float16 already, blocked (cast_f16.h) where linear_takes_blocked; without norm */
    bool is_cast;
    /* x and y are f16, x aligned to 16 bytes; only where linear_takes_f16(n), and without norm and add */
    bool is_f16;
};

/* 1 to LINEAR_MAX_SEGMENTS matrices with equal cols. ERR_UNSUPPORTED names a shape that does not fit. */
int linear_open(struct linear *op, struct exec *x, const struct weights *w, uint32_t n,
                struct moeflux_err *e);
/* A stack: w is the first of n_stacked matrices, each of which begins `step` rows after the one before. */
int linear_open_stack(struct linear *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                      uint32_t step, struct moeflux_err *e);
void linear_close(struct linear *op, struct exec *x);
/* Whether n tokens go through float16 when the call has scratch for it. */
bool linear_takes_f16(const struct linear *op, uint32_t n);
/* And whether its input is blocked then. */
bool linear_takes_blocked(const struct linear *op, uint32_t n);
/* Calls of up to EXEC_MAX_INVARIANT tokens will have squares of such heads, where the device can: then
 * linear_takes_squares says yes. */
int linear_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e);
bool linear_takes_squares(const struct linear *op);
void linear_run(const struct linear *op, struct exec *x, const struct linear_call *call);

/* The implementations. */
int linear_vulkan_open(struct linear *op, struct exec *x, struct moeflux_err *e);
int linear_vulkan_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e);
bool linear_vulkan_takes_blocked(const struct linear *op, uint32_t n);
void linear_vulkan(const void *self, const void *what, struct exec *x);
/* Memory that the native implementation takes by itself for n tokens of so many columns. has_fixed: of the
 * caps. */
uint64_t linear_cpu_host_bytes(uint32_t cols, uint32_t n, bool has_fixed);
op_host_fn linear_cpu, linear_ref;

#endif
