#include "ops/swiglu.h"

#include "args.h"
#include "base/mem.h"

static const struct op swiglu_op = {
    .name = "swiglu", .vulkan = swiglu_vulkan, .cpu = swiglu_cpu, .reference = swiglu_ref};

int swiglu_open(struct swiglu *op, struct exec *x, float limit, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct swiglu){.limit = limit, .gpu.workgroup = (uint32_t)size_min(256, c.max_workgroup)};
    return c.is_host ? 0
                     : exec_kernel(x, &op->gpu.kernel, "swiglu", sizeof(struct swiglu_args),
                                   &op->gpu.workgroup, 1, e);
}

void swiglu_run(const struct swiglu *op, struct exec *x, const struct swiglu_call *call)
{
    exec_op(x, &swiglu_op, op, call);
}

void swiglu_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct swiglu *op = self;
    const struct swiglu_call *call = what;
    const struct swiglu_args a = {
        .src = call->src, .dst = call->dst, .n = call->n, .inner = call->inner, .limit = op->limit};
    exec_dispatch(x, &op->gpu.kernel, &a, div_up(call->inner, 4 * op->gpu.workgroup), call->n, 1);
}
