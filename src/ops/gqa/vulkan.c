/* The Vulkan implementation of gqa.h's prepare. */
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "ops/gqa/gqa.h"

enum { VALUE_SCALE_SPEC = 6 };

int gqa_vulkan_open(struct gqa *op, struct exec *x, struct moeflux_err *e)
{
    const struct gqa_shape *s = &op->shape;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size;
    uint32_t group = (uint32_t)size_round_up(s->head_dim, subgroup);
    group = (uint32_t)size_min(group, caps.max_workgroup - caps.max_workgroup % subgroup);
    const float scale = s->values.scale > 0 ? s->values.scale : 1;
    uint32_t spec[KV_N_SPEC] = {subgroup,
                                group,
                                div_up(s->head_dim, group),
                                s->norm,
                                s->biased,
                                gqa_value_dim(s),
                                [KV_SPEC] = s->kv_type};
    memcpy(&spec[VALUE_SCALE_SPEC], &scale, sizeof scale); /* the constant is a float */
    return exec_kernel(x, &op->prepare, "gqa_prepare", sizeof(struct gqa_prepare_args), spec, KV_N_SPEC, e);
}

void gqa_prepare_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct gqa *op = self;
    const struct gqa_call *call = what;
    const struct gqa_shape *s = &op->shape;
    const struct gqa_prepare_args a = {.qkv = call->qkv,
                                       .q_norm = call->q_norm,
                                       .k_norm = call->k_norm,
                                       .bias = call->bias,
                                       .rope = call->rope,
                                       .q = call->q,
                                       .blocks = call->blocks,
                                       .n = call->n,
                                       .pos = call->pos,
                                       .stride = call->stride,
                                       .n_heads = s->n_heads,
                                       .n_kv_heads = s->n_kv_heads,
                                       .head_dim = s->head_dim,
                                       .rotary_dim = s->rotary_dim,
                                       .layer_off = call->layer_off,
                                       .eps = s->eps,
                                       .kv_type = s->kv_type,
                                       .is_gated = s->gated,
                                       .norms_values = s->values.normed};
    uint32_t rows = s->n_heads + 2 * s->n_kv_heads;
    exec_dispatch(x, &op->prepare, &a, s->norm == ATTENTION_NORM_ALL ? 1 : rows, call->n, 1);
}
