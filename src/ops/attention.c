#include "ops/attention.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/matvec.h"

static float *ref_cache_row(uint64_t blocks, uint32_t pos, uint32_t value, uint32_t kv_head,
                            uint32_t n_kv_heads, uint32_t head_dim, uint32_t layer_off)
{
    uint64_t block = ((const uint64_t *)(uintptr_t)blocks)[pos >> KV_BLOCK_SHIFT];
    uint64_t row = ((uint64_t)value << KV_BLOCK_SHIFT) + (pos & ((1u << KV_BLOCK_SHIFT) - 1));
    return ref_floats_mut(block + layer_off) + (row * n_kv_heads + kv_head) * head_dim;
}

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

static void prep_ref(const void *args)
{
    const struct attn_prep_args *a = args;
    uint32_t d = a->head_dim;
    double *head = calloc(d, sizeof *head);
    for (uint32_t t = 0; head && t < a->n; t++) {
        const float *row = ref_floats(a->qkv) + (uint64_t)t * a->stride;
        const float *rope = ref_floats(a->rope) + (uint64_t)t * a->rotary_dim;
        const float *keys = row + 2 * (uint64_t)a->n_heads * d, *values = keys + (uint64_t)a->n_kv_heads * d;
        for (uint32_t h = 0; h < a->n_heads; h++)
            ref_norm_rope(a, row + 2 * (uint64_t)h * d, ref_floats(a->q_norm), rope,
                          ref_floats_mut(a->q) + ((uint64_t)t * a->n_heads + h) * d, head);
        for (uint32_t g = 0; g < a->n_kv_heads; g++) {
            float *k = ref_cache_row(a->blocks, a->pos + t, 0, g, a->n_kv_heads, d, a->layer_off);
            float *v = ref_cache_row(a->blocks, a->pos + t, 1, g, a->n_kv_heads, d, a->layer_off);
            ref_norm_rope(a, keys + (uint64_t)g * d, ref_floats(a->k_norm), rope, k, head);
            for (uint32_t c = 0; c < d; c++)
                v[c] = values[(uint64_t)g * d + c];
        }
    }
    free(head);
}

/* One query head over all its positions, written as split 0 of the partial results. */
static void ref_score_head(const struct attention_args *a, uint32_t t, uint32_t h, double *scores,
                           double *sum)
{
    uint32_t n_pos = a->pos + t + 1, d = a->head_dim, g = h / (a->n_heads / a->n_kv_heads);
    const float *q = ref_floats(a->q) + ((uint64_t)t * a->n_heads + h) * d;
    double top = -INFINITY, total = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const float *k = ref_cache_row(a->blocks, p, 0, g, a->n_kv_heads, d, a->layer_off);
        double s = 0;
        for (uint32_t c = 0; c < d; c++)
            s += (double)q[c] * (double)k[c];
        scores[p] = s * (double)a->scale;
        top = scores[p] > top ? scores[p] : top;
    }
    for (uint32_t c = 0; c < d; c++)
        sum[c] = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const float *v = ref_cache_row(a->blocks, p, 1, g, a->n_kv_heads, d, a->layer_off);
        double w = exp(scores[p] - top);
        total += w;
        for (uint32_t c = 0; c < d; c++)
            sum[c] += w * (double)v[c];
    }
    float *dst = ref_floats_mut(a->partial) + ((uint64_t)t * a->n_heads + h) * a->n_splits * (d + 2);
    for (uint32_t s = 0; s < a->n_splits; s++, dst += d + 2) {
        for (uint32_t c = 0; c < d; c++)
            dst[c] = s == 0 ? (float)sum[c] : 0;
        dst[d] = (float)top;
        dst[d + 1] = s == 0 ? (float)total : 0;
    }
}

