/* The Vulkan implementation of experts.h: kernels for each part of the formats, their layout, dispatches. */
#include <assert.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "ops/experts/experts.h"
#include "ops/linear/gemv_plan.h"
#include "ops/router/router.h"

/* The kernels' constants after gemv.glsl's. */
enum {
    UP_EXPERTS = EXPERTS_FIRST_SPEC,
    UP_TOP_K,
    UP_SHARED,
    UP_IS_GATED,
    UP_CHOOSES,
    UP_NORM_TOPK,
    UP_DROPS,
    UP_BIASED,
    UP_GATING,
    UP_SHARED_GATING,
    UP_PASS,
    UP_N_SPEC,
    DOWN_LANES = EXPERTS_FIRST_SPEC,
    DOWN_TEAMS,
    DOWN_DROPS,
    DOWN_BIASED,
    DOWN_BLOCKS,
    DOWN_N_SPEC
};
_Static_assert((int)GEMV_N_SPEC <= EXPERTS_FIRST_SPEC, "constants of gemv.glsl and of the experts overlap");

/* Returns whether a format is in a part of a set. */
static bool is_in(uint32_t format, uint64_t part)
{
    return (format_set(format) & ~part) == 0;
}

/* The kernels for a format. The shape's sets contain all formats that calls name. */
static const struct experts_up *up_for(const struct experts *op, uint32_t format)
{
    uint32_t i = 0;
    while (i + 1 < EXPERTS_MAX_PARTS && !is_in(format, op->gpu.up[i].formats))
        i++;
    assert(is_in(format, op->gpu.up[i].formats));
    return &op->gpu.up[i];
}

static const struct experts_down *down_for(const struct experts *op, uint32_t format)
{
    uint32_t i = 0;
    while (i + 1 < EXPERTS_MAX_PARTS && !is_in(format, op->gpu.down[i].formats))
        i++;
    assert(is_in(format, op->gpu.down[i].formats));
    return &op->gpu.down[i];
}

/* Returns the name of the kernel for a part of a set, or for an extended format together with FORMAT_Q4. */
static const char *name_of(struct exec *x, uint64_t formats, const char *plain, const char *with_q4,
                           const char *with_q4_denorm)
{
    if (format_set_part(formats, 1) == 0)
        return plain;
    return exec_get_caps(x).has_denorm ? with_q4_denorm : with_q4;
}

/* A call of several tokens has this many rows in its plan. */
enum { SEVERAL_TOKENS = 4 };
typedef int gemv_kernel_fn(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                           const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e);

/* spec: all constants; the plan's are filled in here. */
static int make_up(struct exec *x, struct experts_up_kernels *up, const char *name, bool chooses,
                   uint32_t spec[UP_N_SPEC], const struct gemv_plan *plan, gemv_kernel_fn *make,
                   struct moeflux_err *e)
{
    const uint32_t bytes = sizeof(struct experts_decode_up_args);
    memcpy(spec, plan->spec, sizeof plan->spec);
    up->rows = plan->workgroup_rows;
    spec[UP_CHOOSES] = 0;
    int rc = make(x, &up->kernel, name, bytes, spec, UP_N_SPEC, e);
    spec[UP_CHOOSES] = 1;
    return rc < 0 || !chooses ? rc : make(x, &up->choosing, name, bytes, spec, UP_N_SPEC, e);
}

