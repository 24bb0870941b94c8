#include "ops/add.h"

#include "args.h"
#include "base/mem.h"

static const struct op add_op = {.name = "add", .vulkan = add_vulkan, .cpu = add_cpu, .reference = add_ref};

int add_open(struct add *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct add){.gpu.workgroup = (uint32_t)size_min(256, c.max_workgroup)};
    return c.is_host
               ? 0
               : exec_kernel(x, &op->gpu.kernel, "add", sizeof(struct add_args), &op->gpu.workgroup, 1, e);
}

void add_run(const struct add *op, struct exec *x, const struct add_call *call)
{
    exec_op(x, &add_op, op, call);
}

void add_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct add *op = self;
    const struct add_call *call = what;
    const struct add_args a = {
        .y = call->y, .x = call->x, .n = call->n, .every = call->every, .sets = call->sets};
    exec_dispatch(x, &op->gpu.kernel, &a, div_up(call->n, 4 * op->gpu.workgroup), 1, 1);
}
