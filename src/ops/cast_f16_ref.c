/* The reference implementation of cast_f16.h. */
#include "ops/cast_f16.h"
#include "base/f16.h"
#include "ops/ref.h"

int cast_f16_ref(const void *self, const void *what, struct host *h)
{
    const struct cast_f16_call *call = what;
    double *row = host_scratch(h, call->cols, sizeof *row);
    (void)self;
    for (uint32_t t = 0; row && t < call->n; t++) {
        ref_norm(host_floats(call->x) + (uint64_t)t * call->x_stride,
                 call->norm ? host_floats(call->norm) : NULL, call->cols, (double)call->eps, row);
        uint16_t *dst = (uint16_t *)host_at(call->dst) + (uint64_t)t * call->cols;
        for (uint32_t c = 0; c < call->cols; c++)
            dst[call->is_blocked ? cast_f16_place(c) : c] = f16_from_float((float)row[c]);
    }
    return host_error(h);
}
