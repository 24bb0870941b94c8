/* small_floats.h - groups of the formats whose codes are small floats: mxfp4 and mxfp8, whose scales are
 * powers of two, and nvfp4, whose scales are 8-bit floats. There are no biases.
 *
 * The scale that mlx takes is the least one with which no number is too large for the codes, of nvfp4 the
 * nearest to what the largest needs; x / scale is rounded as mlx rounds it. A smaller scale cuts the largest
 * numbers off, and may yet have the smaller squared error. The same bits on every processor. */
#ifndef MOEFLUX_CONVERT_SMALL_FLOATS_H
#define MOEFLUX_CONVERT_SMALL_FLOATS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct format;
struct convert_error;

enum { SMALL_FLOATS_MAX_GROUP = 32 };

/* Whether a format is one of them. */
bool small_floats_take(const struct format *f);

/* Encodes one group. x: [f->group]; dtype: what they were stored as, since mlx rounds the scale to it.
 * search: with the scale near mlx's that has the smallest squared error. codes: format_code_bytes of a group.
 * Adds to `sum` unless it is NULL. False: a number is not finite. */
bool small_floats_encode(const float *x, enum dtype dtype, const struct format *f, bool search,
                         uint8_t *codes, uint8_t *scale, struct convert_error *sum);

#endif
