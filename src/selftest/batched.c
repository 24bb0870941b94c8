/* The self-test's cases of batched decode: results are batch-invariant, byte for byte. Other cases compare
 * the results of a single token with the reference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "ops/gqa/gqa.h"
#include "ops/linear/linear.h"
#include "selftest/kernel_test.h"

enum { MAX_SEGMENTS = 5 };

struct product {
    uint32_t n_segments, rows[MAX_SEGMENTS], formats[MAX_SEGMENTS], cols;
    bool norm, add;
    uint32_t head_dim; /* channels of heads whose norm is still to be applied; 0: it has been */
};

/* The same n random floats twice. */
static void twins(struct kernel_test *l, uint64_t n, struct test_buffer *out[2])
{
    float *v = mem_new(n, sizeof *v, &l->err);
    for (uint64_t i = 0; v && i < n; i++)
        v[i] = kt_uniform(l, -1, 1);
    for (int i = 0; i < 2; i++)
        out[i] = kt_bytes(l, v, v ? n * sizeof *v : 0);
    free(v);
}

/* 0 where the device wrote the same into both, else 1. */
static double is_other(struct kernel_test *l, struct test_buffer *const both[2], uint64_t bytes)
{
    uint8_t *a = mem_new(bytes, 1, &l->err), *b = mem_new(bytes, 1, &l->err);
    double error = 1;
    if (a && b && !l->err.code &&
        exec_read(l->side[KT_DEVICE], &both[0]->on[KT_DEVICE], 0, a, bytes, &l->err) == 0 &&
        exec_read(l->side[KT_DEVICE], &both[1]->on[KT_DEVICE], 0, b, bytes, &l->err) == 0)
        error = memcmp(a, b, bytes) == 0 ? 0 : 1;
    free(a);
    free(b);
    return error;
}

/* Returns the largest difference of the n numbers that the device wrote into both, relative to the
 * largest. */
static double distance(struct kernel_test *l, struct test_buffer *const both[2], uint64_t n)
{
    float *a = mem_new(n, sizeof *a, &l->err), *b = mem_new(n, sizeof *b, &l->err);
    double worst = 0, largest = 0;
    bool is_read =
        a && b && !l->err.code &&
        exec_read(l->side[KT_DEVICE], &both[0]->on[KT_DEVICE], 0, a, n * sizeof *a, &l->err) == 0 &&
        exec_read(l->side[KT_DEVICE], &both[1]->on[KT_DEVICE], 0, b, n * sizeof *b, &l->err) == 0;
    for (uint64_t i = 0; is_read && i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d <= worst ? worst : d;
        largest = fmax(largest, fabs((double)b[i]));
    }
    free(a);
    free(b);
    return is_read ? worst / largest : 1;
}

/* ---- products ---- */

static int open_product(struct kernel_test *l, const struct product *c, struct linear *op)
{
    struct exec *x = l->side[KT_DEVICE];
    struct weights w[MAX_SEGMENTS];
    for (uint32_t i = 0; i < c->n_segments; i++) {
        struct weights both[KT_SIDES];
        kt_matrix(l, c->rows[i], c->cols, c->formats[i], both);
        w[i] = both[KT_DEVICE];
    }
    int rc = l->err.code ? (int)l->err.code : linear_open(op, x, w, c->n_segments, &l->err);
    return rc < 0 || !c->head_dim ? rc : linear_expect_squares(op, x, c->head_dim, &l->err);
}

static void run_product(struct kernel_test *l, const struct linear *op, const struct linear_call *call)
{
    exec_begin(l->side[KT_DEVICE]);
    linear_run(op, l->side[KT_DEVICE], call);
    kt_finish(l, KT_DEVICE);
}

static void name_product(const struct product *c, uint32_t n, char *text, size_t room)
{
    snprintf(text, room, "%ux%u %s%s%s%s%s, %u tokens batched", c->rows[0], c->cols,
             kt_format_name(c->formats[0]), c->n_segments > 1 ? " fused" : "", c->norm ? " norm" : "",
             c->head_dim ? " heads" : "", c->add ? " add" : "", n);
}

