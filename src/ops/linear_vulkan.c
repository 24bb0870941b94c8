#include <string.h>

#include "base/mem.h"
#include "ops/gemm_plan.h"
#include "ops/gemv_plan.h"
#include "ops/linear.h"

/* Tokens at once in kernels/linear/decode.comp and kernels/linear/plain.comp. */
enum { FEW_TOKENS = 4 };
/* The constants of kernels/linear/plain.comp. */
enum { PLAIN_N_SPEC = 4 };

/* kernels/linear/plain.comp alone takes them. */
static bool is_uneven(const struct linear *op)
{
    return weights_are_uneven(&op->w[0]);
}

/* What a path's kernel computes in a workgroup, and how it is made. */
struct tile {
    enum { TILE_PLAIN, TILE_GEMV, TILE_GEMM } kind;
    union {
        uint32_t plain[PLAIN_N_SPEC];
        struct gemv_plan gemv;
        struct gemm_plan gemm;
    };
    uint32_t rows, tokens; /* of a workgroup */
};

static enum gemm_tile gemm_tile_for(enum linear_path path)
{
    switch (path) {
    case LINEAR_F16_GEMM_SMALL:
        return GEMM_TILE_16;
    case LINEAR_GEMM:
    case LINEAR_F16_GEMM:
        return GEMM_TILE_64;
    default:
        return GEMM_TILE_128;
    }
}

static struct tile plain_tile(const struct exec *x, enum linear_path path, uint32_t formats)
{
    struct exec_caps c = exec_get_caps(x);
    uint32_t subgroups = (uint32_t)size_max(1, size_min(256, c.max_workgroup) / c.subgroup_size);
    uint32_t tokens = path == LINEAR_GEMV_FEW ? FEW_TOKENS : 1;
    return (struct tile){.kind = TILE_PLAIN,
                         .plain = {c.subgroup_size, subgroups * c.subgroup_size, formats, tokens},
                         .rows = subgroups,
                         .tokens = tokens};
}

static struct tile tile_for(const struct exec *x, enum linear_path path, const struct linear *op,
                            uint32_t formats)
{
    if (is_uneven(op))
        return plain_tile(x, path, formats);
    if (path >= LINEAR_GEMM) {
        struct gemm_plan p = path >= LINEAR_F16_GEMM_SMALL
                                 ? gemm_f16_plan_for(x, gemm_tile_for(path), formats)
                                 : gemm_plan_for(x, gemm_tile_for(path), formats);
        return (struct tile){.kind = TILE_GEMM, .gemm = p, .rows = p.rows, .tokens = p.tokens};
    }
    /* Rows on lanes: a workgroup has rows of one matrix. Columns on lanes: all of them keep the device busy. */
    uint32_t rows = exec_get_caps(x).is_software ? op->rows : op->rows * op->n_stacked;
    const struct gemv_shape shape = {rows, op->cols, path == LINEAR_GEMV_FEW ? FEW_TOKENS : 1, formats, 1};
    struct gemv_plan p = gemv_plan_for(x, &shape);
    return (struct tile){.kind = TILE_GEMV, .gemv = p, .rows = p.workgroup_rows, .tokens = p.tokens};
}

static int make_kernel(struct exec *x, struct kernel *k, const struct tile *t, struct moeflux_err *e)
{
    const uint32_t bytes = sizeof(struct linear_args);
    if (t->kind == TILE_PLAIN)
        return exec_kernel(x, k, "linear_plain", bytes, t->plain, PLAIN_N_SPEC, e);
    return t->kind == TILE_GEMM ? gemm_kernel(x, k, "linear_prefill", bytes, &t->gemm, e)
                                : gemv_kernel(x, k, "linear_decode", bytes, &t->gemv, e);
}

