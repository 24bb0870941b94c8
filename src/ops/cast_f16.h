/* cast_f16.h - rounds vectors to float16 for products that take their inputs in float16:
 *   dst[t] = x[t], or rms(x[t]) * norm = x[t] / sqrt(mean(x[t]^2) + eps) * norm
 * Values beyond +-65504 become +-65504. */
#ifndef MOEFLUX_OPS_CAST_F16_H
#define MOEFLUX_OPS_CAST_F16_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct cast_f16 {
    struct kernel kernel, blocked; /* vulkan */
};

struct cast_f16_call {
    uint64_t x, norm;           /* f32 [n][x_stride], f32 [cols] or 0; aligned to 16 bytes */
    uint64_t dst;               /* f16 [n][cols] */
    uint32_t n, cols, x_stride; /* cols and x_stride are multiples of 4 */
    float eps;
    bool is_blocked; /* each 128 columns are in the order of cast_f16_place; needs cols % 128 == 0 */
};

/* Returns where column c stands in a blocked row. Of each 128 columns the groups of eight 0, 4, 8, 12 come
 * first, then 1, 5, 9, 13 and so on; each group is in the order 0, 4, 1, 5, 2, 6, 3, 7.
 * kernels/lib/gemm_frag.glsl reads this order. */
static inline uint32_t cast_f16_place(uint32_t c)
{
    return (c & ~127u) | (c >> 3 & 3u) << 5 | (c >> 5 & 3u) << 3 | (c & 3u) << 1 | (c >> 2 & 1u);
}

int cast_f16_open(struct cast_f16 *op, struct exec *x, struct moeflux_err *e);
void cast_f16_run(const struct cast_f16 *op, struct exec *x, const struct cast_f16_call *call);

/* The implementations. */
void cast_f16_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn cast_f16_cpu, cast_f16_ref;

#endif
