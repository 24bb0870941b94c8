/* log_sum.h - the logarithm of a softmax's denominator. */
#ifndef MOEFLUX_BASE_LOG_SUM_H
#define MOEFLUX_BASE_LOG_SUM_H

#include <stdint.h>

/* Returns the logarithm of the sum of the exponentials of row [n]. */
double log_sum(const float *row, uint32_t n);

#endif
