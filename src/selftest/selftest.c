#include "selftest/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/isa.h"
#include "ops/gqa.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/cast_f16.h"
#include "selftest/kernel_test.h"
#include "ops/linear.h"
#include "ops/matvec_transposed.h"
#include "ops/gemm_plan.h"
#include "ops/router.h"

/* float32 sums of up to 18,432 products against double: 1e-5 of the largest output, as every product's head says.
 * Norms and RoPE have one rounding more than their inputs. */
static const double PRODUCT_BOUND = 1e-5, SIMPLE_BOUND = 2e-6;
/* Products that go through float16. */
static const double F16_BOUND = 2e-3;
static const double F16_ATTENTION_BOUND = 3e-3; /* queries, keys, probabilities and values are rounded */

/* Of a product for n tokens that goes through float16 from `from` tokens on. */
static double product_bound(const struct kernel_test *l, uint32_t n, uint32_t from)
{
    return n >= from && gemm_has_f16(l->side[KT_DEVICE]) ? F16_BOUND : PRODUCT_BOUND;
}

static const char *const path_names[LINEAR_PATHS] = {
    [LINEAR_GEMV] = "",
    [LINEAR_GEMV_FEW] = ", four at a time",
    [LINEAR_GEMM] = ", tiles",
    [LINEAR_GEMM_LARGE] = ", large tiles",
    [LINEAR_F16_GEMM_SMALL] = ", small f16 tiles",
    [LINEAR_F16_GEMM] = ", f16 tiles",
    [LINEAR_F16_GEMM_LARGE] = ", large f16 tiles",
};

