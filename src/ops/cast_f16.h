/* cast_f16.h - vectors rounded to float16, for products that take their inputs so:
 *   dst[t] = x[t], or rms(x[t]) * norm = x[t] / sqrt(mean(x[t]^2) + eps) * norm
 * rounded to float16; what is larger than 65504 in size becomes it. */
#ifndef MOEFLUX_OPS_CAST_F16_H
#define MOEFLUX_OPS_CAST_F16_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct cast_f16 {
    struct kernel kernel; /* vulkan */
};

struct cast_f16_call {
    uint64_t x, norm;           /* f32 [n][x_stride], f32 [cols] or 0; aligned to 16 bytes */
    uint64_t dst;               /* f16 [n][cols] */
    uint32_t n, cols, x_stride; /* cols and x_stride are multiples of 4 */
    float eps;
};

int cast_f16_open(struct cast_f16 *op, struct exec *x, struct moeflux_err *e);
void cast_f16_run(const struct cast_f16 *op, struct exec *x, const struct cast_f16_call *call);

/* The implementations. */
void cast_f16_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn cast_f16_cpu, cast_f16_ref;

#endif
