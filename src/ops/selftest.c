#include "ops/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/halve.h"
#include "ops/lab.h"
#include "ops/linear.h"
#include "ops/linear_turned.h"
#include "ops/matmul.h"
#include "ops/router.h"

/* float32 sums of up to 18,432 products against double: 1e-5 of the largest output, as every product's head says.
 * Norms and RoPE have one rounding more than their inputs. */
static const double PRODUCT_BOUND = 1e-5, SIMPLE_BOUND = 2e-6;
/* Products that go through float16. */
static const double HALF_BOUND = 2e-3;

/* Of a product for n tokens that goes through float16 from `from` tokens on. */
static double product_bound(const struct lab *l, uint32_t n, uint32_t from)
{
    return n >= from && matmul_has_half(l->side[LAB_DEVICE]) ? HALF_BOUND : PRODUCT_BOUND;
}

static const char *const format_names[] = {"q4", "q8", "bf16", "f32"};
static const char *const way_names[LINEAR_WAYS] = {
    [LINEAR_ONE] = "",
    [LINEAR_FEW] = ", four at a time",
    [LINEAR_MANY] = ", tiles",
    [LINEAR_MOST] = ", large tiles",
    [LINEAR_HALF_FEW] = ", small f16 tiles",
    [LINEAR_HALF_MANY] = ", f16 tiles",
    [LINEAR_HALF_MOST] = ", large f16 tiles",
};

static void embed_case(struct lab *l, uint32_t vocab, uint32_t cols, uint32_t format)
{
    struct weights w[LAB_SIDES];
    const uint32_t ids[] = {0, vocab - 1, vocab / 2};
    lab_matrix(l, vocab, cols, format, w);
    struct twin *in = lab_bytes(l, ids, sizeof ids), *out = lab_bytes(l, NULL, (uint64_t)3 * 4 * cols);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct embed op;
        if (embed_open(&op, l->side[s], &w[s], &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        embed_run(&op, l->side[s], in->on[s].address, out->on[s].address, 3);
        lab_finish(l, s);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%ux%u %s", vocab, cols, format_names[format]);
    lab_report(l, "embed", shape, lab_error(l, out, 3 * (uint64_t)cols), 0);
}

/* The results are compared as they are read: numbers of float32, one half of them. */
static void halve_case(struct lab *l, uint32_t n, uint32_t cols, bool has_norm)
{
    struct twin *x = lab_floats(l, (uint64_t)n * (cols + 4), -70000, 70000);
    struct twin *norm = lab_floats(l, cols, 0.5f, 1.5f), *dst = lab_bytes(l, NULL, 2 * (uint64_t)n * cols);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct halve op;
        if (halve_open(&op, l->side[s], &l->err) < 0)
            break;
        const struct halve_call call = {.x = x->on[s].address,
                                        .norm = has_norm ? norm->on[s].address : 0,
                                        .dst = dst->on[s].address,
                                        .n = n,
                                        .cols = cols,
                                        .x_stride = cols + 4,
                                        .eps = 1e-6f};
        exec_begin(l->side[s]);
        halve_run(&op, l->side[s], &call);
        lab_finish(l, s);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%ux%u%s", n, cols, has_norm ? " norm" : "");
    lab_report(l, "halve", shape, lab_half_error(l, dst, (uint64_t)n * cols), 1e-3);
}

static void halve_cases(struct lab *l)
{
    halve_case(l, 3, 64, false);
    halve_case(l, 5, 2048, true);
    halve_case(l, 2, 4, true);
    halve_case(l, 1, 1444, false);
}

struct linear_shape {
    uint32_t n_segments, rows[3], formats[3], cols, n;
    bool norm, add;
    enum linear_way way; /* LINEAR_ONE: as the number of tokens asks for */
};

/* Whether the operation can go a way; from now on it goes no other. */
static bool force_way(struct linear *op, enum linear_way way)
{
    bool can = op->from[way] < UINT32_MAX;
    for (uint32_t i = 1; can && i < LINEAR_WAYS; i++)
        op->from[i] = i <= way ? 0 : UINT32_MAX;
    return can;
}

static void linear_case(struct lab *l, const struct linear_shape *c)
{
    struct weights w[3][LAB_SIDES];
    uint32_t rows = 0;
    for (uint32_t i = 0; i < c->n_segments; i++) {
        lab_matrix(l, c->rows[i], c->cols, c->formats[i], w[i]);
        rows += c->rows[i];
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%ux%u %s%s%s%s, %u token%s%s", rows, c->cols, format_names[c->formats[0]],
             c->n_segments > 1 ? " fused" : "", c->norm ? " norm" : "", c->add ? " add" : "", c->n,
             c->n > 1 ? "s" : "", way_names[c->way]);
    struct twin *x = lab_floats(l, (uint64_t)c->n * c->cols, -2, 2),
                *norm = lab_floats(l, c->cols, 0.5f, 1.5f);
    struct twin *y = lab_floats(l, (uint64_t)c->n * rows, -1, 1),
                *half = lab_bytes(l, NULL, 2 * (uint64_t)c->n * c->cols);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct linear op;
        const struct weights mine[3] = {w[0][s], w[1][s], w[2][s]};
        if (linear_open(&op, l->side[s], mine, c->n_segments, &l->err) < 0)
            break;
        if (s == LAB_DEVICE && c->way != LINEAR_ONE && !force_way(&op, c->way)) {
            linear_close(&op, l->side[s]);
            lab_skip(l, "linear", shape);
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
                                         .half = half->on[s].address};
        exec_begin(l->side[s]);
        linear_run(&op, l->side[s], &call);
        lab_finish(l, s);
        linear_close(&op, l->side[s]);
    }
    double bound = c->way == LINEAR_ONE        ? product_bound(l, c->n, 32)
                   : c->way >= LINEAR_HALF_FEW ? HALF_BOUND
                                               : PRODUCT_BOUND;
    lab_report(l, "linear", shape, lab_error(l, y, (uint64_t)c->n * rows), bound);
}

/* A stack of `heads` matrices [rows][cols]; x, y and the stack have room between the parts of two of them. */
static void stack_case(struct lab *l, uint32_t heads, uint32_t rows, uint32_t cols, uint32_t format,
                       uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
    uint32_t x_stride = heads * (cols + X_ROOM), y_stride = heads * (rows + Y_ROOM);
    struct weights w[LAB_SIDES];
    lab_matrix(l, heads * (rows + ROOM), cols, format, w);
    struct twin *x = lab_floats(l, (uint64_t)n * x_stride, -2, 2);
    struct twin *y = lab_floats(l, (uint64_t)n * y_stride, -1, 1);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
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
        lab_finish(l, s);
        linear_close(&op, l->side[s]);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, format_names[format], n,
             n > 1 ? "s" : "");
    lab_report(l, "linear", shape, lab_error(l, y, (uint64_t)n * y_stride), product_bound(l, n, 32));
}