static void embed_case(struct kernel_test *l, uint32_t vocab, uint32_t cols, uint32_t format)
{
    struct weights w[KT_SIDES];
    const uint32_t ids[] = {0, vocab - 1, vocab / 2};
    kt_matrix(l, vocab, cols, format, w);
    struct test_buffer *in = kt_bytes(l, ids, sizeof ids), *out = kt_bytes(l, NULL, (uint64_t)3 * 4 * cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct embed op;
        if (embed_open(&op, l->side[s], &w[s], &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        embed_run(&op, l->side[s],
                  &(struct embed_call){.ids = in->on[s].address, .dst = out->on[s].address, .n = 3});
        kt_finish(l, s);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%ux%u %s", vocab, cols, format_of(format)->name);
    kt_report(l, "embed", shape, kt_error(l, out, 3 * (uint64_t)cols), 0);
}

/* The results are compared as they are read: float16 numbers. */
static void cast_f16_case(struct kernel_test *l, uint32_t n, uint32_t cols, bool has_norm, bool is_blocked)
{
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

struct linear_shape {
    uint32_t n_segments, rows[3], formats[3], cols, n;
    bool norm, add;
    enum linear_path path; /* LINEAR_GEMV: as the number of tokens asks for */
};

/* What a device can be made to take one of. The host has none. */
static bool has_kernels(const struct kernel_test *l)
{
    return !exec_get_caps(l->side[KT_DEVICE]).is_host;
}

/* Whether the operation has a path; from now on it takes no other. */
static bool force_path(struct linear *op, enum linear_path path)
{
    bool can = op->gpu.from[path] < UINT32_MAX;
    for (uint32_t i = 1; can && i < LINEAR_PATHS; i++)
        op->gpu.from[i] = i <= path ? 0 : UINT32_MAX;
    return can;
}

static void linear_case(struct kernel_test *l, const struct linear_shape *c)
{
    struct weights w[3][KT_SIDES];
    uint32_t rows = 0;
    for (uint32_t i = 0; i < c->n_segments; i++) {
        kt_matrix(l, c->rows[i], c->cols, c->formats[i], w[i]);
        rows += c->rows[i];
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%ux%u %s%s%s%s, %u token%s%s", rows, c->cols,
             format_of(c->formats[0])->name, c->n_segments > 1 ? " fused" : "", c->norm ? " norm" : "",
             c->add ? " add" : "", c->n, c->n > 1 ? "s" : "", path_names[c->path]);
    struct test_buffer *x = kt_floats(l, (uint64_t)c->n * c->cols, -2, 2),
                       *norm = kt_floats(l, c->cols, 0.5f, 1.5f);
    struct test_buffer *y = kt_floats(l, (uint64_t)c->n * rows, -1, 1),
                       *f16 = kt_bytes(l, NULL, 2 * (uint64_t)c->n * c->cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct linear op;
        const struct weights mine[3] = {w[0][s], w[1][s], w[2][s]};
        if (linear_open(&op, l->side[s], mine, c->n_segments, &l->err) < 0)
            break;
        if (s == KT_DEVICE && c->path != LINEAR_GEMV && !force_path(&op, c->path)) {
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
                                         .f16_scratch = f16->on[s].address};
        exec_begin(l->side[s]);
        linear_run(&op, l->side[s], &call);
        kt_finish(l, s);
        linear_close(&op, l->side[s]);
    }
    double bound = c->path == LINEAR_GEMV             ? product_bound(l, c->n, 32)
                   : c->path >= LINEAR_F16_GEMM_SMALL ? F16_BOUND
                                                      : PRODUCT_BOUND;
    kt_report(l, "linear", shape, kt_error(l, y, (uint64_t)c->n * rows), bound);
}

/* A stack of `heads` matrices [rows][cols]; x, y and the stack have room between the parts of two of them. */
static void stack_case(struct kernel_test *l, uint32_t heads, uint32_t rows, uint32_t cols, uint32_t format,
                       uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
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
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, format_of(format)->name, n,
             n > 1 ? "s" : "");
    kt_report(l, "linear", shape, kt_error(l, y, (uint64_t)n * y_stride), product_bound(l, n, 32));
}

/* Matrices [rows][cols] of such a stack from the left. */
static void transposed_case(struct kernel_test *l, uint32_t heads, uint32_t rows, uint32_t cols,
                            uint32_t format, uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
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
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, format_of(format)->name, n,
             n > 1 ? "s" : "");
    kt_report(l, "matvec_transposed", shape, kt_error(l, y, (uint64_t)n * y_stride), PRODUCT_BOUND);
}

static void router_case(struct kernel_test *l, const struct router_shape *c, float lowest_bias, bool ties)
{
    enum { TOKENS = 5 };
    uint32_t n_experts = c->n_experts, n_groups = c->sigmoid ? c->n_groups : 1;
    struct test_buffer *logits = kt_floats(l, (uint64_t)TOKENS * (n_experts + 3), -4, 4);
    struct test_buffer *bias = kt_floats(l, n_experts, lowest_bias, lowest_bias + 1);
    struct test_buffer *idx = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    struct test_buffer *weights = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    if (ties) {
        logits = kt_bytes(l, NULL, 4 * (uint64_t)TOKENS * (n_experts + 3));
        bias = kt_bytes(l, NULL, 4 * (uint64_t)n_experts);
    }
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct router op;
        if (router_open(&op, l->side[s], c, &l->err) < 0)
            break;
        const struct router_call call = {.logits = logits->on[s].address,
                                         .bias = bias->on[s].address,
                                         .idx = idx->on[s].address,
                                         .weights = weights->on[s].address,
                                         .n = TOKENS,
                                         .stride = n_experts + 3};
        exec_begin(l->side[s]);
        router_run(&op, l->side[s], &call);
        kt_finish(l, s);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %u, %u of %u group%s%s%s", c->top_k, n_experts,
             c->sigmoid ? c->keep_groups : 1, n_groups, n_groups > 1 ? "s" : "",
             c->norm ? "" : ", not renormalised", ties ? ", all tied" : "");
    double error = kt_difference(l, idx, (uint64_t)TOKENS * c->top_k);
    kt_report(l, c->sigmoid ? "router_sigmoid" : "router_softmax", shape,
              error + kt_error(l, weights, (uint64_t)TOKENS * c->top_k), SIMPLE_BOUND);
}

struct moe_shape {
    uint32_t n_experts, top_k, hidden, inner;
    uint32_t shared; /* 0: no shared expert */
    uint32_t format, n;
    bool ungated;  /* the shared expert */
    uint32_t tile; /* 1 + the size of tiles to use; 0: as the number of tokens asks for */
};

/* Whether the operation has tiles of so many sizes; from now on it has the last of these alone. */
static bool force_tile(struct experts_grouped *op, uint32_t tile)
{
    bool has = tile <= op->n_tiles;
    if (has) {
        op->tiles[0] = op->tiles[tile - 1];
        op->n_tiles = 1;
    }
    return has;
}

/* Places a projection behind *end. */
static void place_part(uint32_t format, uint64_t n, uint32_t *w, uint32_t *scales, uint32_t *biases,
                       uint64_t *end)
{
    const struct format *f = format_of(format);
    *w = (uint32_t)*end;
    *scales = (uint32_t)(*end + format_code_bytes(f, n));
    *biases = *scales + (uint32_t)format_scale_bytes(f, n);
    *end += format_all_bytes(f, n);
}

/* One expert's nine parts as convert lays them out. */
static struct experts_shape moe_layout(const struct moe_shape *c, uint32_t down_format, uint64_t *bytes)
{
    struct experts_shape s = {.n_experts = c->n_experts,
                              .top_k = c->top_k,
                              .hidden = c->hidden,
                              .inner = c->inner,
                              .up_format = c->format,
                              .down_format = down_format,
                              .down_formats = 1u << down_format | 1u << FORMAT_Q4,
                              .eps = 1e-6f,
                              .shared_gate = !c->ungated};
    uint64_t n = (uint64_t)c->inner * c->hidden;
    *bytes = 0;
    place_part(s.up_format, n, &s.gate_w, &s.gate_s, &s.gate_b, bytes);
    place_part(s.up_format, n, &s.up_w, &s.up_s, &s.up_b, bytes);
    place_part(s.down_format, n, &s.down_w, &s.down_s, &s.down_b, bytes);
    return s;
}

/* A random expert: three matrices packed one behind the other. */
static struct test_buffer *random_expert(struct kernel_test *l, const struct experts_shape *s, uint64_t bytes)
{
    uint8_t *raw = mem_new(bytes, 1, &l->err);
    uint64_t at = 0;
    for (int i = 0; raw && i < 3; i++) {
        uint32_t rows = i < 2 ? s->inner : s->hidden, cols = i < 2 ? s->hidden : s->inner;
        struct weights w[KT_SIDES];
        uint32_t first = l->n_buffers;
        kt_matrix(l, rows, cols, i < 2 ? s->up_format : s->down_format, w);
        for (uint32_t t = first; t < l->n_buffers; t++) {
            const struct exec_buffer *b = &l->buffers[t].on[KT_REFERENCE];
            if (!l->err.code)
                memcpy(raw + at, b->host, b->bytes);
            at += b->bytes;
            for (int side = 0; side < KT_SIDES; side++)
                exec_buffer_free(l->side[side], &l->buffers[t].on[side]);
        }
        l->n_buffers = first;
    }
    struct test_buffer *t = kt_bytes(l, raw, raw ? bytes : 0);
    free(raw);
    return t;
}

/* Fills idx with distinct experts out of those that the table holds. */
static struct test_buffer *random_choice(struct kernel_test *l, const struct moe_shape *c)
{
    uint32_t idx[1024];
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t k = 0; k < c->top_k; k++)
            idx[t * c->top_k + k] = ((t < 20 ? t * 3 : 0) + k) % c->n_experts;
    return kt_bytes(l, idx, 4 * (uint64_t)c->n * c->top_k);
}

