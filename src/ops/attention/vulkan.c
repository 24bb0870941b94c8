/* The Vulkan implementation of attention.h: plans for the device, the choice of a kernel, dispatches. */
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "ops/attention/attention.h"
#include "ops/attention/wide.h"
#include "ops/linear/gemm_plan.h"
#include "exec/fragment_layout.h"

/* SOFTWARE_SPLIT_POSITIONS: most positions of a split on lavapipe. It silently ends a shader's loops after
 * 65,535 iterations in all; attention/prefill.comp takes up to three a position. */
enum { SOFTWARE_SPLIT_POSITIONS = 16384, NO_LIMIT = 1 << 30 };

/* ROWS_AT_ONCE: BLOCK of attention/decode.comp, the rows that a lane takes at once, if they fit its
 * registers. LANE_CHANNELS: most channels of a row that a lane should have. LANE_FOURS, FEW_FOURS: groups of
 * four channels of queries and sums that fit a lane's registers, many or few (exec_has_few_registers);
 * ALL_FOURS: those with the rows, of few. HELD_FOURS: those of one row that few registers hold; if there are
 * more, queries stay in shared memory and rows are loaded where they are used. PAIRS_AT_ONCE: AT_ONCE of
 * few. */
enum { ROWS_AT_ONCE = 4, LANE_CHANNELS = 8, LANE_FOURS = 24, FEW_FOURS = 8, ALL_FOURS = 10 };
enum { HELD_FOURS = 16, PAIRS_AT_ONCE = 4 };
/* Lanes of attention/decode.comp that keep a GPU busy: workgroups of 512 on 132 processors. */
enum { WANTED_LANES = 132 * 512 };
/* Limits for attention/decode.comp: query heads of a team, lanes of a workgroup. */
struct decode_width {
    uint32_t heads, lanes;
};
static const struct decode_width default_width = {4, 512};
/* The constants of attention/decode.comp after those of kv_cache.h. */
enum {
    LANES_SPEC = KV_N_SPEC,
    FOURS_SPEC,
    PREPARE_SPEC,
    MERGED_SPEC,
    NORM_SPEC,
    BIASED_SPEC,
    WINDOW_SPEC,
    SINKS_SPEC,
    RATIO_SPEC,
    BUDGET_SPEC,
    LISTS_SPEC,
    VALUE_SCALE_SPEC,
    BLOCK_SPEC,
    AT_ONCE_SPEC,
    STREAMS_SPEC,
    DECODE_N_SPEC
};
/* MERGED_SPLITS: most splits that the last workgroup merges. MERGED_POSITIONS: most positions for which that
 * takes less time than a dispatch; for 2,048 positions it takes 14.7 us in all on an H200, two dispatches
 * 12.8. */
enum { MERGED_SPLITS = 32, MERGED_POSITIONS = 1024 };
/* The kernels of one token, by the positions that it sees. Few heads a team mean little code and many splits,
 * which counts while a dispatch has little to read; many heads share what they read. A decoded token of 16
 * layers, four with attention of 16/2 heads of 256, takes on an H200, in us, with 1, 2 and 4 heads: 748, 752,
 * 760 after no positions; 819, 798, 804 after 8,192; 982, 893, 888 after 32,768. A layer after 16,384
 * positions takes 23.4 us with workgroups of 256, 24.9 with 512. */
static const struct {
    uint32_t most_positions;
    struct decode_width width;
} ranges[ATTENTION_RANGES] = {{MERGED_POSITIONS, {1, 512}}, {12288, {2, 512}}, {UINT32_MAX, {4, 256}}};
/* attention/merge.comp. MERGE_COLS: groups of four channels of a workgroup; more if there would be more
 * workgroups than run at once (MERGE_GROUPS). MERGE_GROUP: its invocations. MERGE_MANY: fewest splits that
 * are shared out among them. */
enum { MERGE_COLS = 16, MERGE_GROUPS = 512, MERGE_GROUP = 256, MERGE_MANY = 4 };

/* attention/prefill.comp. PREFILL_ROWS: its ROWS. PREFILL_GROUPS: workgroups that keep a GPU busy.
 * PREFILL_SPLIT_POSITIONS: fewest positions worth a split. PREFILL_TOKENS: fewest tokens that fill most of
 * its tiles. PREFILL_MAX_LATENT: channels of a latent that fit its registers and shared memory. */
enum {
    PREFILL_ROWS = ATTENTION_PREFILL_ROWS,
    PREFILL_GROUPS = 512,
    PREFILL_SPLIT_POSITIONS = 256,
    PREFILL_TOKENS = 16
};
enum { PREFILL_MAX_LATENT = 512 };
/* Bytes of shared memory of attention/prefill.comp's float32 mapping. */
enum { PREFILL_SHARED = 28 * 1024 };
/* The constants of attention/prefill.comp after those of kv_cache.h. */
enum {
    ROWS_SPEC = KV_N_SPEC,
    KNOWN_LAYOUT_SPEC,
    POSITIONS_SPEC,
    PREFILL_WINDOW_SPEC,
    PREFILL_SINKS_SPEC,
    QUERIES_SHARED_SPEC,
    HALVES_SPEC,
    PREFILL_N_SPEC
};
/* Tokens of many sequences on matrices. MATRIX_ROWS, MATRIX_LANES: a workgroup's rows, twice its heads, and
 * its invocations. MATRIX_POSITIONS, MATRIX_SPLITS: fewest positions of a split, most splits. */
