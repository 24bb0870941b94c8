#include "ops/experts/grouped.h"

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/linear/gemm_plan.h"
#include "exec/fragment_layout.h"

/* LEAST_TILE: fewest tokens of a tile on any device, which bounds the number of tiles. TILE_BYTES: bytes of a
 * tile's entry. FROM: fewest tokens of a chunk. */
enum { LEAST_TILE = 8, TILE_BYTES = 16, GROUP = 256, FROM = 16 };
/* Subgroups of a workgroup of tiles in registers. With few tokens the subgroups of the up projection share
 * the columns of a quarter of the rows: more workgroups, which end more evenly. (35B-A3B, 64 tokens: half of
 * the rows 121 us instead of 129 on an H200, a quarter 137 instead of 148 on an H100.) */
enum { ALONG_ROWS = 4, FEW_UP_ROWS = 1, FEW_UP_PARTS = 4 };

/* Returns whether kernels/lib/gemm_frag.glsl can compute the tiles: 1, 0 or an error. */
static int may_use_registers(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                             struct moeflux_err *e)
{
    return op->is_f16 && s->gate_format == FORMAT_Q4 && s->up_format == FORMAT_Q4 &&
                   s->down_format == FORMAT_Q4 && s->hidden % GEMM_FRAG_COLS == 0 &&
                   s->inner % GEMM_FRAG_COLS == 0
               ? fragment_layout_probe(x, e)
               : 0;
}

static struct gemm_plan plan_for(const struct experts_grouped *op, const struct exec *x, enum gemm_tile size,
                                 bool is_blocked, bool is_up, uint32_t format)
{
    if (is_blocked && is_up && size == GEMM_TILE_16)
        return gemm_frag_plan_for(x, 16, FEW_UP_ROWS, FEW_UP_PARTS);
    if (is_blocked)
        return gemm_frag_plan_for(x, 16u << size, ALONG_ROWS, 1);
    return op->is_f16 ? gemm_f16_plan_for(x, size, format_set(format))
                      : gemm_plan_for(x, size, format_set(format));
}

/* Adds tiles for experts with at least `from` tokens. */
static int add_tiles(struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                     enum gemm_tile size, bool is_blocked, uint32_t from, struct moeflux_err *e)
{
    struct gemm_plan gate = plan_for(op, x, size, is_blocked, true, s->gate_format),
                     up = plan_for(op, x, size, is_blocked, true, s->up_format);
    const struct gemm_plan down = plan_for(op, x, size, is_blocked, false, s->down_format);
    struct experts_tiles *t = &op->tiles[op->n_tiles++];
    *t = (struct experts_tiles){.is_blocked = is_blocked,
                                .up_rows = up.rows,
                                .down_rows = down.rows,
                                .tokens = up.tokens,
                                .from = from};
    int rc = 0;
    if (experts_are_gateless(s))
        up.spec[GEMM_PASS] = PASS_ONE;
    if (experts_are_mixed(s)) {
        gate.spec[GEMM_PASS] = PASS_GATE;
        up.spec[GEMM_PASS] = PASS_UP;
        rc = gemm_kernel(x, &t->gate, "experts_prefill_up", sizeof(struct experts_prefill_up_args), &gate, e);
    }
    if (rc == 0)
        rc = gemm_kernel(x, &t->up, "experts_prefill_up", sizeof(struct experts_prefill_up_args), &up, e);
    return rc < 0 ? rc
                  : gemm_kernel(x, &t->down, "experts_prefill_down", sizeof(struct experts_prefill_down_args),
                                &down, e);
}

/* The number of an expert's tokens is random, so a tile holds more than the average. In the largest float16
 * tile an empty half costs little. Tiles in registers are faster at any number of tokens, and skip what a
 * tile does not have. (H200, 35B-A3B, 2,048 tokens: tiles of 32 take 697 us, of 64 736, the largest 990.) */