static void run_experts(struct exec *x, const struct experts *op, const struct experts_call *all, bool apart)
{
    struct experts_call call = *all;
    exec_begin(x);
    experts_run_up(op, x, &call);
    if (apart) {
        call.shared_down = (struct weights){0};
        experts_run_down(op, x, &call);
        call.shared_down = all->shared_down;
        call.only_shared = true;
    }
    experts_run_down(op, x, &call);
}

/* down_format: of the routed experts' down projections. apart: the device computes the shared expert by itself, behind the
 * others. */
static void moe_case_of(struct kernel_test *l, const struct moe_shape *c, uint32_t down_format, bool apart)
{
    uint64_t bytes;
    struct experts_shape shape = moe_layout(c, down_format, &bytes);
    struct test_buffer *experts[16];
    for (uint32_t i = 0; i < c->n_experts; i++)
        experts[i] = random_expert(l, &shape, bytes);
    struct test_buffer *table = kt_table(l, experts, c->n_experts), *idx = random_choice(l, c);
    struct weights down[KT_SIDES] = {0};
    if (c->shared)
        kt_matrix(l, c->hidden, c->shared, FORMAT_Q4, down);
    uint32_t stride = c->n_experts + !c->ungated + 2 * c->shared;
    struct test_buffer *weights = kt_floats(l, (uint64_t)c->n * c->top_k, 0, 0.5f);
    struct test_buffer *shared = kt_floats(l, (uint64_t)c->n * stride, -2, 2);
    struct test_buffer *norm = kt_floats(l, c->hidden, 0.5f, 1.5f);
    struct test_buffer *x = kt_floats(l, (uint64_t)c->n * c->hidden, -2, 2);
    struct test_buffer *act = kt_bytes(l, NULL, 4 * (uint64_t)c->n * c->top_k * c->inner);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    struct test_buffer *scratch = kt_bytes(l, NULL, 4 * experts_scratch(&shape, &caps, c->n, c->shared));
    struct test_buffer *f16 = kt_bytes(l, NULL, 2 * size_max((uint64_t)c->n * c->shared, 2));
    uint32_t tokens = 0;
    char text[128];
    snprintf(text, sizeof text, "%u of %u, %ux%u %s%s, shared %u%s%s, %u token%s", c->top_k, c->n_experts,
             c->hidden, c->inner, format_of(c->format)->name, down_format == c->format ? "" : " and Q8",
             c->shared, c->ungated ? " ungated" : "", apart ? " apart" : "", c->n, c->n > 1 ? "s" : "");
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct experts op;
        struct linear shared_out = {0};
        if (experts_open(&op, l->side[s], &shape, &l->err) < 0 ||
            (c->shared && linear_open(&shared_out, l->side[s], &down[s], 1, &l->err) < 0))
            break;
        if (s == KT_DEVICE && c->tile && !force_tile(&op.gpu.grouped, c->tile)) {
            linear_close(&shared_out, l->side[s]);
            snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles no. %u", c->tile);
            kt_skip(l, "experts_decode_down", text);
            return;
        }
        tokens = s == KT_DEVICE && c->tile ? op.gpu.grouped.tiles[0].tokens : tokens;
        const struct experts_call call = {.x = x->on[s].address,
                                          .norm = norm->on[s].address,
                                          .table = table->on[s].address,
                                          .idx = idx->on[s].address,
                                          .weights = weights->on[s].address,
                                          .act = act->on[s].address,
                                          .shared_in = shared->on[s].address,
                                          .shared_down = down[s],
                                          .shared_stride = stride,
                                          .n = c->n,
                                          .chunk = c->n,
                                          .scratch = scratch->on[s].address,
                                          .f16_scratch = f16->on[s].address,
                                          .shared_out = &shared_out};
        run_experts(l->side[s], &op, &call, apart && s == KT_DEVICE);
        kt_finish(l, s);
        linear_close(&shared_out, l->side[s]);
    }
    if (tokens)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles of %u", tokens);
    double bound = product_bound(l, c->n, 16);
    double up = kt_error(l, act, (uint64_t)c->n * c->top_k * c->inner);
    double down_error = kt_error(l, x, (uint64_t)c->n * c->hidden);
    /* Float16 between the two is another layout than the reference's; what comes of it is compared. */
    if (bound == PRODUCT_BOUND)
        kt_row(l, "experts_decode_up", text, up, bound);
    kt_report(l, "experts_decode_down", text, down_error, bound);
}