enum { MATRIX_ROWS = 16, MATRIX_LANES = 64, MATRIX_POSITIONS = 256, MATRIX_SPLITS = 64 };
/* Fewest positions for which attention/prefill.comp is faster for one token, too, if the token's heads fill a
 * tile. On an H200 128 heads over latents of 512 + 64 take 0.36 ms for 2,000 and 0.37 for 16,384 positions;
 * in attention/decode.comp 0.18 for 5,000 and 0.56 for 16,384. */
enum { LONG_POSITIONS = 12288 };
/* Most channels of keys and values that fit one subgroup's registers in attention_prefill_coop; for more, two
 * subgroups share the work. On an H200 keys of 192 and values of 128 take 26.0 ms alone and 27.8 shared
 * (14,336 + 2,048 positions, 128 heads). Keys and values of 256 take 3.9 ms alone, because registers spill,
 * and 2.3 shared. */
enum { MOST_ALONE = 384 };
/* Where factors take twice the registers (exec_caps.doubles_factors): MOST_ALONE; the most channels of keys
 * whose queries fit registers at all; the rows of a workgroup with queries in shared memory. Compiled for
 * RDNA3 by Mesa 25.0, keys of 256 spill 242 registers otherwise, keys of 192 and values of 128 alone 137. */
enum { MOST_ALONE_DOUBLED = 128, MOST_QUERIES_DOUBLED = 128, SHARED_ROWS = 32 };

static uint32_t at_least_one(uint32_t n)
{
    return n ? n : 1;
}

/* Returns the lanes that share a row. The rows that a subgroup looks at concurrently lie in one block of the
 * cache. */
static uint32_t lanes_for(uint32_t subgroup, uint32_t dim)
{
    uint32_t least = div_up(subgroup * ROWS_AT_ONCE, 1 << KV_BLOCK_SHIFT);
    uint32_t lanes = power_of_two_from((uint32_t)size_max(div_up(dim, LANE_CHANNELS), least));
    return at_least_one((uint32_t)size_min(lanes, subgroup));
}

/* Returns the groups of four channels of a lane. */
static uint32_t fours_of(const struct attention_plan *p, uint32_t dim)
{
    return div_up(dim, 4 * p->fours * p->lanes) * p->fours;
}

/* Returns the query heads of a team. More heads share the loads of a key head, but their queries and sums
 * fill a GPU's registers. */
static uint32_t heads_for(const struct attention_plan *p, const struct attention_shape *s, bool has_many,
                          uint32_t heads)
{
    uint32_t all = power_of_two_from(s->n_heads / s->n_kv_heads);
    uint32_t both = fours_of(p, s->key_dim) + fours_of(p, s->value_dim);
    while (heads > 1 && (heads > all || heads * both > (has_many ? LANE_FOURS : FEW_FOURS)))
        heads /= 2;
    return heads;
}

/* Returns the groups of four registers that queries, sums and rows take. */
static uint32_t all_fours(const struct attention_plan *p, const struct attention_shape *s, uint32_t rows)
{
    uint32_t key = fours_of(p, s->key_dim), value = fours_of(p, s->value_dim);
    return p->heads * (key + value) + rows * ((key + (s->latent ? 0 : value)) / p->fours);
}

/* Returns the rows that a lane takes at once. */
static uint32_t rows_for(const struct attention_plan *p, const struct attention_shape *s, bool has_many)
{
    uint32_t rows = ROWS_AT_ONCE;
    while (!has_many && rows > 1 && all_fours(p, s, rows) > ALL_FOURS)
        rows /= 2;
    return rows;
}

/* Returns the bytes of shared memory of attention/decode.comp. */
static uint64_t decode_shared_bytes(const struct attention_plan *p, const struct attention_shape *s)
{
    uint64_t tree = p->members > 1 ? (uint64_t)p->teams * (p->members / 2) * p->heads *
                                         fours_of(p, s->value_dim) * p->lanes
                                   : 0;
    uint64_t prepared = ((uint64_t)p->teams * p->heads * s->key_dim + s->key_dim + s->value_dim) / 4;
    uint64_t merged = (uint64_t)p->teams * p->heads * MERGED_SPLITS;
    return 16 * size_max(tree, prepared) + (uint64_t)8 * p->teams * p->members * p->heads + 4 * (merged + 1);
}

/* Teams share the loads of rows; members share a team's positions. Returns the lanes of a workgroup. */
static uint32_t share_out(struct attention_plan *p, const struct attention_shape *s,
                          const struct exec_caps *c, uint32_t lanes)
{
    uint32_t subgroups = (uint32_t)size_min(lanes, c->max_workgroup) / p->subgroup;
    uint32_t teams = div_up(s->n_heads / s->n_kv_heads, p->heads), most = s->latent ? 8 : 4;
    p->members = 1;
    p->teams = at_least_one((uint32_t)size_min(teams, size_min(most, subgroups)));
    while (p->teams > 1 && decode_shared_bytes(p, s) > c->max_shared_bytes)
        p->teams--;
    p->blocks = at_least_one(div_up(teams, at_least_one(p->teams)));
    p->teams = at_least_one(div_up(teams, p->blocks));
    while (!s->latent && 2 * p->members <= 8 && 2 * p->members * p->teams <= subgroups) {
        p->members *= 2;
        if (decode_shared_bytes(p, s) > c->max_shared_bytes) {
            p->members /= 2;
            break;
        }
    }
    return at_least_one(p->teams * p->members * p->subgroup);
}

