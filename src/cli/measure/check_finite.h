/* check_finite.h - refuses NaN and infinities, which a computation that overflowed gives. ERR_DEVICE names
 * the place and value of the first one. */
#ifndef MOEFLUX_CLI_MEASURE_CHECK_FINITE_H
#define MOEFLUX_CLI_MEASURE_CHECK_FINITE_H

#include <stdint.h>

struct moeflux_err;

/* Checks the logits [n] after the token at position `pos`. */
int check_finite_logits(const float *row, uint32_t n, uint32_t pos, struct moeflux_err *e);

/* Checks hidden states [n][width] of `layer` for the positions from `pos` on. */
int check_finite_hidden(const float *rows, uint32_t n, uint32_t width, uint32_t layer, uint32_t pos,
                        struct moeflux_err *e);

#endif
