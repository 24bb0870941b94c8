/* head_gate.h - multiplies the outputs of attention's heads by a gate each:
 *   x[t][h][c] *= sigmoid(gate[t][h]) */
#ifndef MOEFLUX_OPS_HEAD_GATE_H
#define MOEFLUX_OPS_HEAD_GATE_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct head_gate {
    struct { /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct head_gate_call {
    uint64_t x;    /* f32 [n][n_heads * dim], in place */
    uint64_t gate; /* f32 [n][stride] */
    uint32_t n, n_heads, dim, stride;
};

int head_gate_open(struct head_gate *op, struct exec *x, struct moeflux_err *e);
void head_gate_run(const struct head_gate *op, struct exec *x, const struct head_gate_call *call);

/* The implementations. */
void head_gate_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn head_gate_cpu, head_gate_ref;

#endif