static struct attention_plan plan_for(const struct attention_shape *s, const struct exec_caps *caps,
                                      struct decode_width width)
{
    struct attention_plan p = {.subgroup = caps->subgroup_size};
    p.lanes = lanes_for(p.subgroup, (uint32_t)size_max(s->key_dim, s->value_dim));
    p.fours = s->kv_type != KV_TYPE_F32 && s->key_dim % 8 == 0 && s->value_dim % 8 == 0 ? 2 : 1;
    bool has_many = !exec_has_few_registers(caps);
    p.heads = heads_for(&p, s, has_many, width.heads);
    p.rows = rows_for(&p, s, has_many);
    p.at_once = has_many ? 0 : PAIRS_AT_ONCE;
    p.streams = !has_many && all_fours(&p, s, p.rows) > HELD_FOURS;
    uint32_t lanes = share_out(&p, s, caps, width.lanes) * p.blocks * s->n_kv_heads;
    p.max_splits = at_least_one(WANTED_LANES / at_least_one(lanes));
    p.min_positions = p.rows * p.subgroup / p.lanes * p.members;
    p.most_positions = caps->is_software ? SOFTWARE_SPLIT_POSITIONS : NO_LIMIT;
    bool has_prefill = caps->max_workgroup >= 256 && caps->max_shared_bytes >= PREFILL_SHARED &&
                       s->value_dim <= (s->latent ? PREFILL_MAX_LATENT : ATTENTION_PREFILL_MAX_DIM);
    p.prefill_from = has_prefill ? PREFILL_TOKENS : UINT32_MAX;
    p.long_from =
        has_prefill && s->latent && s->n_heads / s->n_kv_heads >= PREFILL_ROWS ? LONG_POSITIONS : UINT32_MAX;
    return p;
}

static int open_merge(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size, most = caps.max_workgroup - caps.max_workgroup % subgroup;
    uint32_t group = (uint32_t)size_min(size_round_up(MERGE_GROUP, subgroup), most);
    uint32_t whole = (uint32_t)size_min(size_round_up(op->shape.value_dim / 4, subgroup), most);
    uint32_t cols = MERGE_COLS;
    while (op->shape.n_heads * (op->shape.value_dim / 4) > MERGE_GROUPS * cols)
        cols *= 2;
    op->gpu.merge_cols = group % cols ? group : cols;
    op->gpu.few_merge_cols = whole;
    const uint32_t many[] = {subgroup, group, op->gpu.merge_cols}, few[] = {subgroup, whole, whole};
    int rc =
        exec_kernel(x, &op->gpu.merge, "attention_merge", sizeof(struct attention_merge_args), many, 3, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.few_merge, "attention_merge", sizeof(struct attention_merge_args), few,
                         3, e);
    if (rc == 0)
        rc = exec_kernel_later(x, &op->gpu.merge_each, "attention_merge_each", sizeof(struct each_args), many,
                               3, e);
    if (rc == 0)
        rc = exec_kernel_later(x, &op->gpu.few_merge_each, "attention_merge_each", sizeof(struct each_args),
                               few, 3, e);
    return rc;
}

/* Returns the counters of a call. */
static uint32_t n_counters(const struct attention *op)
{
    return op->shape.n_kv_heads * op->gpu.fresh[0].plan.blocks;
}

static int open_counters(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    uint32_t n = ATTENTION_CONCURRENT * n_counters(op), zeros[64] = {0};
    int rc = exec_buffer_new(x, &op->gpu.counters, EXEC_DEVICE, n * sizeof *zeros, e);
    for (uint32_t i = 0; rc == 0 && i < n; i += 64)
        rc = exec_write(x, &op->gpu.counters, i * sizeof *zeros, zeros, size_min(64, n - i) * sizeof *zeros,
                        e);
    return rc;
}

/* Sets the constants of attention/decode.comp, except those of one token. */
static void decode_spec(const struct attention_shape *s, const struct attention_plan *p,
                        uint32_t spec[DECODE_N_SPEC])
{
    const uint32_t all[DECODE_N_SPEC] = {p->subgroup,
                                         p->teams * p->members * p->subgroup,
                                         s->key_dim,
                                         s->value_dim,
                                         p->heads,
                                         s->latent,
                                         p->teams,
                                         [KV_SPEC] = s->kv_type,
                                         [KV_FLAT_SPEC] = s->flat,
                                         [LANES_SPEC] = p->lanes,
                                         [FOURS_SPEC] = p->fours,
                                         [MERGED_SPEC] = 1,
                                         [NORM_SPEC] = s->norm,
                                         [BIASED_SPEC] = s->biased,
                                         [WINDOW_SPEC] = s->window,
                                         [SINKS_SPEC] = s->sinks,
                                         [BLOCK_SPEC] = p->rows,
                                         [AT_ONCE_SPEC] = p->at_once,
                                         [STREAMS_SPEC] = p->streams};
    const float scale = s->value_scale > 0 ? s->value_scale : 1;
    memcpy(spec, all, sizeof all);
    memcpy(&spec[VALUE_SCALE_SPEC], &scale, sizeof scale); /* the constant is a float */
}