static void product_case(struct kernel_test *l, const struct product *c, uint32_t n)
{
    struct linear op = {0};
    struct test_buffer *y[2];
    uint32_t rows = 0, row_squares = c->head_dim ? c->cols / c->head_dim * HEAD_SQUARES : 0;
    if (!kt_takes(l, l->is_rest))
        return;
    l->is_near = c->head_dim > 0;
    for (uint32_t i = 0; i < c->n_segments; i++)
        rows += c->rows[i];
    const struct test_buffer *x = kt_floats(l, (uint64_t)n * c->cols, -2, 2),
                             *norm = kt_floats(l, c->cols, 0.5f, 1.5f),
                             *squares = kt_floats(l, size_max((uint64_t)n * row_squares, 4), 0, 40);
    twins(l, (uint64_t)n * rows, y);
    char text[128];
    name_product(c, n, text, sizeof text);
    if (open_product(l, c, &op) == 0 && c->head_dim && !linear_takes_squares(&op)) {
        linear_close(&op, l->side[KT_DEVICE]);
        kt_skip(l, "linear", text);
        return;
    }
    struct linear_call call = {.x = x->on[KT_DEVICE].address,
                               .norm = c->norm ? norm->on[KT_DEVICE].address : 0,
                               .y = y[0]->on[KT_DEVICE].address,
                               .x_stride = c->cols,
                               .y_stride = rows,
                               .n = n,
                               .add = c->add,
                               .eps = 1e-6f,
                               .squares = c->head_dim ? squares->on[KT_DEVICE].address : 0,
                               .head_dim = c->head_dim};
    exec_set_batch_invariant(l->side[KT_DEVICE], true);
    run_product(l, &op, &call);
    exec_set_batch_invariant(l->side[KT_DEVICE], false);
    call.n = 1;
    call.y = y[1]->on[KT_DEVICE].address;
    for (uint32_t i = 0; i < n; i++) {
        run_product(l, &op, &call);
        call.x += c->cols * sizeof(float);
        call.y += rows * sizeof(float);
        call.squares += call.squares ? row_squares * sizeof(float) : 0;
    }
    linear_close(&op, l->side[KT_DEVICE]);
    kt_report(l, "linear", text, is_other(l, y, (uint64_t)n * rows * sizeof(float)), 0);
}

/* ---- attention ---- */

enum { BLOCKS = 6, MOST = EXEC_MAX_INVARIANT };
static const double MATRICES_BOUND = 2e-5;

/* A list for each sequence: blocks spread over the finished ones, then the unfinished one. Those of sequences
 * that see everything are not read. */
static const struct test_buffer *make_lists(struct kernel_test *l, const struct kv_choice *c,
                                            const uint32_t *pos, uint32_t n)
{
    uint32_t stride = kv_choice_stride(c), n_lists = kv_choice_n_lists(c);
    uint32_t *lists = mem_new((uint64_t)n * stride, sizeof *lists, &l->err), *to = lists;
    if (!lists)
        return kt_bytes(l, NULL, 4);
    for (uint32_t i = 0; i < n * n_lists; i++, to += c->budget + 1) {
        uint32_t n_blocks = c->ratio ? kv_choice_n_ranked(c, pos[i / n_lists]) : 0;
        for (uint32_t b = 0; b < c->budget; b++)
            to[b] = b * n_blocks / c->budget;
        to[c->budget] = n_blocks;
    }
    const struct test_buffer *chosen = kt_bytes(l, lists, (uint64_t)n * stride * sizeof *lists);
    free(lists);
    return chosen;
}

static void run_alone(struct kernel_test *l, const struct gqa *op, const struct gqa_call *call,
                      bool on_matrices)
{
    struct exec *x = l->side[KT_DEVICE];
    exec_begin(x);
    if (on_matrices)
        gqa_run_concurrent(op, x, call, 1);
    else
        gqa_run(op, x, call);
    kt_finish(l, KT_DEVICE);
}

/* Runs the calls together, into out[0], and each alone, into out[1], n_out numbers. Returns 1 if their bits
 * differ; on matrices, else, how far they are from float32's results. */
static double together_and_alone(struct kernel_test *l, const struct gqa *op, struct gqa_call *calls,
                                 uint32_t n, struct test_buffer *const out[2], bool on_matrices,
                                 uint64_t n_out)
{
    struct exec *x = l->side[KT_DEVICE];
    exec_begin(x);
    gqa_run_concurrent(op, x, calls, n);
    kt_finish(l, KT_DEVICE);
    for (uint32_t i = 0; i < n; i++) {
        calls[i].dst = out[1]->on[KT_DEVICE].address + i * (n_out / n) * sizeof(float);
        run_alone(l, op, &calls[i], on_matrices);
    }
    double other = is_other(l, out, n_out * sizeof(float));
    if (!on_matrices || other != 0)
        return other;
    for (uint32_t i = 0; i < n; i++)
        run_alone(l, op, &calls[i], false);
    return distance(l, out, n_out);
}

/* Runs sequences of n different lengths, together and alone. All positions but the last one share their rows
 * in the cache. on_matrices: on matrix units, where there are some, also with float32's accuracy. */
