/* The Vulkan implementation of router.h. */
#include "args.h"
#include "base/mem.h"
#include "ops/router/router.h"

int router_vulkan_open(struct router *op, struct exec *x, struct moeflux_err *e)
{
    const struct router_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t subgroup = caps.subgroup_size, few = exec_has_few_registers(&caps);
    const uint32_t per_lane = div_up(s->n_experts, subgroup), keep = div_up(s->top_k, subgroup);
    const uint32_t softmax[] = {subgroup, per_lane, keep, s->share > 0, few};
    uint32_t spec[] = {subgroup, per_lane, keep, s->share > 0, s->n_groups, s->softplus, false, few};
    if (!s->sigmoid)
        return exec_kernel(x, &op->kernel, "router_softmax", sizeof(struct router_softmax_args), softmax, 5,
                           e);
    int rc = exec_kernel(x, &op->kernel, "router_sigmoid", sizeof(struct router_sigmoid_args), spec, 8, e);
    spec[6] = true;
    return rc < 0 || s->row == 0 ? rc
                                 : exec_kernel(x, &op->by_token, "router_sigmoid",
                                               sizeof(struct router_sigmoid_args), spec, 8, e);
}

static void run_groups(const struct router *op, struct exec *x, const struct router_call *call)
{
    const struct router_sigmoid_args a = {.logits = call->logits,
                                          .bias = call->bias,
                                          .idx = call->idx,
                                          .weights = call->weights,
                                          .ids = call->ids,
                                          .table = call->table,
                                          .row = op->shape.row,
                                          .n = call->n,
                                          .stride = call->stride,
                                          .n_experts = op->shape.n_experts,
                                          .top_k = op->shape.top_k,
                                          .n_groups = op->shape.n_groups,
                                          .keep_groups = op->shape.keep_groups,
                                          .norm = op->shape.norm,
                                          .scale = op->shape.scale,
                                          .share = op->shape.share};
    exec_dispatch(x, call->table ? &op->by_token : &op->kernel, &a, call->n, 1, 1);
}

void router_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct router *op = self;
    const struct router_call *call = what;
    if (op->shape.sigmoid) {
        run_groups(op, x, call);
        return;
    }
    const struct router_softmax_args a = {.logits = call->logits,
                                          .idx = call->idx,
                                          .weights = call->weights,
                                          .factors = call->factors,
                                          .n = call->n,
                                          .stride = call->stride,
                                          .n_experts = op->shape.n_experts,
                                          .top_k = op->shape.top_k,
                                          .norm = op->shape.norm,
                                          .share = op->shape.share};
    exec_dispatch(x, &op->kernel, &a, call->n, 1, 1);
}
