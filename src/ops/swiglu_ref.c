/* The reference implementation of swiglu.h. */
#include <math.h>

#include "args.h"
#include "ops/experts/experts.h"
#include "ops/ref.h"
#include "ops/swiglu.h"

static double ref_gated(double limit, double g, double u)
{
    if (limit <= 0)
        return ref_silu(g) * u;
    if (limit >= (double)LIMIT_GELU)
        return ref_gelu(g) * u;
    g = fmin(g, limit);
    return g * ref_sigmoid(EXPERTS_ALPHA * g) * (fmax(fmin(u, limit), -limit) + 1);
}

int swiglu_ref(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    double limit = (double)((const struct swiglu *)self)->limit;
    for (uint32_t t = 0; t < call->n; t++) {
        const float *gate = host_floats(call->src) + 2 * (uint64_t)t * call->inner, *up = gate + call->inner;
        float *dst = host_floats_mut(call->dst) + (uint64_t)t * call->inner;
        for (uint32_t c = 0; c < call->inner; c++)
            dst[c] = (float)ref_gated(limit, (double)gate[c], (double)up[c]);
    }
    return host_error(h);
}
