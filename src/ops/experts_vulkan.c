#include "args.h"
#include "base/mem.h"
#include "ops/experts.h"
#include "ops/gemv_plan.h"

int experts_vulkan_open(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    const struct gemv_shape up_shape = {s->inner * s->top_k, s->hidden, 1, 1u << s->up_format, 2, 0};
    const struct gemv_shape down_shape = {s->hidden, (s->top_k + 1) * s->inner, 1, s->down_formats, 1, 0};
    struct gemv_plan up = gemv_plan_for(x, &up_shape), down = gemv_plan_for(x, &down_shape);
    op->gpu.up_rows = up.workgroup_rows;
    op->gpu.down_rows = down.workgroup_rows;
    int rc = gemv_kernel(x, &op->gpu.up, "experts_decode_up", sizeof(struct experts_decode_up_args), up.spec,
                         GEMV_N_SPEC, e);
    if (rc == 0)
        rc = gemv_kernel(x, &op->gpu.down, "experts_decode_down", sizeof(struct experts_decode_down_args),
                         down.spec, GEMV_N_SPEC, e);
    if (rc == 0)
        rc = experts_grouped_open(&op->gpu.grouped, x, s, e);
    op->waves_from = op->gpu.grouped.from;
    return rc;
}

void experts_up_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct experts *op = self;
    const struct experts_call *call = what;
    const struct experts_shape *s = &op->shape;
    if (experts_grouped_takes(&op->gpu.grouped, call)) {
        experts_grouped_up(&op->gpu.grouped, x, s, call);
        return;
    }
    const struct experts_decode_up_args a = {.x = call->x,
                                             .norm = call->norm,
                                             .table = call->table,
                                             .idx = call->idx,
                                             .act = call->act,
                                             .n = call->n,
                                             .top_k = s->top_k,
                                             .hidden = s->hidden,
                                             .inner = s->inner,
                                             .format = s->up_format,
                                             .gate_w = s->gate_w,
                                             .gate_s = s->gate_s,
                                             .gate_b = s->gate_b,
                                             .up_w = s->up_w,
                                             .up_s = s->up_s,
                                             .up_b = s->up_b,
                                             .skip_low = (uint32_t)call->skip,
                                             .skip_high = (uint32_t)(call->skip >> 32),
                                             .eps = s->eps};
    exec_dispatch(x, &op->gpu.up, &a, div_up(s->inner, op->gpu.up_rows), s->top_k, call->n);
}

void experts_down_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct experts *op = self;
    const struct experts_call *call = what;
    const struct experts_shape *s = &op->shape;
    if (experts_grouped_takes(&op->gpu.grouped, call)) {
        experts_grouped_down(&op->gpu.grouped, x, s, call);
        return;
    }
    const struct experts_decode_down_args a = {
        .act = call->act,
        .table = call->table,
        .idx = call->idx,
        .weights = call->weights,
        .shared_in = call->shared_in,
        .shared_w = call->shared_down.weight,
        .shared_s = call->shared_down.scales,
        .shared_b = call->shared_down.biases,
        .x = call->x,
        .n = call->n,
        .top_k = call->only_shared ? 0 : s->top_k,
        .hidden = s->hidden,
        .inner = s->inner,
        .format = s->down_format,
        .down_w = s->down_w,
        .down_s = s->down_s,
        .down_b = s->down_b,
        .shared_at = s->n_experts + s->shared_gate,
        .is_gated = s->shared_gate,
        .shared_inner = call->shared_down.cols,
        .shared_format = call->shared_down.cols ? call->shared_down.format : s->down_format,
        .shared_stride = call->shared_stride};
    exec_dispatch(x, &op->gpu.down, &a, div_up(s->hidden, op->gpu.down_rows), call->n, 1);
}
