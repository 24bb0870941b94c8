/* halve.h - vectors rounded to float16, for products that take their inputs so:
 *   dst[t] = x[t], or rms(x[t]) * norm = x[t] / sqrt(mean(x[t]^2) + eps) * norm
 * rounded to float16; what is larger than 65504 in size becomes it. */
#ifndef MOEFLUX_OPS_HALVE_H
#define MOEFLUX_OPS_HALVE_H

#include <stdint.h>

#include "ops/exec.h"

struct halve {
    struct kernel kernel;
};

struct halve_call {
    uint64_t x, norm;           /* f32 [n][x_stride], f32 [cols] or 0; aligned to 16 bytes */
    uint64_t dst;               /* f16 [n][cols] */
    uint32_t n, cols, x_stride; /* cols and x_stride are multiples of 4 */
    float eps;
};

int halve_open(struct halve *op, struct exec *x, struct moeflux_err *e);
void halve_run(const struct halve *op, struct exec *x, const struct halve_call *call);

#endif
