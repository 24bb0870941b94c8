/* quant.h - encodes and decodes MLX's affine formats: value = code * scale + bias. A group of a row's numbers
 * shares one bf16 scale and bias. The codes are a stream of bits (kernels/args.h). A scale may be
 * negative. */
#ifndef MOEFLUX_MODEL_QUANT_H
#define MOEFLUX_MODEL_QUANT_H

#include <stdbool.h>
#include <stdint.h>

struct format;

enum { QUANT_MAX_GROUP = 128 };

/* Quantise n_groups groups in an affine format of at most 8 bits. The codes are computed from the scale and
 * bias as they are stored. codes: n_groups * format_code_bytes(f, f->group) bytes; scales, biases:
 * [n_groups]. Return false if a value, or the scale computed from it, is not finite; the outputs are then
 * undefined. */
bool quant_encode_bf16(const uint16_t *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                       uint16_t *scales, uint16_t *biases);
bool quant_encode_f16(const uint16_t *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                      uint16_t *scales, uint16_t *biases);
bool quant_encode_f32(const float *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                      uint16_t *scales, uint16_t *biases);

/* Computes the values of n_groups groups exactly, with one rounding each. */
void quant_decode(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint64_t n_groups,
                  const struct format *f, float *out);

#endif