static void attention_case(struct kernel_test *l, const struct gqa_shape *c, const uint32_t *pos, uint32_t n,
                           bool on_matrices)
{
    struct exec *x = l->side[KT_DEVICE];
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t stride = ((1 + c->gated) * c->n_heads + 2 * c->n_kv_heads) * c->head_dim, longest = 0;
    uint64_t row = (uint64_t)c->n_heads * c->head_dim;
    const struct kt_rows rows = {
        .n = ((uint64_t)2 << KV_BLOCK_SHIFT) * c->n_kv_heads, .dim = c->head_dim, .type = c->kv_type};
    struct test_buffer *blocks[BLOCKS], *out[2], *tables[MOST];
    if (!kt_takes(l, l->is_rest))
        return;
    for (uint32_t i = 0; i + 1 < BLOCKS; i++)
        blocks[i] = kt_cache(l, &rows);
    for (uint32_t i = 0; i < n; i++) {
        struct test_buffer *own[BLOCKS];
        uint32_t last = pos[i] >> KV_BLOCK_SHIFT;
        memcpy(own, blocks, last * sizeof *own);
        own[last] = kt_cache(l, &rows);
        tables[i] = kt_table(l, own, last + 1);
        longest = (uint32_t)size_max(longest, pos[i] + 1);
    }
    const struct test_buffer *qkv = kt_floats(l, (uint64_t)n * stride, -2, 2),
                             *rope = kt_floats(l, (uint64_t)n * c->rotary_dim, -1, 1);
    const struct test_buffer *norm = kt_floats(l, c->head_dim, 0.5f, 3),
                             *q = kt_bytes(l, NULL, 4 * (uint64_t)n * row);
    const struct test_buffer *bias = kt_floats(l, stride, -1, 1), *sinks = kt_floats(l, c->n_heads, -1, 1);
    const struct test_buffer *chosen = make_lists(l, &c->choice, pos, n);
    twins(l, n * row, out);
    uint64_t partial_bytes = size_round_up(gqa_partial_bytes(c, &caps, 1, longest), 16);
    struct exec_buffer partial = {0};
    struct gqa op;
    struct gqa_call calls[MOST];
    if (gqa_open(&op, x, c, &l->err) == 0)
        exec_buffer_new(x, &partial, EXEC_DEVICE, size_max(n * partial_bytes, 16), &l->err);
    for (uint32_t i = 0; i < n; i++)
        calls[i] = (struct gqa_call){
            .qkv = qkv->on[KT_DEVICE].address + (uint64_t)i * stride * sizeof(float),
            .q_norm = norm->on[KT_DEVICE].address,
            .k_norm = norm->on[KT_DEVICE].address,
            .bias = c->biased ? bias->on[KT_DEVICE].address : 0,
            .sinks = c->sinks ? sinks->on[KT_DEVICE].address : 0,
            .rope = rope->on[KT_DEVICE].address + (uint64_t)i * c->rotary_dim * sizeof(float),
            .blocks = tables[i]->on[KT_DEVICE].address,
            .q = q->on[KT_DEVICE].address + i * row * sizeof(float),
            .chosen =
                chosen->on[KT_DEVICE].address + (uint64_t)i * kv_choice_stride(&c->choice) * sizeof(uint32_t),
            .partial = partial.address + i * partial_bytes,
            .partial_bytes = partial_bytes,
            .dst = out[0]->on[KT_DEVICE].address + i * row * sizeof(float),
            .n = 1,
            .pos = pos[i],
            .stride = stride,
            .use_f16 = on_matrices,
            .may_use_matrices = on_matrices};
    double error = together_and_alone(l, &op, calls, n, out, on_matrices, n * row);
    char text[128];
    snprintf(text, sizeof text, "%u/%u heads of %u%s%s%s, %u sequences batched", c->n_heads, c->n_kv_heads,
             c->head_dim, c->choice.ratio ? ", chosen blocks" : "",
             c->kv_type == KV_TYPE_Q8_0 ? ", q8_0 cache" : "", on_matrices ? ", on matrices" : "", n);
    exec_buffer_free(x, &partial);
    gqa_close(&op, x);
    bool is_rounded = on_matrices && c->kv_type == KV_TYPE_Q8_0;
    kt_report(l, "attention", text, error, is_rounded ? KT_F16_BOUND : on_matrices ? MATRICES_BOUND : 0);
}