static int open_tiles(struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                      struct moeflux_err *e)
{
    static const uint32_t f32[GEMM_TILES] = {0, 12, 28, 192}, f16[GEMM_TILES] = {0, 12, 34, 40},
                          registers[GEMM_TILES] = {0, 6, 96, UINT32_MAX};
    int found = may_use_registers(op, x, s, e), rc = found < 0 ? found : 0;
    const uint32_t *from = found > 0 ? registers : op->is_f16 ? f16 : f32;
    for (uint32_t i = 0; rc == 0 && i < GEMM_TILES; i++)
        rc = add_tiles(op, x, s, (enum gemm_tile)i, found > 0 && i <= GEMM_TILE_64, from[i], e);
    return rc;
}

uint32_t experts_grouped_from(const struct exec_caps *c, uint32_t n_experts)
{
    /* The sort counts in shared memory. */
    return gemm_is_possible(c) && 8 * ((uint64_t)n_experts + GROUP) <= c->max_shared_bytes ? FROM
                                                                                           : UINT32_MAX;
}

int experts_grouped_open(struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                         struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    *op = (struct experts_grouped){.from = experts_grouped_from(&c, s->n_experts)};
    if (op->from == UINT32_MAX)
        return 0;
    op->is_f16 = gemm_has_f16(x);
    op->joins_shared = s->shared_inner == s->inner && s->gating == s->shared_gating &&
                       !experts_are_mixed(s) && s->up_formats == format_set(s->up_format) &&
                       s->down_formats == format_set(s->down_format);
    op->mix_group = (uint32_t)size_min(GROUP, c.max_workgroup);
    const uint32_t sort[] = {op->mix_group, s->n_experts}, mix[] = {op->mix_group, s->drops};
    int rc = exec_kernel(x, &op->sort, "experts_prefill_sort", sizeof(struct experts_prefill_sort_args), sort,
                         2, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->mix, "experts_prefill_mix", sizeof(struct experts_prefill_mix_args), mix, 2,
                         e);
    if (rc == 0 && op->is_f16)
        rc = cast_f16_open(&op->cast, x, e);
    return rc < 0 ? rc : open_tiles(op, x, s, e);
}

/* The parts of the scratch memory, each on a 16-byte boundary. */
struct scratch {
    uint64_t tiles, rows, f16, shared_act;
    uint64_t parts; /* first the gate's products, if experts_are_mixed */
    uint64_t end;
};

/* slots: pairs of a token. */
static struct scratch lay_out(const struct experts_shape *s, uint64_t from, uint32_t n, uint32_t slots,
                              uint32_t shared_inner)
{
    uint64_t pairs = (uint64_t)n * slots;
    struct scratch at = {.tiles = from};
    at.rows = at.tiles + TILE_BYTES * (2 + s->n_experts + pairs / LEAST_TILE);
    at.f16 = at.rows + size_round_up(pairs * 4, 16);
    at.shared_act = at.f16 + (uint64_t)n * s->hidden * 2;
    at.parts = at.shared_act + (uint64_t)n * shared_inner * 4;
    at.end = at.parts + pairs * size_max(s->hidden, s->inner) * 4;
    return at;
}

uint64_t experts_grouped_scratch(const struct experts_shape *s, uint32_t n, uint32_t shared_inner)
{
    return lay_out(s, 0, n, s->top_k + (shared_inner > 0), shared_inner).end / 4;
}

bool experts_grouped_takes(const struct experts_grouped *op, const struct experts_call *call)
{
    return call->chunk >= op->from && call->scratch && call->skip == 0;
}

static const struct experts_tiles *tiles_for(const struct experts_grouped *op, const struct experts_shape *s,
                                             const struct experts_call *call)
{
    uint32_t i = op->n_tiles - 1;
    while (i > 0 && (uint64_t)call->chunk * s->top_k < (uint64_t)op->tiles[i].from * s->n_experts)
        i--;
    return &op->tiles[i];
}

