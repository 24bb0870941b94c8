#include "ops/softcap.h"

#include "args.h"
#include "base/mem.h"

static const struct op softcap_op = {
    .name = "softcap", .vulkan = softcap_vulkan, .cpu = softcap_cpu, .reference = softcap_ref};

int softcap_open(struct softcap *op, struct exec *x, float cap, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct softcap){.cap = cap, .gpu.workgroup = (uint32_t)size_min(256, c.max_workgroup)};
    return c.is_host ? 0
                     : exec_kernel(x, &op->gpu.kernel, "softcap", sizeof(struct softcap_args),
                                   &op->gpu.workgroup, 1, e);
}

void softcap_run(const struct softcap *op, struct exec *x, const struct softcap_call *call)
{
    exec_op(x, &softcap_op, op, call);
}

void softcap_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct softcap *op = self;
    const struct softcap_call *call = what;
    const struct softcap_args a = {.x = call->x, .n = call->n, .cap = op->cap};
    exec_dispatch(x, &op->gpu.kernel, &a, div_up(call->n, op->gpu.workgroup), 1, 1);
}