/* Matrices [rows][cols] of such a stack from the left. */
static void turned_case(struct lab *l, uint32_t heads, uint32_t rows, uint32_t cols, uint32_t format,
                        uint32_t n)
{
    enum { X_ROOM = 32, Y_ROOM = 5, ROOM = 3 };
    uint32_t x_stride = heads * (rows + X_ROOM), y_stride = heads * (cols + Y_ROOM);
    struct weights w[LAB_SIDES];
    lab_matrix(l, heads * (rows + ROOM), cols, format, w);
    struct twin *x = lab_floats(l, (uint64_t)n * x_stride, -2, 2);
    struct twin *y = lab_floats(l, (uint64_t)n * y_stride, -1, 1);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct linear_turned op;
        const struct weights first = weights_rows(&w[s], 0, rows);
        if (linear_turned_open(&op, l->side[s], &first, heads, rows + ROOM, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        linear_turned_run(&op, l->side[s],
                          &(struct linear_turned_call){.x = x->on[s].address,
                                                       .y = y->on[s].address,
                                                       .x_stride = x_stride,
                                                       .y_stride = y_stride,
                                                       .x_step = rows + X_ROOM,
                                                       .y_step = cols + Y_ROOM,
                                                       .n = n});
        lab_finish(l, s);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %ux%u %s, %u token%s", heads, rows, cols, format_names[format], n,
             n > 1 ? "s" : "");
    lab_report(l, "linear_turned", shape, lab_error(l, y, (uint64_t)n * y_stride), PRODUCT_BOUND);
}

static void router_case(struct lab *l, const struct router_shape *c, float lowest_bias, bool ties)
{
    enum { TOKENS = 5 };
    uint32_t n_experts = c->n_experts, n_groups = c->sigmoid ? c->n_groups : 1;
    struct twin *logits = lab_floats(l, (uint64_t)TOKENS * (n_experts + 3), -4, 4);
    struct twin *bias = lab_floats(l, n_experts, lowest_bias, lowest_bias + 1);
    struct twin *idx = lab_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    struct twin *weights = lab_bytes(l, NULL, 4 * (uint64_t)TOKENS * c->top_k);
    if (ties) {
        logits = lab_bytes(l, NULL, 4 * (uint64_t)TOKENS * (n_experts + 3));
        bias = lab_bytes(l, NULL, 4 * (uint64_t)n_experts);
    }
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
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
        lab_finish(l, s);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%u of %u, %u of %u group%s%s%s", c->top_k, n_experts,
             c->sigmoid ? c->keep_groups : 1, n_groups, n_groups > 1 ? "s" : "",
             c->norm ? "" : ", not renormalised", ties ? ", all tied" : "");
    double error = lab_difference(l, idx, (uint64_t)TOKENS * c->top_k);
    lab_report(l, c->sigmoid ? "router_groups" : "router", shape,
               error + lab_error(l, weights, (uint64_t)TOKENS * c->top_k), SIMPLE_BOUND);
}