/* pass: PASS_*. */
static int open_up(struct experts *op, struct exec *x, struct experts_up *up, uint32_t pass,
                   struct moeflux_err *e)
{
    const char *name = name_of(x, up->formats, "experts_decode_up", "experts_decode_up_extq4",
                               "experts_decode_up_extq4denorm");
    const struct experts_shape *s = &op->shape;
    bool is_one = pass == PASS_ONE, is_half = pass != PASS_BOTH && !is_one,
         is_routed = is_in(s->up_format, up->formats) || is_half;
    uint64_t rows = (is_routed ? experts_act_floats(s, true) : s->shared_inner) / (is_one ? 2 : 1);
    if (is_half)
        rows = experts_act_floats(s, false) / 2;
    const struct gemv_shape shape = {
        (uint32_t)rows, s->hidden, 1, up->formats, 2, 0, s->top_k + (s->shared_inner > 0)};
    const struct exec_caps c = exec_get_caps(x);
    struct gemv_plan plan = gemv_plan_for(x, &shape);
    if (format_set_part(up->formats, 1)) /* pieces of both formats take more registers */
        gemv_plan_narrow(&c, 1, &plan);
    uint32_t spec[UP_N_SPEC] = {[UP_EXPERTS] = s->n_experts,   [UP_TOP_K] = s->top_k,
                                [UP_SHARED] = s->shared_inner, [UP_IS_GATED] = s->shared_gate,
                                [UP_NORM_TOPK] = s->norm_topk, [UP_DROPS] = s->drops,
                                [UP_BIASED] = s->biased,       [UP_PASS] = pass};
    const float gating[] = {s->gating, s->shared_gating};
    memcpy(&spec[UP_GATING], gating, sizeof gating); /* the constants are floats */
    struct gemv_shape all = shape;
    all.rows *= SEVERAL_TOKENS;
    bool chooses = op->gpu.chooses && pass != PASS_UP;
    int rc = make_up(x, &up->one, name, chooses, spec, &plan, gemv_kernel, e);
    const struct gemv_plan longer = gemv_plan_longer(x, &all, &plan);
    return rc < 0 ? rc : make_up(x, &up->several, name, chooses, spec, &longer, gemv_kernel_later, e);
}

/* Returns the columns of all slots that fit so many quarters of shared memory. */
static uint32_t most_cols(const struct exec_caps *c, uint32_t quarters)
{
    return (c->max_shared_bytes / 4 * quarters - 1024) / 4;
}

/* A workgroup's subgroups go to slots first, so that each has one expert, then to more rows. FEW_DOWN_ROWS:
 * those of a subgroup with few registers. */
enum { DOWN_ROWS = 4, DOWN_BLOCK_ROWS = 2, FEW_DOWN_ROWS = 2, DOWN_GROUP = 256 };
/* Limits: pieces of a row that a lane holds at once, vec4s of activations. */
enum { MAX_STEPS = 3, MAX_ACTS = 8 };
/* Fewer neighbouring lanes would read too little of a row at a time. */
enum { LEAST_LANES = 4 };

/* The layout of a part's kernel. */
struct down_shape {
    uint64_t formats;
    bool is_shared; /* no routed expert has these formats: the shared one has all subgroups */
    uint32_t inner; /* columns that decide the number of lanes */
    uint32_t slots; /* most slots of a pass over shared memory */
};

/* Returns the steps with which the kernel holds all columns of all slots at once; 0: not possible. */
static uint32_t whole_steps(const struct exec_caps *c, const struct experts_shape *s,
                            const struct down_shape *d, const uint32_t spec[DOWN_N_SPEC])
{
    uint32_t lanes = spec[DOWN_LANES], subgroup = spec[GEMV_SUBGROUP], tile = spec[GEMV_TILE];
    uint32_t pieces = gemv_pieces(d->inner, d->formats);
    bool fits = gemv_has_steps(c, d->formats) && tile == d->slots * s->inner && d->inner == s->inner &&
                pieces % lanes == 0 && pieces / lanes <= MAX_STEPS &&
                s->hidden % (subgroup / lanes * spec[GEMV_ROWS]) == 0 &&
                div_up(tile / 4, spec[GEMV_WORKGROUP]) <= MAX_ACTS;
    return fits ? pieces / lanes : 0;
}

/* Returns whether kernels/experts/decode_down_long.comp takes the shape: two slots' activations need at most
 * half of shared memory, and at most a quarter of the lanes' steps have no piece. Rows of one step have to
 * fill it: others take as long in passes. (H100: 5,120 x 1,536 in 31 us instead of 75.) */
static bool can_go_long(const struct exec_caps *c, const struct experts_shape *s)
{
    uint64_t bytes = 2 * (uint64_t)s->inner * sizeof(float);
    uint32_t pieces = gemv_pieces(s->inner, format_set(s->down_format));
    uint32_t steps = div_up(pieces, c->subgroup_size);
    return format_is_basic(s->down_format) && !s->drops && !s->biased && s->top_k < DOWN_LONG_SLOTS &&
           s->hidden >= DOWN_ROWS && bytes <= c->max_shared_bytes / 2 && steps > 0 &&
           (pieces == c->subgroup_size || steps > 1) && 3 * steps * c->subgroup_size <= 4 * pieces &&
           s->inner % PRODUCT_COLS == 0;
}

