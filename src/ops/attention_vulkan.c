#include "args.h"
#include "base/mem.h"
#include "ops/attention.h"
#include "ops/gemm_plan.h"

/* Most positions of one split. lavapipe silently ends a shader's loops after 65,535 turns, all loops together;
 * attention/prefill.comp takes up to three turns a position. */
enum { SOFTWARE_SPLIT_POSITIONS = 16384, NO_LIMIT = 1 << 30 };

/* BLOCK of attention/decode.comp: the positions that a subgroup takes at once. */
enum { POSITIONS_AT_ONCE = 4 };
/* Its workgroups that keep a GPU busy. */
enum { WANTED_GROUPS = 256 };

/* ROWS of attention/prefill.comp; its workgroups that keep a GPU busy; positions that are worth a split; tokens from which
 * its tiles are better filled than not; value channels that its registers and shared memory have room for. */
enum { PREFILL_ROWS = 64, PREFILL_GROUPS = 512, PREFILL_SPLIT_POSITIONS = 256, PREFILL_TOKENS = 16 };
enum { PREFILL_MAX_DIM = 256, PREFILL_MAX_LATENT = 512 };
/* Positions from which on one token's heads, where they fill a tile, are faster there, too: on an H200 128 heads over
 * latents of 512 + 64 take 0.36 ms for 2,000 and 0.37 for 16,384 positions, in attention/decode.comp 0.18 for 5,000 and 0.56
 * for 16,384. */
enum { LONG_POSITIONS = 12288 };
/* Channels of keys and values for which one subgroup's registers have room in attention_many_coop; of more, two share
 * the work. On an H200 keys of 192 and values of 128 take 26.0 ms alone and 27.8 shared (14,336 + 2,048 positions, 128
 * heads), keys and values of 256 take 3.9 ms alone, when registers spill, and 2.3 shared. */
enum { MOST_ALONE = 384 };

static uint32_t vecs_for(uint32_t dim, uint32_t subgroup)
{
    return div_up(dim, 4 * subgroup);
}

/* Query heads of a team: more share the loads of a key head, but their queries and sums fill a GPU's registers (eight
 * of 256 channels are too many). */
static uint32_t group_for(const struct exec_caps *c, const struct attention_shape *s)
{
    uint32_t all = s->n_heads / s->n_kv_heads, keys = vecs_for(s->key_dim, c->subgroup_size);
    uint32_t both = keys + vecs_for(s->value_dim, c->subgroup_size), most = 4;
    if (s->latent)
        most = (uint32_t)size_min(most, 24 / both);
    uint32_t group = (uint32_t)size_max(1, size_min(all, most));
    while (all % group)
        group--;
    return group;
}

/* Subgroups of a workgroup that share heads: what each of them adds up takes its share of shared memory. */
static uint32_t members_for(const struct exec_caps *c, uint64_t bytes)
{
    uint32_t n = (uint32_t)size_min(8, c->max_workgroup / c->subgroup_size);
    while (n > 1 && n * bytes + 4096 > c->max_shared_bytes)
        n--;
    return n;
}

/* Where all heads share their keys, subgroups with heads of their own share the loads. */
static uint32_t teams_for(const struct exec_caps *c, uint32_t n_groups)
{
    uint32_t n = (uint32_t)size_min(8, c->max_workgroup / c->subgroup_size);
    while (n_groups % n)
        n--;
    return n;
}

static struct attention_plan plan_for(const struct attention_shape *s, const struct exec_caps *caps)
{
    struct attention_plan p = {.subgroup = caps->subgroup_size, .group = group_for(caps, s), .members = 1};
    uint64_t sums = (uint64_t)p.group * vecs_for(s->value_dim, p.subgroup) * p.subgroup * 4 * sizeof(float);
    uint32_t n_groups = s->n_heads / p.group;
    p.teams = s->latent ? teams_for(caps, n_groups) : 1;
    if (!s->latent)
        p.members = members_for(caps, sums);
    p.max_splits = (uint32_t)size_max(1, WANTED_GROUPS / (n_groups / p.teams));
    p.min_positions = POSITIONS_AT_ONCE * p.members;
    p.most_positions = caps->is_software ? SOFTWARE_SPLIT_POSITIONS : NO_LIMIT;
    bool has_prefill =
        caps->max_workgroup >= 256 && s->value_dim <= (s->latent ? PREFILL_MAX_LATENT : PREFILL_MAX_DIM);
    p.prefill_from = has_prefill ? PREFILL_TOKENS : UINT32_MAX;
    p.long_from = has_prefill && s->n_heads / s->n_kv_heads >= PREFILL_ROWS ? LONG_POSITIONS : UINT32_MAX;
    return p;
}

static int open_decode(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    const struct attention_plan *p = &op->gpu.plan;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t group = (uint32_t)size_min(caps.max_workgroup, size_round_up(256, p->subgroup));
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
    int rc = (s->flat ? exec_kernel_later : exec_kernel)(x, &op->gpu.score, "attention_decode",
                                                         sizeof(struct attention_args), score, KV_N_SPEC, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.merge, "attention_merge", sizeof(struct attention_merge_args), merge, 2,
                         e);
    return rc;
}