/* Appends the segments whose format is in `formats` to the table as one pass. */
static int plan_pass(struct linear *op, enum linear_path path, struct exec *x, uint32_t formats,
                     struct linear_segment *table, struct moeflux_err *e)
{
    struct tile p = tile_for(x, path, op, formats);
    struct linear_plan *plan = &op->gpu.paths[path];
    struct linear_pass *pass = &plan->passes[plan->n_passes];
    uint32_t row = 0;
    plan->tokens = p.tokens;
    memset(pass->later_blocks, 0xff, sizeof pass->later_blocks);
    if (plan->n_passes > 0)
        pass->first = pass[-1].first + pass[-1].n_segments;
    for (uint32_t i = 0; i < op->n_segments; row += op->w[i++].rows) {
        const struct weights *w = &op->w[i];
        if (!(formats >> w->format & 1))
            continue;
        if (pass->n_segments > 0)
            pass->later_blocks[pass->n_segments - 1] = pass->blocks;
        table[pass->first + pass->n_segments++] = (struct linear_segment){.weight = w->weight,
                                                                          .scales = w->scales,
                                                                          .biases = w->biases,
                                                                          .rows = w->rows,
                                                                          .format = w->format,
                                                                          .first_row = row,
                                                                          .first_block = pass->blocks};
        pass->blocks += div_up(w->rows, p.rows);
    }
    if (pass->n_segments == 0)
        return 0;
    plan->n_passes++;
    return make_kernel(x, &pass->kernel, &p, e);
}

static int plan_path(struct linear *op, enum linear_path path, struct exec *x, struct linear_segment *table,
                     struct moeflux_err *e)
{
    uint32_t formats = 0;
    for (uint32_t i = 0; i < op->n_segments; i++)
        formats |= 1u << op->w[i].format;
    if (!exec_get_caps(x).is_software)
        return plan_pass(op, path, x, formats, table, e);
    int rc = 0;
    for (uint32_t f = 0; rc == 0 && f < LINEAR_MAX_PASSES; f++)
        rc = plan_pass(op, path, x, formats & 1u << f, table, e);
    return rc;
}

/* Rows times tokens of 32 tiles of 64 x 64 and of 256 of 128 x 128; of 128 in float16, of 64 x 64 and of 128 x 128. */
enum {
    GEMM_WORK = 32 * 64 * 64,
    GEMM_LARGE_WORK = 256 * 128 * 128,
    F16_WORK = 128 * 64 * 64,
    F16_LARGE_WORK = 128 * 128 * 128
};

/* The number of tokens from which each path is the fastest. On lavapipe (2048 x 2048, q4) four tokens take 15 ms one
 * way, up to eight 1.9 ms the other. */
static void set_limits(struct linear *op, const struct exec *x)
{
    static const uint32_t software[LINEAR_PATHS] = {0, UINT32_MAX, 2, 9}, gpu[LINEAR_PATHS] = {0, 2, 16, 256},
                          neither[LINEAR_PATHS] = {0, 2, UINT32_MAX, UINT32_MAX};
    bool is_software = exec_get_caps(x).is_software, has_f16 = gemm_has_f16(x) && !is_uneven(op);
    uint32_t rows = op->rows * op->n_stacked, *from = op->gpu.from;
    memcpy(from, !gemm_is_possible(x) || is_uneven(op) ? neither : is_software ? software : gpu, sizeof gpu);
    /* Few tiles leave most of a GPU idle. */
    if (from[LINEAR_GEMM] < UINT32_MAX && !is_software)
        from[LINEAR_GEMM] = (uint32_t)size_max(from[LINEAR_GEMM], GEMM_WORK / rows);
    if (from[LINEAR_GEMM_LARGE] < UINT32_MAX && !is_software)
        from[LINEAR_GEMM_LARGE] = (uint32_t)size_max(from[LINEAR_GEMM_LARGE], GEMM_LARGE_WORK / rows);
    from[LINEAR_F16_GEMM_SMALL] = has_f16 ? 32 : UINT32_MAX;
    from[LINEAR_F16_GEMM] = has_f16 ? (uint32_t)size_max(64, F16_WORK / rows) : UINT32_MAX;
    from[LINEAR_F16_GEMM_LARGE] = has_f16 ? (uint32_t)size_max(512, F16_LARGE_WORK / rows) : UINT32_MAX;
    op->f16_from = from[LINEAR_F16_GEMM_SMALL];
}

