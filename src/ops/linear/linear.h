/* linear.h - products of matrices that share an input, fused into one:
 *   y[t] = [W_0; W_1; ...] f(x[t]),  f(x) = x, or rms(x) * norm = x / sqrt(mean(x^2) + eps) * norm
 * Each W_i [rows_i][cols] has its own storage format. If cols is not a multiple of PRODUCT_COLS, all are
 * plain, and a GPU takes a slow path. The outputs are contiguous in a row of y. With `add` the result is
 * added to y: the residual connection.
 *
 * A stack is a matrix W whose parts meet different vectors of a token; step >= rows is the distance between
 * the parts:
 *   y[t][h * y_step + r] = sum_c W[h * step + r][c] x[t][h * x_step + c],   r < rows
 * A call may take a part of the stack: its first matrix meets x[t] and gives y[t], both from their
 * beginning. */
#ifndef MOEFLUX_OPS_LINEAR_LINEAR_H
#define MOEFLUX_OPS_LINEAR_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"
#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/cast_f16.h"
#include "ops/weights.h"

/* The kernel that a Vulkan device takes, by the number of tokens:
 *   GEMV                one token: kernels/linear/decode_token.comp or, if that does not suit,
 *                       kernels/linear/decode.comp
 *   GEMV_TWO, _FEW      up to EXEC_MAX_INVARIANT tokens, two or four at a time, by the same kernels;
 *                       batch-invariant
 *   GEMV_SOME, SPLIT    some more, four at a time: kernels/linear/decode.comp or, if there are few rows,
 *                       kernels/linear/prefill_split.comp
 *   GEMM, F16_...       many: kernels/linear/prefill.comp, F16_... on inputs that kernels/cast_f16.comp has
 *                       rounded to float16 */
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
    uint32_t blocks;                                /* blocks of rows */
    uint32_t later_blocks[LINEAR_MAX_SEGMENTS - 1]; /* see linear_args */
    uint32_t tokens;                                /* tokens of a workgroup */
};

/* Neighbouring matrices that one kernel takes in one dispatch: all in basic formats, or in one extended or
 * block format. */
struct linear_part {
    struct linear_plan paths[LINEAR_PATHS];
    uint32_t first, n;  /* segments */
    uint32_t row, rows; /* rows of the output */
    uint64_t segments;  /* the paths' tables, contiguous */
    /* Arguments of the paths before LINEAR_GEMV_SOME that use kernels/linear/decode_token.comp, except the
     * call's own. base 0: the path does not use it. */
    struct linear_decode_token_args token[LINEAR_GEMV_SOME];
    bool is_long; /* the kernel is kernels/linear/decode_long.comp, with the same arguments */
    struct kernel heads[LINEAR_GEMV_SOME]; /* the same for calls with squares; open if head_dim is set */
};

struct linear_vulkan {
    struct linear_part parts[LINEAR_MAX_SEGMENTS];
    uint32_t n_parts;
    uint32_t head_dim;           /* head_dim of calls with squares; 0: none are expected */
    uint32_t from[LINEAR_PATHS]; /* fewest tokens of each path; UINT32_MAX: not on this device */
    struct cast_f16 cast;
    struct exec_buffer segments; /* the parts' tables */
};

struct linear {
    struct weights w[LINEAR_MAX_SEGMENTS]; /* a stack: its first matrix */
    uint32_t n_segments, cols, rows;       /* rows: of all segments; a stack: of one matrix */
    uint32_t n_stacked, step;
    uint32_t f16_from; /* fewest tokens whose products may be computed in float16; UINT32_MAX: never */
    struct linear_vulkan gpu;
};

struct linear_call {
    uint64_t x, norm, y; /* addresses: f32 [n][x_stride]; f32 [cols] or 0; f32 [n][y_stride] */
    uint32_t x_stride, y_stride, n;
    /* Distances within a stack; 0: all parts meet one vector. x, x_stride and x_step are multiples of 4
     * floats, except on the slow path. */
    uint32_t x_step, y_step;
    uint32_t first_stacked, n_stacked; /* the part of a stack; n_stacked 0: all */
    uint32_t chunk; /* tokens of the chunk that the call is a part of; they choose the path; 0: n does */
    bool add;
    float eps; /* added to the norm's mean */
    /* f32 [n][cols / head_dim][HEAD_SQUARES]: x consists of heads of head_dim channels that lack the factor
     * of their norm, f = 1 / sqrt(sum of the head's squares / head_dim + eps). Only if linear_takes_squares,
     * and without norm. 0: x is complete */
    uint64_t squares;
    uint32_t head_dim;
    /* f16 [n][cols], a stack's [n][n_stacked * x_step]: products may be computed in float16 if the device is
     * fast at it. 0: always float32 */
    uint64_t f16_scratch;
    /* f16_scratch already holds x in float16, blocked (cast_f16.h) if linear_takes_blocked; without norm */
    bool is_cast;
    /* x and y are f16, x aligned to 16 bytes; only if linear_takes_f16(n), without norm and add */
    bool is_f16;
};

/* Opens a product of 1 to LINEAR_MAX_SEGMENTS matrices with equal cols. ERR_UNSUPPORTED names a shape that
 * does not fit. */
int linear_open(struct linear *op, struct exec *x, const struct weights *w, uint32_t n,
                struct moeflux_err *e);
/* Opens a stack: w is the first of n_stacked matrices, which begin `step` rows apart. */
int linear_open_stack(struct linear *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                      uint32_t step, struct moeflux_err *e);
void linear_close(struct linear *op, struct exec *x);
/* Returns whether n tokens are computed in float16 when the call has scratch for it. */
bool linear_takes_f16(const struct linear *op, uint32_t n);
/* Returns whether the float16 input of n tokens is blocked. */
bool linear_takes_blocked(const struct linear *op, uint32_t n);
/* Announces calls of up to EXEC_MAX_INVARIANT tokens with squares of heads of head_dim channels. If the
 * device can take them, linear_takes_squares then returns true. */
int linear_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e);
bool linear_takes_squares(const struct linear *op);
void linear_run(const struct linear *op, struct exec *x, const struct linear_call *call);

/* The implementations. */
int linear_vulkan_open(struct linear *op, struct exec *x, struct moeflux_err *e);
int linear_vulkan_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e);
bool linear_vulkan_takes_blocked(const struct linear *op, uint32_t n);
void linear_vulkan(const void *self, const void *what, struct exec *x);
/* Returns the bytes that the native implementation allocates by itself for n tokens of `cols` columns.
 * has_fixed, has_int16: exec_caps. */
uint64_t linear_cpu_host_bytes(uint32_t cols, uint32_t n, bool has_fixed, bool has_int16);
op_host_fn linear_cpu, linear_ref;

#endif
