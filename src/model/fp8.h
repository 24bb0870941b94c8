/* fp8.h - reads checkpoints with 8-bit floats: F8_E4M3 weights [rows][cols] with one scale per block.
 *
 * value(r, c) = e4m3(r, c) * scale[r / block rows][c / block cols], in float32, rounded to BF16, as
 * DeepSeek's own tool does. The scales are NAME_scale_inv or NAME_scale of a weight NAME; all shards of an
 * n-gram table (table.h) may have one. A single number is the scale of all weights, a column of them has one
 * of each row. e4m3 (the "fn" form): 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, 0x7f
 * and 0xff are NaN, the largest value is 448. https://arxiv.org/abs/2209.05433 */
#ifndef MOEFLUX_MODEL_FP8_H
#define MOEFLUX_MODEL_FP8_H

#include "model/model.h"

struct moeflux_err;

/* Finds the scales of the F8_E4M3 matrix `w` and checks their shape, by m->fp8 if they have blocks.
 * ERR_FORMAT, ERR_UNSUPPORTED. */
int fp8_scales(const struct model_dir *m, const struct tensor *w, const struct tensor **out,
               struct moeflux_err *e);
/* Returns the blocks of a matrix [rows][cols] with these scales. */
struct fp8_blocks fp8_blocks_of(const struct model_dir *m, uint32_t rows, uint32_t cols,
                                const struct tensor *scales);
/* Returns whether a tensor is the scales of a matrix of 8-bit floats. */
bool fp8_is_scales(const struct tensor *t);
/* Fills in the value of each code. */
void fp8_values(float values[256]);
/* Decodes the n codes of a row to float32, which is not rounded to BF16. scales: those of the row, one of
 * `block` columns, of the type `scale` (SCALE_*). A NaN code gives NaN. */
void fp8_decode(const uint8_t *codes, const float values[256], const uint8_t *scales, uint32_t scale,
                uint32_t block, uint64_t n, float *out);

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
