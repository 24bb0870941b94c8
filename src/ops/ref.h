/* ref.h - what the reference implementations share: plain loops, double sums. */
#ifndef MOEFLUX_OPS_REF_H
#define MOEFLUX_OPS_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/host.h"
#include "ops/weights.h"

/* Writes row `row` of a matrix as `cols` doubles. This is exact: q * scale + bias has one float32 value. */
void ref_row(const struct weights *w, uint32_t row, double *out);
/* Returns sum a[i] * b[i]. */
double ref_dot(const double *a, const double *b, uint32_t n);
/* out[c] = x[c] * norm[c] / sqrt(mean(x^2) + eps); norm NULL: out = x. */
void ref_norm(const float *x, const float *norm, uint32_t n, double eps, double *out);
/* out[c] = x[c] / sqrt(mean(x^2) + eps); out may be x. */
void ref_unit(const double *x, uint32_t n, double eps, double *out);
double ref_sigmoid(double x);
/* Returns log(1 + exp(x)). */
double ref_softplus(double x);
double ref_silu(double x);
/* Returns GELU in its approximation by tanh. */
double ref_gelu(double x);

#endif
