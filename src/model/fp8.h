/* fp8.h - reads checkpoints with 8-bit floats: F8_E4M3 weights [rows][cols] with one scale per block.
 *
 * value(r, c) = e4m3(r, c) * weight_scale_inv[r / block rows][c / block cols], in float32, rounded to BF16,
 * as DeepSeek's own tool does. e4m3 (the "fn" form): 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; no
 * infinities, 0x7f and 0xff are NaN, the largest value is 448. https://arxiv.org/abs/2209.05433 */
#ifndef MOEFLUX_MODEL_FP8_H
#define MOEFLUX_MODEL_FP8_H

#include "model/model.h"

struct moeflux_err;

/* Finds the scales of the F8_E4M3 matrix `w` and checks their shape by m->fp8. ERR_FORMAT,
 * ERR_UNSUPPORTED. */
int fp8_scales(const struct model_dir *m, const struct tensor *w, const struct tensor **out,
               struct moeflux_err *e);

/* Returns the FORMAT_* that holds 8-bit floats [rows][cols] as they are: FORMAT_FP8 or FORMAT_FP8_32, which
 * have a float32 scale for a group of columns in each row. FORMAT_F32: none does, numbers are computed
 * instead. */
uint32_t fp8_format(const struct fp8_blocks *b, uint32_t cols);
/* Returns the bytes that a tensor outside of routed experts takes in memory. A matrix counts with the scales
 * of its groups, so that its own scales count 0. */
uint64_t fp8_memory(const struct model_dir *m, const struct tensor *t);
/* Computes the scales of the groups of fp8_format, f32 [rows][cols / group]. ERR_FORMAT: one is not
 * finite. */
int fp8_read_scales(const struct model_dir *m, const struct tensor *w, float *out, struct moeflux_err *e);
/* Computes all numbers of w as float32, which is not rounded to BF16. ERR_FORMAT: one is not finite. */
int fp8_read_f32(const struct model_dir *m, const struct tensor *w, float *out, struct moeflux_err *e);

/* Reads elements [first, first + n) of the F8_E4M3 matrix `w` as BF16. `out` has room for 4 bytes per
 * element. ERR_FORMAT: a code is NaN, or a scale or value is not finite. */
int fp8_read(const struct model_dir *m, const struct tensor *w, uint64_t first, uint64_t n, void *out,
             struct moeflux_err *e);

#endif