static void attention_cases(struct kernel_test *l, uint32_t most)
{
    static const uint32_t pos[MOST] = {700, 0, 255, 1023, 1024, 1300, 31, 256};
    static const struct gqa_shape odd = {.n_heads = 6,
                                         .n_kv_heads = 2,
                                         .head_dim = 64,
                                         .rotary_dim = 32,
                                         .eps = 1e-6f,
                                         .kv_type = KV_TYPE_F32,
                                         .gated = true,
                                         .norm = ATTENTION_NORM_HEADS};
    static const struct gqa_shape plain = {.n_heads = 6,
                                           .n_kv_heads = 3,
                                           .head_dim = 36,
                                           .rotary_dim = 36,
                                           .eps = 1e-6f,
                                           .kv_type = KV_TYPE_F16,
                                           .norm = ATTENTION_NORM_HEADS,
                                           .biased = true};
    struct gqa_shape chosen = odd, plain_q8 = plain, halves = odd, sunk = odd;
    halves.kv_type = sunk.kv_type = KV_TYPE_F16;
    halves.n_heads = 40; /* more than a tile's */
    sunk.gated = false;
    sunk.sinks = true;
    sunk.window = 300;
    chosen.kv_type = KV_TYPE_F16;
    chosen.choice = (struct kv_choice){.ratio = 4, .budget = 50};
    attention_case(l, &odd, pos, most, false);
    attention_case(l, &plain, pos, 3, false);
    attention_case(l, &chosen, pos, most, false);
    chosen.kv_type = plain_q8.kv_type = KV_TYPE_Q8_0;
    attention_case(l, &plain_q8, pos, most, false);
    attention_case(l, &chosen, pos, 3, false);
    attention_case(l, &halves, pos, most, true);
    attention_case(l, &sunk, pos, 3, true);
    halves.kv_type = KV_TYPE_Q8_0;
    attention_case(l, &halves, pos, 3, true);
}

/* Wide: one token's workgroups are twice as large as gemv_plan_for has them (ops/linear/gemv_plan.c). */
void selftest_batched_cases(struct kernel_test *l)
{
    static const struct product products[] = {
        {3, {131, 1, 77}, {FORMAT_Q4, FORMAT_Q8, FORMAT_Q4}, 512, true, true, 0},
        {1, {70}, {FORMAT_Q4}, 4096, false, true, 128},
        {1, {131}, {FORMAT_MXFP4}, 384, true, false, 0},
        {2, {131, 70}, {FORMAT_G_IQ2_S, FORMAT_G_IQ2_S}, 768, true, false, 0},
        {1, {70}, {FORMAT_G_Q6_K}, 2816, true, true, 0}, /* tiles of whole blocks */
        {1, {257}, {FORMAT_Q8}, 18432, true, true, 0},   /* long rows */
        {3, {33, 70, 129}, {FORMAT_F32, FORMAT_BF16, FORMAT_Q8}, 320, true, false, 0},
        {1, {37}, {FORMAT_BF16}, 33, true, true, 0},
        {1, {300}, {FORMAT_Q4}, 1024, true, false, 0}, /* wide, with 16 lanes */
        {5,
         {64, 37, 3, 130, 9},
         {FORMAT_Q4, FORMAT_Q4, FORMAT_Q8, FORMAT_Q4, FORMAT_Q4},
         512,
         true,
         false,
         0},
        {1, {4500}, {FORMAT_Q4}, 7168, true, true, 0},
        {4, {2048, 257, 1, 64}, {FORMAT_Q8, FORMAT_Q4, FORMAT_Q8, FORMAT_Q4}, 2048, true, false, 0},
        {1, {2048}, {FORMAT_Q4}, 4096, false, true, 0},
        {1, {9217}, {FORMAT_Q4}, 2048, true, false, 0}, /* wide, on a large GPU */
        {1, {2500}, {FORMAT_Q3}, 4608, true, false, 0},
        {2,
         {2115, 70},
         {FORMAT_Q4, FORMAT_Q4},
         384,
         true,
         false,
         0},                                           /* short rows in sequence, with 8 lanes */
        {1, {9217}, {FORMAT_Q4}, 1536, true, true, 0}, /* the same on a large GPU */
        {2, {67, 140}, {FORMAT_Q4, FORMAT_Q4}, 5120, true, true, 0}, /* whole, with 16 lanes */
        {2, {67, 140}, {FORMAT_Q4, FORMAT_Q4}, 7168, true, true, 0}, /* and on a GPU */
        {1, {258}, {FORMAT_BF16}, 9216, true, false, 0}};
    uint32_t most = exec_get_caps(l->side[KT_DEVICE]).max_invariant,
             n_products = sizeof products / sizeof *products;
    for (uint32_t i = 0; i < (kt_is_brief(l) ? (n_products + 1) / 2 : n_products); i++) {
        l->is_rest = i > 4;
        product_case(l, &products[i], most);
        if (!kt_is_brief(l))
            product_case(l, &products[i], 2 + i % 2);
    }
    l->is_rest = false;
    product_case(l, &products[0], 2);
    attention_cases(l, most);
}