/* use_f16: products may go through float16. */
static void attention_case(struct kernel_test *l, const struct gqa_shape *c, uint32_t pos, uint32_t n,
                           bool use_f16)
{
    enum { LAYER_OFF = 256 };
    bool is_f16 = false;
    uint32_t stride = ((1 + c->gated) * c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    uint32_t n_blocks = ((pos + n - 1) >> KV_BLOCK_SHIFT) + 1;
    uint64_t block =
        LAYER_OFF / kv_type_bytes(c->kv_type) + ((uint64_t)2 << KV_BLOCK_SHIFT) * c->n_kv_heads * c->head_dim;
    struct test_buffer *blocks[8];
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = kt_cache(l, block, c->kv_type);
    struct test_buffer *table = kt_table(l, blocks, n_blocks);
    struct test_buffer *qkv = kt_floats(l, (uint64_t)n * stride, -2, 2),
                       *rope = kt_floats(l, (uint64_t)n * c->rotary_dim, -1, 1);
    struct test_buffer *qn = kt_floats(l, c->head_dim, 0.5f, 3), *kn = kt_floats(l, c->head_dim, 0.5f, 3);
    struct test_buffer *q = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * c->head_dim);
    struct test_buffer *out = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * c->head_dim);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    uint64_t partial_bytes = gqa_partial_bytes(c, &caps, n, pos + n);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct gqa op;
        struct exec_buffer partial;
        if (gqa_open(&op, l->side[s], c, &l->err) < 0 ||
            exec_buffer_new(l->side[s], &partial, EXEC_DEVICE, partial_bytes, &l->err) < 0)
            break;
        is_f16 |= s == KT_DEVICE && n >= op.attention.gpu.f16_from && use_f16;
        const struct gqa_call call = {.qkv = qkv->on[s].address,
                                      .q_norm = qn->on[s].address,
                                      .k_norm = kn->on[s].address,
                                      .rope = rope->on[s].address,
                                      .blocks = table->on[s].address,
                                      .q = q->on[s].address,
                                      .partial = partial.address,
                                      .dst = out->on[s].address,
                                      .n = n,
                                      .pos = pos,
                                      .stride = stride,
                                      .layer_off = LAYER_OFF,
                                      .use_f16 = use_f16};
        exec_begin(l->side[s]);
        gqa_run(&op, l->side[s], &call);
        kt_finish(l, s);
        exec_buffer_free(l->side[s], &partial);
    }
    char text[128];
    snprintf(text, sizeof text, "%u/%u heads of %u, rotary %u%s, %u + %u positions%s%s", c->n_heads,
             c->n_kv_heads, c->head_dim, c->rotary_dim, c->gated ? "" : ", ungated", pos, n,
             c->kv_type == KV_TYPE_F16 ? ", f16 cache" : "", is_f16 ? ", f16" : "");
    double heads = kt_error(l, q, (uint64_t)n * c->n_heads * c->head_dim);
    /* Float16 numbers may be rounded to either neighbour: the results below show them. */
    double cache = c->kv_type == KV_TYPE_F32 ? kt_error(l, blocks[n_blocks - 1], block) : 0;
    double error = kt_error(l, out, (uint64_t)n * c->n_heads * c->head_dim);
    kt_row(l, "gqa_prepare", text, fmax(heads, cache), SIMPLE_BOUND);
    kt_report(l, "attention", text, error,
              is_f16 || c->kv_type == KV_TYPE_F16 ? F16_ATTENTION_BOUND : PRODUCT_BOUND);
}

