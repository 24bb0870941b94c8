/* softcap.h - bounds logits smoothly, in place: x[i] = cap tanh(x[i] / cap). */
#ifndef MOEFLUX_OPS_SOFTCAP_H
#define MOEFLUX_OPS_SOFTCAP_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct softcap {
    float cap; /* > 0 */
    struct {   /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct softcap_call {
    uint64_t x; /* f32 [n] */
    uint32_t n;
};

int softcap_open(struct softcap *op, struct exec *x, float cap, struct moeflux_err *e);
void softcap_run(const struct softcap *op, struct exec *x, const struct softcap_call *call);

/* The implementations. */
void softcap_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn softcap_cpu, softcap_ref;

#endif