/* Longer ranges are compiled when a token needs them. */
static int open_fresh(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < ATTENTION_RANGES; i++) {
        struct attention_range *r = &op->gpu.fresh[i];
        uint32_t spec[DECODE_N_SPEC];
        decode_spec(&op->shape, &r->plan, spec);
        spec[PREPARE_SPEC] = 1;
        spec[MERGED_SPEC] = i == 0 ? MERGED_SPLITS : 1;
        rc = (i == 0 ? exec_kernel : exec_kernel_later)(
            x, &r->kernel, "attention_decode", sizeof(struct attention_decode_args), spec, DECODE_N_SPEC, e);
        if (rc == 0)
            rc = exec_kernel_later(x, &r->each, "attention_decode_each", sizeof(struct each_args), spec,
                                   DECODE_N_SPEC, e);
        /* The last workgroup knows itself by a counter, which a part of a dispatch would leave raised. */
        r->kernel.is_one_piece = r->each.is_one_piece = spec[MERGED_SPEC] > 1;
    }
    return rc < 0 ? rc : open_counters(op, x, e);
}

/* Returns whether attention prepares single tokens itself. */
static bool prepares(const struct attention_shape *s)
{
    return !s->latent && !s->flat;
}

static int open_decode(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    uint32_t spec[DECODE_N_SPEC];
    decode_spec(s, &op->gpu.plan, spec);
    /* Only prompts have keys and values outside the cache, or several tokens that are not prepared here. */
    int rc = (s->flat || prepares(s) ? exec_kernel_later : exec_kernel)(
        x, &op->gpu.decode, "attention_decode", sizeof(struct attention_decode_args), spec, DECODE_N_SPEC, e);
    if (rc == 0 && prepares(s))
        rc = open_fresh(op, x, e);
    spec[RATIO_SPEC] = s->choice.ratio;
    spec[BUDGET_SPEC] = s->choice.budget;
    spec[LISTS_SPEC] = s->choice.heads;
    if (rc == 0 && s->choice.ratio)
        rc = exec_kernel_later(x, &op->gpu.chosen, "attention_decode", sizeof(struct attention_decode_args),
                               spec, DECODE_N_SPEC, e);
    if (rc == 0 && s->choice.ratio)
        rc = exec_kernel_later(x, &op->gpu.chosen_each, "attention_decode_each", sizeof(struct each_args),
                               spec, DECODE_N_SPEC, e);
    return rc < 0 ? rc : open_merge(op, x, e);
}

/* F16_POSITIONS: positions of a tile of attention/prefill_coop.glsl. FRAG_ROWS, FRAG_POSITIONS: rows and
 * positions if softmax runs in registers. */
enum { F16_POSITIONS = 32, FRAG_ROWS = 128, FRAG_POSITIONS = 64 };

/* Returns the bytes of shared memory of attention_prefill_coop: the queries or a tile's keys and values,
 * scores, weights. */
static uint64_t f16_shared_bytes(const struct attention_shape *s, uint32_t positions, bool has_known_layout)
{
    uint64_t key = s->key_dim / 8 + 1, value = s->value_dim / 8 + 1;
    uint64_t softmax = has_known_layout ? 8 : (uint64_t)PREFILL_ROWS * (9 + 5);
    return 16 * (size_max(PREFILL_ROWS * key, positions * (key + value)) + softmax);
}

static bool queries_are_shared(const struct attention_shape *s, const struct exec_caps *c)
{
    return c->doubles_factors && s->key_dim > MOST_QUERIES_DOUBLED;
}

/* Returns whether the device has the shared memory of attention_prefill_coop. */
static bool f16_fits(const struct attention_shape *s, const struct exec_caps *c)
{
    uint64_t key = s->key_dim / 8 + 1, value = s->value_dim / 8 + 1;
    uint64_t shared = 16 * (SHARED_ROWS * (key + 9 + 5) + F16_POSITIONS * (key + value));
    return (queries_are_shared(s, c) ? shared : f16_shared_bytes(s, F16_POSITIONS, false)) <=
           c->max_shared_bytes;
}

/* Opens the kernel of attention_matrices_take. tiles: the constants of the float16 kernel that takes queries
 * from shared memory. */
static int open_matrices(struct attention *op, struct exec *x, const uint32_t tiles[PREFILL_N_SPEC],
                         struct moeflux_err *e)
{
    uint32_t spec[PREFILL_N_SPEC];
    int rc = fragment_layout_probe(x, e);
    if (rc <= 0 || op->shape.flat || op->shape.kv_type == KV_TYPE_F32)
        return rc < 0 ? rc : 0;
    memcpy(spec, tiles, sizeof spec);
    spec[1] = MATRIX_LANES;
    spec[ROWS_SPEC] = MATRIX_ROWS;
    spec[KNOWN_LAYOUT_SPEC] = spec[QUERIES_SHARED_SPEC] = spec[HALVES_SPEC] = 1;
    op->gpu.matrices_from = MATRIX_POSITIONS;
    return exec_kernel_later(x, &op->gpu.matrices, "attention_prefill_eachcoop", sizeof(struct each_args),
                             spec, PREFILL_N_SPEC, e);
}