static void embed_cases(struct kernel_test *l)
{
    for (uint32_t format = 0; format < FORMAT_COUNT; format++)
        embed_case(l, 1003, 192, format);
    embed_case(l, 3, 64, FORMAT_Q4);
    embed_case(l, 64, 7168, FORMAT_Q4);
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
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 7, true, false, LINEAR_GEMV},
        {3, {8192, 512, 512}, {FORMAT_Q4, FORMAT_Q4, FORMAT_Q4}, 2048, 1, true, false, LINEAR_GEMV},
        {1, {2048}, {FORMAT_Q4}, 4096, 1, false, true, LINEAR_GEMV},
        {1, {4096}, {FORMAT_Q4}, 8192, 2, false, true, LINEAR_GEMV},
        {1, {256}, {FORMAT_Q4}, 18432, 1, false, true, LINEAR_GEMV},
        {1, {256}, {FORMAT_Q4}, 18432, 4, true, false, LINEAR_GEMV},
        {1, {1}, {FORMAT_Q4}, 64, 17, true, false, LINEAR_GEMV},
        {1, {70}, {FORMAT_Q4}, 18432, 5, true, false, LINEAR_GEMV},
        {1, {131}, {FORMAT_F32}, 320, 9, true, true, LINEAR_GEMV},
        {1, {67}, {FORMAT_BF16}, 192, 33, false, true, LINEAR_GEMV},
        {1, {200}, {FORMAT_Q8}, 64, 64, false, false, LINEAR_GEMV},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 65, true, false, LINEAR_GEMV},
        {3, {130, 33, 1}, {FORMAT_Q4, FORMAT_F32, FORMAT_Q4}, 320, 259, true, true, LINEAR_GEMV},
        /* Columns that are not divided by 64. */
        {1, {5}, {FORMAT_F32}, 1, 1, false, false, LINEAR_GEMV},
        {1, {37}, {FORMAT_BF16}, 33, 1, true, false, LINEAR_GEMV},
        {2, {130, 71}, {FORMAT_BF16, FORMAT_F32}, 100, 1, true, true, LINEAR_GEMV},
        {2, {130, 71}, {FORMAT_F32, FORMAT_BF16}, 1001, 7, true, true, LINEAR_GEMV},
        {1, {67}, {FORMAT_BF16}, 32, 65, false, true, LINEAR_GEMV},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        linear_case(l, &shapes[i]);
    for (enum linear_path path = LINEAR_GEMV_FEW; has_kernels(l) && path < LINEAR_PATHS; path++) {
        linear_case(l, &(struct linear_shape){
                           3, {131, 1, 77}, {FORMAT_Q4, FORMAT_Q8, FORMAT_Q4}, 512, 75, true, true, path});
        linear_case(l,
                    &(struct linear_shape){
                        3, {33, 70, 129}, {FORMAT_F32, FORMAT_BF16, FORMAT_Q8}, 320, 19, true, false, path});
        linear_case(l, &(struct linear_shape){1, {200}, {FORMAT_Q4}, 1664, 141, false, false, path});
        linear_case(l, &(struct linear_shape){1, {67}, {FORMAT_BF16}, 1024, 1, false, true, path});
    }
    for (uint32_t n = 1; n <= 100; n = 3 * n + (n > 1)) {
        stack_case(l, 3, 37, 64, FORMAT_Q4, n);
        stack_case(l, 4, 128, 64, FORMAT_F32, n);
        stack_case(l, 5, 64, 192, FORMAT_BF16, n);
        stack_case(l, 3, 64, 32, FORMAT_BF16, n);
        stack_case(l, 2, 7, 25, FORMAT_F32, n);
    }
    for (uint32_t format = 0; format < FORMAT_COUNT; format++) {
        linear_case(l, &(struct linear_shape){1, {131}, {format}, 384, 1, true, false, LINEAR_GEMV});
        linear_case(l, &(struct linear_shape){1, {131}, {format}, 384, 75, false, true, LINEAR_GEMV});
    }
    stack_case(l, 16, 512, 128, FORMAT_Q4, 1);
    stack_case(l, 16, 128, 512, FORMAT_Q4, 40);
    transposed_case(l, 3, 4, 64, FORMAT_Q4, 1);
    transposed_case(l, 2, 36, 320, FORMAT_Q8, 3);
    transposed_case(l, 5, 64, 192, FORMAT_BF16, 8);
    transposed_case(l, 4, 64, 128, FORMAT_F32, 21);
    transposed_case(l, 16, 128, 512, FORMAT_Q4, 1);
    transposed_case(l, 16, 128, 512, FORMAT_Q4, 40);
    transposed_case(l, 3, 6, 33, FORMAT_BF16, 1);
    transposed_case(l, 2, 31, 64, FORMAT_F32, 3);
    transposed_case(l, 5, 32, 300, FORMAT_BF16, 21);
}

