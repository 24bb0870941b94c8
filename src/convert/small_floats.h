/* small_floats.h - encodes groups in the formats whose codes are small floats: mxfp4 and mxfp8, whose scales
 * are powers of two, and nvfp4, whose scales are 8-bit floats. None has biases.
 *
 * mlx takes the smallest scale with which no number exceeds the codes' range (nvfp4: the scale nearest to
 * that), and rounds x / scale. A smaller scale clips the largest numbers and may still have the smaller
 * squared error. The result is bit-identical on every processor. */
#ifndef MOEFLUX_CONVERT_SMALL_FLOATS_H
#define MOEFLUX_CONVERT_SMALL_FLOATS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct format;
struct convert_error;

enum { SMALL_FLOATS_MAX_GROUP = 32 };

/* Returns whether a format is one of them. */
bool small_floats_take(const struct format *f);

/* Encodes one group. x: [f->group]; dtype: their dtype in the source, to which mlx rounds the scale. search:
 * uses the scale near mlx's with the smallest squared error. codes: format_code_bytes of a group. Adds the
 * errors to `sum` unless it is NULL. Returns false if a number is not finite. */
bool small_floats_encode(const float *x, enum dtype dtype, const struct format *f, bool search,
                         uint8_t *codes, uint8_t *scale, struct convert_error *sum);

#endif
