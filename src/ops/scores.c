#include "ops/scores.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/matmul.h"
#include "ops/matvec.h"

/* Writes what one head found, as the whole or as split 0 of the partial results. */
static void ref_store(const struct attention_args *a, uint32_t t, uint32_t h, const double *sum, double top,
                      double total)
{
    uint32_t d = a->value_dim;
    float *dst = ref_floats_mut(a->partial);
    if (a->is_whole) {
        dst += (uint64_t)t * a->dst_stride + (uint64_t)h * d;
        for (uint32_t c = 0; c < d; c++)
            dst[c] = (float)(sum[c] / total);
        return;
    }
    dst += ((uint64_t)t * a->n_heads + h) * a->n_splits * (d + 2);
    for (uint32_t s = 0; s < a->n_splits; s++, dst += d + 2) {
        for (uint32_t c = 0; c < d; c++)
            dst[c] = s == 0 ? (float)sum[c] : 0;
        dst[d] = (float)top;
        dst[d + 1] = s == 0 ? (float)total : 0;
    }
}

/* One query head over all its positions. latent: a value is the start of its key. */
static void ref_head(const struct attention_args *a, bool latent, uint32_t t, uint32_t h, double *scores,
                     double *sum)
{
    const struct ref_cache cache = {a->keys, a->layer_off, a->n_kv_heads, a->key_dim, a->kv_type};
    uint32_t n_pos = a->pos + t + 1, g = h / (a->n_heads / a->n_kv_heads);
    const float *q = ref_floats(a->q) + (uint64_t)t * a->q_stride + (uint64_t)h * a->key_dim;
    double top = -INFINITY, total = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const void *k = ref_cache_row(&cache, p, 0, g);
        double s = 0;
        for (uint32_t c = 0; c < a->key_dim; c++)
            s += (double)q[c] * ref_cache_get(&cache, k, c);
        scores[p] = s * (double)a->scale;
        top = scores[p] > top ? scores[p] : top;
    }
    for (uint32_t c = 0; c < a->value_dim; c++)
        sum[c] = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const void *v = ref_cache_row(&cache, p, latent ? 0 : 1, g);
        double w = exp(scores[p] - top);
        total += w;
        for (uint32_t c = 0; c < a->value_dim; c++)
            sum[c] += w * ref_cache_get(&cache, v, c);
    }
    ref_store(a, t, h, sum, top, total);
}