static int open_long_down(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    const struct gemv_shape shape = {s->hidden, s->inner, 1, format_set(s->down_format), 1, s->hidden, 1};
    const struct exec_caps c = exec_get_caps(x);
    struct gemv_plan plan = gemv_plan_parts(x, &shape, s->inner);
    gemv_plan_narrow(&c, FEW_DOWN_ROWS, &plan);
    op->gpu.whole_down.rows = plan.workgroup_rows;
    int rc = gemv_kernel(x, &op->gpu.whole_down.kernel, "experts_decode_down_long",
                         sizeof(struct experts_decode_down_args), plan.spec, GEMV_N_SPEC, e);
    op->gpu.whole_several = op->gpu.whole_down;
    return rc;
}

/* Returns the rows of a subgroup. The shared expert alone takes few, if otherwise some processors had no
 * workgroup. */
static uint32_t down_rows(const struct exec_caps *c, const struct experts_shape *s,
                          const struct down_shape *d, uint32_t subgroup_rows)
{
    uint32_t rows = format_part_is_block(d->formats) ? DOWN_BLOCK_ROWS
                    : exec_has_few_registers(c)      ? FEW_DOWN_ROWS
                                                     : DOWN_ROWS;
    while (d->is_shared && rows > 1 && s->hidden / (subgroup_rows * rows) < c->n_processors)
        rows /= 2;
    return rows;
}

/* Returns the most lanes that add at most an eighth of idle pieces to a row; for rows of few pieces. */
static uint32_t lanes_with_few_idle(uint32_t most, uint32_t pieces)
{
    uint32_t lanes = most;
    while (lanes > 1 && 8 * size_round_up(pieces, lanes) > 9 * (uint64_t)pieces)
        lanes /= 2;
    return lanes;
}

/* most: columns of all slots in shared memory. */
static void lay_out_down(const struct exec_caps *c, const struct experts_shape *s, const struct down_shape *d,
                         uint32_t most, uint32_t spec[DOWN_N_SPEC])
{
    uint32_t longest = (uint32_t)size_max(s->inner, s->shared_inner), lanes = 1;
    uint32_t unit = gemv_tile_unit(d->formats);
    uint32_t slots = (uint32_t)size_min(d->slots, c->max_workgroup / c->subgroup_size);
    slots = (uint32_t)size_max(1, size_min(slots, most / unit));
    uint32_t area =
        (uint32_t)size_min(d->is_shared ? d->inner : longest, (uint64_t)(most / slots / unit) * unit);
    uint32_t teams =
        (uint32_t)size_max(1, size_min(DOWN_GROUP, c->max_workgroup) / ((uint64_t)slots * c->subgroup_size));
    /* Counts 16-byte pieces of a row of 4-bit codes, which have the most columns. */
    while (2 * lanes <= c->subgroup_size && d->inner / 32 % (2 * lanes) == 0)
        lanes *= 2;
    if (lanes < LEAST_LANES)
        lanes = lanes_with_few_idle(c->subgroup_size, d->inner / 32);
    spec[GEMV_SUBGROUP] = c->subgroup_size;
    spec[GEMV_WORKGROUP] = slots * teams * c->subgroup_size;
    spec[GEMV_ROWS] = down_rows(c, s, d, teams * (c->subgroup_size / lanes));
    spec[GEMV_TOKENS] = 1;
    spec[GEMV_TILE] = slots * area;
    spec[GEMV_FORMATS] = format_constant(d->formats);
    spec[GEMV_SPLIT] = 1;
    spec[GEMV_STEPS] = 0;
    spec[GEMV_FEW_REGISTERS] = exec_has_few_registers(c);
    spec[DOWN_LANES] = lanes;
    spec[DOWN_TEAMS] = teams;
    spec[DOWN_DROPS] = s->drops;
    spec[DOWN_BIASED] = s->biased;
    spec[DOWN_BLOCKS] = 1;
}

/* Returns the rows of a workgroup. */
static uint32_t down_rows_of(const struct exec_caps *c, const uint32_t spec[DOWN_N_SPEC])
{
    return spec[DOWN_TEAMS] * (c->subgroup_size / spec[DOWN_LANES]) * spec[GEMV_ROWS];
}

/* Lays out the kernel with all columns of all slots at once; GEMV_STEPS stays 0 if that is not possible. It
 * may take more of shared memory than passes do (Qwen3-30B-A3B, H100: 43 us a layer instead of 47). */