static void score_ref(const void *args)
{
    const struct attention_args *a = args;
    double *scores = calloc((size_t)a->pos + a->n, sizeof *scores), *sum = calloc(a->head_dim, sizeof *sum);
    for (uint32_t t = 0; scores && sum && t < a->n; t++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            ref_score_head(a, t, h, scores, sum);
    free(scores);
    free(sum);
}

static void merge_ref(const void *args)
{
    const struct attn_merge_args *a = args;
    uint32_t d = a->head_dim;
    for (uint64_t i = 0; i < (uint64_t)a->n * a->n_heads; i++) {
        const float *part = ref_floats(a->partial) + i * a->n_splits * (d + 2);
        const float *gate =
            ref_floats(a->qkv) + i / a->n_heads * a->stride + (2 * (i % a->n_heads) + 1) * (uint64_t)d;
        double top = -INFINITY, total = 0;
        for (uint32_t s = 0; s < a->n_splits; s++)
            top = fmax(top, (double)part[s * (d + 2) + d]);
        for (uint32_t s = 0; s < a->n_splits; s++)
            total += (double)part[s * (d + 2) + d + 1] * exp((double)part[s * (d + 2) + d] - top);
        for (uint32_t c = 0; c < d; c++) {
            double v = 0;
            for (uint32_t s = 0; s < a->n_splits; s++)
                v += (double)part[s * (d + 2) + c] * exp((double)part[s * (d + 2) + d] - top);
            ref_floats_mut(a->dst)[i * d + c] = (float)(v / total * ref_sigmoid((double)gate[c]));
        }
    }
}

/* Workgroups that keep a GPU busy; a software device has few cores and no latency to hide. */
static uint32_t wanted_groups(const struct exec_caps *c)
{
    return c->is_cpu ? 1 : 256;
}

/* Query heads of a workgroup: more share the loads of a key head, but eight of 256 channels are more than a GPU's
 * registers hold. */
static uint32_t group_for(const struct exec_caps *c, const struct attention_shape *s)
{
    uint32_t all = s->n_heads / s->n_kv_heads, group = c->is_cpu ? all : (uint32_t)size_min(all, 4);
    while (all % group)
        group--;
    return group;
}

/* Subgroups of a workgroup: what each of them adds up takes its share of shared memory. */
static uint32_t score_subgroups(const struct exec_caps *c, uint64_t bytes)
{
    uint32_t n = c->is_cpu ? 1 : (uint32_t)size_min(8, c->max_workgroup / c->subgroup_size);
    while (n > 1 && n * bytes + 4096 > c->max_shared_bytes)
        n--;
    return n;
}

/* Most positions of one split. lavapipe silently ends a shader's loops after 65,535 turns, all loops together. */
enum { SPLIT_POSITIONS = 16384 };

/* BLOCK of attention.comp: the positions that a subgroup takes at once. */
enum { POSITIONS_AT_ONCE = 4 };

int attention_open(struct attention *op, struct exec *x, const struct attention_shape *s, struct err *e)
{
    if (s->n_kv_heads == 0 || s->n_heads == 0 || s->n_heads % s->n_kv_heads)
        return err_set(e, ERR_UNSUPPORTED, "attention: %u heads over %u key/value heads", s->n_heads,
                       s->n_kv_heads);
    if (s->head_dim == 0 || s->head_dim % 4)
        return err_set(e, ERR_UNSUPPORTED, "attention: heads of %u channels, expected a multiple of 4",
                       s->head_dim);
    if (s->rotary_dim % 2 || s->rotary_dim > s->head_dim)
        return err_set(e, ERR_UNSUPPORTED, "attention: %u rotary channels of %u, expected an even number",
                       s->rotary_dim, s->head_dim);
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size, vecs = div_up(s->head_dim, 4 * subgroup);
    *op = (struct attention){.shape = *s, .group = group_for(&caps, s)};
    uint32_t subgroups = score_subgroups(&caps, (uint64_t)op->group * vecs * subgroup * 4 * sizeof(float));
    op->max_splits = (uint32_t)size_max(1, wanted_groups(&caps) / (s->n_heads / op->group));
    op->min_positions = POSITIONS_AT_ONCE * subgroups;
    uint32_t merge_group =
        (uint32_t)size_min(caps.max_workgroup, size_round_up(caps.is_cpu ? 64 : 256, subgroup));
    uint32_t prep_group = caps.is_cpu ? subgroup : (uint32_t)size_round_up(s->head_dim, subgroup);
    prep_group = (uint32_t)size_min(prep_group, caps.max_workgroup - caps.max_workgroup % subgroup);
    const uint32_t prep[] = {subgroup, prep_group, div_up(s->head_dim, prep_group)};
    const uint32_t score[] = {subgroup, subgroups * subgroup, op->group, vecs};
    const uint32_t merge[] = {subgroup, merge_group - merge_group % subgroup};
    int rc = exec_kernel(x, &op->prep, "attn_prep", prep_ref, sizeof(struct attn_prep_args), prep, 3, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->score, "attention", score_ref, sizeof(struct attention_args), score, 4, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->merge, "attn_merge", merge_ref, sizeof(struct attn_merge_args), merge, 2, e);
    return rc;
}

/* Splits for n tokens that see n_pos positions: enough workgroups, none of them idle. */
static uint32_t splits_for(const struct attention *op, uint32_t n, uint32_t n_pos)
{
    uint64_t useful = size_min(op->max_splits / n, div_up(n_pos, op->min_positions));
    return (uint32_t)size_max(div_up(n_pos, SPLIT_POSITIONS), useful);
}

uint64_t attention_partial_bytes(const struct attention *op, uint32_t n, uint32_t n_pos)
{
    /* n tokens never have more parts than this: see splits_for. */
    uint64_t parts = size_max((uint64_t)n * div_up(n_pos, SPLIT_POSITIONS), op->max_splits);
    return parts * op->shape.n_heads * (op->shape.head_dim + 2) * sizeof(float);
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
                                     .eps = s->eps};
    exec_run(x, &op->prep, &a, s->n_heads + 2 * s->n_kv_heads, call->n, 1);
}

void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    const struct attention_shape *s = &op->shape;
    uint32_t splits = splits_for(op, call->n, call->pos + call->n);
    const struct attention_args score = {.q = call->q,
                                         .blocks = call->blocks,
                                         .partial = call->partial,
                                         .n = call->n,
                                         .pos = call->pos,
                                         .n_heads = s->n_heads,
                                         .n_kv_heads = s->n_kv_heads,
                                         .head_dim = s->head_dim,
                                         .layer_off = call->layer_off,
                                         .n_splits = splits,
                                         .scale = (float)(1 / sqrt((double)s->head_dim))};
    const struct attn_merge_args merge = {.partial = call->partial,
                                          .qkv = call->qkv,
                                          .dst = call->dst,
                                          .n = call->n,
                                          .n_heads = s->n_heads,
                                          .head_dim = s->head_dim,
                                          .n_splits = splits,
                                          .stride = call->stride};
    run_prep(op, x, call);
    exec_run(x, &op->score, &score, s->n_heads / op->group * splits, call->n, 1);
    exec_run(x, &op->merge, &merge, s->n_heads, call->n, 1);
}
