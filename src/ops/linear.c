#include "ops/linear.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ops/matmul.h"

/* Matrix `h` of those of the stack that take part. */
static void ref_segment(const struct linear_args *a, const struct linear_segment *s, uint32_t h,
                        const double *in, double *row)
{
    uint32_t first = (a->first_stacked + h) * a->step;
    const struct weights w = {s->weight, s->scales, s->biases, first + s->rows, a->cols, s->format};
    for (uint32_t r = 0; r < s->rows; r++) {
        matvec_ref_row(&w, first + r, row);
        for (uint32_t t = 0; t < a->n; t++) {
            float *y =
                ref_floats_mut(a->y) + (uint64_t)t * a->y_stride + (uint64_t)h * a->y_step + s->first_row + r;
            double sum = matvec_ref_dot(row, in + (uint64_t)t * a->cols, a->cols);
            *y = (float)(a->store == LINEAR_ADD ? (double)*y + sum : sum);
        }
    }
}

static void linear_ref(const void *args)
{
    const struct linear_args *a = args;
    const struct linear_segment *segments = (const struct linear_segment *)(uintptr_t)a->segments;
    double *in = calloc((size_t)a->n * a->cols, sizeof *in);
    double *row = calloc(a->cols, sizeof *row);
    for (uint32_t h = 0; in && row && h < a->n_stacked; h++) {
        for (uint32_t t = 0; t < a->n; t++)
            matvec_ref_norm(ref_floats(a->x) + (uint64_t)t * a->x_stride + (uint64_t)h * a->x_step,
                            a->norm ? ref_floats(a->norm) : NULL, a->cols, (double)a->eps,
                            in + (uint64_t)t * a->cols);
        for (uint32_t i = 0; i < a->n_segments; i++)
            ref_segment(a, &segments[i], h, in, row);
    }
    free(in);
    free(row);
}

static int check(const struct weights *w, uint32_t n, struct err *e)
{
    if (n == 0 || n > LINEAR_MAX_SEGMENTS)
        return err_set(e, ERR_UNSUPPORTED, "linear: %u matrices, expected 1 to %d", n, LINEAR_MAX_SEGMENTS);
    for (uint32_t i = 0; i < n; i++) {
        if (w[i].cols == 0 || w[i].cols != w[0].cols || w[i].rows == 0)
            return err_set(e, ERR_UNSUPPORTED, "linear: matrix %u is [%u][%u], expected %u columns", i,
                           w[i].rows, w[i].cols, w[0].cols);
        if (w[i].cols % 64 && !weights_are_plain(&w[i]))
            return err_set(e, ERR_UNSUPPORTED,
                           "linear: matrix %u has %u columns, expected a multiple of 64 of quantised numbers",
                           i, w[i].cols);
    }
    return 0;
}

/* Quantised groups do not divide the columns: kernels/linear_plain.comp alone takes them. */
static bool is_uneven(const struct linear *op)
{
    return op->cols % 64 != 0;
}

/* Tokens at once in kernels/linear.comp. */
enum { FEW_TOKENS = 4 };

/* What a way's kernel computes in a workgroup, and how it is made. */
enum { PLAIN_N_SPEC = 4 };

struct way {
    enum { WAY_PLAIN, WAY_MATVEC, WAY_MATMUL } kind;
    union {
        uint32_t plain[PLAIN_N_SPEC]; /* the constants of kernels/linear_plain.comp */
        struct matvec_plan matvec;
        struct matmul_plan matmul;
    };
    uint32_t rows, tokens; /* of a workgroup */
};

static enum matmul_tile tile_for(enum linear_way way)
{
    switch (way) {
    case LINEAR_HALF_FEW:
        return MATMUL_FEW;
    case LINEAR_MANY:
    case LINEAR_HALF_MANY:
        return MATMUL_MANY;
    default:
        return MATMUL_MOST;
    }
}

static struct way plain_way(const struct exec *x, enum linear_way way, uint32_t formats)
{
    struct exec_caps c = exec_get_caps(x);
    uint32_t subgroups = (uint32_t)size_max(1, size_min(256, c.max_workgroup) / c.subgroup_size);
    uint32_t tokens = way == LINEAR_FEW ? FEW_TOKENS : 1;
    return (struct way){.kind = WAY_PLAIN,
                        .plain = {c.subgroup_size, subgroups * c.subgroup_size, formats, tokens},
                        .rows = subgroups,
                        .tokens = tokens};
}