/* What a call computes. */
struct share {
    uint32_t slots;    /* pairs of a token */
    uint32_t n_pairs;  /* pairs of routed experts, of all tokens */
    uint32_t n_shared; /* tokens whose shared expert is among the pairs: in the last round */
    uint32_t n_joined; /* tokens whose shared expert may be among the sorted pairs */
};

static struct share share_of(const struct experts_shape *s, const struct experts_call *call)
{
    bool joins = call->shared_up != NULL, is_here = joins && !call->more && call->shared_down.cols > 0;
    return (struct share){.slots = s->top_k + joins,
                          .n_pairs = call->only_shared ? 0 : call->n * s->top_k,
                          .n_shared = is_here ? call->n : 0,
                          .n_joined = joins ? call->n : 0};
}

/* Returns the largest possible number of tiles: every expert may leave one partly filled. */
static uint32_t most_tiles(const struct experts_shape *s, const struct share *of, uint32_t tokens)
{
    return div_up(of->n_joined, tokens) + of->n_pairs / tokens +
           (uint32_t)size_min(of->n_pairs, s->n_experts);
}

static void run_sort(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                     const struct experts_call *call, const struct experts_tiles *t)
{
    const struct share of = share_of(s, call);
    const struct scratch at = lay_out(s, call->scratch, call->n, of.slots, call->shared_down.cols);
    const struct experts_prefill_sort_args sort = {.idx = call->idx,
                                                   .table = call->table,
                                                   .rows = at.rows,
                                                   .tiles = at.tiles,
                                                   .n_pairs = of.n_pairs,
                                                   .tile_tokens = t->tokens,
                                                   .top_k = s->top_k,
                                                   .slots = of.slots,
                                                   .n_shared = of.n_shared};
    exec_dispatch(x, &op->sort, &sort, 1, 1, 1);
}

/* Dispatches up, or gate and up one after the other. */
static void run_up(const struct experts_tiles *t, struct exec *x, const struct experts_shape *s,
                   const struct experts_prefill_up_args *a, uint64_t gates, uint32_t n_tiles)
{
    for (uint32_t up = 0; up < 2; up++) {
        const struct experts_halves h = experts_halves(s, up);
        struct experts_prefill_up_args args = *a;
        bool is_mixed = experts_are_mixed(s), by_halves = is_mixed || experts_are_gateless(s);
        if (!is_mixed && !up)
            continue;
        if (is_mixed)
            args.shared_up = gates;
        if (by_halves) {
            args.format = h.format;
            args.gate_w = h.w[0];
            args.gate_s = h.s[0];
            args.gate_b = h.b[0];
            args.up_w = h.w[1];
            args.up_s = h.s[1];
            args.up_b = h.b[1];
        }
        if (format_is_block(args.format))
            code_books_put(x, &args.gate_s, &args.gate_b);
        exec_dispatch(x, up ? &t->up : &t->gate, &args,
                      div_up(by_halves ? s->inner / 2 : s->inner, t->up_rows / 2), n_tiles, 1);
    }
}

void experts_grouped_up(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                        const struct experts_call *call)
{
    const struct experts_tiles *t = tiles_for(op, s, call);
    const struct share of = share_of(s, call);
    const struct scratch at = lay_out(s, call->scratch, call->n, of.slots, call->shared_down.cols);
    const struct experts_prefill_up_args up = {.x = op->is_f16 ? at.f16 : call->x,
                                               .norm = op->is_f16 ? 0 : call->norm,
                                               .table = call->table,
                                               .rows = at.rows,
                                               .tiles = at.tiles,
                                               .act = call->act,
                                               .shared_up = of.n_shared ? call->shared_up->gpu.address : 0,
                                               .logits = call->shared_in,
                                               .biases = s->biased ? call->biases.gate_up : 0,
                                               .slots = of.slots,
                                               .hidden = s->hidden,
                                               .inner = s->inner,
                                               .format = s->up_format,
                                               .gate_w = s->gate_w,
                                               .gate_s = s->gate_s,
                                               .gate_b = s->gate_b,
                                               .up_w = s->up_w,
                                               .up_s = s->up_s,
                                               .up_b = s->up_b,
                                               .eps = s->eps,
                                               .stride = s->biased ? s->n_experts : call->shared_stride,
                                               .gate_at = s->shared_gate ? s->n_experts : 0,
                                               .gating = s->gating};
    if (op->is_f16)
        cast_f16_run(&op->cast, x,
                     &(struct cast_f16_call){.x = call->x,
                                             .norm = call->norm,
                                             .dst = at.f16,
                                             .n = call->n,
                                             .cols = s->hidden,
                                             .x_stride = s->hidden,
                                             .eps = s->eps,
                                             .is_blocked = t->is_blocked});
    if (op->is_f16) /* the sort does not depend on it */
        exec_concurrent(x);
    run_sort(op, x, s, call, t);
    run_up(t, x, s, &up, at.parts, most_tiles(s, &of, t->tokens));
}