static void ref_heads(const struct attention_args *a, bool latent)
{
    double *scores = calloc((size_t)a->pos + a->n, sizeof *scores), *sum = calloc(a->value_dim, sizeof *sum);
    for (uint32_t t = 0; scores && sum && t < a->n; t++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            ref_head(a, latent, t, h, scores, sum);
    free(scores);
    free(sum);
}

static void score_ref(const void *args)
{
    ref_heads(args, false);
}

static void latent_ref(const void *args)
{
    ref_heads(args, true);
}

static void merge_ref(const void *args)
{
    const struct attn_merge_args *a = args;
    uint32_t d = a->value_dim;
    for (uint64_t i = 0; i < (uint64_t)a->n * a->n_heads; i++) {
        const float *part = ref_floats(a->partial) + i * a->n_splits * (d + 2);
        const float *gate = a->qkv ? ref_floats(a->qkv) + i / a->n_heads * a->stride +
                                         (2 * (i % a->n_heads) + 1) * (uint64_t)d
                                   : NULL;
        double top = -INFINITY, total = 0;
        for (uint32_t s = 0; s < a->n_splits; s++)
            top = fmax(top, (double)part[s * (d + 2) + d]);
        for (uint32_t s = 0; s < a->n_splits; s++)
            total += (double)part[s * (d + 2) + d + 1] * exp((double)part[s * (d + 2) + d] - top);
        for (uint32_t c = 0; c < d; c++) {
            double v = 0;
            for (uint32_t s = 0; s < a->n_splits; s++)
                v += (double)part[s * (d + 2) + c] * exp((double)part[s * (d + 2) + d] - top);
            ref_floats_mut(a->dst)[i / a->n_heads * a->dst_stride + i % a->n_heads * d + c] =
                (float)(v / total * (gate ? ref_sigmoid((double)gate[c]) : 1.0));
        }
    }
}

/* Most positions of one split. lavapipe silently ends a shader's loops after 65,535 turns, all loops together. */
enum { SOFTWARE_SPLIT_POSITIONS = 16384, NO_LIMIT = 1 << 30 };

/* BLOCK of attention.comp: the positions that a subgroup takes at once. */
enum { POSITIONS_AT_ONCE = 4 };

/* ROWS of attention_many.comp; its workgroups that keep a GPU busy; positions that are worth a split; tokens from which
 * its tiles are better filled than not; value channels that its registers and shared memory have room for. */
enum { MANY_ROWS = 64, MANY_GROUPS = 512, MANY_SPLIT_POSITIONS = 256, MANY_TOKENS = 16 };
enum { MANY_MAX_DIM = 256, MANY_MAX_LATENT = 512 };
/* Positions from which on one token's heads, where they fill a tile, are faster there, too: on an H200 128 heads over
 * latents of 512 + 64 take 0.36 ms for 2,000 and 0.37 for 16,384 positions, in attention.comp 0.18 for 5,000 and 0.56
 * for 16,384. */
enum { LONG_POSITIONS = 12288 };
/* Channels of keys and values for which one subgroup's registers have room in attention_many_coop; of more, two share
 * the work. On an H200 keys of 192 and values of 128 take 26.0 ms alone and 27.8 shared (14,336 + 2,048 positions, 128
 * heads), keys and values of 256 take 3.9 ms alone, when registers spill, and 2.3 shared. */
enum { MOST_ALONE = 384 };

/* Workgroups that keep a GPU busy; a software device has few cores and no latency to hide. */
static uint32_t wanted_groups(const struct exec_caps *c)
{
    return c->is_cpu ? 1 : 256;
}

static uint32_t vecs_for(uint32_t dim, uint32_t subgroup)
{
    return div_up(dim, 4 * subgroup);
}

/* Query heads of a team: more share the loads of a key head, but their queries and sums fill a GPU's registers (eight
 * of 256 channels are too many), and a software device's compiler takes long over what is unrolled (eight of 256
 * channels 9 s, sixteen 23). */
static uint32_t group_for(const struct exec_caps *c, const struct scores_shape *s)
{
    uint32_t all = s->n_heads / s->n_kv_heads, keys = vecs_for(s->key_dim, c->subgroup_size);
    uint32_t both = keys + vecs_for(s->value_dim, c->subgroup_size), most = c->is_cpu ? 8 : 4;
    if (s->latent)
        most = c->is_cpu ? 64 / keys : (uint32_t)size_min(4, 24 / both);
    uint32_t group = (uint32_t)size_max(1, size_min(all, most));
    while (all % group)
        group--;
    return group;
}

/* Subgroups of a workgroup that share heads: what each of them adds up takes its share of shared memory. */
static uint32_t members_for(const struct exec_caps *c, uint64_t bytes)
{
    uint32_t n = c->is_cpu ? 1 : (uint32_t)size_min(8, c->max_workgroup / c->subgroup_size);
    while (n > 1 && n * bytes + 4096 > c->max_shared_bytes)
        n--;
    return n;
}

/* Where all heads share their keys, subgroups with heads of their own share the loads. */
static uint32_t teams_for(const struct exec_caps *c, uint32_t n_groups)
{
    uint32_t n = c->is_cpu ? 1 : (uint32_t)size_min(8, c->max_workgroup / c->subgroup_size);
    while (n_groups % n)
        n--;
    return n;
}

static struct scores_plan plan_for(const struct scores_shape *s, const struct exec_caps *caps)
{
    struct scores_plan p = {.subgroup = caps->subgroup_size, .group = group_for(caps, s), .members = 1};
    uint64_t sums = (uint64_t)p.group * vecs_for(s->value_dim, p.subgroup) * p.subgroup * 4 * sizeof(float);
    uint32_t n_groups = s->n_heads / p.group;
    p.teams = s->latent ? teams_for(caps, n_groups) : 1;
    if (!s->latent)
        p.members = members_for(caps, sums);
    p.max_splits = (uint32_t)size_max(1, wanted_groups(caps) / (n_groups / p.teams));
    p.min_positions = POSITIONS_AT_ONCE * p.members;
    p.most_positions = caps->is_cpu ? SOFTWARE_SPLIT_POSITIONS : NO_LIMIT;
    bool has_many = !caps->is_cpu && caps->max_workgroup >= 256 &&
                    s->value_dim <= (s->latent ? MANY_MAX_LATENT : MANY_MAX_DIM);
    p.many_from = has_many ? MANY_TOKENS : UINT32_MAX;
    p.long_from = has_many && s->n_heads / s->n_kv_heads >= MANY_ROWS ? LONG_POSITIONS : UINT32_MAX;
    return p;
}

static int check(const struct scores_shape *s, struct moeflux_err *e)
{
    if (s->n_kv_heads == 0 || s->n_heads == 0 || s->n_heads % s->n_kv_heads)
        return err_set(e, ERR_UNSUPPORTED, "attention: %u heads over %u key/value heads", s->n_heads,
                       s->n_kv_heads);
    if (s->key_dim == 0 || s->key_dim % 4 || s->value_dim == 0 || s->value_dim % 4)
        return err_set(e, ERR_UNSUPPORTED,
                       "attention: keys of %u and values of %u channels, expected multiples of 4", s->key_dim,
                       s->value_dim);
    if (s->latent ? s->n_kv_heads > 1 || s->value_dim > s->key_dim : !s->flat && s->value_dim != s->key_dim)
        return err_set(e, ERR_UNSUPPORTED, "attention: values of %u channels, keys of %u", s->value_dim,
                       s->key_dim);
    return 0;
}

static int open_few(struct scores *op, struct exec *x, struct moeflux_err *e)
{
    const struct scores_shape *s = &op->shape;
    const struct scores_plan *p = &op->plan;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t group =
        (uint32_t)size_min(caps.max_workgroup, size_round_up(caps.is_cpu ? 64 : 256, p->subgroup));
    const uint32_t score[KV_N_SPEC] = {p->subgroup,
                                       p->teams * p->members * p->subgroup,
                                       p->group,
                                       vecs_for(s->key_dim, p->subgroup),
                                       vecs_for(s->value_dim, p->subgroup),
                                       s->latent,
                                       p->teams,
                                       [KV_SPEC] = s->kv_type,
                                       [KV_FLAT_SPEC] = s->flat};
    const uint32_t merge[] = {p->subgroup, group - group % p->subgroup};
    /* Prompts alone have keys and values outside the cache. */
    int rc = (s->flat ? exec_kernel_later : exec_kernel)(
        x, &op->score, caps.has_wide ? "attention_wide" : "attention", s->latent ? latent_ref : score_ref,
        sizeof(struct attention_args), score, KV_N_SPEC, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->merge, "attn_merge", merge_ref, sizeof(struct attn_merge_args), merge, 2, e);
    return rc;
}

/* Shared memory of attention_many_coop: the queries or 32 keys and values, scores, weights. */
static uint64_t half_shared_bytes(const struct scores_shape *s)
{
    uint64_t key = s->key_dim / 8 + 1, value = s->value_dim / 8 + 1;
    return 16 * (size_max(MANY_ROWS * key, 32 * (key + value)) + (uint64_t)MANY_ROWS * (9 + 5));
}

static int open_many(struct scores *op, struct exec *x, struct moeflux_err *e)
{
    const struct scores_shape *s = &op->shape;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t tiles[KV_N_SPEC] = {
        caps.subgroup_size,      256, s->key_dim, s->value_dim, 0, s->latent, [KV_SPEC] = s->kv_type,
        [KV_FLAT_SPEC] = s->flat};
    int rc = 0;
    op->half_from = UINT32_MAX;
    if (op->plan.many_from == UINT32_MAX)
        return 0;
    /* Prompts alone need it, but for long sequences. */
    rc = (op->plan.long_from < UINT32_MAX ? exec_kernel : exec_kernel_later)(
        x, &op->many, "attention_many", NULL, sizeof(struct attention_args), tiles, KV_N_SPEC, e);
    if (rc < 0 || s->latent || !matmul_has_half(x) || s->key_dim % 16 || s->value_dim % 16 ||
        half_shared_bytes(s) > caps.max_shared_bytes)
        return rc;
    op->half_from = MANY_TOKENS;
    tiles[1] = s->key_dim + s->value_dim > MOST_ALONE ? 256 : 128;
    return exec_kernel_later(x, &op->half, "attention_many_coop", NULL, sizeof(struct attention_args), tiles,
                             KV_N_SPEC, e);
}

int scores_open(struct scores *op, struct exec *x, const struct scores_shape *s, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    *op = (struct scores){.shape = *s};
    int rc = check(s, e);
    if (rc < 0)
        return rc;
    op->plan = plan_for(s, &caps);
    rc = open_few(op, x, e);
    return rc < 0 ? rc : open_many(op, x, e);
}

/* Workgroups of attention_many along the rows. */
static uint32_t many_tiles(const struct scores_shape *s, uint32_t n)
{
    return div_up(n * (s->n_heads / s->n_kv_heads), MANY_ROWS);
}

static bool is_many(const struct scores_plan *p, uint32_t n, uint32_t n_pos)
{
    return n >= p->many_from || n_pos >= p->long_from;
}

/* Splits for n tokens that see n_pos positions: enough workgroups, none of them idle. */
static uint32_t splits_for(const struct scores *op, uint32_t n_kv_heads, uint32_t n, uint32_t n_pos)
{
    const struct scores_plan *p = &op->plan;
    if (is_many(p, n, n_pos)) {
        uint64_t groups = (uint64_t)n_kv_heads * many_tiles(&op->shape, n);
        return (uint32_t)size_max(1, size_min(MANY_GROUPS / groups, n_pos / MANY_SPLIT_POSITIONS));
    }
    uint64_t useful = size_min(p->max_splits / n, div_up(n_pos, p->min_positions));
    return (uint32_t)size_max(div_up(n_pos, p->most_positions), useful);
}

uint64_t scores_partial_bytes(const struct scores_shape *s, const struct exec_caps *caps, uint32_t n,
                              uint32_t n_pos)
{
    const struct scores_plan p = plan_for(s, caps);
    /* n or fewer tokens never have more parts than these: see splits_for. What is whole has none. */
    uint32_t least = div_up(n_pos, p.most_positions);
    uint64_t parts = s->n_heads * size_max(s->gated || least > 1 ? (uint64_t)n * least : 0, p.max_splits);
    if (is_many(&p, n, n_pos))
        parts = size_max(parts, (uint64_t)MANY_GROUPS * MANY_ROWS);
    return parts * (s->value_dim + 2) * sizeof(float);
}

static void run_score(const struct scores *op, struct exec *x, const struct scores_call *call,
                      const struct attention_args *a)
{
    const struct scores_plan *p = &op->plan;
    if (!is_many(p, call->n, call->pos + call->n))
        exec_run(x, &op->score, a, call->n_heads / (p->group * p->teams) * a->n_splits, call->n, 1);
    else
        exec_run(x, call->n >= op->half_from && call->half ? &op->half : &op->many, a,
                 many_tiles(&op->shape, call->n), call->n_kv_heads * a->n_splits, 1);
}

void scores_run(const struct scores *op, struct exec *x, const struct scores_call *call)
{
    const struct scores_shape *s = &op->shape;
    uint32_t splits = splits_for(op, call->n_kv_heads, call->n, call->pos + call->n);
    bool is_whole = splits == 1 && !s->gated;
    const struct attention_args score = {.q = call->q,
                                         .keys = s->flat ? call->keys : call->blocks,
                                         .values = call->values,
                                         .partial = is_whole ? call->dst : call->partial,
                                         .n = call->n,
                                         .pos = call->pos,
                                         .n_heads = call->n_heads,
                                         .n_kv_heads = call->n_kv_heads,
                                         .key_dim = s->key_dim,
                                         .value_dim = s->value_dim,
                                         .layer_off = call->layer_off,
                                         .n_splits = splits,
                                         .is_whole = is_whole,
                                         .scale = s->scale,
                                         .kv_type = s->kv_type,
                                         .q_stride = call->q_stride,
                                         .dst_stride = call->dst_stride};
    const struct attn_merge_args merge = {.partial = call->partial,
                                          .qkv = s->gated ? call->gates : 0,
                                          .dst = call->dst,
                                          .n = call->n,
                                          .n_heads = call->n_heads,
                                          .value_dim = s->value_dim,
                                          .n_splits = splits,
                                          .stride = call->gate_stride,
                                          .dst_stride = call->dst_stride};
    run_score(op, x, call, &score);
    if (!is_whole)
        exec_run(x, &op->merge, &merge, call->n_heads, call->n, 1);
}
