/* real.h - sine, cosine, power, exponential and logarithm in double, the same bits on every processor with a
 * fused multiply-add.
 *
 * They serve the tables that every result depends on, because libm rounds differently on different systems.
 * These are SLEEF's deterministic functions, with errors of at most 1 unit in the last place. */
#ifndef MOEFLUX_BASE_REAL_H
#define MOEFLUX_BASE_REAL_H

#include <stdbool.h>

double real_sin(double x);
double real_cos(double x);
double real_pow(double x, double y);
double real_log(double x);
double real_exp(double x);

/* Returns whether this processor has a fused multiply-add. Without it the results are as exact, but some
 * round differently. */
bool real_has_common_bits(void);

#endif