/* Adds up the experts' outputs. If the shared expert is not among the pairs, also computes its down
 * projection's input. */
static void run_mix(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                    const struct experts_call *call)
{
    const struct share of = share_of(s, call);
    const struct scratch at = lay_out(s, call->scratch, call->n, of.slots, call->shared_down.cols);
    uint32_t shared_inner = of.n_shared ? 0 : call->shared_down.cols;
    const struct experts_prefill_mix_args mix = {.parts = at.parts,
                                                 .idx = call->idx,
                                                 .weights = call->weights,
                                                 .shared_in = call->shared_in,
                                                 .shared_act = at.shared_act,
                                                 .x = call->x,
                                                 .top_k = s->top_k,
                                                 .hidden = s->hidden,
                                                 .shared_at = s->n_experts + s->shared_gate,
                                                 .is_gated = s->shared_gate,
                                                 .shared_inner = shared_inner,
                                                 .shared_stride = call->shared_stride,
                                                 .slots = of.slots,
                                                 .from_slot = call->only_shared ? s->top_k : 0,
                                                 .end_slot = s->top_k + (of.n_shared > 0),
                                                 .gating = s->shared_gating,
                                                 .n_cpu = call->part.n_cpu,
                                                 .n_experts = s->n_experts,
                                                 .is_cpus = call->part.is_cpus};
    exec_dispatch(x, &op->mix, &mix, div_up(s->hidden + shared_inner, 4 * op->mix_group), call->n, 1);
}

void experts_grouped_down(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                          const struct experts_call *call)
{
    const struct experts_tiles *t = tiles_for(op, s, call);
    const struct share of = share_of(s, call);
    const struct scratch at = lay_out(s, call->scratch, call->n, of.slots, call->shared_down.cols);
    struct experts_prefill_down_args down = {.act = call->act,
                                             .table = call->table,
                                             .rows = at.rows,
                                             .tiles = at.tiles,
                                             .dst = at.parts,
                                             .shared_w = call->shared_down.weight,
                                             .shared_s = call->shared_down.scales,
                                             .shared_b = call->shared_down.biases,
                                             .biases = s->biased ? call->biases.down : 0,
                                             .hidden = s->hidden,
                                             .inner = s->inner,
                                             .format = s->down_format,
                                             .down_w = s->down_w,
                                             .down_s = s->down_s,
                                             .down_b = s->down_b};
    uint32_t tiles = most_tiles(s, &of, t->tokens);
    if (format_is_block(s->down_format))
        code_books_put(x, &down.down_s, &down.down_b);
    if (tiles > 0)
        exec_dispatch(x, &t->down, &down, div_up(s->hidden, t->down_rows), tiles, 1);
    if (call->more)
        return;
    run_mix(op, x, s, call);
    if (of.n_shared || call->shared_down.cols == 0)
        return;
    linear_run(call->shared_out, x,
               &(struct linear_call){.x = at.shared_act,
                                     .y = call->x,
                                     .x_stride = call->shared_down.cols,
                                     .y_stride = s->hidden,
                                     .n = call->n,
                                     .chunk = call->chunk,
                                     .add = true,
                                     .f16_scratch = call->f16_scratch});
}