static struct way way_for(const struct exec *x, enum linear_way way, const struct linear *op,
                          uint32_t formats)
{
    if (is_uneven(op))
        return plain_way(x, way, formats);
    if (way >= LINEAR_MANY) {
        struct matmul_plan p = way >= LINEAR_HALF_FEW ? matmul_half_plan_for(x, tile_for(way), formats)
                                                      : matmul_plan_for(x, tile_for(way), formats);
        return (struct way){.kind = WAY_MATMUL, .matmul = p, .rows = p.rows, .tokens = p.tokens};
    }
    /* Rows on lanes: a workgroup has rows of one matrix. Columns on lanes: all of them keep the device busy. */
    uint32_t rows = exec_get_caps(x).is_cpu ? op->rows : op->rows * op->n_stacked;
    const struct matvec_shape shape = {rows, op->cols, way == LINEAR_FEW ? FEW_TOKENS : 1, formats, 1};
    struct matvec_plan p = matvec_plan_for(x, &shape);
    return (struct way){.kind = WAY_MATVEC, .matvec = p, .rows = p.workgroup_rows, .tokens = p.tokens};
}

static int make_kernel(struct exec *x, struct kernel *k, const struct way *p, struct err *e)
{
    const uint32_t bytes = sizeof(struct linear_args);
    if (p->kind == WAY_PLAIN)
        return exec_kernel(x, k, "linear_plain", linear_ref, bytes, p->plain, PLAIN_N_SPEC, e);
    return p->kind == WAY_MATMUL ? matmul_kernel(x, k, "matmul", linear_ref, bytes, &p->matmul, e)
                                 : matvec_kernel(x, k, "linear", linear_ref, bytes, &p->matvec, e);
}

/* Appends the segments whose format is in `formats` to the table as one pass. */
static int plan_pass(struct linear *op, enum linear_way way, struct exec *x, const struct weights *w,
                     uint32_t formats, struct linear_segment *table, struct err *e)
{
    struct way p = way_for(x, way, op, formats);
    struct linear_plan *plan = &op->ways[way];
    struct linear_pass *pass = &plan->passes[plan->n_passes];
    uint32_t row = 0;
    plan->tokens = p.tokens;
    memset(pass->later_blocks, 0xff, sizeof pass->later_blocks);
    if (plan->n_passes > 0)
        pass->first = pass[-1].first + pass[-1].n_segments;
    for (uint32_t i = 0; i < op->n_segments; row += w[i++].rows) {
        if (!(formats >> w[i].format & 1))
            continue;
        if (pass->n_segments > 0)
            pass->later_blocks[pass->n_segments - 1] = pass->blocks;
        table[pass->first + pass->n_segments++] = (struct linear_segment){.weight = w[i].weight,
                                                                          .scales = w[i].scales,
                                                                          .biases = w[i].biases,
                                                                          .rows = w[i].rows,
                                                                          .format = w[i].format,
                                                                          .first_row = row,
                                                                          .first_block = pass->blocks};
        pass->blocks += div_up(w[i].rows, p.rows);
    }
    if (pass->n_segments == 0)
        return 0;
    plan->n_passes++;
    return make_kernel(x, &pass->kernel, &p, e);
}

static int plan_way(struct linear *op, enum linear_way way, struct exec *x, const struct weights *w,
                    struct linear_segment *table, struct err *e)
{
    uint32_t formats = 0;
    for (uint32_t i = 0; i < op->n_segments; i++)
        formats |= 1u << w[i].format;
    if (!exec_get_caps(x).is_cpu)
        return plan_pass(op, way, x, w, formats, table, e);
    int rc = 0;
    for (uint32_t f = 0; rc == 0 && f < LINEAR_MAX_PASSES; f++)
        rc = plan_pass(op, way, x, w, formats & 1u << f, table, e);
    return rc;
}

/* Rows times tokens of 32 tiles of 64 x 64 and of 256 of 128 x 128; of 128 in float16, of 64 x 64 and of 128 x 128. */
enum {
    TILES_WORK = 32 * 64 * 64,
    LARGE_TILES_WORK = 256 * 128 * 128,
    HALF_MANY_WORK = 128 * 64 * 64,
    HALF_MOST_WORK = 128 * 128 * 128
};

/* The number of tokens from which each way is the fastest. On lavapipe (2048 x 2048, q4) four tokens take 15 ms one
 * way, up to eight 1.9 ms the other. */
static void set_limits(struct linear *op, const struct exec *x)
{
    static const uint32_t software[LINEAR_WAYS] = {0, UINT32_MAX, 2, 9}, gpu[LINEAR_WAYS] = {0, 2, 16, 256},
                          neither[LINEAR_WAYS] = {0, 2, UINT32_MAX, UINT32_MAX};
    bool is_cpu = exec_get_caps(x).is_cpu, has_half = matmul_has_half(x) && !is_uneven(op);
    memcpy(op->from,
           !matmul_is_possible(x) || is_uneven(op) ? neither
           : is_cpu                                ? software
                                                   : gpu,
           sizeof op->from);
    /* Few tiles leave most of a GPU idle. */
    uint32_t rows = op->rows * op->n_stacked;
    if (op->from[LINEAR_MANY] < UINT32_MAX && !is_cpu)
        op->from[LINEAR_MANY] = (uint32_t)size_max(op->from[LINEAR_MANY], TILES_WORK / rows);
    if (op->from[LINEAR_MOST] < UINT32_MAX && !is_cpu)
        op->from[LINEAR_MOST] = (uint32_t)size_max(op->from[LINEAR_MOST], LARGE_TILES_WORK / rows);
    op->from[LINEAR_HALF_FEW] = has_half ? 32 : UINT32_MAX;
    op->from[LINEAR_HALF_MANY] = has_half ? (uint32_t)size_max(64, HALF_MANY_WORK / rows) : UINT32_MAX;
    op->from[LINEAR_HALF_MOST] = has_half ? (uint32_t)size_max(512, HALF_MOST_WORK / rows) : UINT32_MAX;
}

