/* real.h - sine, cosine, power, exponential and logarithm in double, the same bits on every processor with a
 * fused multiply-add.
 *
 * For the tables that every result depends on: libm's functions round differently from one system to the
 * next. These are SLEEF's deterministic ones, with errors of at most 1 unit in the last place. */
#ifndef MOEFLUX_BASE_REAL_H
#define MOEFLUX_BASE_REAL_H

#include <stdbool.h>

double real_sin(double x);
double real_cos(double x);
double real_pow(double x, double y);
double real_log(double x);
double real_exp(double x);

/* False: this processor has no fused multiply-add. The results are as good, but some round differently. */
bool real_has_common_bits(void);

#endif
