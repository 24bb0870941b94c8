#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "ops/experts.h"
#include "ops/gemv_plan.h"
#include "ops/router.h"

/* The kernels' own constants. */
enum {
    UP_EXPERTS = EXPERTS_FIRST_SPEC,
    UP_TOP_K,
    UP_SHARED,
    UP_IS_GATED,
    UP_CHOOSES,
    UP_NORM_TOPK,
    UP_DROPS,
    UP_N_SPEC,
    DOWN_LANES = EXPERTS_FIRST_SPEC,
    DOWN_TEAMS,
    DOWN_DROPS,
    DOWN_N_SPEC
};
_Static_assert((int)GEMV_N_SPEC <= EXPERTS_FIRST_SPEC, "constants of gemv.glsl and of the experts overlap");

static int open_up(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    uint32_t formats = format_set(s->up_format) | (s->shared_inner ? s->up_formats : 0);
    const struct gemv_shape shape = {(uint32_t)experts_act_floats(s, true), s->hidden, 1, formats, 2, 0};
    const struct gemv_plan plan = gemv_plan_for(x, &shape);
    uint32_t spec[UP_N_SPEC] = {
        [UP_EXPERTS] = s->n_experts,    [UP_TOP_K] = s->top_k,         [UP_SHARED] = s->shared_inner,
        [UP_IS_GATED] = s->shared_gate, [UP_NORM_TOPK] = s->norm_topk, [UP_DROPS] = s->drops};
    for (int i = 0; i < GEMV_N_SPEC; i++)
        spec[i] = plan.spec[i];
    op->gpu.up_rows = plan.workgroup_rows;
    op->gpu.chooses = s->chooses;
    const uint32_t bytes = sizeof(struct experts_decode_up_args);
    int rc = gemv_kernel(x, &op->gpu.up, "experts_decode_up", bytes, spec, UP_N_SPEC, e);
    spec[UP_CHOOSES] = 1;
    return rc < 0 || !s->chooses
               ? rc
               : gemv_kernel(x, &op->gpu.choosing_up, "experts_decode_up", bytes, spec, UP_N_SPEC, e);
}

/* Columns of all slots that half of shared memory holds. */
static uint32_t most_cols(const struct exec_caps *c)
{
    return (c->max_shared_bytes / 2 - 1024) / 4;
}

/* Subgroups of a workgroup are for slots first, so that each has one expert, then for more rows. */
enum { DOWN_ROWS = 4, DOWN_GROUP = 256 };
/* Pieces of a row that a lane holds at once; vec4s of activations. */
enum { MAX_STEPS = 2, MAX_ACTS = 8 };

/* The steps of whole_down; 0: it is not possible. */
static uint32_t whole_steps(const struct experts_shape *s, const uint32_t spec[DOWN_N_SPEC])
{
    uint32_t bits = format_of(s->down_format)->bits, lanes = spec[DOWN_LANES];
    uint32_t pieces = s->inner / (bits % 4 ? 8 : 128 / bits), subgroup = spec[GEMV_SUBGROUP];
    bool fits = spec[GEMV_TILE] == (s->top_k + 1) * s->inner && pieces % lanes == 0 &&
                pieces / lanes <= MAX_STEPS && s->hidden % (subgroup / lanes * DOWN_ROWS) == 0 &&
                div_up(spec[GEMV_TILE] / 4, spec[GEMV_WORKGROUP]) <= MAX_ACTS;
    return fits ? pieces / lanes : 0;
}