static int open_all(struct linear *op, struct exec *x, const struct weights *w, uint32_t n,
                    uint32_t n_stacked, struct err *e)
{
    *op = (struct linear){.n_segments = n, .n_stacked = n_stacked};
    int rc = check(w, n, e);
    if (rc < 0)
        return rc;
    op->cols = w[0].cols;
    for (uint32_t i = 0; i < n; i++)
        op->rows += w[i].rows;
    set_limits(op, x);
    struct linear_segment table[LINEAR_WAYS * LINEAR_MAX_SEGMENTS] = {0};
    if (matmul_has_half(x))
        rc = halve_open(&op->halve, x, e);
    for (int i = 0; rc == 0 && i < LINEAR_WAYS; i++)
        if (op->from[i] < UINT32_MAX)
            rc = plan_way(op, (enum linear_way)i, x, w, table + (size_t)i * n, e);
    if (rc == 0)
        rc = exec_buffer_new(x, &op->segments, EXEC_DEVICE, LINEAR_WAYS * (uint64_t)n * sizeof *table, e);
    if (rc == 0)
        rc = exec_write(x, &op->segments, 0, table, op->segments.bytes, e);
    if (rc < 0)
        linear_close(op, x);
    return rc;
}

int linear_open(struct linear *op, struct exec *x, const struct weights *w, uint32_t n, struct err *e)
{
    return open_all(op, x, w, n, 1, e);
}

int linear_open_stack(struct linear *op, struct exec *x, const struct weights *w, uint32_t n_stacked,
                      uint32_t step, struct err *e)
{
    int rc = open_all(op, x, w, 1, n_stacked, e);
    op->step = step;
    return rc;
}

void linear_close(struct linear *op, struct exec *x)
{
    exec_buffer_free(x, &op->segments);
}

bool linear_is_half(const struct linear *op, uint32_t n)
{
    return n >= op->from[LINEAR_HALF_FEW];
}

/* The input in float16, with its norm, takes the place of the float32 one. */
static void halve_input(const struct linear *op, struct exec *x, const struct linear_call *call,
                        struct linear_args *a)
{
    uint32_t cols = a->n_stacked > 1 && call->x_step ? a->n_stacked * call->x_step : op->cols;
    halve_run(&op->halve, x,
              &(struct halve_call){.x = call->x,
                                   .norm = call->norm,
                                   .dst = call->half,
                                   .n = call->n,
                                   .cols = cols,
                                   .x_stride = call->x_stride,
                                   .eps = call->eps});
    a->x = call->half;
    a->norm = 0;
    a->x_stride = cols;
}

void linear_run(const struct linear *op, struct exec *x, const struct linear_call *call)
{
    /* The kernels read eight float16 numbers at once. */
    bool may_halve = (call->half || call->is_halved) && call->x_step % 8 == 0;
    uint32_t way = may_halve ? LINEAR_WAYS - 1 : LINEAR_MOST;
    while ((call->chunk ? call->chunk : call->n) < op->from[way])
        way--;
    const struct linear_plan *plan = &op->ways[way];
    uint64_t table = op->segments.address + (uint64_t)way * op->n_segments * sizeof(struct linear_segment);
    struct linear_args a = {.x = call->x,
                            .norm = call->norm,
                            .y = call->y,
                            .cols = op->cols,
                            .x_stride = call->x_stride,
                            .y_stride = call->y_stride,
                            .n = call->n,
                            .store = call->is_halved ? LINEAR_HALVE
                                     : call->add     ? LINEAR_ADD
                                                     : LINEAR_SET,
                            .x_step = call->x_step,
                            .y_step = call->y_step,
                            .n_stacked = call->n_stacked ? call->n_stacked : op->n_stacked,
                            .first_stacked = call->first_stacked,
                            .step = op->step,
                            .eps = call->eps};
    if (way >= LINEAR_HALF_FEW && !call->is_halved)
        halve_input(op, x, call, &a);
    for (uint32_t i = 0; i < plan->n_passes; i++) {
        const struct linear_pass *pass = &plan->passes[i];
        a.segments = table + pass->first * sizeof(struct linear_segment);
        a.n_segments = pass->n_segments;
        memcpy(a.later_blocks, pass->later_blocks, sizeof a.later_blocks);
        if (i > 0) /* other rows */
            exec_beside(x);
        exec_run(x, &pass->kernel, &a, pass->blocks, div_up(call->n, plan->tokens), a.n_stacked);
    }
}
