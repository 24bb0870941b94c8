/* normed_add.h - adds a part's normed output to the residual, or keeps it for a later call:
 *   z = rms(y[t]) * norm + add[t];  z = rms(z) * outer;  dst[t] = (base[t] + z) * factor
 * add, outer, base and factor may be absent. */
#ifndef MOEFLUX_OPS_NORMED_ADD_H
#define MOEFLUX_OPS_NORMED_ADD_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct normed_add {
    uint32_t cols; /* a multiple of 4 */
    float eps;
    struct kernel kernel; /* vulkan */
};

/* Addresses are multiples of 16, except that of factor. */
struct normed_add_call {
    uint64_t y;         /* f32 [n][cols] */
    uint64_t norm;      /* f32 [cols] */
    uint64_t add, base; /* f32 [n][cols]; 0: absent */
    uint64_t outer;     /* f32 [cols]; 0: absent */
    uint64_t factor;    /* f32 [1]; 0: absent */
    uint64_t dst;       /* f32 [n][cols]; may be base */
    uint32_t n;
};

int normed_add_open(struct normed_add *op, struct exec *x, uint32_t cols, float eps, struct moeflux_err *e);
void normed_add_run(const struct normed_add *op, struct exec *x, const struct normed_add_call *call);

/* The implementations. */
void normed_add_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn normed_add_cpu, normed_add_ref;

#endif