struct moe_shape {
    uint32_t n_experts, top_k, hidden, inner, shared, format, n;
    bool ungated;  /* the shared expert */
    uint32_t tile; /* 1 + the size of tiles to use; 0: as the number of tokens asks for */
};

/* Whether the operation has tiles of so many sizes; from now on it has the last of these alone. */
static bool force_tile(struct experts_many *op, uint32_t tile)
{
    bool has = tile <= op->n_tiles;
    if (has) {
        op->tiles[0] = op->tiles[tile - 1];
        op->n_tiles = 1;
    }
    return has;
}

/* One expert's nine parts as convert lays them out. */
static struct experts_shape moe_layout(const struct moe_shape *c, uint64_t *bytes)
{
    uint32_t bits = c->format == FORMAT_Q4 ? 4 : 8;
    uint32_t w = c->inner * c->hidden * bits / 8, g = c->inner * (c->hidden / 64) * 2, part = w + 2 * g;
    *bytes = 3 * (uint64_t)part;
    return (struct experts_shape){.n_experts = c->n_experts,
                                  .top_k = c->top_k,
                                  .hidden = c->hidden,
                                  .inner = c->inner,
                                  .format = c->format,
                                  .formats = 1u << c->format | 1u << FORMAT_Q4,
                                  .gate_s = w,
                                  .gate_b = w + g,
                                  .up_w = part,
                                  .up_s = part + w,
                                  .up_b = part + w + g,
                                  .down_w = 2 * part,
                                  .down_s = 2 * part + w,
                                  .down_b = 2 * part + w + g,
                                  .eps = 1e-6f,
                                  .shared_gate = !c->ungated};
}

/* A random expert: three matrices packed one behind the other. */
static struct twin *random_expert(struct lab *l, const struct moe_shape *c, uint64_t bytes)
{
    uint8_t *raw = mem_new(bytes, 1, &l->err);
    uint64_t at = 0;
    for (int i = 0; raw && i < 3; i++) {
        uint32_t rows = i < 2 ? c->inner : c->hidden, cols = i < 2 ? c->hidden : c->inner;
        struct weights w[LAB_SIDES];
        uint32_t first = l->n_twins;
        lab_matrix(l, rows, cols, c->format, w);
        for (uint32_t t = first; t < l->n_twins; t++) {
            const struct exec_buffer *b = &l->twins[t].on[LAB_REFERENCE];
            if (!l->err.code)
                memcpy(raw + at, b->host, b->bytes);
            at += b->bytes;
            for (int s = 0; s < LAB_SIDES; s++)
                exec_buffer_free(l->side[s], &l->twins[t].on[s]);
        }
        l->n_twins = first;
    }
    struct twin *t = lab_bytes(l, raw, raw ? bytes : 0);
    free(raw);
    return t;
}

/* Fills idx with distinct experts out of those that the table holds. */
static struct twin *random_choice(struct lab *l, const struct moe_shape *c)
{
    uint32_t idx[1024];
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t k = 0; k < c->top_k; k++)
            idx[t * c->top_k + k] = ((t < 20 ? t * 3 : 0) + k) % c->n_experts;
    return lab_bytes(l, idx, 4 * (uint64_t)c->n * c->top_k);
}