/* Shared memory of attention_many_coop: the queries or 32 keys and values, scores, weights. */
static uint64_t f16_shared_bytes(const struct attention_shape *s)
{
    uint64_t key = s->key_dim / 8 + 1, value = s->value_dim / 8 + 1;
    return 16 * (size_max(PREFILL_ROWS * key, 32 * (key + value)) + (uint64_t)PREFILL_ROWS * (9 + 5));
}

static int open_prefill(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    struct exec_caps caps = exec_get_caps(x);
    uint32_t tiles[KV_N_SPEC] = {
        caps.subgroup_size,      256, s->key_dim, s->value_dim, 0, s->latent, [KV_SPEC] = s->kv_type,
        [KV_FLAT_SPEC] = s->flat};
    int rc = 0;
    op->gpu.f16_from = UINT32_MAX;
    if (op->gpu.plan.prefill_from == UINT32_MAX)
        return 0;
    /* Prompts alone need it, but for long sequences. */
    rc = (op->gpu.plan.long_from < UINT32_MAX ? exec_kernel : exec_kernel_later)(
        x, &op->gpu.prefill, "attention_prefill", sizeof(struct attention_args), tiles, KV_N_SPEC, e);
    if (rc < 0 || s->latent || !gemm_has_f16(x) || s->key_dim % 16 || s->value_dim % 16 ||
        f16_shared_bytes(s) > caps.max_shared_bytes)
        return rc;
    op->gpu.f16_from = PREFILL_TOKENS;
    tiles[1] = s->key_dim + s->value_dim > MOST_ALONE ? 256 : 128;
    return exec_kernel_later(x, &op->gpu.f16, "attention_prefill_coop", sizeof(struct attention_args), tiles,
                             KV_N_SPEC, e);
}

int attention_vulkan_open(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    op->gpu.plan = plan_for(&op->shape, &caps);
    int rc = open_decode(op, x, e);
    return rc < 0 ? rc : open_prefill(op, x, e);
}

/* Workgroups of attention_many along the rows. */
static uint32_t prefill_tiles(const struct attention_shape *s, uint32_t n)
{
    return div_up(n * (s->n_heads / s->n_kv_heads), PREFILL_ROWS);
}

static bool takes_prefill(const struct attention_plan *p, uint32_t n, uint32_t n_pos)
{
    return n >= p->prefill_from || n_pos >= p->long_from;
}

/* Splits for n tokens that see n_pos positions: enough workgroups, none of them idle. */
static uint32_t splits_for(const struct attention *op, uint32_t n_kv_heads, uint32_t n, uint32_t n_pos)
{
    const struct attention_plan *p = &op->gpu.plan;
    uint64_t useful = size_min(p->max_splits / n, div_up(n_pos, p->min_positions));
    if (takes_prefill(p, n, n_pos)) {
        uint64_t groups = (uint64_t)n_kv_heads * prefill_tiles(&op->shape, n);
        useful = size_min(PREFILL_GROUPS / groups, n_pos / PREFILL_SPLIT_POSITIONS);
    }
    return (uint32_t)size_max(div_up(n_pos, p->most_positions), useful);
}

uint64_t attention_partial_bytes(const struct attention_shape *s, const struct exec_caps *caps, uint32_t n,
                                 uint32_t n_pos)
{
    if (caps->is_host)
        return caps->is_native ? attention_cpu_partial_bytes(s, n_pos) : 0;
    const struct attention_plan p = plan_for(s, caps);
    /* n or fewer tokens never have more parts than these: see splits_for. What is whole has none. */
    uint32_t least = div_up(n_pos, p.most_positions);
    uint64_t parts = s->n_heads * size_max(s->gated || least > 1 ? (uint64_t)n * least : 0, p.max_splits);
    if (takes_prefill(&p, n, n_pos))
        parts = size_max(parts, (uint64_t)PREFILL_GROUPS * PREFILL_ROWS);
    return parts * (s->value_dim + 2) * sizeof(float);
}

static void run_score(const struct attention *op, struct exec *x, const struct attention_call *call,
                      const struct attention_args *a)
{
    const struct attention_plan *p = &op->gpu.plan;
    if (!takes_prefill(p, call->n, call->pos + call->n))
        exec_dispatch(x, &op->gpu.score, a, call->n_heads / (p->group * p->teams) * a->n_splits, call->n, 1);
    else
        exec_dispatch(x, call->n >= op->gpu.f16_from && call->use_f16 ? &op->gpu.f16 : &op->gpu.prefill, a,
                      prefill_tiles(&op->shape, call->n), call->n_kv_heads * a->n_splits, 1);
}

void attention_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct attention *op = self;
    const struct attention_call *call = what;
    const struct attention_shape *s = &op->shape;
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
    const struct attention_merge_args merge = {.partial = call->partial,
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
        exec_dispatch(x, &op->gpu.merge, &merge, call->n_heads, call->n, 1);
}
