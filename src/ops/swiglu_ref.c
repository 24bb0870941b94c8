/* The reference implementation of swiglu.h. */
#include "ops/gating.h"
#include "ops/ref.h"
#include "ops/swiglu.h"

int swiglu_ref(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    float gating = ((const struct swiglu *)self)->gating;
    uint32_t up_at = gating_has_gate(gating) ? call->inner : 0;
    for (uint32_t t = 0; t < call->n; t++) {
        const float *gate = host_floats(call->src) + (uint64_t)t * (call->inner + up_at), *up = gate + up_at;
        float *dst = host_floats_mut(call->dst) + (uint64_t)t * call->inner;
        for (uint32_t c = 0; c < call->inner; c++)
            dst[c] = (float)gating_ref(gating, (double)gate[c], (double)up[c]);
    }
    return host_error(h);
}