static void moe_case(struct lab *l, const struct moe_shape *c)
{
    uint64_t bytes;
    struct experts_shape shape = moe_layout(c, &bytes);
    struct twin *experts[16];
    for (uint32_t i = 0; i < c->n_experts; i++)
        experts[i] = random_expert(l, c, bytes);
    struct twin *table = lab_table(l, experts, c->n_experts), *idx = random_choice(l, c);
    struct weights down[LAB_SIDES];
    lab_matrix(l, c->hidden, c->shared, FORMAT_Q4, down);
    uint32_t stride = c->n_experts + !c->ungated + 2 * c->shared;
    struct twin *weights = lab_floats(l, (uint64_t)c->n * c->top_k, 0, 0.5f);
    struct twin *shared = lab_floats(l, (uint64_t)c->n * stride, -2, 2);
    struct twin *norm = lab_floats(l, c->hidden, 0.5f, 1.5f);
    struct twin *x = lab_floats(l, (uint64_t)c->n * c->hidden, -2, 2);
    struct twin *act = lab_bytes(l, NULL, 4 * (uint64_t)c->n * c->top_k * c->inner);
    struct twin *scratch = lab_bytes(l, NULL, 4 * experts_many_scratch(&shape, c->n, c->shared));
    struct twin *half = lab_bytes(l, NULL, 2 * (uint64_t)c->n * c->shared);
    uint32_t tokens = 0;
    char text[128];
    snprintf(text, sizeof text, "%u of %u, %ux%u %s, shared %u%s, %u token%s", c->top_k, c->n_experts,
             c->hidden, c->inner, format_names[c->format], c->shared, c->ungated ? " ungated" : "", c->n,
             c->n > 1 ? "s" : "");
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct experts op;
        struct linear shared_out;
        if (experts_open(&op, l->side[s], &shape, &l->err) < 0 ||
            linear_open(&shared_out, l->side[s], &down[s], 1, &l->err) < 0)
            break;
        if (s == LAB_DEVICE && c->tile && !force_tile(&op.many, c->tile)) {
            linear_close(&shared_out, l->side[s]);
            snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles no. %u", c->tile);
            lab_skip(l, "expert_down", text);
            return;
        }
        tokens = s == LAB_DEVICE && c->tile ? op.many.tiles[0].tokens : tokens;
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
                                          .half = half->on[s].address,
                                          .shared_out = &shared_out};
        exec_begin(l->side[s]);
        experts_run_up(&op, l->side[s], &call);
        experts_run_down(&op, l->side[s], &call);
        lab_finish(l, s);
        linear_close(&shared_out, l->side[s]);
    }
    if (tokens)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles of %u", tokens);
    double bound = product_bound(l, c->n, 16);
    double up = lab_error(l, act, (uint64_t)c->n * c->top_k * c->inner);
    double down_error = lab_error(l, x, (uint64_t)c->n * c->hidden);
    /* Float16 between the two is another layout than the reference's; what comes of it is compared. */
    if (l->request->row && !l->err.code && bound == PRODUCT_BOUND) {
        const struct selftest_row row = {"expert_up", text, up, bound, up <= bound, false};
        l->n_failed += !row.ok;
        l->request->row(l->request->ctx, &row);
    }
    lab_report(l, "expert_down", text, down_error, bound);
}

