/* packed.h - experts in two of compressed-tensors' forms.
 *
 * "pack-quantized", as Kimi-K2.5 was published. A matrix [rows][cols] is three tensors:
 *   X.weight_packed  I32 [rows][cols / 8]      codes of 4 bits, the first in the lowest bits; a code is q + 8
 *   X.weight_scale   BF16 [rows][cols / group] scales; value = q * scale, q from -8 to 7
 *   X.weight_shape   [2]                       rows and cols
 *
 * The codes are MLX's affine ones: value = code * scale + bias with bias = -8 * scale. A power of two times a
 * BF16 number is a BF16 number. Product and sum are exact in float32, unless 15 * scale is too large for it.
 * So the values are q * scale; only a zero may have another sign.
 *
 * "mxfp4-pack-quantized", as Kimi-K3 was published. The bytes are those of MLX's mxfp4:
 *   X.weight_packed  U8 [rows][cols / 2]       4-bit floats, the first in the lowest bits
 *   X.weight_scale   U8 [rows][cols / 32]      exponents of two, plus 127 */
#ifndef MOEFLUX_MODEL_PACKED_H
#define MOEFLUX_MODEL_PACKED_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct tensor_list;

/* Describes the list's packed experts as MLX's tensors: X.weight, X.scales, and for whole numbers X.biases,
 * which has the bytes of the scales until packed_biases makes them. format: FORMAT_* of the experts.
 * ERR_UNSUPPORTED: a packed matrix that is no expert's, or that has zero points or an order of its columns.
 * ERR_FORMAT: another dtype. */
int packed_adopt(struct tensor_list *l, uint32_t format, const char *where, struct moeflux_err *e);

/* Computes n biases from scales, both BF16. They may be the same memory. Returns false if a scale, or 15
 * times it, is not finite. */
bool packed_biases(const uint8_t *scales, uint64_t n, uint8_t *biases);

#endif