static void router_cases(struct kernel_test *l)
{
    static const struct router_shape softmax[] = {
        {1, 1, true, false, 0, 0, 0},   {12, 3, true, false, 0, 0, 0},   {32, 4, false, false, 0, 0, 0},
        {256, 8, true, false, 0, 0, 0}, {512, 10, true, false, 0, 0, 0}, {40, 16, true, false, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof softmax / sizeof *softmax; i++)
        router_case(l, &softmax[i], 0, false);
    router_case(l, &(struct router_shape){70, 16, true, false, 0, 0, 0}, 0, true);
}

/* Biases below -1 make every score of the choice negative: a group that is set to 0 instead of left out would win. */
static void group_cases(struct kernel_test *l)
{
    static const struct router_shape shapes[] = {
        {1, 1, true, true, 1, 1, 1.0f},     {16, 4, true, true, 4, 2, 2.5f},
        {256, 8, true, true, 8, 4, 2.5f},   {256, 8, false, true, 8, 4, 16.0f},
        {160, 6, false, true, 1, 1, 1.0f},  {42, 5, true, true, 7, 3, 0.5f},
        {70, 33, true, true, 2, 1, 2.5f},   {384, 8, true, true, 1, 1, 2.8f},
        {300, 6, true, true, 150, 3, 1.0f},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int negative = 0; negative < 2; negative++)
            router_case(l, &shapes[i], negative ? -2.5f : -0.5f, false);
    router_case(l, &(struct router_shape){256, 8, true, true, 8, 4, 2.5f}, 0, true);
    router_case(l, &(struct router_shape){60, 16, false, true, 6, 2, 1.0f}, 0, true);
}

static void moe_case(struct kernel_test *l, const struct moe_shape *c, uint32_t down_format)
{
    moe_case_of(l, c, down_format, false);
}

static void moe_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {2, 1, 64, 64, 64, FORMAT_Q4, 1, false, 0},        {12, 3, 192, 64, 192, FORMAT_Q4, 5, false, 0},
        {12, 4, 256, 64, 128, FORMAT_Q8, 2, false, 0},     {12, 8, 2048, 512, 512, FORMAT_Q4, 1, false, 0},
        {12, 10, 512, 1024, 1024, FORMAT_Q4, 1, false, 0}, {16, 16, 128, 320, 64, FORMAT_Q4, 2, false, 0},
        {12, 3, 192, 64, 192, FORMAT_Q4, 70, false, 0},    {5, 2, 128, 320, 64, FORMAT_Q8, 33, false, 0},
        {1, 1, 64, 64, 64, FORMAT_Q4, 17, false, 0},       {12, 4, 256, 64, 128, FORMAT_Q4, 1, true, 0},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, true, 0},      {12, 3, 192, 64, 0, FORMAT_Q4, 1, true, 0},
        {16, 8, 2048, 768, 0, FORMAT_Q4, 1, true, 0},      {9, 2, 128, 320, 0, FORMAT_Q8, 3, true, 0},
        {12, 3, 192, 64, 0, FORMAT_Q4, 70, true, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    /* Down projections with more bits than the others. */
    moe_case(l, &(struct moe_shape){12, 3, 192, 64, 192, FORMAT_Q4, 1, false, 0}, FORMAT_Q8);
    moe_case(l, &(struct moe_shape){9, 2, 320, 192, 64, FORMAT_Q4, 70, false, 0}, FORMAT_Q8);
    moe_case_of(l, &(struct moe_shape){12, 3, 192, 64, 192, FORMAT_Q4, 1, false, 0}, FORMAT_Q4, true);
    moe_case_of(l, &(struct moe_shape){12, 4, 256, 64, 128, FORMAT_Q8, 3, true, 0}, FORMAT_Q8, true);
    moe_case_of(l, &(struct moe_shape){12, 3, 192, 64, 64, FORMAT_Q4, 40, false, 0}, FORMAT_Q4, true);
    /* Tiles of every size, whatever the number of tokens: experts without any, with some, with more than a tile; rows of
     * less than a tile's and of more; groups by the eight and others. */
    for (uint32_t tile = 1; has_kernels(l) && tile <= EXPERTS_MAX_TILES; tile++) {
        moe_case(l, &(struct moe_shape){12, 3, 192, 64, 64, FORMAT_Q4, 75, false, tile}, FORMAT_Q4);
        moe_case(l, &(struct moe_shape){9, 2, 512, 192, 64, FORMAT_Q8, 37, false, tile}, FORMAT_Q8);
        moe_case(l, &(struct moe_shape){16, 1, 1024, 128, 64, FORMAT_Q4, 19, true, tile}, FORMAT_Q4);
        moe_case(l, &(struct moe_shape){6, 2, 640, 384, 64, FORMAT_Q4, 110, false, tile}, FORMAT_Q4);
        moe_case(l, &(struct moe_shape){5, 1, 128, 576, 64, FORMAT_Q4, 150, false, tile}, FORMAT_Q4);
    }
}

