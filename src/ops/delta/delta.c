#include "ops/delta/delta.h"

#include <string.h>

#include "base/err.h"
#include "exec/host.h"

static const struct op delta_op = {
    .name = "delta", .vulkan = delta_vulkan, .cpu = delta_cpu, .reference = delta_ref};

int delta_open(struct delta *op, struct exec *x, const struct delta_shape *s, struct moeflux_err *e)
{
    *op = (struct delta){.shape = *s};
    if (s->n_k == 0 || s->n_v % s->n_k || s->conv_kernel < 2 || s->k_dim == 0 || s->v_dim == 0)
        return err_set(e, ERR_UNSUPPORTED, "delta net: %u value heads over %u key heads, %u taps", s->n_v,
                       s->n_k, s->conv_kernel);
    if (s->lower < 0 && !s->by_channel)
        return err_set(e, ERR_UNSUPPORTED, "delta net: a bound of decays, expected decays by channel");
    return exec_get_caps(x).is_host ? 0 : delta_vulkan_open(op, x, e);
}

bool delta_gives_squares(const struct delta *op, const struct exec *x, uint32_t n)
{
    return n == 1 && !exec_get_caps(x).is_host && op->gpu.has_shared;
}

bool delta_gives_f16(const struct delta *op, const struct exec *x, uint32_t n)
{
    return !exec_get_caps(x).is_host && n >= op->gpu.scan_from && op->shape.v_dim % 8 == 0;
}

void delta_host_state(const struct delta_shape *s, const struct delta_call *call)
{
    if (call->state_out != call->state)
        memcpy(host_floats_mut(call->state_out), host_floats(call->state),
               (uint64_t)s->n_v * s->v_dim * s->k_dim * sizeof(float));
}

void delta_run(const struct delta *op, struct exec *x, const struct delta_call *call)
{
    exec_op(x, &delta_op, op, call);
}

void delta_run_concurrent(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        delta_vulkan_concurrent(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            exec_concurrent(x);
        delta_run(op, x, &calls[i]);
    }
}

void delta_run_chain(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        delta_vulkan_chain(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        delta_run(op, x, &calls[i]);
}
