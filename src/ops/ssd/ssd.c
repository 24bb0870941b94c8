#include "ops/ssd/ssd.h"

#include <string.h>

#include "base/err.h"
#include "exec/host.h"

static const struct op ssd_op = {.name = "ssd", .vulkan = ssd_vulkan, .cpu = ssd_cpu, .reference = ssd_ref};
static const struct op norm_op = {
    .name = "ssd_norm", .vulkan = ssd_norm_vulkan, .cpu = ssd_norm_cpu, .reference = ssd_norm_ref};

int ssd_open(struct ssd *op, struct exec *x, const struct ssd_shape *s, struct moeflux_err *e)
{
    *op = (struct ssd){.shape = *s};
    if (s->n_groups == 0 || s->n_heads == 0 || s->n_heads % s->n_groups || s->conv_kernel < 2 ||
        s->head_dim == 0 || s->state_dim == 0)
        return err_set(e, ERR_UNSUPPORTED, "Mamba-2: %u heads in %u groups, %u taps", s->n_heads, s->n_groups,
                       s->conv_kernel);
    if (!(s->low >= 0 && s->low < s->high))
        return err_set(e, ERR_UNSUPPORTED, "Mamba-2: time steps from %g to %g", (double)s->low,
                       (double)s->high);
    return exec_get_caps(x).is_host ? 0 : ssd_vulkan_open(op, x, e);
}

uint64_t ssd_scratch(const struct ssd_shape *s, const struct exec_caps *caps, uint32_t n)
{
    return caps->is_native ? ssd_cpu_scratch(s, n) : 0;
}

void ssd_host_state(const struct ssd_shape *s, const struct ssd_call *call)
{
    if (call->state_out != call->state)
        memcpy(host_floats_mut(call->state_out), host_floats(call->state),
               (uint64_t)s->n_heads * s->head_dim * s->state_dim * sizeof(float));
}

void ssd_run(const struct ssd *op, struct exec *x, const struct ssd_call *call)
{
    exec_op(x, &ssd_op, op, call);
}

void ssd_run_concurrent(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        ssd_vulkan_concurrent(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            exec_concurrent(x);
        ssd_run(op, x, &calls[i]);
    }
}

void ssd_run_chain(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        ssd_vulkan_chain(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        ssd_run(op, x, &calls[i]);
}

void ssd_norm_run(const struct ssd *op, struct exec *x, const struct ssd_norm_call *call)
{
    exec_op(x, &norm_op, op, call);
}