int linear_vulkan_open(struct linear *op, struct exec *x, struct moeflux_err *e)
{
    struct linear_segment table[LINEAR_PATHS * LINEAR_MAX_SEGMENTS] = {0};
    uint32_t n = op->n_segments;
    int rc = 0;
    set_limits(op, x);
    if (gemm_has_f16(x))
        rc = cast_f16_open(&op->gpu.cast, x, e);
    for (int i = 0; rc == 0 && i < LINEAR_PATHS; i++)
        if (op->gpu.from[i] < UINT32_MAX)
            rc = plan_path(op, (enum linear_path)i, x, table + (size_t)i * n, e);
    if (rc == 0)
        rc =
            exec_buffer_new(x, &op->gpu.segments, EXEC_DEVICE, LINEAR_PATHS * (uint64_t)n * sizeof *table, e);
    if (rc == 0)
        rc = exec_write(x, &op->gpu.segments, 0, table, op->gpu.segments.bytes, e);
    if (rc < 0)
        linear_close(op, x);
    return rc;
}

/* The input in float16, with its norm, takes the place of the float32 one. */
static void cast_input(const struct linear *op, struct exec *x, const struct linear_call *call,
                       struct linear_args *a)
{
    uint32_t cols = a->n_stacked > 1 && call->x_step ? a->n_stacked * call->x_step : op->cols;
    cast_f16_run(&op->gpu.cast, x,
                 &(struct cast_f16_call){.x = call->x,
                                         .norm = call->norm,
                                         .dst = call->f16_scratch,
                                         .n = call->n,
                                         .cols = cols,
                                         .x_stride = call->x_stride,
                                         .eps = call->eps});
    a->x = call->f16_scratch;
    a->norm = 0;
    a->x_stride = cols;
}

static enum linear_path path_of(const struct linear *op, const struct linear_call *call)
{
    /* The kernels read eight float16 numbers at once. */
    bool may_cast = (call->f16_scratch || call->is_f16) && call->x_step % 8 == 0;
    uint32_t path = may_cast ? LINEAR_PATHS - 1 : LINEAR_GEMM_LARGE;
    while ((call->chunk ? call->chunk : call->n) < op->gpu.from[path])
        path--;
    return (enum linear_path)path;
}

void linear_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct linear *op = self;
    const struct linear_call *call = what;
    enum linear_path path = path_of(op, call);
    const struct linear_plan *plan = &op->gpu.paths[path];
    uint64_t table =
        op->gpu.segments.address + (uint64_t)path * op->n_segments * sizeof(struct linear_segment);
    struct linear_args a = {.x = call->x,
                            .norm = call->norm,
                            .y = call->y,
                            .cols = op->cols,
                            .x_stride = call->x_stride,
                            .y_stride = call->y_stride,
                            .n = call->n,
                            .store = call->is_f16 ? LINEAR_F16
                                     : call->add  ? LINEAR_ADD
                                                  : LINEAR_SET,
                            .x_step = call->x_step,
                            .y_step = call->y_step,
                            .n_stacked = call->n_stacked ? call->n_stacked : op->n_stacked,
                            .first_stacked = call->first_stacked,
                            .step = op->step,
                            .eps = call->eps};
    if (path >= LINEAR_F16_GEMM_SMALL && !call->is_f16)
        cast_input(op, x, call, &a);
    for (uint32_t i = 0; i < plan->n_passes; i++) {
        const struct linear_pass *pass = &plan->passes[i];
        a.segments = table + pass->first * sizeof(struct linear_segment);
        a.n_segments = pass->n_segments;
        memcpy(a.later_blocks, pass->later_blocks, sizeof a.later_blocks);
        if (i > 0) /* other rows */
            exec_beside(x);
        exec_dispatch(x, &pass->kernel, &a, pass->blocks, div_up(call->n, plan->tokens), a.n_stacked);
    }
}