/* half: products may go through float16. */
static void attention_case(struct lab *l, const struct attention_shape *c, uint32_t pos, uint32_t n,
                           bool half)
{
    enum { LAYER_OFF = 256 };
    bool is_half = false;
    uint32_t stride = (2 * c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    uint32_t n_blocks = ((pos + n - 1) >> KV_BLOCK_SHIFT) + 1;
    uint64_t block =
        LAYER_OFF / kv_type_bytes(c->kv_type) + ((uint64_t)2 << KV_BLOCK_SHIFT) * c->n_kv_heads * c->head_dim;
    struct twin *blocks[8];
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = lab_cache(l, block, c->kv_type);
    struct twin *table = lab_table(l, blocks, n_blocks);
    struct twin *qkv = lab_floats(l, (uint64_t)n * stride, -2, 2),
                *rope = lab_floats(l, (uint64_t)n * 64, -1, 1);
    struct twin *qn = lab_floats(l, c->head_dim, 0.5f, 3), *kn = lab_floats(l, c->head_dim, 0.5f, 3);
    struct twin *q = lab_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * c->head_dim);
    struct twin *out = lab_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * c->head_dim);
    const struct exec_caps caps = exec_get_caps(l->side[LAB_DEVICE]);
    uint64_t partial_bytes = attention_partial_bytes(c, &caps, n, pos + n);
    for (int s = 0; s < LAB_SIDES && !l->err.code; s++) {
        struct attention op;
        struct exec_buffer partial;
        if (attention_open(&op, l->side[s], c, &l->err) < 0 ||
            exec_buffer_new(l->side[s], &partial, EXEC_DEVICE, partial_bytes, &l->err) < 0)
            break;
        is_half |= n >= op.scores.half_from && half;
        const struct attention_call call = {.qkv = qkv->on[s].address,
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
                                            .half = half};
        exec_begin(l->side[s]);
        attention_run(&op, l->side[s], &call);
        lab_finish(l, s);
        exec_buffer_free(l->side[s], &partial);
    }
    char text[128];
    snprintf(text, sizeof text, "%u/%u heads of %u, rotary %u, %u + %u positions%s%s", c->n_heads,
             c->n_kv_heads, c->head_dim, c->rotary_dim, pos, n,
             c->kv_type == KV_TYPE_F16 ? ", f16 cache" : "", is_half ? ", f16" : "");
    double heads = lab_error(l, q, (uint64_t)n * c->n_heads * c->head_dim);
    /* Float16 numbers may be rounded to either neighbour: the results below show them. */
    double cache = c->kv_type == KV_TYPE_F32 ? lab_error(l, blocks[n_blocks - 1], block) : 0;
    double error = lab_error(l, out, (uint64_t)n * c->n_heads * c->head_dim);
    if (l->request->row && !l->err.code) {
        const struct selftest_row row = {
            "attn_prep", text, fmax(heads, cache), SIMPLE_BOUND, fmax(heads, cache) <= SIMPLE_BOUND, false};
        l->n_failed += !row.ok;
        l->request->row(l->request->ctx, &row);
    }
    lab_report(l, "attention", text, error, is_half || c->kv_type == KV_TYPE_F16 ? 2e-3 : PRODUCT_BOUND);
}

static void embed_cases(struct lab *l)
{
    for (uint32_t format = 0; format < 4; format++)
        embed_case(l, 1003, 192, format);
    embed_case(l, 3, 64, FORMAT_Q4);
    embed_case(l, 64, 7168, FORMAT_Q4);
}