/* Opens the float16 kernels. tiles: the constants so far. */
static int open_f16(struct attention *op, struct exec *x, uint32_t tiles[PREFILL_N_SPEC],
                    struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t bytes = sizeof(struct attention_prefill_args), most = caps.max_shared_bytes;
    bool is_alone = s->key_dim + s->value_dim <= (caps.doubles_factors ? MOST_ALONE_DOUBLED : MOST_ALONE);
    int rc = open_matrices(op, x, tiles, e);
    op->gpu.f16_from = PREFILL_TOKENS;
    op->gpu.f16_rows = op->gpu.f16_shared_rows = tiles[ROWS_SPEC] =
        queries_are_shared(s, &caps) ? SHARED_ROWS : PREFILL_ROWS;
    tiles[QUERIES_SHARED_SPEC] = queries_are_shared(s, &caps);
    tiles[1] = op->gpu.f16_rows * (is_alone ? 2 : 4); /* a subgroup for 16 rows, or two */
    if (rc == 0)
        rc = exec_kernel_later(x, &op->gpu.f16_shared, "attention_prefill_coop", bytes, tiles, PREFILL_N_SPEC,
                               e);
    if (rc == 0 && is_alone && f16_shared_bytes(s, FRAG_POSITIONS, true) <= most)
        rc = fragment_layout_probe(x, e);
    if (rc > 0) {
        op->gpu.f16_rows = tiles[ROWS_SPEC] = FRAG_ROWS;
        tiles[1] = 2 * FRAG_ROWS;
        tiles[POSITIONS_SPEC] = FRAG_POSITIONS;
        tiles[KNOWN_LAYOUT_SPEC] = 1;
    }
    return rc < 0 ? rc
                  : exec_kernel_later(x, &op->gpu.f16, "attention_prefill_coop", bytes, tiles, PREFILL_N_SPEC,
                                      e);
}

static int open_prefill(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    struct exec_caps caps = exec_get_caps(x);
    const uint32_t bytes = sizeof(struct attention_prefill_args);
    uint32_t tiles[PREFILL_N_SPEC] = {caps.subgroup_size,
                                      256,
                                      s->key_dim,
                                      s->value_dim,
                                      0,
                                      s->latent,
                                      [KV_SPEC] = s->kv_type,
                                      [KV_FLAT_SPEC] = s->flat,
                                      [ROWS_SPEC] = PREFILL_ROWS,
                                      [POSITIONS_SPEC] = F16_POSITIONS,
                                      [PREFILL_WINDOW_SPEC] = s->window,
                                      [PREFILL_SINKS_SPEC] = s->sinks};
    int rc = 0;
    op->gpu.f16_from = UINT32_MAX;
    if (op->gpu.plan.prefill_from == UINT32_MAX)
        return 0;
    /* Only prompts need it, and very long sequences. */
    rc = (op->gpu.plan.long_from < UINT32_MAX ? exec_kernel : exec_kernel_later)(
        x, &op->gpu.prefill, "attention_prefill", bytes, tiles, PREFILL_N_SPEC, e);
    if (rc < 0 || s->latent || !gemm_has_f16(x) || s->key_dim % 16 || s->value_dim % 16 ||
        !f16_fits(s, &caps))
        return rc;
    return open_f16(op, x, tiles, e);
}

void attention_vulkan_plan(struct attention *op, const struct exec_caps *caps)
{
    op->gpu.plan = plan_for(&op->shape, caps, default_width);
    for (uint32_t i = 0; i < ATTENTION_RANGES && prepares(&op->shape); i++)
        op->gpu.fresh[i].plan = plan_for(&op->shape, caps, ranges[i].width);
    op->gpu.takes_wide = attention_wide_is_possible(&op->shape, caps);
}

int attention_vulkan_open(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    attention_vulkan_plan(op, &caps);
    int rc = open_decode(op, x, e);
    if (rc == 0 && op->gpu.takes_wide)
        rc = attention_wide_open(op, x, e);
    return rc < 0 ? rc : open_prefill(op, x, e);
}

/* Returns the workgroups of attention/prefill.comp along the rows. */
static uint32_t prefill_tiles(const struct attention_shape *s, uint32_t n, uint32_t rows)
{
    return div_up(n * (s->n_heads / s->n_kv_heads), rows);
}

static bool takes_prefill(const struct attention_plan *p, uint32_t n, uint32_t n_pos)
{
    return n >= p->prefill_from || n_pos >= p->long_from;
}

/* Returns the most positions that a token with a list sees. */
static uint32_t n_listed(const struct kv_choice *c)
{
    return c->budget * c->ratio + c->ratio - (c->heads == 0);
}

/* Returns the splits of a list's positions: for few tokens as many as one alone would have. */
static uint32_t splits_of_lists(const struct attention_shape *s, const struct attention_plan *p, uint32_t n)
{
    uint32_t n_pos = n_listed(&s->choice), least = div_up(n_pos, p->most_positions);
    uint64_t useful = size_min(p->max_splits, div_up(n_pos, p->min_positions));
    return (uint32_t)size_max(least, n <= EXEC_MAX_INVARIANT ? useful : 1);
}

/* Returns how many positions some token of the call sees. */
static uint32_t n_seen(const struct attention *op, const struct attention_call *call)
{
    if (attention_has_lists(&op->shape, call))
        return n_listed(&op->shape.choice);
    return call->pos + call->n - attention_first(&op->shape, call->pos);
}

/* Returns the kernel for a token that attention prepares itself. */
static const struct attention_range *range_of(const struct attention *op, const struct attention_call *call)
{
    uint32_t i = 0, n = n_seen(op, call);
    while (n > ranges[i].most_positions)
        i++;
    return &op->gpu.fresh[i];
}

static const struct attention_plan *plan_of(const struct attention *op, const struct attention_call *call)
{
    return call->fresh ? &range_of(op, call)->plan : &op->gpu.plan;
}

/* Returns whether the last workgroup of a token's attention merges the splits. */
static bool is_merged(const struct attention *op, const struct attention_call *call)
{
    return call->fresh && n_seen(op, call) <= MERGED_POSITIONS;
}