static void attention_cases(struct kernel_test *l)
{
    static const struct gqa_shape tiny = {4, 2, 64, 16, 1e-6f, KV_TYPE_F32, true},
                                  odd = {6, 2, 64, 32, 1e-6f, KV_TYPE_F32, true},
                                  a3b = {16, 2, 256, 64, 1e-6f, KV_TYPE_F32, true},
                                  narrow = {3, 1, 20, 6, 1e-6f, KV_TYPE_F32, true},
                                  a17b = {32, 2, 256, 64, 1e-6f, KV_TYPE_F32, true},
                                  tiny_f16 = {4, 2, 64, 16, 1e-6f, KV_TYPE_F16, true},
                                  narrow_f16 = {3, 1, 20, 6, 1e-6f, KV_TYPE_F16, true},
                                  a3b_f16 = {16, 2, 256, 64, 1e-6f, KV_TYPE_F16, true},
                                  /* without gates, all channels rotated */
        qwen3 = {32, 4, 128, 128, 1e-6f, KV_TYPE_F32, false},
                                  plain = {3, 1, 20, 20, 1e-6f, KV_TYPE_F32, false},
                                  plain_f16 = {6, 3, 36, 36, 1e-6f, KV_TYPE_F16, false};
    attention_case(l, &narrow, 0, 1, true);
    attention_case(l, &tiny, 0, 3, true);
    attention_case(l, &odd, 254, 5, true);
    attention_case(l, &odd, 700, 1, true);
    attention_case(l, &a3b, 1000, 1, true);
    attention_case(l, &a3b, 255, 2, true);
    attention_case(l, &a17b, 300, 1, true);
    attention_case(l, &narrow_f16, 250, 9, true);
    attention_case(l, &a3b_f16, 500, 1, true);
    /* Tiles: rows that do not fill them, positions within and past the first, splits. */
    attention_case(l, &narrow, 0, 19, true);
    attention_case(l, &odd, 200, 64, true);
    attention_case(l, &tiny, 1000, 33, true);
    attention_case(l, &a3b, 300, 21, true);
    attention_case(l, &a3b, 300, 21, false);
    attention_case(l, &tiny_f16, 0, 70, true);
    attention_case(l, &tiny_f16, 700, 17, false);
    attention_case(l, &a3b_f16, 30, 40, true);
    attention_case(l, &plain, 0, 1, true);
    attention_case(l, &plain, 255, 3, true);
    attention_case(l, &plain_f16, 40, 5, true);
    attention_case(l, &qwen3, 1000, 1, true);
    attention_case(l, &qwen3, 300, 2, true);
    attention_case(l, &plain, 200, 65, true);
    attention_case(l, &plain_f16, 700, 33, true);
    attention_case(l, &qwen3, 200, 21, false);
    attention_case(l, &qwen3, 500, 40, true);
}

