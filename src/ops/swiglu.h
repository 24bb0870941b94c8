/* swiglu.h - the activation between the products of a dense feed-forward part: dst[t] = silu(gate[t]) *
 * up[t], or another one of gating.h. inner is a multiple of 4. */
#ifndef MOEFLUX_OPS_SWIGLU_H
#define MOEFLUX_OPS_SWIGLU_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct swiglu {
    float gating;
    struct { /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct swiglu_call {
    /* f32 [n][2 * inner], gate then up, or without a gate [n][inner]; aligned to 16 bytes, like dst */
    uint64_t src;
    uint64_t dst; /* f32 [n][inner] */
    uint32_t n, inner;
};

int swiglu_open(struct swiglu *op, struct exec *x, float gating, struct moeflux_err *e);
void swiglu_run(const struct swiglu *op, struct exec *x, const struct swiglu_call *call);

/* The implementations. */
void swiglu_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn swiglu_cpu, swiglu_ref;

#endif