/* Returns the splits of a token on matrices: they depend on its own positions alone. */
static uint32_t splits_on_matrices(uint32_t n_pos)
{
    return (uint32_t)size_min(MATRIX_SPLITS, div_up(n_pos, MATRIX_POSITIONS));
}

/* Returns the splits of the n_pos positions that the call sees: enough workgroups, none of them idle. */
static uint32_t splits_for(const struct attention *op, const struct attention_call *call, uint32_t n_pos)
{
    const struct attention_plan *p = plan_of(op, call);
    uint32_t n = call->n;
    uint64_t useful = size_min(p->max_splits / n, div_up(n_pos, p->min_positions));
    if (call->on_matrices)
        return splits_on_matrices(n_pos);
    if (attention_has_lists(&op->shape, call))
        return splits_of_lists(&op->shape, p, n);
    if (takes_prefill(p, n, n_pos)) {
        uint64_t groups = (uint64_t)call->n_kv_heads * prefill_tiles(&op->shape, n, PREFILL_ROWS);
        useful = size_min(PREFILL_GROUPS / groups, n_pos / PREFILL_SPLIT_POSITIONS);
    }
    return (uint32_t)size_max(div_up(n_pos, p->most_positions), useful);
}

uint64_t attention_partial_bytes(const struct attention_shape *s, const struct exec_caps *caps, uint32_t n,
                                 uint32_t n_pos)
{
    if (caps->is_host)
        return caps->is_native ? attention_cpu_partial_bytes(s, n_pos) : 0;
    const struct attention_plan p = plan_for(s, caps, default_width);
    /* n or fewer tokens never have more splits than these (splits_for). What is whole has none. */
    uint32_t least = div_up(n_pos, p.most_positions), splits = p.max_splits;
    for (uint32_t i = 0; i < ATTENTION_RANGES && prepares(s); i++)
        splits = (uint32_t)size_max(splits, plan_for(s, caps, ranges[i].width).max_splits);
    if (caps->has_coopmat && prepares(s))
        splits = (uint32_t)size_max(splits, splits_on_matrices(n_pos));
    uint64_t parts = s->n_heads * size_max(s->gated || least > 1 ? (uint64_t)n * least : 0, splits);
    if (takes_prefill(&p, n, n_pos))
        parts = size_max(parts, (uint64_t)PREFILL_GROUPS * PREFILL_ROWS);
    if (n_pos > kv_choice_from(&s->choice)) {
        uint64_t few = size_min(n, EXEC_MAX_INVARIANT);
        parts = size_max(parts, s->n_heads * size_max(few * splits_of_lists(s, &p, (uint32_t)few),
                                                      (uint64_t)n * splits_of_lists(s, &p, UINT32_MAX)));
    }
    uint64_t bytes = parts * (s->value_dim + 2) * sizeof(float);
    return attention_wide_is_possible(s, caps) ? size_max(bytes, attention_wide_bytes(s, n, n_pos)) : bytes;
}

static struct attention_prefill_args
prefill_args(const struct attention *op, const struct attention_call *call, uint32_t splits, bool is_whole)
{
    const struct attention_shape *s = &op->shape;
    return (struct attention_prefill_args){.q = call->q,
                                           .keys = s->flat ? call->keys : call->blocks,
                                           .values = call->values,
                                           .partial = is_whole ? call->dst : call->partial,
                                           .sinks = call->sinks,
                                           .n = call->n,
                                           .pos = call->pos,
                                           .n_heads = call->n_heads,
                                           .n_kv_heads = call->n_kv_heads,
                                           .layer_off = call->layer_off,
                                           .n_splits = splits,
                                           .is_whole = is_whole,
                                           .scale = s->scale,
                                           .q_stride = call->q_stride,
                                           .dst_stride = call->dst_stride};
}

static void run_prefill(const struct attention *op, struct exec *x, const struct attention_call *call,
                        uint32_t splits, bool is_whole)
{
    const struct attention_shape *s = &op->shape;
    const struct attention_prefill_args a = prefill_args(op, call, splits, is_whole);
    bool is_f16 = call->n >= op->gpu.f16_from && call->use_f16;
    exec_dispatch(x, is_f16 ? &op->gpu.f16 : &op->gpu.prefill, &a,
                  prefill_tiles(s, call->n, is_f16 ? op->gpu.f16_rows : PREFILL_ROWS),
                  call->n_kv_heads * splits, 1);
}

/* place: index of the call among the concurrent ones. */
static struct attention_decode_args decode_args(const struct attention *op, const struct attention_call *call,
                                                uint32_t place, uint32_t splits, bool is_whole)
{
    const struct attention_shape *s = &op->shape;
    const struct attention_fresh none = {0}, *fresh = call->fresh ? call->fresh : &none;
    bool has_lists = attention_has_lists(s, call);
    uint32_t is = is_whole ? ATTENTION_WHOLE : is_merged(op, call) ? ATTENTION_MERGED : 0;
    is |= s->gated ? ATTENTION_GATED : 0;
    is |= call->fresh && call->fresh->norms_values ? ATTENTION_VALUES : 0;
    return (struct attention_decode_args){.q = call->q,
                                          .keys = s->flat ? call->keys : call->blocks,
                                          .values = call->fresh ? fresh->bias : call->values,
                                          .partial = is_whole ? call->dst : call->partial,
                                          .q_norm = has_lists ? call->chosen : fresh->q_norm,
                                          .k_norm = fresh->k_norm,
                                          .rope = fresh->rope,
                                          .dst = call->dst,
                                          .counters = op->gpu.counters.address +
                                                      (uint64_t)place * n_counters(op) * sizeof(uint32_t),
                                          .sinks = call->sinks,
                                          .n = call->n,
                                          .pos = call->pos,
                                          .n_heads = call->n_heads,
                                          .n_kv_heads = call->n_kv_heads,
                                          .layer_off = call->layer_off,
                                          .n_splits = splits,
                                          .scale = s->scale,
                                          .q_stride = call->q_stride,
                                          .dst_stride = call->dst_stride,
                                          .rotary_dim = has_lists ? s->choice.budget + 1 : fresh->rotary_dim,
                                          .eps = fresh->eps,
                                          .is = is};
}