static void lay_out_whole(const struct exec_caps *c, const struct experts_shape *s,
                          const struct down_shape *d, uint32_t spec[DOWN_N_SPEC])
{
    for (uint32_t quarters = 2; quarters <= 3; quarters++) {
        lay_out_down(c, s, d, most_cols(c, quarters), spec);
        spec[GEMV_STEPS] = whole_steps(c, s, d, spec);
        if (spec[GEMV_STEPS] > 0)
            return;
    }
}

/* Returns the steps that suffice for both formats, or 0. */
static uint32_t steps_with_q4(const struct exec_caps *c, const struct experts_shape *s,
                              const struct down_shape *d, const uint32_t spec[DOWN_N_SPEC])
{
    struct down_shape routed = *d, shared = *d;
    routed.formats = format_set(s->down_format);
    shared.formats = format_set(FORMAT_Q4);
    uint32_t steps = whole_steps(c, s, &routed, spec), others = whole_steps(c, s, &shared, spec);
    return s->shared_inner == s->inner && steps && others ? (uint32_t)size_max(steps, others) : 0;
}

static int open_down_with_q4(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    const struct exec_caps c = exec_get_caps(x);
    struct experts_down *down = &op->gpu.down_with_q4;
    const struct down_shape d = {down->formats, false, s->inner, s->top_k + 1};
    uint32_t spec[DOWN_N_SPEC] = {0};
    lay_out_down(&c, s, &d, most_cols(&c, 2), spec);
    down->rows = down_rows_of(&c, spec);
    spec[GEMV_STEPS] = steps_with_q4(&c, s, &d, spec);
    const char *name =
        name_of(x, down->formats, "", "experts_decode_down_extq4", "experts_decode_down_extq4denorm");
    return gemv_kernel(x, &down->kernel, name, sizeof(struct experts_decode_down_args), spec, DOWN_N_SPEC, e);
}

/* Returns the set of an extended format and FORMAT_Q4; 0: they do not meet. formats: those of all layers. */
static uint64_t set_with_q4(uint32_t routed, uint64_t formats)
{
    uint64_t q4 = format_set(FORMAT_Q4);
    bool is_extended = format_part_is_extended(format_set(routed));
    return is_extended && (formats & q4) ? format_set(routed) | q4 : 0;
}

static int open_with_q4(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    int rc = 0;
    op->gpu.up_with_q4.formats =
        s->shared_inner && !experts_are_mixed(s) ? set_with_q4(s->up_format, s->up_formats) : 0;
    op->gpu.down_with_q4.formats = set_with_q4(s->down_format, s->down_formats);
    if (op->gpu.up_with_q4.formats)
        rc = open_up(op, x, &op->gpu.up_with_q4, experts_are_gateless(s) ? PASS_ONE : PASS_BOTH, e);
    return rc < 0 || op->gpu.down_with_q4.formats == 0 ? rc : open_down_with_q4(op, x, e);
}

/* Returns the blocks of rows of a workgroup for many tokens: each processor has two workgroups of a call of
 * SEVERAL_TOKENS, and none has a third. So activations are loaded less often (H200, 35B-A3B: four blocks take
 * 12 % less time than one for four tokens and for eight; three take 16 % more). */
static uint32_t blocks_of_several(const struct exec_caps *c, uint32_t hidden, uint32_t rows)
{
    uint64_t all = (uint64_t)SEVERAL_TOKENS * div_up(hidden, rows);
    return (uint32_t)((all - 1) / (2 * (uint64_t)gemv_stream_processors(c)) + 1);
}

