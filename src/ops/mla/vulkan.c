/* The Vulkan implementation of mla.h's prepare, and of one token's values. */
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "ops/linear/gemv_plan.h"
#include "ops/mla/mla.h"

int mla_vulkan_open(struct mla *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    op->gpu.prepare_group = exec_workgroup(&caps, 256);
    const uint32_t spec[KV_N_SPEC] = {
        caps.subgroup_size, op->gpu.prepare_group, op->shape.interleaved,
        op->shape.latent_dim + op->shape.rope_dim, [KV_SPEC] = op->shape.kv_type};
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
                                       .eps = s->eps};
    exec_dispatch(x, &op->gpu.prepare, &a, 1 + div_up(s->n_heads * s->rope_dim / 2, op->gpu.prepare_group),
                  call->n, 1);
}

/* Returns the bytes of shared memory of kernels/mla/values.comp: the vector with its gaps, and four sums of
 * each invocation. */
static uint64_t shared_bytes(const struct exec_caps *c, const struct mla_shape *s, uint32_t subgroups)
{
    return 8 * (uint64_t)s->latent_dim + 16 * (uint64_t)subgroups * c->subgroup_size;
}

/* Returns the subgroups of a workgroup: as many as the device allows, so that few workgroups join a head's
 * splits; but nearly all processors should have one. */
static uint32_t subgroups_for(const struct exec_caps *c, const struct mla_shape *s, const struct gemv_plan *p)
{
    uint32_t rows = p->spec[GEMV_ROWS], split = p->spec[GEMV_SPLIT], least = p->workgroup / c->subgroup_size;
    uint32_t n = split * power_of_two_from(div_up(s->v_dim, rows));
    while (n > split &&
           (n * c->subgroup_size > c->max_workgroup || shared_bytes(c, s, n) > c->max_shared_bytes))
        n /= 2;
    while (n > least && s->n_heads * div_up(s->v_dim, n / split * rows) * 16 < c->n_processors * 15)
        n /= 2;
    return n;
}

int mla_joined_open(struct mla_joined *j, struct exec *x, const struct mla_shape *s,
                    const struct weights *values, uint32_t step, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    const struct gemv_shape shape = {
        s->n_heads * s->v_dim, s->latent_dim, 1, format_set(values->format), 1, s->v_dim, 0};
    *j = (struct mla_joined){0};
    if (weights_are_uneven(values) || !format_is_basic(values->format))
        return 0;
    struct gemv_plan p = gemv_plan_for(x, &shape);
    uint32_t subgroups = subgroups_for(&caps, s, &p), group = subgroups * caps.subgroup_size, cols = 1;
    if (p.spec[GEMV_TILE] != s->latent_dim)
        return 0;
    while (group % (2 * cols) == 0 && s->latent_dim / 4 % (2 * cols) == 0)
        cols *= 2;
    uint32_t spec[GEMV_N_SPEC + 1];
    memcpy(spec, p.spec, sizeof p.spec);
    spec[GEMV_WORKGROUP] = group;
    spec[GEMV_N_SPEC] = cols;
    j->values = *values;
    j->step = step;
    j->blocks = div_up(s->v_dim, subgroups / p.spec[GEMV_SPLIT] * p.spec[GEMV_ROWS]);
    return gemv_kernel(x, &j->kernel, "mla_values", sizeof(struct mla_values_args), spec, GEMV_N_SPEC + 1, e);
}

void mla_joined_run(const struct mla_joined *j, struct exec *x, uint32_t n_heads, uint64_t partial,
                    const struct attention_parts *parts, uint64_t dst)
{
    const struct mla_values_args a = {.partial = partial,
                                      .weight = j->values.weight,
                                      .scales = j->values.scales,
                                      .biases = j->values.biases,
                                      .dst = dst,
                                      .format = j->values.format,
                                      .rows = j->values.rows,
                                      .step = j->step,
                                      .part_rows = parts->rows,
                                      .n_splits = parts->n_splits};
    exec_dispatch(x, &j->kernel, &a, j->blocks, n_heads, 1);
}
