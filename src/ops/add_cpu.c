/* The native implementation of add.h. */
#include <string.h>

#include "ops/add.h"
#include "ops/loops.h"

int add_cpu(const void *self, const void *what, struct host *h)
{
    const struct add_call *call = what;
    (void)self;
    uint32_t n = call->every ? call->every : call->n;
    if (call->sets)
        memset(host_floats_mut(call->x), 0, call->n * sizeof(float));
    for (uint32_t i = 0; i < call->n; i += n)
        loops_of(h)->add_scaled(host_floats_mut(call->x) + i, host_floats(call->y), 1, n);
    return host_error(h);
}
