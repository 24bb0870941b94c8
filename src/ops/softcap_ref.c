/* The reference implementation of softcap.h. */
#include <math.h>

#include "exec/host.h"
#include "ops/softcap.h"

int softcap_ref(const void *self, const void *what, struct host *h)
{
    const struct softcap_call *call = what;
    double cap = (double)((const struct softcap *)self)->cap;
    float *x = host_floats_mut(call->x);
    for (uint32_t i = 0; i < call->n; i++)
        x[i] = (float)(cap * tanh((double)x[i] / cap));
    return host_error(h);
}