/* Kernels that only work together share a group: attention is gqa_prepare, attention
 * or attention_many, and attention_merge. */
static const struct {
    const char *kernels;
    void (*run)(struct kernel_test *l);
} groups[] = {
    {"embed", embed_cases},
    {"cast_f16", cast_f16_cases},
    {"linear_decode linear_prefill linear_plain matvec_transposed_groups matvec_transposed_plain",
     linear_cases},
    {"router_softmax", router_cases},
    {"router_sigmoid", group_cases},
    {"experts_decode_up experts_decode_down experts_prefill_sort experts_prefill_up experts_prefill_down "
     "experts_prefill_mix",
     moe_cases},
    {"delta_decode delta_prefill_prep delta_prefill_scan delta_prefill_blocks delta_prefill_walk "
     "delta_prefill_out",
     selftest_delta_cases},
    {"gqa_prepare attention_decode attention_prefill attention_merge", attention_cases},
    {"mla_prepare mla_transpose_keys mla_gather_rows attention_decode", selftest_mla_cases},
    {"swiglu", selftest_swiglu_cases},
    {"add", selftest_add_cases},
};

static void run_groups(struct kernel_test *l)
{
    const char *only = l->request->kernel;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        l->rng = 20250607; /* the same numbers whatever ran before */
        if (!l->err.code && (!only || strstr(groups[i].kernels, only)))
            groups[i].run(l);
    }
}

static void tell_kernels(const struct exec *x, const struct selftest *s)
{
    struct exec_stats stats;
    exec_get_stats(x, &stats);
    for (uint32_t i = 0; i < stats.n_times; i++)
        if (stats.times[i].n)
            s->ran(s->ctx, stats.times[i].name, stats.times[i].n);
}

/* All cases on one device. */
static int run_on(struct kernel_test *l, const struct exec_options *o, struct moeflux_err *e)
{
    const struct selftest *s = l->request;
    int rc = exec_open(&l->side[KT_DEVICE], o, e);
    if (rc == 0)
        run_groups(l);
    /* What runs in place of float16 where that is forbidden. */
    if (rc == 0 && exec_get_caps(l->side[KT_DEVICE]).has_coopmat) {
        exec_forbid_f16(l->side[KT_DEVICE]);
        l->is_again = true;
        run_groups(l);
    }
    if (rc == 0 && s->ran)
        tell_kernels(l->side[KT_DEVICE], s);
    if (rc == 0 && l->err.code) {
        *e = l->err;
        rc = (int)l->err.code;
    }
    kt_clear(l);
    exec_close(l->side[KT_DEVICE]);
    l->side[KT_DEVICE] = NULL;
    return rc;
}

/* The cpu: with each instruction set that the processor has, or the one that is asked for. The reference, which takes most
 * of the time, computes the cases once for all sets. */
static int run_on_all(struct kernel_test *l, struct moeflux_err *e)
{
    const struct selftest *s = l->request;
    struct exec_options o = {.device = s->device, .isa = s->isa, .profile = s->ran != NULL};
    int rc = 0;
    if (!s->device || strcmp(s->device, "cpu") != 0 || s->isa)
        return run_on(l, &o, e);
    for (uint32_t i = 0; rc == 0 && i < CPU_N_ISAS; i++) {
        const struct cpu_isa *isa = cpu_isa_at(i);
        if (!isa)
            continue;
        o.isa = isa->name;
        l->pass = l->n_kept ? KT_RECALL : KT_KEEP;
        l->next = 0;
        rc = run_on(l, &o, e);
    }
    kt_forget(l);
    return rc;
}

int selftest_run(const struct selftest *s, struct moeflux_err *e)
{
    struct kernel_test *l = mem_new(1, sizeof *l, e);
    if (!l)
        return ERR_MEMORY;
    l->request = s;
    int rc = exec_open(&l->side[KT_REFERENCE], &(struct exec_options){.device = "reference"}, e);
    if (rc == 0)
        rc = run_on_all(l, e);
    exec_close(l->side[KT_REFERENCE]);
    int failed = l->n_failed;
    free(l);
    return rc < 0 ? rc : failed;
}