static int open_down(struct experts *op, struct exec *x, struct experts_down *down, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    const struct exec_caps c = exec_get_caps(x);
    const uint32_t bytes = sizeof(struct experts_decode_down_args);
    uint32_t spec[DOWN_N_SPEC] = {0};
    bool is_shared = !is_in(s->down_format, down->formats);
    struct down_shape d = {down->formats, is_shared, s->inner, s->top_k + 1};
    if (is_shared)
        d = (struct down_shape){down->formats, true, s->shared_inner ? s->shared_inner : s->inner, 1};
    lay_out_down(&c, s, &d, most_cols(&c, 2), spec);
    down->rows = down_rows_of(&c, spec);
    if (is_shared && s->shared_inner)
        spec[GEMV_STEPS] = whole_steps(&c, s, &d, spec);
    int rc = gemv_kernel(x, &down->kernel, "experts_decode_down", bytes, spec, DOWN_N_SPEC, e);
    if (rc < 0 || is_shared)
        return rc;
    d.formats = format_set(s->down_format);
    lay_out_whole(&c, s, &d, spec);
    op->gpu.has_whole_down = spec[GEMV_STEPS] > 0 || can_go_long(&c, s);
    if (!op->gpu.has_whole_down)
        return 0;
    if (spec[GEMV_STEPS] == 0)
        return open_long_down(op, x, e);
    op->gpu.whole_down = op->gpu.whole_several =
        (struct experts_down){.formats = d.formats, .rows = down_rows_of(&c, spec)};
    rc = gemv_kernel(x, &op->gpu.whole_down.kernel, "experts_decode_down", bytes, spec, DOWN_N_SPEC, e);
    spec[DOWN_BLOCKS] = blocks_of_several(&c, s->hidden, op->gpu.whole_down.rows);
    op->gpu.whole_several.rows *= spec[DOWN_BLOCKS];
    return rc < 0 ? rc
                  : gemv_kernel_later(x, &op->gpu.whole_several.kernel, "experts_decode_down", bytes, spec,
                                      DOWN_N_SPEC, e);
}

/* Opens the kernels for each part of the sets: one for all basic formats, one for each extended or block
 * format. */
static int open_parts(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    uint64_t routed = experts_are_mixed(s) ? 0 : format_set(s->up_format);
    uint32_t pass = experts_are_gateless(s) ? PASS_ONE : PASS_BOTH;
    uint64_t ups = routed | (s->shared_inner ? s->up_formats : 0), downs = s->down_formats;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && format_set_part(ups, i); i++) {
        if (i == EXPERTS_MAX_PARTS)
            return err_set(e, ERR_UNSUPPORTED, "experts: more than %d formats", EXPERTS_MAX_PARTS);
        op->gpu.up[i].formats = format_set_part(ups, i);
        rc = open_up(op, x, &op->gpu.up[i], pass, e);
    }
    for (uint32_t i = 0; rc == 0 && format_set_part(downs, i); i++) {
        if (i == EXPERTS_MAX_PARTS)
            return err_set(e, ERR_UNSUPPORTED, "experts: more than %d formats", EXPERTS_MAX_PARTS);
        op->gpu.down[i].formats = format_set_part(downs, i);
        rc = open_down(op, x, &op->gpu.down[i], e);
    }
    return rc;
}

static int open_passes(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    struct experts_up *passes = op->gpu.passes;
    passes[0].formats = format_set(op->shape.gate_format);
    passes[1].formats = format_set(op->shape.up_format);
    int rc = open_up(op, x, &passes[0], PASS_GATE, e);
    return rc < 0 ? rc : open_up(op, x, &passes[1], PASS_UP, e);
}

/* Returns whether a subgroup's lanes have registers for all logits together with a row's pieces. If not, the
 * router chooses in a dispatch of its own (Arc A770M, compiled by Mesa 25.0: 64 logits of a lane spill 1,059
 * registers). */
static bool logits_fit(const struct exec *x, uint32_t n_experts)
{
    enum { FEW_LOGITS = 16 };
    const struct exec_caps c = exec_get_caps(x);
    return !exec_has_few_registers(&c) || n_experts <= FEW_LOGITS * c.subgroup_size;
}

int experts_vulkan_open(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    uint64_t all = format_set(s->gate_format) | format_set(s->up_format) | format_set(s->down_format) |
                   s->up_formats | s->down_formats;
    int rc = all >> FORMAT_SET_BLOCKS ? code_books_open(x, e) : 0;
    op->gpu.chooses = s->chooses && logits_fit(x, s->n_experts);
    if (rc == 0)
        rc = open_parts(op, x, e);
    if (rc == 0 && experts_are_mixed(s))
        rc = open_passes(op, x, e);
    if (rc == 0)
        rc = open_with_q4(op, x, e);
    if (rc == 0)
        rc = experts_grouped_open(&op->gpu.grouped, x, &op->shape, e);
    op->gpu.makes_shared_below = op->gpu.grouped.joins_shared ? UINT32_MAX : op->gpu.grouped.from;
    return rc;
}