/* Returns the workgroups of a token of the call. */
static uint32_t decode_groups(const struct attention *op, const struct attention_call *call, uint32_t splits)
{
    return call->n_kv_heads * plan_of(op, call)->blocks * splits;
}

static void run_decode(const struct attention *op, struct exec *x, const struct attention_call *call,
                       uint32_t place, uint32_t splits, bool is_whole)
{
    const struct attention_decode_args a = decode_args(op, call, place, splits, is_whole);
    const struct kernel *kernel = attention_has_lists(&op->shape, call) ? &op->gpu.chosen
                                  : call->fresh                         ? &range_of(op, call)->kernel
                                                                        : &op->gpu.decode;
    exec_dispatch(x, kernel, &a, decode_groups(op, call, splits), call->n, 1);
}

static struct attention_merge_args merge_args(const struct attention *op, const struct attention_call *call,
                                              uint32_t rows, uint32_t splits)
{
    const struct attention_shape *s = &op->shape;
    return (struct attention_merge_args){.partial = call->partial,
                                         .qkv = s->gated ? call->gates : 0,
                                         .dst = call->dst,
                                         .rows = rows,
                                         .n_heads = call->n_heads,
                                         .value_dim = s->value_dim,
                                         .n_splits = splits,
                                         .stride = call->gate_stride,
                                         .dst_stride = call->dst_stride};
}

static uint32_t merge_groups(const struct attention *op, const struct attention_call *call, bool is_few)
{
    uint32_t cols = is_few ? op->gpu.few_merge_cols : op->gpu.merge_cols;
    return call->n_heads * div_up(op->shape.value_dim / 4, cols);
}

void attention_merge_run(const struct attention *op, struct exec *x, const struct attention_call *call,
                         uint32_t rows, uint32_t splits)
{
    const struct attention_merge_args a = merge_args(op, call, rows, splits);
    bool is_few = splits < MERGE_MANY;
    exec_dispatch(x, is_few ? &op->gpu.few_merge : &op->gpu.merge, &a, merge_groups(op, call, is_few),
                  call->n, 1);
}

static uint32_t splits_of(const struct attention *op, const struct attention_call *call)
{
    uint32_t splits = splits_for(op, call, n_seen(op, call));
    return is_merged(op, call) ? (uint32_t)size_min(splits, MERGED_SPLITS) : splits;
}

static bool is_whole(const struct attention *op, uint32_t splits)
{
    return splits == 1 && !op->shape.gated;
}

/* Computes the splits, and then joins them if that takes another dispatch. */
static void run_splits(const struct attention *op, struct exec *x, const struct attention_call *call,
                       uint32_t place)
{
    uint32_t splits = splits_of(op, call);
    if (!attention_has_lists(&op->shape, call) && takes_prefill(&op->gpu.plan, call->n, call->pos + call->n))
        run_prefill(op, x, call, splits, is_whole(op, splits));
    else
        run_decode(op, x, call, place, splits, is_whole(op, splits));
}

static bool needs_merge(const struct attention *op, const struct attention_call *call)
{
    return !is_merged(op, call) && !is_whole(op, splits_of(op, call));
}

static void merge(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    attention_merge_run(op, x, call, call->n * call->n_heads, splits_of(op, call));
}

static bool goes_by_wide_rows(const struct attention *op, const struct attention_call *call)
{
    return call->use_f16 && !attention_has_lists(&op->shape, call) &&
           attention_wide_takes(op, call->n, call->pos + call->n);
}

struct attention_parts attention_parts_of(const struct attention *op, const struct attention_call *call)
{
    if (goes_by_wide_rows(op, call))
        return attention_wide_parts(op, call->pos + call->n);
    bool has_some = needs_merge(op, call);
    return (struct attention_parts){.rows = has_some ? call->n * call->n_heads : 0,
                                    .n_splits = has_some ? splits_of(op, call) : 0};
}

uint64_t attention_vulkan_bytes(const struct attention *op, const struct attention_call *call)
{
    if (goes_by_wide_rows(op, call))
        return attention_wide_call_bytes(op, call);
    uint32_t splits = splits_of(op, call);
    uint64_t rows = is_whole(op, splits) ? 0 : (uint64_t)call->n * call->n_heads;
    return rows * splits * (op->shape.value_dim + 2) * sizeof(float);
}

/* Returns whether the call's scratch memory is large enough; if not, fails the batch. */
static bool has_room(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    return exec_has_scratch(x, "attention", attention_vulkan_bytes(op, call), call->partial_bytes);
}

void attention_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct attention *op = self;
    const struct attention_call *call = what;
    if (!has_room(op, x, call))
        return;
    if (goes_by_wide_rows(op, call)) {
        attention_wide_run(op, x, call);
        return;
    }
    run_splits(op, x, call, 0);
    if (needs_merge(op, call) && !call->leaves_parts)
        merge(op, x, call);
}