static void linear_cases(struct lab *l)
{
    static const struct linear_shape shapes[] = {
        {1, {1}, {FORMAT_Q4}, 64, 1, false, false, LINEAR_ONE},
        {1, {1}, {FORMAT_Q8}, 64, 2, true, false, LINEAR_ONE},
        {1, {1003}, {FORMAT_Q4}, 192, 1, true, false, LINEAR_ONE},
        {1, {37}, {FORMAT_BF16}, 320, 3, true, true, LINEAR_ONE},
        {1, {129}, {FORMAT_F32}, 256, 5, false, true, LINEAR_ONE},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_Q8, FORMAT_Q4}, 192, 1, true, false, LINEAR_ONE},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 7, true, false, LINEAR_ONE},
        {3, {8192, 512, 512}, {FORMAT_Q4, FORMAT_Q4, FORMAT_Q4}, 2048, 1, true, false, LINEAR_ONE},
        {1, {2048}, {FORMAT_Q4}, 4096, 1, false, true, LINEAR_ONE},
        {1, {4096}, {FORMAT_Q4}, 8192, 2, false, true, LINEAR_ONE},
        {1, {256}, {FORMAT_Q4}, 18432, 1, false, true, LINEAR_ONE},
        {1, {256}, {FORMAT_Q4}, 18432, 4, true, false, LINEAR_ONE},
        {1, {1}, {FORMAT_Q4}, 64, 17, true, false, LINEAR_ONE},
        {1, {70}, {FORMAT_Q4}, 18432, 5, true, false, LINEAR_ONE},
        {1, {131}, {FORMAT_F32}, 320, 9, true, true, LINEAR_ONE},
        {1, {67}, {FORMAT_BF16}, 192, 33, false, true, LINEAR_ONE},
        {1, {200}, {FORMAT_Q8}, 64, 64, false, false, LINEAR_ONE},
        {3, {12, 1, 384}, {FORMAT_Q8, FORMAT_BF16, FORMAT_Q4}, 192, 65, true, false, LINEAR_ONE},
        {3, {130, 33, 1}, {FORMAT_Q4, FORMAT_F32, FORMAT_Q4}, 320, 259, true, true, LINEAR_ONE},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        linear_case(l, &shapes[i]);
    for (enum linear_way way = LINEAR_FEW; way < LINEAR_WAYS; way++) {
        linear_case(l, &(struct linear_shape){
                           3, {131, 1, 77}, {FORMAT_Q4, FORMAT_Q8, FORMAT_Q4}, 512, 75, true, true, way});
        linear_case(l,
                    &(struct linear_shape){
                        3, {33, 70, 129}, {FORMAT_F32, FORMAT_BF16, FORMAT_Q8}, 320, 19, true, false, way});
        linear_case(l, &(struct linear_shape){1, {200}, {FORMAT_Q4}, 1664, 141, false, false, way});
        linear_case(l, &(struct linear_shape){1, {67}, {FORMAT_BF16}, 1024, 1, false, true, way});
    }
    for (uint32_t n = 1; n <= 100; n = 3 * n + (n > 1)) {
        stack_case(l, 3, 37, 64, FORMAT_Q4, n);
        stack_case(l, 4, 128, 64, FORMAT_F32, n);
        stack_case(l, 5, 64, 192, FORMAT_BF16, n);
    }
    stack_case(l, 16, 512, 128, FORMAT_Q4, 1);
    stack_case(l, 16, 128, 512, FORMAT_Q4, 40);
    turned_case(l, 3, 4, 64, FORMAT_Q4, 1);
    turned_case(l, 2, 36, 320, FORMAT_Q8, 3);
    turned_case(l, 5, 64, 192, FORMAT_BF16, 8);
    turned_case(l, 4, 64, 128, FORMAT_F32, 21);
    turned_case(l, 16, 128, 512, FORMAT_Q4, 1);
    turned_case(l, 16, 128, 512, FORMAT_Q4, 40);
}

static void router_cases(struct lab *l)
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
static void group_cases(struct lab *l)
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

static void moe_cases(struct lab *l)
{
    static const struct moe_shape shapes[] = {
        {2, 1, 64, 64, 64, FORMAT_Q4, 1, false, 0},        {12, 3, 192, 64, 192, FORMAT_Q4, 5, false, 0},
        {12, 4, 256, 64, 128, FORMAT_Q8, 2, false, 0},     {12, 8, 2048, 512, 512, FORMAT_Q4, 1, false, 0},
        {12, 10, 512, 1024, 1024, FORMAT_Q4, 1, false, 0}, {16, 16, 128, 320, 64, FORMAT_Q4, 2, false, 0},
        {12, 3, 192, 64, 192, FORMAT_Q4, 70, false, 0},    {5, 2, 128, 320, 64, FORMAT_Q8, 33, false, 0},
        {1, 1, 64, 64, 64, FORMAT_Q4, 17, false, 0},       {12, 4, 256, 64, 128, FORMAT_Q4, 1, true, 0},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, true, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i]);
    /* Tiles of every size, whatever the number of tokens: experts without any, with some, with more than a tile; rows of
     * less than a tile's and of more; groups by the eight and others. */
    for (uint32_t tile = 1; tile <= EXPERTS_MAX_TILES; tile++) {
        moe_case(l, &(struct moe_shape){12, 3, 192, 64, 64, FORMAT_Q4, 75, false, tile});
        moe_case(l, &(struct moe_shape){9, 2, 512, 192, 64, FORMAT_Q8, 37, false, tile});
        moe_case(l, &(struct moe_shape){16, 1, 1024, 128, 64, FORMAT_Q4, 19, true, tile});
        moe_case(l, &(struct moe_shape){5, 1, 128, 576, 64, FORMAT_Q4, 150, false, tile});
    }
}