int experts_shared_vulkan_open(struct experts_shared *s, struct exec *x, struct moeflux_err *e)
{
    /* The same matrix twice: there is no gate, and the kernel takes its halves. */
    bool is_one = s->gate.weight == s->up.weight;
    uint32_t rows = is_one ? s->up.rows / 2 : s->up.rows;
    const struct weights gate = weights_rows(&s->gate, 0, rows),
                         up = weights_rows(&s->up, is_one ? rows : 0, rows);
    const struct experts_shared_up on_device = {.gate_w = gate.weight,
                                                .gate_s = gate.scales,
                                                .gate_b = gate.biases,
                                                .up_w = up.weight,
                                                .up_s = up.scales,
                                                .up_b = up.biases,
                                                .format = gate.format};
    int rc = exec_buffer_new(x, &s->gpu, EXEC_DEVICE, sizeof on_device, e);
    return rc < 0 ? rc : exec_write(x, &s->gpu, 0, &on_device, sizeof on_device, e);
}

bool experts_vulkan_chooses(const struct experts *op, const struct experts_call *call)
{
    return op->gpu.chooses && !call->only_shared && !experts_grouped_takes(&op->gpu.grouped, call);
}

/* Computes n_slots slots from a->first_slot on. */
static void run_up(const struct experts *op, struct exec *x, const struct experts_call *call,
                   const struct experts_up *up, const struct experts_decode_up_args *a, uint32_t n_slots,
                   bool chooses)
{
    const struct experts_shape *s = &op->shape;
    uint32_t longest = up == op->gpu.passes || up == op->gpu.passes + 1 ? s->inner / 2 : s->inner;
    if (a->first_slot + n_slots > s->top_k)
        longest = (uint32_t)size_max(s->inner, s->shared_inner);
    if (experts_are_gateless(s))
        longest /= 2;
    const struct experts_up_kernels *k = call->n > 1 ? &up->several : &up->one;
    struct experts_decode_up_args args = *a;
    if (format_part_is_block(up->formats))
        code_books_put(x, &args.gate_s, &args.gate_b);
    exec_dispatch(x, chooses ? &k->choosing : &k->kernel, &args, div_up(longest, k->rows), n_slots, call->n);
}

/* Puts the halves of one matrix in the place of gate and up. */
static void put_halves(const struct experts_halves *h, struct experts_decode_up_args *a)
{
    a->format = h->format;
    a->gate_w = h->w[0];
    a->gate_s = h->s[0];
    a->gate_b = h->b[0];
    a->up_w = h->w[1];
    a->up_s = h->s[1];
    a->up_b = h->b[1];
}

/* Computes the routed experts, whose gate and up have different formats. */
static void run_passes(const struct experts *op, struct exec *x, const struct experts_call *call,
                       const struct experts_decode_up_args *a, bool chooses)
{
    const struct experts_shape *s = &op->shape;
    for (uint32_t up = 0; up < 2; up++) {
        const struct experts_halves h = experts_halves(s, up);
        struct experts_decode_up_args args = *a;
        put_halves(&h, &args);
        run_up(op, x, call, &op->gpu.passes[up], &args, s->top_k, chooses && !up);
    }
}

/* Computes what the call asks for, the shared expert with the kernel for its format. */
static void run_all_up(const struct experts *op, struct exec *x, const struct experts_call *call,
                       struct experts_decode_up_args a)
{
    const struct experts_shape *s = &op->shape;
    uint32_t shared_format = call->shared_up ? call->shared_up->gate.format : FORMAT_NONE;
    bool has_shared = s->shared_inner && call->shared_up && !call->skip_shared,
         is_mixed = experts_are_mixed(s), chooses = call->router && experts_vulkan_chooses(op, call);
    const struct experts_up *shared = has_shared ? up_for(op, shared_format) : NULL,
                            *routed = is_mixed ? NULL : up_for(op, s->up_format);
    /* A call that computes only some experts uses the same kernel for them, so that each row has the same
     * bits. */
    if (experts_are_gateless(s)) {
        const struct experts_halves h = experts_halves(s, true);
        put_halves(&h, &a);
    }
    if (op->gpu.up_with_q4.formats && !call->only_shared && shared_format == FORMAT_Q4)
        routed = shared = &op->gpu.up_with_q4;
    bool joins = has_shared && shared == routed;
    if (!call->only_shared && is_mixed)
        run_passes(op, x, call, &a, chooses);
    else if (!call->only_shared)
        run_up(op, x, call, routed, &a, s->top_k + joins, chooses);
    if (!has_shared || (joins && !call->only_shared))
        return;
    if (!call->only_shared)
        exec_concurrent(x);
    a.first_slot = s->top_k;
    run_up(op, x, call, shared, &a, 1, chooses && !is_mixed);
}

