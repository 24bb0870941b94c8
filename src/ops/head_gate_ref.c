/* The reference implementation of head_gate.h. */
#include "ops/head_gate.h"
#include "ops/ref.h"

int head_gate_ref(const void *self, const void *what, struct host *h)
{
    const struct head_gate_call *c = what;
    uint64_t width = (uint64_t)c->n_heads * c->dim;
    (void)self;
    for (uint32_t t = 0; t < c->n; t++)
        for (uint64_t i = 0; i < width; i++) {
            double gate = (double)host_floats(c->gate)[(uint64_t)t * c->stride + i / c->dim];
            float *x = host_floats_mut(c->x) + t * width + i;
            *x = (float)((double)*x * ref_sigmoid(gate));
        }
    return host_error(h);
}