static void attention_cases(struct lab *l)
{
    static const struct attention_shape tiny = {4, 2, 64, 16, 1e-6f, KV_TYPE_F32},
                                        odd = {6, 2, 64, 32, 1e-6f, KV_TYPE_F32},
                                        a3b = {16, 2, 256, 64, 1e-6f, KV_TYPE_F32},
                                        narrow = {3, 1, 20, 6, 1e-6f, KV_TYPE_F32},
                                        a17b = {32, 2, 256, 64, 1e-6f, KV_TYPE_F32},
                                        tiny_half = {4, 2, 64, 16, 1e-6f, KV_TYPE_F16},
                                        narrow_half = {3, 1, 20, 6, 1e-6f, KV_TYPE_F16},
                                        a3b_half = {16, 2, 256, 64, 1e-6f, KV_TYPE_F16};
    attention_case(l, &narrow, 0, 1, true);
    attention_case(l, &tiny, 0, 3, true);
    attention_case(l, &odd, 254, 5, true);
    attention_case(l, &odd, 700, 1, true);
    attention_case(l, &a3b, 1000, 1, true);
    attention_case(l, &a3b, 255, 2, true);
    attention_case(l, &a17b, 300, 1, true);
    attention_case(l, &narrow_half, 250, 9, true);
    attention_case(l, &a3b_half, 500, 1, true);
    /* Tiles: rows that do not fill them, positions within and past the first, splits. */
    attention_case(l, &narrow, 0, 19, true);
    attention_case(l, &odd, 200, 64, true);
    attention_case(l, &tiny, 1000, 33, true);
    attention_case(l, &a3b, 300, 21, true);
    attention_case(l, &a3b, 300, 21, false);
    attention_case(l, &tiny_half, 0, 70, true);
    attention_case(l, &tiny_half, 700, 17, false);
    attention_case(l, &a3b_half, 30, 40, true);
}

/* Kernels that only work together share a group: attention is attn_prep, attention
 * or attention_many, and attn_merge. */
static const struct {
    const char *kernels;
    void (*run)(struct lab *l);
} groups[] = {
    {"embed", embed_cases},
    {"halve", halve_cases},
    {"linear linear_turned matmul", linear_cases},
    {"router", router_cases},
    {"router_groups", group_cases},
    {"expert_up expert_down expert_sort expert_up_many expert_down_many expert_mix", moe_cases},
    {"delta delta_prep delta_scan delta_blocks delta_walk delta_out", selftest_delta_cases},
    {"attn_prep attention attention_many attn_merge", attention_cases},
    {"mla_prep attention attn_merge", selftest_mla_cases},
    {"swiglu", selftest_swiglu_cases},
};

static void run_groups(struct lab *l)
{
    const char *only = l->request->kernel;
    l->rng = 20250607; /* the same numbers whatever ran before */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!l->err.code && (!only || strstr(groups[i].kernels, only)))
            groups[i].run(l);
}

static void tell_kernels(const struct exec *x, const struct selftest *s)
{
    struct exec_stats stats;
    exec_get_stats(x, &stats);
    for (uint32_t i = 0; i < stats.n_times; i++)
        if (stats.times[i].n)
            s->ran(s->ctx, stats.times[i].name, stats.times[i].n);
}

int selftest_run(const struct selftest *s, struct err *e)
{
    struct lab *l = mem_new(1, sizeof *l, e);
    if (!l)
        return ERR_MEMORY;
    l->request = s;
    int rc = exec_open(&l->side[LAB_DEVICE], s->device, s->ran != NULL, false, e);
    if (rc == 0 && s->as_gpu)
        exec_pose_as_gpu(l->side[LAB_DEVICE]);
    if (rc == 0)
        rc = exec_open(&l->side[LAB_REFERENCE], "reference", false, false, e);
    if (rc == 0)
        run_groups(l);
    /* What runs in place of float16 where that is forbidden. */
    if (rc == 0 && exec_get_caps(l->side[LAB_DEVICE]).has_coop) {
        exec_forbid_half(l->side[LAB_DEVICE]);
        l->is_again = true;
        run_groups(l);
    }
    if (rc == 0 && s->ran)
        tell_kernels(l->side[LAB_DEVICE], s);
    if (rc == 0 && l->err.code) {
        *e = l->err;
        rc = (int)l->err.code;
    }
    lab_clear(l);
    for (int i = 0; i < LAB_SIDES; i++)
        exec_close(l->side[i]);
    int failed = l->n_failed;
    free(l);
    return rc < 0 ? rc : failed;
}
