#include "selftest/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cpu/isa.h"
#include "ops/embed/embed.h"
#include "ops/cast_f16.h"
#include "selftest/kernel_test.h"
#include "ops/linear/linear.h"
#include "ops/matvec_transposed/matvec_transposed.h"
#include "ops/linear/gemm_plan.h"

static const char *const path_names[LINEAR_PATHS] = {
    [LINEAR_GEMV] = "",
    [LINEAR_GEMV_TWO] = ", two at a time",
    [LINEAR_GEMV_FEW] = ", four at a time",
    [LINEAR_GEMV_SOME] = ", four of some",
    [LINEAR_SPLIT] = ", split columns",
    [LINEAR_GEMM] = ", tiles",
    [LINEAR_GEMM_LARGE] = ", large tiles",
    [LINEAR_F16_GEMM_SMALL] = ", small f16 tiles",
    [LINEAR_F16_REGISTERS] = ", in registers",
    [LINEAR_F16_GEMM] = ", f16 tiles",
    [LINEAR_F16_GEMM_LARGE] = ", large f16 tiles",
    [LINEAR_F16_REGISTERS_LARGE] = ", many in registers",
};

/* Looks up the first, the last and the middle row. what: of the numbers, for the report. */
static void embed_rows(struct kernel_test *l, const struct weights w[KT_SIDES], float factor,
                       const char *what, double bound)
{
    uint32_t cols = w->cols;
    const uint32_t ids[] = {0, w->rows - 1, w->rows / 2};
    struct test_buffer *in = kt_bytes(l, ids, sizeof ids), *out = kt_bytes(l, NULL, (uint64_t)3 * 4 * cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct embed op;
        if (embed_open(&op, l->side[s], &w[s], factor, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        embed_run(&op, l->side[s],
                  &(struct embed_call){.ids = in->on[s].address, .dst = out->on[s].address, .n = 3});
        kt_finish(l, s);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%ux%u %s%s", w->rows, cols, kt_format_name(w->format), what);
    kt_report(l, "embed", shape, kt_error(l, out, 3 * (uint64_t)cols), bound);
}

static void embed_case(struct kernel_test *l, uint32_t vocab, uint32_t cols, uint32_t format)
{
    struct weights w[KT_SIDES];
    if (!kt_takes(l, l->is_rest))
        return;
    kt_matrix(l, vocab, cols, format, w);
    embed_rows(l, w, 1, "", 0);
}

/* Blocks that begin with `count` scales of `bytes` bytes each, and n values of these. */
struct edges {
    uint32_t format, bytes, count, n;
    uint16_t values[8];
    double bound;
};

/* Looks up random codes with scales that no model has, or hardly any. */
static void edges_case(struct kernel_test *l, const struct edges *c)
{
    enum { ROWS = 3, COLS = 1024, BYTES = ROWS * COLS * 9 / 16 };
    const struct format *f = format_of(c->format);
    uint8_t raw[BYTES];
    struct weights w[KT_SIDES];
    if (!kt_takes(l, l->is_rest))
        return;
    for (uint32_t i = 0; i < BYTES; i++)
        raw[i] = (uint8_t)kt_random(l);
    for (uint32_t b = 0; b < ROWS * COLS / f->group; b++)
        for (uint32_t i = 0; i < c->count; i++)
            memcpy(raw + (uint64_t)b * f->block_bytes + (uint64_t)i * c->bytes, &c->values[(b + i) % c->n],
                   c->bytes);
    const struct test_buffer *blocks = kt_bytes(l, raw, format_code_bytes(f, (uint64_t)ROWS * COLS));
    for (int s = 0; s < KT_SIDES; s++)
        w[s] = (struct weights){
            .weight = blocks->on[s].address, .rows = ROWS, .cols = COLS, .format = c->format};
    embed_rows(l, w, 1, ", scales at the edge", c->bound);
}

/* The results are compared as they are read: float16 numbers. */
static void cast_f16_case(struct kernel_test *l, uint32_t n, uint32_t cols, bool has_norm, bool is_blocked)
{
    if (!kt_takes(l, l->is_rest))
        return;
    struct test_buffer *x = kt_floats(l, (uint64_t)n * (cols + 4), -70000, 70000);
    struct test_buffer *norm = kt_floats(l, cols, 0.5f, 1.5f),
                       *dst = kt_bytes(l, NULL, 2 * (uint64_t)n * cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct cast_f16 op;
        if (cast_f16_open(&op, l->side[s], &l->err) < 0)
            break;
        const struct cast_f16_call call = {.x = x->on[s].address,
                                           .norm = has_norm ? norm->on[s].address : 0,
                                           .dst = dst->on[s].address,
                                           .n = n,
                                           .cols = cols,
                                           .x_stride = cols + 4,
                                           .eps = 1e-6f,
                                           .is_blocked = is_blocked};
        exec_begin(l->side[s]);
        cast_f16_run(&op, l->side[s], &call);
        kt_finish(l, s);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%ux%u%s%s", n, cols, has_norm ? " norm" : "",
             is_blocked ? " blocked" : "");
    kt_report(l, "cast_f16", shape, kt_f16_error(l, dst, (uint64_t)n * cols), 1e-3);
}

static void cast_f16_cases(struct kernel_test *l)
{
    cast_f16_case(l, 3, 64, false, false);
    cast_f16_case(l, 5, 2048, true, false);
    cast_f16_case(l, 2, 4, true, false);
    cast_f16_case(l, 1, 1444, false, false);
    cast_f16_case(l, 4, 384, true, true);
}

enum { LINEAR_TEST_SEGMENTS = LINEAR_TOKEN_SEGMENTS + 1 };
struct linear_shape {
    uint32_t n_segments, rows[LINEAR_TEST_SEGMENTS], formats[LINEAR_TEST_SEGMENTS], cols, n;
    bool norm, add;
    enum linear_path path; /* LINEAR_GEMV: as the number of tokens asks for */
};

/* Whether the operation has a path; from now on it takes no other. */
static bool force_path(struct linear *op, enum linear_path path)
{
    bool can = op->gpu.from[path] < UINT32_MAX;
    for (uint32_t i = 1; can && i < LINEAR_PATHS; i++)
        op->gpu.from[i] = i <= path ? 0 : UINT32_MAX;
    return can;
}

/* head_dim: of heads that lack their norm; 0: they have it. */
static void heads_case(struct kernel_test *l, const struct linear_shape *c, uint32_t head_dim)
{
    if (!kt_takes(l, l->is_rest))
        return;
    struct weights w[LINEAR_TEST_SEGMENTS][KT_SIDES] = {0};
    uint32_t rows = 0;
    l->is_near = head_dim > 0;
    for (uint32_t i = 0; i < c->n_segments; i++) {
        kt_matrix(l, c->rows[i], c->cols, c->formats[i], w[i]);
        rows += c->rows[i];
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%ux%u %s%s%s%s%s, %u token%s%s", rows, c->cols,
             kt_format_name(c->formats[0]), c->n_segments > 1 ? " fused" : "", c->norm ? " norm" : "",
             head_dim ? " heads" : "", c->add ? " add" : "", c->n, c->n > 1 ? "s" : "", path_names[c->path]);
    struct test_buffer *x = kt_floats(l, (uint64_t)c->n * c->cols, -2, 2),
                       *norm = kt_floats(l, c->cols, 0.5f, 1.5f),
                       *squares = kt_floats(l, (uint64_t)c->cols * HEAD_SQUARES, 0, 40);
    struct test_buffer *y = kt_floats(l, (uint64_t)c->n * rows, -1, 1),
                       *f16 = kt_bytes(l, NULL, 2 * (uint64_t)c->n * c->cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct linear op;
        struct weights mine[LINEAR_TEST_SEGMENTS];
        for (int i = 0; i < LINEAR_TEST_SEGMENTS; i++)
            mine[i] = w[i][s];
        if (linear_open(&op, l->side[s], mine, c->n_segments, &l->err) < 0)
            break;
        if (head_dim && linear_expect_squares(&op, l->side[s], head_dim, &l->err) < 0)
            break;
        if (s == KT_DEVICE && ((c->path != LINEAR_GEMV && !force_path(&op, c->path)) ||
                               (head_dim && !linear_takes_squares(&op)))) {
            linear_close(&op, l->side[s]);
            kt_skip(l, "linear", shape);
            return;
        }
        const struct linear_call call = {.x = x->on[s].address,
                                         .norm = c->norm ? norm->on[s].address : 0,
                                         .y = y->on[s].address,
                                         .x_stride = c->cols,
                                         .y_stride = rows,
                                         .n = c->n,
                                         .add = c->add,
                                         .eps = 1e-6f,
                                         .squares = head_dim ? squares->on[s].address : 0,
                                         .head_dim = head_dim,
                                         .f16_scratch = f16->on[s].address};
        exec_begin(l->side[s]);
        linear_run(&op, l->side[s], &call);
        kt_finish(l, s);
        linear_close(&op, l->side[s]);
    }
    double bound = c->path == LINEAR_GEMV             ? kt_product_bound(l, c->n, EXEC_MAX_INVARIANT + 1)
                   : c->path >= LINEAR_F16_GEMM_SMALL ? KT_F16_BOUND
                                                      : KT_PRODUCT_BOUND;
    for (uint32_t i = 0; i < c->n_segments; i++)
        bound = kt_int16_bound(l, c->formats[i], c->n, bound);
    kt_report(l, "linear", shape, kt_error(l, y, (uint64_t)c->n * rows), bound);
}

static void linear_case(struct kernel_test *l, const struct linear_shape *c)
{
    heads_case(l, c, 0);
}

/* A stack of `heads` matrices [rows][cols]; x, y and the stack have room between the parts of two of them. */
static void stack_case(struct kernel_test *l, uint32_t heads, uint32_t rows, uint32_t cols, uint32_t format,
                       uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t x_stride = heads * (cols + X_ROOM), y_stride = heads * (rows + Y_ROOM);
    struct weights w[KT_SIDES];
    kt_matrix(l, heads * (rows + ROOM), cols, format, w);
    struct test_buffer *x = kt_floats(l, (uint64_t)n * x_stride, -2, 2);
    struct test_buffer *y = kt_floats(l, (uint64_t)n * y_stride, -1, 1);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct linear op;
        const struct weights first = weights_rows(&w[s], 0, rows);
        if (linear_open_stack(&op, l->side[s], &first, heads, rows + ROOM, &l->err) < 0)
            break;
        const struct linear_call call = {.x = x->on[s].address,
                                         .y = y->on[s].address,
                                         .x_stride = x_stride,
                                         .y_stride = y_stride,
                                         .x_step = cols + X_ROOM,
                                         .y_step = rows + Y_ROOM,
                                         .n = n};
        exec_begin(l->side[s]);
        linear_run(&op, l->side[s], &call);
        kt_finish(l, s);
        linear_close(&op, l->side[s]);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, kt_format_name(format), n,
             n > 1 ? "s" : "");
    kt_report(l, "linear", shape, kt_error(l, y, (uint64_t)n * y_stride),
              kt_int16_bound(l, format, n, kt_product_bound(l, n, EXEC_MAX_INVARIANT + 1)));
}

/* Matrices [rows][cols] of such a stack from the left. */
static void transposed_case(struct kernel_test *l, uint32_t heads, uint32_t rows, uint32_t cols,
                            uint32_t format, uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t x_stride = heads * (rows + X_ROOM), y_stride = heads * (cols + Y_ROOM);
    struct weights w[KT_SIDES];
    kt_matrix(l, heads * (rows + ROOM), cols, format, w);
    struct test_buffer *x = kt_floats(l, (uint64_t)n * x_stride, -2, 2);
    struct test_buffer *y = kt_floats(l, (uint64_t)n * y_stride, -1, 1);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct matvec_transposed op;
        const struct weights first = weights_rows(&w[s], 0, rows);
        if (matvec_transposed_open(&op, l->side[s], &first, heads, rows + ROOM, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        matvec_transposed_run(&op, l->side[s],
                              &(struct matvec_transposed_call){.x = x->on[s].address,
                                                               .y = y->on[s].address,
                                                               .x_stride = x_stride,
                                                               .y_stride = y_stride,
                                                               .x_step = rows + X_ROOM,
                                                               .y_step = cols + Y_ROOM,
                                                               .n = n});
        kt_finish(l, s);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, kt_format_name(format), n,
             n > 1 ? "s" : "");
    kt_report(l, "matvec_transposed", shape, kt_error(l, y, (uint64_t)n * y_stride), KT_PRODUCT_BOUND);
}

static void embed_cases(struct kernel_test *l)
{
    for (uint32_t format = 0; format < FORMAT_BLOCK_FIRST; format++) {
        l->is_rest = format >= FORMAT_KINDS;
        if (format_of(format)->bits)
            embed_case(l, format < FORMAT_KINDS ? 1003 : 37, 384, format);
    }
    for (uint32_t format = FORMAT_BLOCK_FIRST; format < FORMAT_END; format++) {
        l->is_rest = format != FORMAT_G_Q6_K && format != FORMAT_G_IQ3_S && format != FORMAT_G_MXFP4;
        embed_case(l, 37, 1280, format);
    }
    l->is_rest = false;
    /* Denormal numbers of MXFP4 may become 0: 12 * 2^-127 of 12 * 2^123. */
    static const struct edges edges[] = {
        {FORMAT_G_NVFP4, 1, 4, 8, {0, 1, 7, 8, 0x7e, 0x7f, 0x80, 0xff}, 0},
        {FORMAT_G_MXFP4, 1, 1, 4, {0, 1, 2, 251}, 0x1p-250},
        {FORMAT_G_Q4_0, 2, 1, 4, {0x0001, 0x83ff, 0x7bff, 0x8000}, 0},
        {FORMAT_G_Q4_K, 2, 2, 4, {0x0001, 0x83ff, 0x7bff, 0x8000}, 0},
    };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        edges_case(l, &edges[i]);
    embed_case(l, 3, 64, FORMAT_Q4);
    embed_case(l, 64, 7168, FORMAT_Q4);
    if (kt_takes(l, l->is_rest)) {
        struct weights w[KT_SIDES];
        kt_matrix(l, 40, 320, FORMAT_Q8, w);
        embed_rows(l, w, 53.25f, ", times 53.25", 2e-7);
    }
}

/* Runs products of several formats: in one dispatch or in several; rows of several tiles; all paths that the
 * device has. */
static void mixed_linear_cases(struct kernel_test *l)
{
    static const struct linear_shape shapes[] = {
        {3, {12, 1, 130}, {FORMAT_Q8, FORMAT_Q8, FORMAT_Q2}, 192, 1, true, true, LINEAR_GEMV},
        {2, {37, 71}, {FORMAT_F16, FORMAT_BF16}, 33, 1, true, false, LINEAR_GEMV},
        {1, {37}, {FORMAT_F16}, 33, 5, true, true, LINEAR_GEMV},
    };
    static const struct linear_shape rest[] = {
        {4,
         {33, 257, 1, 64},
         {FORMAT_Q3, FORMAT_Q3, FORMAT_Q8, FORMAT_Q6},
         2048,
         1,
         true,
         false,
         LINEAR_GEMV},
        {5,
         {37, 3, 64, 9, 70},
         {FORMAT_Q6, FORMAT_Q6, FORMAT_Q6, FORMAT_Q6, FORMAT_Q6},
         512,
         1,
         true,
         true,
         LINEAR_GEMV},
        {1, {67}, {FORMAT_NVFP4}, 8192, 3, true, false, LINEAR_GEMV},
        {1, {67}, {FORMAT_NVFP4_FACTOR}, 8192, 3, true, false, LINEAR_GEMV},
        {3, {130, 33, 1}, {FORMAT_MXFP4, FORMAT_BF16, FORMAT_Q5}, 320, 65, true, true, LINEAR_GEMV},
        {1, {70}, {FORMAT_Q2}, 18432, 1, false, true, LINEAR_GEMV},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        linear_case(l, &shapes[i]);
    l->is_rest = true;
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        linear_case(l, &rest[i]);
    const uint32_t n = kt_is_brief(l) ? KT_N_KINDS : KT_N_FORMATS, each = kt_is_brief(l) ? 8 : 4;
    for (enum linear_path path = LINEAR_GEMV_FEW; kt_has_kernels(l) && path < LINEAR_PATHS; path++)
        for (uint32_t i = path % 2; i < n; i += path < LINEAR_F16_GEMM_SMALL ? each : 1) {
            l->is_rest = i >= each || path != LINEAR_GEMM;
            linear_case(l, &(struct linear_shape){
                               2, {131, 70}, {kt_formats[i], FORMAT_Q3}, 384, 75, true, i % 2, path});
        }
    l->is_rest = false;
}

/* Brief: each kind with one token, every second kind also with many. SELFTEST_FIRST takes only what no other
 * case has. Other groups and scales get one token or many, alternately. */
static void linear_format_cases(struct kernel_test *l)
{
    for (uint32_t i = 0; i < KT_N_FORMATS; i++) {
        uint32_t f = kt_formats[i];
        l->is_rest = i >= KT_N_KINDS || i % 2 || f == FORMAT_Q4 || f == FORMAT_BF16 || f == FORMAT_Q2;
        if (!kt_is_brief(l) || i < KT_N_KINDS || i % 2)
            linear_case(l, &(struct linear_shape){1, {131}, {f}, 384, 1, true, false, LINEAR_GEMV});
        l->is_rest = i >= KT_N_KINDS || i % 4 > 1;
        if (!kt_is_brief(l) || i % 2 == (i < KT_N_KINDS))
            linear_case(l, &(struct linear_shape){1, {131}, {f}, 384, 75, false, true, LINEAR_GEMV});
        l->is_rest = l->is_rest || i > 5;
        if (!kt_is_brief(l) || i < KT_N_KINDS)
            transposed_case(l, 3, 36, 384, f, i % 2 ? 1 : 21);
    }
    l->is_rest = false;
    /* Several rows and pieces a lane, on a GPU too; the few lanes of lavapipe have them anyway. */
    for (uint32_t f = FORMAT_Q2; kt_has_kernels(l) && !kt_is_brief(l) && f <= FORMAT_F16; f++)
        linear_case(l, &(struct linear_shape){1, {2115}, {f}, 1152, 1, true, f % 2, LINEAR_GEMV});
    mixed_linear_cases(l);
    stack_case(l, 3, 37, 64, FORMAT_Q3, 1);
    l->is_rest = true;
    /* Short rows in sequence: of 8 lanes, of 32; long ones that are whole: for 16 lanes, for 32, few and
     * many. */
    linear_case(l, &(struct linear_shape){1, {2}, {FORMAT_BF16}, 3584, 1, true, true, LINEAR_GEMV});
    linear_case(
        l, &(struct linear_shape){2, {2115, 70}, {FORMAT_Q4, FORMAT_Q4}, 384, 1, true, true, LINEAR_GEMV});
    linear_case(
        l, &(struct linear_shape){2, {67, 140}, {FORMAT_Q4, FORMAT_Q4}, 5120, 1, true, false, LINEAR_GEMV});
    if (!kt_is_brief(l)) {
        linear_case(l, &(struct linear_shape){1, {9217}, {FORMAT_Q4}, 1536, 1, true, true, LINEAR_GEMV});
        linear_case(l, &(struct linear_shape){
                           2, {67, 140}, {FORMAT_Q4, FORMAT_Q4}, 7168, 1, true, false, LINEAR_GEMV});
        linear_case(l, &(struct linear_shape){1, {67}, {FORMAT_BF16}, 7168, 1, true, false, LINEAR_GEMV});
    }
    stack_case(l, 3, 37, 128, FORMAT_NVFP4, 31);
    l->is_rest = false;
    transposed_case(l, 2, 7, 33, FORMAT_F16, 3);
}

/* Block formats: each with one token, and next to others; paths and stacks with a few of them. Brief: the
 * paths with one of those with a code book, and with one whose blocks begin at any byte. */
static void linear_block_cases(struct kernel_test *l)
{
    for (uint32_t f = FORMAT_BLOCK_FIRST; f < FORMAT_END; f++) {
        l->is_rest = f != FORMAT_G_Q4_K && f != FORMAT_G_IQ2_S && f != FORMAT_G_MXFP4;
        linear_case(l, &(struct linear_shape){1, {131}, {f}, 1280, 1, true, f % 2, LINEAR_GEMV});
        l->is_rest = true;
        if (!kt_is_brief(l) || f % 4 == 0)
            linear_case(l,
                        &(struct linear_shape){
                            3, {130, 1, 33}, {f, f, FORMAT_Q3}, 512, 3 + f % 3, false, f % 2, LINEAR_GEMV});
        if (!kt_is_brief(l) || f % 4 == 1)
            linear_case(
                l, &(struct linear_shape){2, {1031, 70}, {f, FORMAT_Q8}, 256, 75, true, f % 2, LINEAR_GEMV});
        if (!kt_is_brief(l) || f % 8 == 2)
            transposed_case(l, 3, 36, 512, f, f % 2 ? 1 : 21);
    }
    for (enum linear_path path = LINEAR_GEMV_FEW; kt_has_kernels(l) && path < LINEAR_PATHS; path++)
        for (uint32_t f = FORMAT_BLOCK_FIRST; f < FORMAT_END; f++) {
            l->is_rest = f != FORMAT_G_Q4_K || path == LINEAR_GEMV_FEW || path == LINEAR_GEMM_LARGE;
            if (!kt_is_brief(l) || f == FORMAT_G_Q4_K || f == FORMAT_G_IQ2_XS || f == FORMAT_G_MXFP4)
                linear_case(l, &(struct linear_shape){2, {131, 70}, {f, f}, 768, 75, true, f % 2, path});
        }
    l->is_rest = false;
    stack_case(l, 3, 37, 256, FORMAT_G_Q5_K, 1);
    transposed_case(l, 3, 36, 256, FORMAT_G_IQ4_XS, 3);
    l->is_rest = true;
    stack_case(l, 3, 37, 64, FORMAT_G_NVFP4, 31);
    linear_case(l, &(struct linear_shape){1, {67}, {FORMAT_G_Q6_K}, 18432, 2, true, true, LINEAR_GEMV});
    l->is_rest = false;
}

/* Every path, whatever the number of tokens. */
static void linear_path_cases(struct kernel_test *l)
{
    for (enum linear_path path = LINEAR_GEMV_FEW; kt_has_kernels(l) && path < LINEAR_PATHS; path++) {
        /* Products in registers are of 4 bits alone. */
        bool is_plain = path == LINEAR_F16_REGISTERS || path == LINEAR_F16_REGISTERS_LARGE;
        const uint32_t other = is_plain ? FORMAT_Q4 : FORMAT_Q8;
        l->is_rest = path == LINEAR_GEMM_LARGE;
        linear_case(l, &(struct linear_shape){
                           3, {131, 1, 77}, {FORMAT_Q4, other, FORMAT_Q4}, 512, 75, true, true, path});
        l->is_rest = true;
        if (!kt_is_brief(l) || path != LINEAR_GEMV_FEW)
            linear_case(l, &(struct linear_shape){
                               2, {130, 70}, {FORMAT_Q4, FORMAT_Q8}, 1664, 141, false, false, path});
        if (kt_is_brief(l) && path == LINEAR_GEMM_LARGE) /* LINEAR_GEMM's kernel, with larger tiles */
            continue;
        linear_case(l,
                    &(struct linear_shape){
                        3, {33, 70, 129}, {FORMAT_F32, FORMAT_BF16, FORMAT_Q8}, 320, 19, true, false, path});
        if (!kt_is_brief(l))
            linear_case(l, &(struct linear_shape){3, {70, 3, 33}, {FORMAT_Q4}, 384, 33, true, true, path});
        linear_case(l, &(struct linear_shape){1, {67}, {FORMAT_BF16}, 1024, 1, false, true, path});
    }
    l->is_rest = false;
}

/* The paths of other cases with the sizes of real models. */
static void linear_sizes(struct kernel_test *l)
{
    static const struct linear_shape shapes[] = {
        {3, {8192, 512, 512}, {FORMAT_Q4, FORMAT_Q4, FORMAT_Q4}, 2048, 1, true, false, LINEAR_GEMV},
        {1, {256}, {FORMAT_Q4}, 18432, 4, true, false, LINEAR_GEMV},
        {1, {4500}, {FORMAT_Q4}, 7168, 1, true, true, LINEAR_GEMV},
        {1, {2048}, {FORMAT_Q4}, 4096, 1, false, true, LINEAR_GEMV},
        {1, {4096}, {FORMAT_Q4}, 8192, 2, false, true, LINEAR_GEMV},
    };
    for (size_t i = 0; !kt_is_brief(l) && i < sizeof shapes / sizeof *shapes; i++)
        linear_case(l, &shapes[i]);
}

/* One token of each format first: linear/prefill_split.comp takes many. */
static void stack_cases(struct kernel_test *l)
{
    for (uint32_t n = 1; n <= 100; n = 3 * n + (n > 1)) {
        l->is_rest = n == 3;
        stack_case(l, 3, 37, 64, FORMAT_Q4, n);
        l->is_rest = n > 1;
        stack_case(l, 2, 9, 128, FORMAT_Q8, n);
        stack_case(l, 4, 128, 64, FORMAT_F32, n);
        stack_case(l, 5, 64, 192, FORMAT_BF16, n);
        l->is_rest = n < 10;
        stack_case(l, 3, 64, 32, FORMAT_BF16, n);
        stack_case(l, 2, 7, 25, FORMAT_F32, n);
    }
    l->is_rest = false;
}

static void linear_cases(struct kernel_test *l)
{
    static const struct linear_shape shapes[] = {
        {1, {1}, {FORMAT_Q4}, 64, 1, false, false, LINEAR_GEMV},
        {1, {1}, {FORMAT_Q8}, 64, 2, true, false, LINEAR_GEMV},
        {1, {1003}, {FORMAT_Q4}, 192, 1, true, false, LINEAR_GEMV},
        {1, {37}, {FORMAT_BF16}, 320, 3, true, true, LINEAR_GEMV},
        {1, {129}, {FORMAT_F32}, 256, 5, false, true, LINEAR_GEMV},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_Q8, FORMAT_Q4}, 192, 1, true, false, LINEAR_GEMV},
        {1, {256}, {FORMAT_Q4}, 18432, 1, false, true, LINEAR_GEMV},
        {1, {257}, {FORMAT_Q8}, 18432, 1, true, true, LINEAR_GEMV},
        {1, {258}, {FORMAT_BF16}, 18432, 1, true, false, LINEAR_GEMV},
        {1, {259}, {FORMAT_F32}, 18432, 1, false, true, LINEAR_GEMV},
        /* One token: a part of the lanes' last pieces; more segments than the arguments have room for. */
        {1, {70}, {FORMAT_Q4}, 1472, 1, true, false, LINEAR_GEMV},
        {5, {64, 37, 3, 130, 9}, {FORMAT_Q4}, 512, 1, true, true, LINEAR_GEMV}, /* zeros: FORMAT_Q4 */
        /* Columns that are not divided by 64. */
        {1, {5}, {FORMAT_F32}, 1, 1, false, false, LINEAR_GEMV},
        {1, {37}, {FORMAT_BF16}, 33, 1, true, false, LINEAR_GEMV},
        {2, {130, 71}, {FORMAT_BF16, FORMAT_F32}, 100, 1, true, true, LINEAR_GEMV},
        {2, {130, 71}, {FORMAT_F32, FORMAT_BF16}, 1001, 7, true, true, LINEAR_GEMV},
        {1, {67}, {FORMAT_BF16}, 32, 65, false, true, LINEAR_GEMV},
    };
    static const struct linear_shape rest[] = {
        {1, {70}, {FORMAT_Q4}, 18432, 5, true, false, LINEAR_GEMV},
        {1, {131}, {FORMAT_F32}, 320, 9, true, true, LINEAR_GEMV},
        {1, {67}, {FORMAT_BF16}, 192, 33, false, true, LINEAR_GEMV},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 65, true, false, LINEAR_GEMV},
        {3, {130, 33, 1}, {FORMAT_Q4, FORMAT_F32, FORMAT_Q4}, 320, 259, true, true, LINEAR_GEMV},
        {2, {40, 70}, {FORMAT_Q4, FORMAT_F32}, 2048, 1, false, true, LINEAR_GEMV},
        {1, {2500}, {FORMAT_Q4}, 4608, 1, true, false, LINEAR_GEMV}, /* long rows */
        {3, {230, 1, 77}, {FORMAT_Q8, FORMAT_Q8, FORMAT_Q8}, 5120, 1, true, true, LINEAR_GEMV},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 7, true, false, LINEAR_GEMV},
        {1, {1}, {FORMAT_Q4}, 64, 17, true, false, LINEAR_GEMV},
        {1, {200}, {FORMAT_Q8}, 64, 64, false, false, LINEAR_GEMV},
        /* Formats that differ too much for one dispatch. */
        {4, {33, 257, 1, 64}, {FORMAT_Q8, FORMAT_Q8, FORMAT_Q4}, 2048, 1, true, false, LINEAR_GEMV},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        linear_case(l, &shapes[i]);
    l->is_long = true; /* enough rows for linear_decode_long on a large GPU */
    linear_case(l, &(struct linear_shape){1, {4500}, {FORMAT_Q4}, 10240, 1, true, true, LINEAR_GEMV});
    l->is_long = false;
    l->is_rest = true;
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        linear_case(l, &rest[i]);
    l->is_rest = false;
    linear_path_cases(l);
    stack_cases(l);
    linear_format_cases(l);
    linear_block_cases(l);
    if (kt_has_kernels(l)) { /* one tile, then several */
        heads_case(l, &(struct linear_shape){1, {70}, {FORMAT_Q4}, 4096, 1, false, true, LINEAR_GEMV}, 128);
        heads_case(l, &(struct linear_shape){1, {33}, {FORMAT_Q8}, 192, 1, false, false, LINEAR_GEMV}, 64);
        l->is_rest = true;
        heads_case(l, &(struct linear_shape){2, {37, 5}, {FORMAT_BF16}, 18432, 1, false, true, LINEAR_GEMV},
                   4);
        l->is_rest = false;
    }
    l->is_rest = true;
    stack_case(l, 16, 512, 128, FORMAT_Q4, 1);
    stack_case(l, 16, 128, 512, FORMAT_Q4, 40);
    l->is_rest = false;
    transposed_case(l, 3, 4, 64, FORMAT_Q4, 1);
    transposed_case(l, 2, 36, 320, FORMAT_Q8, 3);
    transposed_case(l, 5, 64, 192, FORMAT_BF16, 8);
    transposed_case(l, 4, 64, 128, FORMAT_F32, 21);
    transposed_case(l, 16, 128, 512, FORMAT_Q4, 1);
    transposed_case(l, 16, 128, 512, FORMAT_Q4, 40);
    transposed_case(l, 3, 6, 33, FORMAT_BF16, 1);
    transposed_case(l, 2, 31, 64, FORMAT_F32, 3);
    transposed_case(l, 5, 32, 300, FORMAT_BF16, 21);
    linear_sizes(l);
}

/* Kernels that only work together share a group: attention is gqa_prepare, attention
 * or attention_prefill, and attention_merge. */
static const struct {
    const char *kernels;
    void (*run)(struct kernel_test *l);
    bool has_matrices; /* some are there for cooperative matrices, too */
} groups[] = {
    {"embed", embed_cases, false},
    {"cast_f16", cast_f16_cases, false},
    {"linear_decode linear_decode_token linear_decode_long linear_prefill linear_plain "
     "matvec_transposed_groups matvec_transposed_plain",
     linear_cases, true},
    {"batched linear_decode linear_decode_token linear_decode_long attention_decode", selftest_batched_cases,
     false},
    {"router_softmax", selftest_softmax_cases, false},
    {"router_sigmoid", selftest_sigmoid_cases, false},
    {"experts_decode_up experts_decode_down experts_decode_down_long experts_prefill_sort experts_prefill_up "
     "experts_prefill_down experts_prefill_mix",
     selftest_experts_cases, true},
    {"delta_decode delta_prefill_prep delta_prefill_scan delta_prefill_blocks delta_prefill_walk "
     "delta_prefill_out",
     selftest_delta_cases, false},
    {"ssd_scan ssd_norm", selftest_ssd_cases, false},
    {"gqa_prepare attention_decode attention_prefill attention_merge", selftest_attention_cases, true},
    {"mla_prepare mla_transpose_keys mla_gather_rows attention_decode", selftest_mla_cases, true},
    {"sample_largest sample_greedy sample_draw", selftest_sample_cases, false},
    {"swiglu", selftest_swiglu_cases, false},
    {"head_gate", selftest_head_gate_cases, false},
    {"add", selftest_add_cases, false},
    {"streams_begin streams_norm streams_low streams_mix streams_join streams_collapse streams_attend",
     selftest_streams_cases, false},
    {"ngram_gate ngram_conv", selftest_ngram_cases, false},
    {"indexer_prepare indexer_scores indexer_choose", selftest_indexer_cases, false},
    {"compressed_turn compressed_pool compressed_attend", selftest_compressed_cases, false},
    {"normed_add softcap", selftest_posts_cases, false},
};

static void run_groups(struct kernel_test *l, bool only_matrices)
{
    const char *only = l->request->kernel;
    for (uint32_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        kt_begin_group(l, i);
        if (!l->err.code && (groups[i].has_matrices || !only_matrices) &&
            (!only || strstr(groups[i].kernels, only)))
            groups[i].run(l);
    }
}

static void report_kernels(const struct kernel_test *l)
{
    const struct selftest *s = l->request;
    struct exec_stats stats;
    exec_get_stats(l->side[KT_DEVICE], &stats);
    for (uint32_t i = 0; i < stats.n_times; i++)
        if (stats.times[i].n)
            s->ran(s->ctx, stats.times[i].name, stats.times[i].n);
}

/* Runs the cases with matrices once more where the device has both extensions: the first run used KHR's. */
static void run_nv(struct kernel_test *l)
{
    struct exec *x = l->side[KT_DEVICE];
    const char *device = exec_get_caps(x).name;
    if (!exec_get_caps(x).uses_khr)
        return;
    exec_prefer_nv(x);
    if (exec_get_caps(x).uses_khr)
        return;
    snprintf(l->heading, sizeof l->heading, "%s, VK_NV_cooperative_matrix", device);
    l->is_again = true;
    run_groups(l, true);
    l->is_again = false;
    l->heading[0] = '\0';
}

/* Runs all cases on one device: with all of its kernels, then with the kernels that devices without its
 * optional features use, which also run where everything has to be float32. */
static void run_cases(struct kernel_test *l)
{
    run_groups(l, false);
    run_nv(l);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    if (!caps.has_coopmat && !caps.has_denorm && !caps.has_fixed && !caps.has_int16)
        return;
    exec_keep_f32(l->side[KT_DEVICE]);
    exec_forbid_denorm(l->side[KT_DEVICE]);
    l->is_again = true;
    l->next = 0;
    run_groups(l, false);
    l->is_again = false;
}

/* Drivers are opened and closed by one thread at a time. */
/* Memory for the records of the largest case. */
enum { RECORD_BYTES = 16384 };

static int open_device(struct kernel_test *l, const struct exec_options *o)
{
    kt_lock(l);
    int rc = exec_open(&l->side[KT_DEVICE], o, &l->err);
    if (rc == 0)
        rc = exec_reserve_records(l->side[KT_DEVICE], RECORD_BYTES, &l->err);
    kt_unlock(l);
    return rc;
}

static void close_device(struct kernel_test *l)
{
    kt_clear(l);
    kt_lock(l);
    exec_close(l->side[KT_DEVICE]);
    kt_unlock(l);
    l->side[KT_DEVICE] = NULL;
}

static int run_on(struct kernel_test *l, const struct exec_options *o)
{
    if (open_device(l, o) == 0)
        run_cases(l);
    if (!l->err.code && l->request->ran)
        report_kernels(l);
    close_device(l);
    return (int)l->err.code;
}

/* Runs the cases on the cpu with each instruction set that the processor has, or with the requested one. The
 * reference takes most of the time and computes the cases once for all sets. */
static int run_on_host(struct kernel_test *l)
{
    const struct selftest *s = l->request;
    struct exec_options o = {.device = s->device, .isa = s->isa, .profile = s->ran != NULL};
    int rc = exec_open(&l->side[KT_REFERENCE], &(struct exec_options){.device = "reference"}, &l->err);
    if (rc == 0 && (!s->device || strcmp(s->device, "cpu") != 0 || s->isa))
        rc = run_on(l, &o);
    else
        for (uint32_t i = 0; rc == 0 && i < CPU_N_ISAS; i++) {
            const struct cpu_isa *isa = cpu_isa_at(i);
            if (!isa)
                continue;
            o.isa = isa->name;
            l->pass = l->n_kept ? KT_RECALL : KT_KEEP;
            l->next = 0;
            rc = run_on(l, &o);
        }
    kt_forget(l);
    exec_close(l->side[KT_REFERENCE]);
    return rc;
}

/* One thread's part of the cases on a Vulkan device. */
static void run_part(void *ctx, uint32_t i)
{
    struct kernel_test *l = (struct kernel_test *)ctx + i;
    const struct selftest *s = l->request;
    if (exec_open(&l->side[KT_REFERENCE], &(struct exec_options){.device = "reference"}, &l->err) == 0)
        run_on(l, &(struct exec_options){.device = s->device, .profile = s->ran != NULL});
    exec_close(l->side[KT_REFERENCE]);
}

static int run_on_gpu(const struct selftest *s, struct kt_share *share, struct moeflux_err *e)
{
    const uint32_t n = s->n_threads ? s->n_threads : 1;
    struct kernel_test *parts = mem_new(n, sizeof *parts, e);
    struct pool *pool = parts ? pool_new(n, e) : NULL;
    int rc = pool ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        parts[i] = (struct kernel_test){.request = s, .share = share};
    if (rc == 0)
        pool_for(pool, n, run_part, parts);
    for (uint32_t i = 0; rc >= 0 && i < n; i++) {
        rc = parts[i].err.code ? (int)parts[i].err.code : rc + parts[i].n_failed;
        if (rc < 0)
            *e = parts[i].err;
    }
    pool_free(pool);
    free(parts);
    return rc;
}

/* Counts the cases; *is_host: the device is the cpu or the reference. The device stays open: a driver that is
 * unloaded before the threads that used it have ended would take their exit handlers with it. */
static int count_cases(struct kernel_test *l, uint32_t *n, bool *is_host)
{
    int rc = exec_open(&l->side[KT_DEVICE],
                       &(struct exec_options){.device = l->request->device, .isa = l->request->isa}, &l->err);
    if (rc < 0)
        return rc;
    *is_host = exec_get_caps(l->side[KT_DEVICE]).is_host;
    l->only_counts = true;
    if (!*is_host)
        run_cases(l);
    *n = l->n_seen;
    l->only_counts = false;
    l->n_seen = 0;
    return 0;
}

int selftest_run(const struct selftest *s, struct moeflux_err *e)
{
    struct kt_share share = {.lock = PTHREAD_MUTEX_INITIALIZER};
    bool is_host = false;
    struct kernel_test *l = mem_new(1, sizeof *l, e);
    if (!l)
        return ERR_MEMORY;
    l->request = s;
    int rc = count_cases(l, &share.n_cases, &is_host);
    struct exec *kept = l->side[KT_DEVICE];
    l->side[KT_DEVICE] = NULL;
    if (rc == 0 && is_host)
        rc = run_on_host(l);
    if (rc < 0)
        *e = l->err;
    else if (is_host)
        rc = l->n_failed;
    else {
        share.taken = mem_new(share.n_cases, sizeof *share.taken, e);
        rc = share.taken ? run_on_gpu(s, &share, e) : ERR_MEMORY;
        free(share.taken);
    }
    exec_close(kept);
    free(l);
    pthread_mutex_destroy(&share.lock);
    return rc;
}
