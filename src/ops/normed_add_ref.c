/* The reference implementation of normed_add.h. */
#include "ops/normed_add.h"
#include "ops/ref.h"

int normed_add_ref(const void *self, const void *what, struct host *h)
{
    const struct normed_add *op = self;
    const struct normed_add_call *call = what;
    uint32_t n = op->cols;
    double *z = host_scratch(h, n, sizeof *z);
    for (uint32_t t = 0; z && t < call->n; t++) {
        uint64_t at = (uint64_t)t * n;
        ref_norm(host_floats(call->y) + at, host_floats(call->norm), n, (double)op->eps, z);
        for (uint32_t i = 0; call->add && i < n; i++)
            z[i] += (double)host_floats(call->add)[at + i];
        if (call->outer)
            ref_unit(z, n, (double)op->eps, z);
        for (uint32_t i = 0; i < n; i++) {
            double v = z[i] * (call->outer ? (double)host_floats(call->outer)[i] : 1);
            v += call->base ? (double)host_floats(call->base)[at + i] : 0;
            host_floats_mut(call->dst)[at + i] =
                (float)(v * (call->factor ? (double)host_floats(call->factor)[0] : 1));
        }
    }
    return host_error(h);
}
