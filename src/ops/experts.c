#include "ops/experts.h"

#include "base/err.h"

static const struct op up_op = {
    .name = "experts_up", .vulkan = experts_up_vulkan, .reference = experts_up_ref};
static const struct op down_op = {
    .name = "experts_down", .vulkan = experts_down_vulkan, .reference = experts_down_ref};

int experts_open(struct experts *op, struct exec *x, const struct experts_shape *s, struct moeflux_err *e)
{
    *op = (struct experts){.shape = *s, .gpu.grouped.from = UINT32_MAX};
    if (s->hidden % 64 || s->inner % 64 || s->inner == 0 || s->hidden == 0)
        return err_set(e, ERR_UNSUPPORTED, "experts: hidden %u and inner %u, expected multiples of 64",
                       s->hidden, s->inner);
    return exec_get_caps(x).is_host ? 0 : experts_vulkan_open(op, x, e);
}

uint64_t experts_scratch(const struct experts_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t shared_inner)
{
    return caps->is_host ? 0 : experts_grouped_scratch(s, n, shared_inner);
}

bool experts_takes_waves(const struct experts *op, uint32_t chunk)
{
    return chunk >= op->gpu.grouped.from;
}

void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    exec_op(x, &up_op, op, call);
}

void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    exec_op(x, &down_op, op, call);
}