static int open_down(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shape *s = &op->shape;
    const struct exec_caps c = exec_get_caps(x);
    uint32_t longest = (uint32_t)size_max(s->inner, s->shared_inner), lanes = 1, most = most_cols(&c);
    uint32_t slots = (uint32_t)size_min(s->top_k + 1, c.max_workgroup / c.subgroup_size);
    slots = (uint32_t)size_max(1, size_min(slots, most / PRODUCT_COLS));
    uint32_t area = (uint32_t)size_min(longest, (uint64_t)(most / slots / PRODUCT_COLS) * PRODUCT_COLS);
    uint32_t teams =
        (uint32_t)size_max(1, size_min(DOWN_GROUP, c.max_workgroup) / ((uint64_t)slots * c.subgroup_size));
    /* Pieces of 16 bytes of a row: those of 4-bit codes are the widest. */
    while (2 * lanes <= c.subgroup_size && s->inner / 32 % (2 * lanes) == 0)
        lanes *= 2;
    uint32_t spec[DOWN_N_SPEC] = {[GEMV_SUBGROUP] = c.subgroup_size,
                                  [GEMV_WORKGROUP] = slots * teams * c.subgroup_size,
                                  [GEMV_ROWS] = DOWN_ROWS,
                                  [GEMV_TOKENS] = 1,
                                  [GEMV_TILE] = slots * area,
                                  [GEMV_FORMATS] = s->down_formats,
                                  [GEMV_SPLIT] = 1,
                                  [GEMV_STEPS] = 0,
                                  [DOWN_LANES] = lanes,
                                  [DOWN_TEAMS] = teams,
                                  [DOWN_DROPS] = s->drops};
    op->gpu.down_rows = teams * (c.subgroup_size / lanes) * DOWN_ROWS;
    const uint32_t bytes = sizeof(struct experts_decode_down_args);
    int rc = gemv_kernel(x, &op->gpu.down, "experts_decode_down", bytes, spec, DOWN_N_SPEC, e);
    spec[GEMV_STEPS] = whole_steps(s, spec);
    spec[GEMV_FORMATS] = format_set(s->down_format);
    op->gpu.has_whole_down = spec[GEMV_STEPS] > 0;
    return rc < 0 || !op->gpu.has_whole_down
               ? rc
               : gemv_kernel(x, &op->gpu.whole_down, "experts_decode_down", bytes, spec, DOWN_N_SPEC, e);
}

int experts_vulkan_open(struct experts *op, struct exec *x, struct moeflux_err *e)
{
    int rc = open_up(op, x, e);
    if (rc == 0)
        rc = open_down(op, x, e);
    if (rc == 0)
        rc = experts_grouped_open(&op->gpu.grouped, x, &op->shape, e);
    op->waves_from = op->gpu.grouped.from;
    op->gpu.makes_shared_below = op->gpu.grouped.from;
    return rc;
}

int experts_shared_vulkan_open(struct experts_shared *s, struct exec *x, struct moeflux_err *e)
{
    const struct experts_shared_up on_device = {.gate_w = s->gate.weight,
                                                .gate_s = s->gate.scales,
                                                .gate_b = s->gate.biases,
                                                .up_w = s->up.weight,
                                                .up_s = s->up.scales,
                                                .up_b = s->up.biases,
                                                .format = s->gate.format};
    int rc = exec_buffer_new(x, &s->gpu, EXEC_DEVICE, sizeof on_device, e);
    return rc < 0 ? rc : exec_write(x, &s->gpu, 0, &on_device, sizeof on_device, e);
}

bool experts_vulkan_chooses(const struct experts *op, const struct experts_call *call)
{
    return op->gpu.chooses && !call->only_shared && !experts_grouped_takes(&op->gpu.grouped, call);
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
    bool chooses = call->router && experts_vulkan_chooses(op, call);
    uint32_t n_shared = s->shared_inner && !call->skip_shared, longest = s->inner;
    if (n_shared)
        longest = (uint32_t)size_max(s->inner, s->shared_inner);
    const struct experts_decode_up_args a = {.x = call->x,
                                             .norm = call->norm,
                                             .table = call->table,
                                             .idx = call->idx,
                                             .weights = call->weights,
                                             .act = call->act,
                                             .logits = call->shared_in,
                                             .shared_up = call->shared_up ? call->shared_up->gpu.address : 0,
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
                                             .first_slot = call->only_shared ? s->top_k : 0,
                                             .n = call->n};
    exec_dispatch(x, chooses ? &op->gpu.choosing_up : &op->gpu.up, &a, div_up(longest, op->gpu.up_rows),
                  n_shared + (call->only_shared ? 0 : s->top_k), call->n);
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
    const struct experts_decode_down_args a = {.act = call->act,
                                               .weights = call->weights,
                                               .shared_in = s->shared_inner ? 0 : call->shared_in,
                                               .shared_w = call->shared_down.weight,
                                               .shared_s = call->shared_down.scales,
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
                                               .shared_format =
                                                   has_shared ? call->shared_down.format : s->down_format,
                                               .shared_stride = call->shared_stride,
                                               .is_gated = s->shared_gate,
                                               .act_stride = (uint32_t)experts_act_floats(s, true),
                                               .n = call->n,
                                               .first_slot = call->only_shared ? s->top_k : 0,
                                               .end_slot = s->top_k + has_shared};
    bool is_whole = op->gpu.has_whole_down &&
                    (!has_shared ||
                     (a.shared_in == 0 && a.shared_inner == s->inner && a.shared_format == s->down_format));
    exec_dispatch(x, is_whole ? &op->gpu.whole_down : &op->gpu.down, &a, div_up(s->hidden, op->gpu.down_rows),
                  call->n, 1);
}
