#include "ops/cast_f16.h"

#include "args.h"
#include "base/mem.h"

static const struct op cast_f16_op = {
    .name = "cast_f16", .vulkan = cast_f16_vulkan, .cpu = cast_f16_cpu, .reference = cast_f16_ref};

int cast_f16_open(struct cast_f16 *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct cast_f16){0};
    if (c.is_host)
        return 0;
    uint32_t spec[] = {c.subgroup_size, exec_workgroup(&c, 256), 0};
    int rc = exec_kernel(x, &op->kernel, "cast_f16", sizeof(struct cast_f16_args), spec, 3, e);
    spec[2] = 1;
    return rc < 0 ? rc
                  : exec_kernel_later(x, &op->blocked, "cast_f16", sizeof(struct cast_f16_args), spec, 3, e);
}

void cast_f16_run(const struct cast_f16 *op, struct exec *x, const struct cast_f16_call *call)
{
    exec_op(x, &cast_f16_op, op, call);
}

void cast_f16_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct cast_f16 *op = self;
    const struct cast_f16_call *call = what;
    const struct cast_f16_args a = {.x = call->x,
                                    .norm = call->norm,
                                    .dst = call->dst,
                                    .n = call->n,
                                    .cols = call->cols,
                                    .x_stride = call->x_stride,
                                    .eps = call->eps};
    exec_dispatch(x, call->is_blocked ? &op->blocked : &op->kernel, &a, call->n, 1, 1);
}
