#include "ops/normed_add.h"

#include "args.h"
#include "base/mem.h"

enum { WORKGROUP = 256 };

static const struct op normed_add_op = {
    .name = "normed_add", .vulkan = normed_add_vulkan, .cpu = normed_add_cpu, .reference = normed_add_ref};

int normed_add_open(struct normed_add *op, struct exec *x, uint32_t cols, float eps, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    *op = (struct normed_add){.cols = cols, .eps = eps};
    if (caps.is_host)
        return 0;
    uint32_t group = exec_workgroup(&caps, WORKGROUP);
    const uint32_t spec[] = {caps.subgroup_size, group, div_up(cols / 4, group)};
    return exec_kernel(x, &op->kernel, "normed_add", sizeof(struct normed_add_args), spec, 3, e);
}

void normed_add_run(const struct normed_add *op, struct exec *x, const struct normed_add_call *call)
{
    exec_op(x, &normed_add_op, op, call);
}

void normed_add_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct normed_add *op = self;
    const struct normed_add_call *call = what;
    const struct normed_add_args a = {.y = call->y,
                                      .dst = call->dst,
                                      .norm = call->norm,
                                      .add = call->add,
                                      .outer = call->outer,
                                      .base = call->base,
                                      .factor = call->factor,
                                      .n = call->n,
                                      .cols = op->cols,
                                      .eps = op->eps};
    exec_dispatch(x, &op->kernel, &a, call->n, 1, 1);
}
