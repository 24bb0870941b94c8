/* quant.h - MLX affine groups: value = code * scale + bias, one bf16 scale and bias per 64 inputs.
 *
 * Codes as bytes: 4 bits, low nibble first; 8 bits, one a byte. A scale may be negative. */
#ifndef MOEFLUX_MODEL_QUANT_H
#define MOEFLUX_MODEL_QUANT_H

#include <stdbool.h>
#include <stdint.h>

enum { QUANT_GROUP = 64 };

/* Quantises n_groups * 64 values to codes of 4 or 8 bits. The codes are computed from the scale and bias as they are
 * stored. codes: n_groups * 8 * bits bytes; scales, biases: [n_groups].
 * Returns false when a value, or a scale that comes out of it, is not finite; the outputs are then undefined. */
bool quant_encode_bf16(const uint16_t *w, uint64_t n_groups, uint32_t bits, uint8_t *codes, uint16_t *scales,
                       uint16_t *biases);
bool quant_encode_f32(const float *w, uint64_t n_groups, uint32_t bits, uint8_t *codes, uint16_t *scales,
                      uint16_t *biases);

/* The values of n_groups groups: exact, one rounding each. */
void quant_decode(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint64_t n_groups,
                  uint32_t bits, float *out);

#endif
