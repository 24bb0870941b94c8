/* swiglu.h - the activation between the two products of a dense feed-forward part: dst[t] = silu(gate[t]) *
 * up[t], or with GELU or a limit as in experts/experts.h. inner is a multiple of 4. */
#ifndef MOEFLUX_OPS_SWIGLU_H
#define MOEFLUX_OPS_SWIGLU_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct swiglu {
    float limit; /* LIMIT_GELU: GELU; 0: none */
    struct {     /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct swiglu_call {
    uint64_t src; /* f32 [n][2 * inner], gate then up; aligned to 16 bytes, like dst */
    uint64_t dst; /* f32 [n][inner] */
    uint32_t n, inner;
};

int swiglu_open(struct swiglu *op, struct exec *x, float limit, struct moeflux_err *e);
void swiglu_run(const struct swiglu *op, struct exec *x, const struct swiglu_call *call);

/* The implementations. */
void swiglu_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn swiglu_cpu, swiglu_ref;

#endif
