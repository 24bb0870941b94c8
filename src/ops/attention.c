#include "ops/attention.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/matvec.h"

static void ref_norm_rope(const struct attn_prep_args *a, const float *src, const float *norm,
                          const float *rope, float *dst, double *head)
{
    const uint32_t half = a->rotary_dim / 2;
    const float(*turn)[2] = (const float(*)[2])(const void *)rope; /* cosine, sine */
    matvec_ref_norm(src, norm, a->head_dim, (double)a->eps, head);
    for (uint32_t c = 0; c < a->head_dim; c++) {
        double y = head[c];
        if (c < half)
            y = y * (double)turn[c][0] - head[c + half] * (double)turn[c][1];
        else if (c < a->rotary_dim)
            y = y * (double)turn[c - half][0] + head[c - half] * (double)turn[c - half][1];
        dst[c] = (float)y;
    }
}

static void prep_ref_token(const struct attn_prep_args *a, uint32_t t, double *head, float *key)
{
    const struct ref_cache cache = {a->blocks, a->layer_off, a->n_kv_heads, a->head_dim, a->kv_type};
    uint32_t d = a->head_dim;
    const float *row = ref_floats(a->qkv) + (uint64_t)t * a->stride;
    const float *rope = ref_floats(a->rope) + (uint64_t)t * a->rotary_dim;
    uint64_t step = (1 + a->is_gated) * (uint64_t)d; /* from a query to the next */
    const float *keys = row + a->n_heads * step, *values = keys + (uint64_t)a->n_kv_heads * d;
    for (uint32_t h = 0; h < a->n_heads; h++)
        ref_norm_rope(a, row + h * step, ref_floats(a->q_norm), rope,
                      ref_floats_mut(a->q) + ((uint64_t)t * a->n_heads + h) * d, head);
    for (uint32_t g = 0; g < a->n_kv_heads; g++) {
        ref_norm_rope(a, keys + (uint64_t)g * d, ref_floats(a->k_norm), rope, key, head);
        ref_cache_put(&cache, ref_cache_row(&cache, a->pos + t, 0, g), key);
        ref_cache_put(&cache, ref_cache_row(&cache, a->pos + t, 1, g), values + (uint64_t)g * d);
    }
}

static void prep_ref(const void *args)
{
    const struct attn_prep_args *a = args;
    double *head = calloc(a->head_dim, sizeof *head);
    float *key = calloc(a->head_dim, sizeof *key);
    for (uint32_t t = 0; head && key && t < a->n; t++)
        prep_ref_token(a, t, head, key);
    free(head);
    free(key);
}

struct scores_shape attention_scores(const struct attention_shape *s)
{
    return (struct scores_shape){.n_heads = s->n_heads,
                                 .n_kv_heads = s->n_kv_heads,
                                 .key_dim = s->head_dim,
                                 .value_dim = s->head_dim,
                                 .gated = s->gated,
                                 .scale = (float)(1 / sqrt((double)s->head_dim)),
                                 .kv_type = s->kv_type};
}

int attention_open(struct attention *op, struct exec *x, const struct attention_shape *s, struct err *e)
{
    const struct scores_shape scores = attention_scores(s);
    *op = (struct attention){.shape = *s};
    int rc = scores_open(&op->scores, x, &scores, e);
    if (rc == 0 && (s->rotary_dim % 2 || s->rotary_dim > s->head_dim))
        rc = err_set(e, ERR_UNSUPPORTED, "attention: %u rotary channels of %u, expected an even number",
                     s->rotary_dim, s->head_dim);
    if (rc < 0)
        return rc;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size;
    uint32_t group = caps.is_cpu ? subgroup : (uint32_t)size_round_up(s->head_dim, subgroup);
    group = (uint32_t)size_min(group, caps.max_workgroup - caps.max_workgroup % subgroup);
    const uint32_t prep[KV_N_SPEC] = {subgroup, group, div_up(s->head_dim, group), [KV_SPEC] = s->kv_type};
    return exec_kernel(x, &op->prep, "attn_prep", prep_ref, sizeof(struct attn_prep_args), prep, KV_N_SPEC,
                       e);
}

uint64_t attention_partial_bytes(const struct attention_shape *s, const struct exec_caps *caps, uint32_t n,
                                 uint32_t n_pos)
{
    const struct scores_shape scores = attention_scores(s);
    return s->n_heads ? scores_partial_bytes(&scores, caps, n, n_pos) : 0;
}

static void run_prep(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    const struct attention_shape *s = &op->shape;
    const struct attn_prep_args a = {.qkv = call->qkv,
                                     .q_norm = call->q_norm,
                                     .k_norm = call->k_norm,
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
                                     .is_gated = s->gated};
    exec_run(x, &op->prep, &a, s->n_heads + 2 * s->n_kv_heads, call->n, 1);
}

void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    run_prep(op, x, call);
    scores_run(&op->scores, x,
               &(struct scores_call){.q = call->q,
                                     .blocks = call->blocks,
                                     .partial = call->partial,
                                     .gates = call->qkv,
                                     .dst = call->dst,
                                     .n = call->n,
                                     .pos = call->pos,
                                     .q_stride = op->shape.n_heads * op->shape.head_dim,
                                     .dst_stride = op->shape.n_heads * op->shape.head_dim,
                                     .gate_stride = call->stride,
                                     .n_heads = op->shape.n_heads,
                                     .n_kv_heads = op->shape.n_kv_heads,
                                     .layer_off = call->layer_off,
                                     .half = call->half});
}