void experts_up_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct experts *op = self;
    const struct experts_call *call = what;
    const struct experts_shape *s = &op->shape;
    if (experts_grouped_takes(&op->gpu.grouped, call)) {
        experts_grouped_up(&op->gpu.grouped, x, s, call);
        return;
    }
    const struct experts_decode_up_args a = {.x = call->x,
                                             .norm = call->norm,
                                             .table = call->table,
                                             .idx = call->idx,
                                             .weights = call->weights,
                                             .act = call->act,
                                             .logits = call->shared_in,
                                             .shared_up = s->biased         ? call->biases.gate_up
                                                          : call->shared_up ? call->shared_up->gpu.address
                                                                            : 0,
                                             .hidden = s->hidden,
                                             .inner = s->inner,
                                             .format = s->up_format,
                                             .stride = call->shared_stride,
                                             .gate_w = s->gate_w,
                                             .gate_s = s->gate_s,
                                             .gate_b = s->gate_b,
                                             .up_w = s->up_w,
                                             .up_s = s->up_s,
                                             .up_b = s->up_b,
                                             .eps = s->eps,
                                             .skip_low = (uint32_t)call->skip,
                                             .skip_high = (uint32_t)(call->skip >> 32),
                                             .n = call->n};
    run_all_up(op, x, call, a);
}

/* Computes slots [first_slot, end_slot). */
static void run_down(struct exec *x, const struct experts_down *k, struct experts_decode_down_args a,
                     uint32_t first_slot, uint32_t end_slot)
{
    a.first_slot = first_slot;
    a.end_slot = end_slot;
    if (format_part_is_block(k->formats))
        code_books_put(x, &a.down_s, &a.down_b);
    exec_dispatch(x, &k->kernel, &a, div_up(a.hidden, k->rows), a.n, 1);
}

void experts_down_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct experts *op = self;
    const struct experts_call *call = what;
    const struct experts_shape *s = &op->shape;
    bool has_shared = call->shared_down.cols > 0;
    if (experts_grouped_takes(&op->gpu.grouped, call)) {
        experts_grouped_down(&op->gpu.grouped, x, s, call);
        return;
    }
    const struct experts_decode_down_args a = {
        .act = call->act,
        .weights = call->weights,
        .shared_in = s->shared_inner ? 0 : call->shared_in,
        .shared_w = s->biased ? call->biases.down : call->shared_down.weight,
        .shared_s = s->biased ? call->idx : call->shared_down.scales,
        .shared_b = call->shared_down.biases,
        .x = call->x,
        .top_k = s->top_k,
        .hidden = s->hidden,
        .inner = s->inner,
        .format = s->down_format,
        .down_w = s->down_w,
        .down_s = s->down_s,
        .down_b = s->down_b,
        .shared_at = s->n_experts + s->shared_gate,
        .shared_inner = call->shared_down.cols,
        .shared_format = has_shared ? call->shared_down.format : s->down_format,
        .shared_stride = call->shared_stride,
        .is_gated = s->shared_gate,
        .act_stride = (uint32_t)experts_act_floats(s, true),
        .n = call->n,
        .gating = s->shared_gating};
    const struct experts_down *routed = down_for(op, s->down_format), *shared = down_for(op, a.shared_format);
    bool apart = !call->only_shared && shared != routed, has_one_format = a.shared_format == s->down_format;
    bool is_whole =
        op->gpu.has_whole_down &&
        (!has_shared || apart || (a.shared_in == 0 && a.shared_inner == s->inner && has_one_format));
    const struct experts_down *whole =
        call->n > SEVERAL_TOKENS / 2 ? &op->gpu.whole_several : &op->gpu.whole_down;
    if (apart && op->gpu.down_with_q4.formats && a.shared_format == FORMAT_Q4) {
        run_down(x, &op->gpu.down_with_q4, a, 0, s->top_k + 1);
        return;
    }
    if (call->only_shared)
        run_down(x, is_whole ? whole : shared, a, s->top_k, s->top_k + has_shared);
    else
        run_down(x, is_whole ? whole : routed, a, 0, s->top_k + (has_shared && !apart));
    if (apart)
        run_down(x, shared, a, s->top_k, s->top_k + 1);
}
