/* The reference implementation of add.h. */
#include "exec/host.h"
#include "ops/add.h"

int add_ref(const void *self, const void *what, struct host *h)
{
    const struct add_call *call = what;
    const float *y = host_floats(call->y);
    float *x = host_floats_mut(call->x);
    (void)self;
    for (uint32_t i = 0; i < call->n; i++)
        x[i] = (call->sets ? 0 : x[i]) + y[call->every ? i % call->every : i];
    return host_error(h);
}
