#include "ops/head_gate.h"

#include "args.h"
#include "base/mem.h"

static const struct op head_gate_op = {
    .name = "head_gate", .vulkan = head_gate_vulkan, .cpu = head_gate_cpu, .reference = head_gate_ref};

int head_gate_open(struct head_gate *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct head_gate){.gpu.workgroup = (uint32_t)size_min(256, c.max_workgroup)};
    return c.is_host ? 0
                     : exec_kernel(x, &op->gpu.kernel, "head_gate", sizeof(struct head_gate_args),
                                   &op->gpu.workgroup, 1, e);
}

void head_gate_run(const struct head_gate *op, struct exec *x, const struct head_gate_call *call)
{
    exec_op(x, &head_gate_op, op, call);
}

void head_gate_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct head_gate *op = self;
    const struct head_gate_call *call = what;
    const struct head_gate_args a = {
        .x = call->x, .gate = call->gate, .n_heads = call->n_heads, .dim = call->dim, .stride = call->stride};
    exec_dispatch(x, &op->gpu.kernel, &a, div_up(call->n_heads * call->dim, op->gpu.workgroup), call->n, 1);
}
