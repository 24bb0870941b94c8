#include "ops/experts.h"

#include "args.h"
#include "base/err.h"
#include "ops/loops.h"

static const struct op up_op = {
    .name = "experts_up", .vulkan = experts_up_vulkan, .cpu = experts_up_cpu, .reference = experts_up_ref};
static const struct op down_op = {.name = "experts_down",
                                  .vulkan = experts_down_vulkan,
                                  .cpu = experts_down_cpu,
                                  .reference = experts_down_ref};

int experts_open(struct experts *op, struct exec *x, const struct experts_shape *s, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    *op = (struct experts){.shape = *s, .waves_from = caps.is_native ? LOOPS_FEW + 1 : UINT32_MAX};
    const struct weights up = {.rows = s->inner, .cols = s->hidden, .format = s->up_format},
                         down = {.rows = s->hidden, .cols = s->inner, .format = s->down_format};
    int rc = weights_check(&up, "experts", e);
    if (rc == 0)
        rc = weights_check(&down, "experts", e);
    if (rc < 0)
        return rc;
    if (weights_are_uneven(&up) || weights_are_uneven(&down))
        return err_set(e, ERR_UNSUPPORTED, "experts: hidden %u and inner %u, expected multiples of %d",
                       s->hidden, s->inner, PRODUCT_COLS);
    return caps.is_host ? 0 : experts_vulkan_open(op, x, e);
}

uint64_t experts_scratch(const struct experts_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t shared_inner)
{
    if (caps->is_host)
        return caps->is_native ? experts_cpu_scratch(s, n) : 0;
    return experts_grouped_scratch(s, n, shared_inner);
}

bool experts_takes_waves(const struct experts *op, uint32_t chunk)
{
    return chunk >= op->waves_from;
}

void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    exec_op(x, &up_op, op, call);
}

void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    exec_op(x, &down_op, op, call);
}
