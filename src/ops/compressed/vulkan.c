/* The Vulkan implementation of compressed.h. */
#include "args.h"
#include "base/mem.h"
#include "ops/compressed/compressed.h"

/* ROW_GROUP: lanes of compressed/turn.comp and pool.comp. ATTEND_GROUP: lanes of attend.comp. LANE_UNITS:
 * groups of four channels of a lane, of queries and of sums, that leave registers for a second head.
 * HELD_UNITS: those of queries, sums and four rows that few registers hold (exec_has_few_registers). */
enum { ROW_GROUP = 128, ATTEND_GROUP = 256, LANE_UNITS = 4, HELD_UNITS = 16 };
/* The constants of attend.comp after those of kv_cache.h. */
enum { HEADS_SPEC = KV_N_SPEC, STREAMS_SPEC, ATTEND_N_SPEC };

/* Returns the bytes of shared memory of attend.comp. */
static uint64_t attend_bytes(const struct compressed_shape *s, uint32_t heads, uint32_t subgroup,
                             uint32_t group)
{
    uint64_t n = group / subgroup, row = size_round_up(s->dim / 4, subgroup);
    return (n + 1) / 2 * heads * row * 16 + n * heads * 8;
}

static int open_attend(struct compressed *op, struct exec *x, struct moeflux_err *e)
{
    const struct compressed_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t group = exec_workgroup(&caps, ATTEND_GROUP), subgroup = caps.subgroup_size;
    uint32_t units = div_up(s->dim / 4, subgroup);
    op->gpu.heads = s->n_heads > 1 && units <= LANE_UNITS ? 2 : 1;
    bool streams = exec_has_few_registers(&caps) && units * (2 * op->gpu.heads + 4) > HELD_UNITS;
    while (group > subgroup && attend_bytes(s, op->gpu.heads, subgroup, group) > caps.max_shared_bytes)
        group -= subgroup;
    const uint32_t spec[ATTEND_N_SPEC] = {subgroup,
                                          group,
                                          s->dim,
                                          s->rope_dim,
                                          s->ratio,
                                          s->window,
                                          s->budget,
                                          [KV_SPEC] = s->kv_type,
                                          [HEADS_SPEC] = op->gpu.heads,
                                          [STREAMS_SPEC] = streams};
    return exec_kernel(x, &op->gpu.attend, "compressed_attend", sizeof(struct compressed_attend_args), spec,
                       ATTEND_N_SPEC, e);
}

int compressed_vulkan_open(struct compressed *op, struct exec *x, struct moeflux_err *e)
{
    const struct compressed_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t spec[KV_N_SPEC] = {caps.subgroup_size,
                                      exec_workgroup(&caps, size_min(s->dim, ROW_GROUP)),
                                      s->dim,
                                      s->rope_dim,
                                      s->ratio,
                                      s->overlaps,
                                      [KV_SPEC] = s->kv_type};
    int rc = exec_kernel(x, &op->gpu.turn, "compressed_turn", sizeof(struct compressed_turn_args), spec,
                         KV_N_SPEC, e);
    if (rc == 0 && s->ratio)
        rc = exec_kernel(x, &op->gpu.pool, "compressed_pool", sizeof(struct compressed_pool_args), spec,
                         KV_N_SPEC, e);
    return rc < 0 || s->n_heads == 0 ? rc : open_attend(op, x, e);
}

void compressed_turn_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct compressed *op = self;
    const struct compressed_turn_call *c = what;
    const struct compressed_turn_args a = {.x = c->x,
                                           .norm = c->norms ? c->norm : 0,
                                           .rope = c->rope,
                                           .y = c->y,
                                           .blocks = c->blocks ? c->blocks : c->ring,
                                           .pos = c->pos,
                                           .x_stride = c->x_stride,
                                           .y_stride = c->y_stride,
                                           .row_off = c->row_off,
                                           .is_far = c->blocks != 0,
                                           .eps = op->shape.eps,
                                           .norms = c->norms};
    exec_dispatch(x, &op->gpu.turn, &a, c->n_heads, c->n, 1);
}

void compressed_pool_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct compressed *op = self;
    const struct compressed_pool_call *c = what;
    const struct compressed_pool_args a = {.kv = c->kv,
                                           .gates = c->gates,
                                           .bias = c->bias,
                                           .norm = c->norm,
                                           .rope = c->rope,
                                           .state_in = c->state_in,
                                           .state_out = c->state_out,
                                           .blocks = c->blocks,
                                           .plain = c->plain,
                                           .angles = c->angles,
                                           .n = c->n,
                                           .pos = c->pos,
                                           .stride = c->stride,
                                           .layer_off = c->layer_off,
                                           .eps = op->shape.eps};
    exec_dispatch(x, &op->gpu.pool, &a, compressed_n_blocks(&op->shape, c), 1, 1);
}

void compressed_attend_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct compressed *op = self;
    const struct compressed_attend_call *c = what;
    const struct compressed_attend_args a = {.q = c->q,
                                             .sinks = c->sinks,
                                             .rope = c->rope,
                                             .ring = c->ring,
                                             .blocks = c->blocks,
                                             .chosen = c->chosen,
                                             .dst = c->dst,
                                             .pos = c->pos,
                                             .n_heads = op->shape.n_heads,
                                             .q_stride = c->q_stride,
                                             .ring_off = c->ring_off,
                                             .layer_off = c->layer_off,
                                             .scale = op->shape.scale};
    exec_dispatch(x, &op->gpu.attend, &a, div_up(op->shape.n_heads, op->gpu.heads), c->n, 1);
}
