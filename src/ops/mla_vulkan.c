#include "args.h"
#include "base/mem.h"
#include "ops/mla.h"

int mla_vulkan_open(struct mla *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    uint32_t group = (uint32_t)size_min(256, caps.max_workgroup);
    op->gpu.prepare_group = (uint32_t)size_max(group - group % caps.subgroup_size, caps.subgroup_size);
    const uint32_t spec[KV_N_SPEC] = {caps.subgroup_size,
                                      op->gpu.prepare_group, [KV_SPEC] = op->shape.kv_type};
    return exec_kernel(x, &op->gpu.prepare, "mla_prepare", sizeof(struct mla_prepare_args), spec, KV_N_SPEC,
                       e);
}

void mla_prepare_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct mla *op = self;
    const struct mla_prepare_call *to = what;
    const struct mla_call *call = to->of;
    const struct mla_shape *s = &op->shape;
    const struct mla_prepare_args a = {.q = call->q,
                                       .kv = call->kv,
                                       .norm = call->norm,
                                       .rope = call->rope,
                                       .q_out = to->q,
                                       .out_stride = to->stride,
                                       .out_step = to->step,
                                       .out_at = to->at,
                                       .blocks = call->blocks,
                                       .n = call->n,
                                       .pos = call->pos,
                                       .q_stride = call->q_stride,
                                       .kv_stride = call->kv_stride,
                                       .kv_at = call->kv_at,
                                       .n_heads = s->n_heads,
                                       .nope_dim = s->nope_dim,
                                       .rope_dim = s->rope_dim,
                                       .latent_dim = s->latent_dim,
                                       .layer_off = call->layer_off,
                                       .interleaved = s->interleaved,
                                       .eps = s->eps,
                                       .kv_type = s->kv_type};
    exec_dispatch(x, &op->gpu.prepare, &a, 1 + div_up(s->n_heads * s->rope_dim / 2, op->gpu.prepare_group),
                  call->n, 1);
}
