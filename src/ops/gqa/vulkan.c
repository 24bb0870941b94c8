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
    int rc = exec_kernel(x, &op->prepare, "gqa_prepare", sizeof(struct gqa_prepare_args), spec, KV_N_SPEC, e);
    return rc < 0 ? rc
                  : exec_kernel_later(x, &op->prepare_each, "gqa_prepare_each", sizeof(struct each_args),
                                      spec, KV_N_SPEC, e);
}

static struct gqa_prepare_args args_of(const struct gqa_shape *s, const struct gqa_call *call)
{
    return (struct gqa_prepare_args){.qkv = call->qkv,
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
}

/* Returns the workgroups of a token. */
static uint32_t groups_of(const struct gqa_shape *s)
{
    return s->norm == ATTENTION_NORM_ALL ? 1 : s->n_heads + 2 * s->n_kv_heads;
}

void gqa_prepare_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct gqa *op = self;
    const struct gqa_call *call = what;
    const struct gqa_prepare_args a = args_of(&op->shape, call);
    exec_dispatch(x, &op->prepare, &a, groups_of(&op->shape), call->n, 1);
}

void gqa_prepare_vulkan_each(const struct gqa *op, struct exec *x, const struct gqa_call *const *calls,
                             uint32_t n)
{
    struct gqa_prepare_args all[ATTENTION_CONCURRENT];
    for (uint32_t i = 0; i < n; i++)
        all[i] = args_of(&op->shape, calls[i]);
    exec_dispatch_each(x, &op->prepare_each, all, sizeof *all, n, groups_of(&op->shape), 1);
}