/* Returns the kernel that computes the call with others of the same kernel; NULL: it goes alone. */
static const struct kernel *each_of(const struct attention *op, const struct attention_call *call)
{
    if (attention_has_lists(&op->shape, call))
        return &op->gpu.chosen_each;
    bool goes_alone = !call->fresh || takes_prefill(&op->gpu.plan, call->n, call->pos + call->n);
    return goes_alone ? NULL : &range_of(op, call)->each;
}

/* Computes the calls that share the first one's kernel, and marks them. is: 0, ATTENTION_STORES or
 * ATTENTION_STORED. */
static void run_decodes(const struct attention *op, struct exec *x, const struct attention_call *calls,
                        uint32_t first, uint32_t n, uint32_t is, bool *is_done)
{
    const struct kernel *k = each_of(op, &calls[first]);
    struct attention_decode_args all[ATTENTION_CONCURRENT];
    uint32_t n_all = 0, groups = 0;
    for (uint32_t i = first; k && i < n; i++) {
        if (is_done[i] || each_of(op, &calls[i]) != k)
            continue;
        uint32_t splits = is == ATTENTION_STORES ? 1 : splits_of(op, &calls[i]);
        all[n_all] = decode_args(op, &calls[i], i, splits, is_whole(op, splits));
        all[n_all++].is |= is;
        groups = (uint32_t)size_max(groups, decode_groups(op, &calls[i], splits));
        is_done[i] = true;
    }
    if (k)
        exec_dispatch_each(x, k, all, sizeof *all, n_all, groups, 1);
    else
        run_splits(op, x, &calls[first], first);
}

/* Joins the splits of the calls that need few, or many, workgroups for it; concurrently with what came
 * before if `goes_along`. Returns whether there are some. */
static bool run_merges(const struct attention *op, struct exec *x, const struct attention_call *calls,
                       uint32_t n, bool is_few, bool goes_along)
{
    struct attention_merge_args all[ATTENTION_CONCURRENT];
    uint32_t n_all = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t splits = splits_of(op, &calls[i]);
        if (needs_merge(op, &calls[i]) && (splits < MERGE_MANY) == is_few)
            all[n_all++] = merge_args(op, &calls[i], calls[i].n * calls[i].n_heads, splits);
    }
    if (n_all > 0 && goes_along)
        exec_concurrent(x);
    if (n_all > 0)
        exec_dispatch_each(x, is_few ? &op->gpu.few_merge_each : &op->gpu.merge_each, all, sizeof *all, n_all,
                           merge_groups(op, calls, is_few), 1);
    return n_all > 0;
}

/* Computes the calls on matrices, and marks them. Returns whether there are some. */
static bool run_on_matrices(const struct attention *op, struct exec *x, const struct attention_call *calls,
                            uint32_t n, bool *is_done)
{
    struct attention_prefill_args all[ATTENTION_CONCURRENT];
    uint32_t n_all = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!calls[i].on_matrices)
            continue;
        uint32_t splits = splits_of(op, &calls[i]);
        all[n_all++] = prefill_args(op, &calls[i], splits, is_whole(op, splits));
        most = (uint32_t)size_max(most, splits);
        is_done[i] = true;
    }
    if (n_all > 0)
        exec_dispatch_each(x, &op->gpu.matrices, all, sizeof *all, n_all,
                           prefill_tiles(&op->shape, 1, MATRIX_ROWS / 2), calls->n_kv_heads * most);
    return n_all > 0;
}

/* Computes the calls that are not done yet, concurrently with what came before if `goes_along`. */
static void run_others(const struct attention *op, struct exec *x, const struct attention_call *calls,
                       uint32_t n, uint32_t is, bool goes_along, bool *is_done)
{
    for (uint32_t i = 0; i < n; i++) {
        if (is_done[i])
            continue;
        if (goes_along)
            exec_concurrent(x);
        goes_along = true;
        run_decodes(op, x, calls, i, n, is, is_done);
    }
}

static void run_all_merges(const struct attention *op, struct exec *x, const struct attention_call *calls,
                           uint32_t n)
{
    bool has_few = run_merges(op, x, calls, n, true, false);
    run_merges(op, x, calls, n, false, has_few);
}

void attention_vulkan_concurrent(const struct attention *op, struct exec *x,
                                 const struct attention_call *calls, uint32_t n)
{
    bool is_done[ATTENTION_CONCURRENT] = {false};
    for (uint32_t i = 0; i < n; i++)
        if (!has_room(op, x, &calls[i]))
            return;
    bool goes_along = run_on_matrices(op, x, calls, n, is_done);
    run_others(op, x, calls, n, 0, goes_along, is_done);
    run_all_merges(op, x, calls, n);
}

bool attention_vulkan_chain(const struct attention *op, struct exec *x, const struct attention_call *calls,
                            uint32_t n)
{
    bool is_stored[ATTENTION_CONCURRENT] = {false}, is_done[ATTENTION_CONCURRENT] = {false};
    for (uint32_t i = 0; i < n; i++)
        if (attention_has_lists(&op->shape, &calls[i]) || !each_of(op, &calls[i]))
            return false;
    for (uint32_t i = 0; i < n; i++)
        if (!has_room(op, x, &calls[i]))
            return true;
    run_others(op, x, calls, n, ATTENTION_STORES, false, is_stored);
    run_others(op, x, calls, n, ATTENTION_STORED, false, is_done);
    run_all_merges(op, x, calls, n);
    return true;
}
