/* fp8.h - checkpoints with 8-bit floats: F8_E4M3 weights [rows][cols], one scale per block of rows x cols.
 *
 * value(r, c) = e4m3(r, c) * weight_scale_inv[r / block rows][c / block cols], in float32, rounded to BF16:
 * what DeepSeek's own tool makes of such a checkpoint. e4m3 (the "fn" form): 1 sign, 4 exponent bits (bias
 * 7), 3 mantissa bits; no infinities, 0x7f and 0xff are NaN, the largest value is 448.
 * https://arxiv.org/abs/2209.05433 */
#ifndef MOEFLUX_MODEL_FP8_H
#define MOEFLUX_MODEL_FP8_H

#include "model/model.h"

struct moeflux_err;

/* Finds the scales of the F8_E4M3 matrix `w` and checks their shape by m->fp8. */
int fp8_scales(const struct model_dir *m, const struct tensor *w, const struct tensor **out,
               struct moeflux_err *e);

/* Reads elements [first, first + n) of the F8_E4M3 matrix `w` as BF16. ERR_FORMAT: a code is NaN, a scale or
 * a value is not finite. `out` has room for 4 bytes an element. */
int fp8_read(const struct model_dir *m, const struct tensor *w, uint64_t first, uint64_t n, void *out,
             struct moeflux_err *e);

#endif
