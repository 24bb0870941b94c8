/* The self-test's cases of grouped-query attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "ops/attention/wide.h"
#include "ops/gqa/gqa.h"
#include "selftest/kernel_test.h"

/* Norms and RoPE round once more than their inputs. With F16, queries, keys, probabilities and values are
 * rounded. */
static const double SIMPLE_BOUND = 2e-6, F16_BOUND = 3e-3;
/* Tolerances by the type of the cache, of its rows (kt_cache_error) and of results. In float16 a number is
 * rounded to either neighbour. In q8_0 that holds for scales, and a number between two codes may become
 * either; then the result may be off by one position's value. If both sides store the same rows, results are
 * as exact as with float32 (SAME_ROWS). */
static const double CACHE_BOUNDS[] = {2e-6, 1e-3, 1.07};
static const double SAME_ROWS = 1e-5, BOUNDS[] = {1e-5, F16_BOUND, 1.0 / 127 + F16_BOUND};

/* A cache's blocks: a long sequence repeats the same few. Only the last, which is written, is its own. */
enum { CACHE_BLOCKS = 8, MAX_CACHE_BLOCKS = 300 };

static void make_blocks(struct kernel_test *l, struct test_buffer **blocks, uint32_t n,
                        const struct kt_rows *rows)
{
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i < CACHE_BLOCKS - 1 || i + 1 == n ? kt_cache(l, rows) : blocks[i % (CACHE_BLOCKS - 1)];
}

/* Blocks that a window hides from all tokens are NaN: who reads them, whatever for, hands that on. */
static void hide_blocks(struct kernel_test *l, const struct gqa_shape *c, uint32_t pos,
                        struct test_buffer **blocks, const struct kt_rows *rows)
{
    uint32_t n = c->window && pos >= c->window ? (pos + 1 - c->window) >> KV_BLOCK_SHIFT : 0;
    uint64_t bytes = rows->off + rows->n * kv_row_bytes(rows->type, rows->dim) +
                     rows->n_values * kv_row_bytes(rows->type, rows->value_dim);
    uint8_t *nans = n ? mem_new(bytes, 1, &l->err) : NULL;
    if (!nans)
        return;
    memset(nans, 0xff, bytes);
    struct test_buffer *hidden = kt_bytes(l, nans, bytes);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = hidden;
    free(nans);
}

/* Softmax of prompts in shared memory, as where matrices do not have the known fragment layout. */
static void share_softmax(struct attention *op)
{
    op->gpu.f16 = op->gpu.f16_shared;
    op->gpu.f16_rows = op->gpu.f16_shared_rows;
}

static void describe_positions(const struct gqa_shape *c, char *text, size_t size)
{
    *text = '\0';
    if (c->window)
        snprintf(text, size, ", window %u", c->window);
    if (c->choice.ratio)
        snprintf(text, size, ", %u blocks of %u%s", c->choice.budget, c->choice.ratio,
                 c->choice.heads ? " each" : "");
    if (c->values.dim)
        snprintf(text + strlen(text), size - strlen(text), ", values of %u", c->values.dim);
}

/* use_f16: products may go through float16; shares: see share_softmax. */
static void attention_case_of(struct kernel_test *l, const struct gqa_shape *c, uint32_t pos, uint32_t n,
                              bool use_f16, bool shares)
{
    enum { LAYER_OFF = 256 };
    if (!kt_takes(l, l->is_rest))
        return;
    bool is_f16 = false;
    uint32_t dim = gqa_value_dim(c), n_blocks = ((pos + n - 1) >> KV_BLOCK_SHIFT) + 1;
    uint32_t stride = ((1 + c->gated) * c->n_heads + c->n_kv_heads) * c->head_dim + c->n_kv_heads * dim;
    uint64_t n_rows = (uint64_t)c->n_kv_heads << KV_BLOCK_SHIFT;
    const struct kt_rows rows = {LAYER_OFF, n_rows, c->head_dim, c->kv_type, n_rows, dim};
    struct test_buffer *blocks[MAX_CACHE_BLOCKS];
    make_blocks(l, blocks, n_blocks, &rows);
    hide_blocks(l, c, pos, blocks, &rows);
    struct test_buffer *table = kt_table(l, blocks, n_blocks);
    struct test_buffer *qkv = kt_floats(l, (uint64_t)n * stride, -2, 2),
                       *rope = kt_floats(l, (uint64_t)n * c->rotary_dim, -1, 1);
    struct test_buffer *qn = kt_floats(l, (uint64_t)c->n_heads * c->head_dim, 0.5f, 3),
                       *kn = kt_floats(l, (uint64_t)c->n_kv_heads * c->head_dim, 0.5f, 3);
    struct test_buffer *bias = kt_floats(l, stride, -1, 1), *sinks = kt_floats(l, c->n_heads, -3, 12);
    struct test_buffer *chosen = kt_lists(l, &c->choice, pos, n);
    struct test_buffer *q = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * c->head_dim);
    struct test_buffer *out = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_heads * dim);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    uint64_t partial_bytes = gqa_partial_bytes(c, &caps, n, pos + n);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct gqa op;
        struct exec_buffer partial = {0};
        if (gqa_open(&op, l->side[s], c, &l->err) == 0)
            exec_buffer_new(l->side[s], &partial, EXEC_DEVICE, partial_bytes, &l->err);
        if (s == KT_DEVICE && shares)
            share_softmax(&op.attention);
        is_f16 |= s == KT_DEVICE && !caps.is_host && use_f16 &&
                  (n >= op.attention.gpu.f16_from || attention_wide_takes(&op.attention, n, pos + n));
        const struct gqa_call call = {.qkv = qkv->on[s].address,
                                      .q_norm = c->norm ? qn->on[s].address : 0,
                                      .k_norm = c->norm ? kn->on[s].address : 0,
                                      .bias = c->biased ? bias->on[s].address : 0,
                                      .sinks = c->sinks ? sinks->on[s].address : 0,
                                      .rope = rope->on[s].address,
                                      .blocks = table->on[s].address,
                                      .chosen = chosen->on[s].address,
                                      .q = q->on[s].address,
                                      .partial = partial.address,
                                      .partial_bytes = partial.bytes,
                                      .dst = out->on[s].address,
                                      .n = n,
                                      .pos = pos,
                                      .stride = stride,
                                      .layer_off = LAYER_OFF,
                                      .use_f16 = use_f16};
        /* Runs twice: the second run uses what the first one left. The reference keeps nothing: once. */
        for (int i = 0; i < (s == KT_REFERENCE ? 1 : 2) && !l->err.code; i++) {
            exec_begin(l->side[s]);
            gqa_run(&op, l->side[s], &call);
            kt_finish(l, s);
        }
        exec_buffer_free(l->side[s], &partial);
        gqa_close(&op, l->side[s]);
    }
    static const char *const norms[] = {", without norms", "", ", one norm"};
    static const char *const caches[] = {"", ", f16 cache", ", q8_0 cache"};
    char text[256], window[80];
    describe_positions(c, window, sizeof window);
    snprintf(text, sizeof text, "%u/%u heads of %u, rotary %u%s%s%s%s%s%s, %u + %u positions%s%s%s",
             c->n_heads, c->n_kv_heads, c->head_dim, c->rotary_dim, c->gated ? "" : ", ungated",
             norms[c->norm], c->values.normed ? ", norms of values" : "", c->biased ? ", biased" : "",
             c->sinks ? ", sinks" : "", window, pos, n, caches[c->kv_type], is_f16 ? ", f16" : "",
             shares ? ", softmax in shared memory" : "");
    /* One token's queries may stay inside attention. */
    double heads = n > 1 ? kt_error(l, q, (uint64_t)n * c->n_heads * c->head_dim) : 0, cache = 0;
    for (uint32_t i = pos >> KV_BLOCK_SHIFT; i < n_blocks; i++) /* those with new rows */
        cache = fmax(cache, kt_cache_error(l, blocks[i], &rows));
    double error = kt_error(l, out, (uint64_t)n * c->n_heads * dim);
    if (n > 1)
        kt_row(l, "gqa_prepare", text, heads, SIMPLE_BOUND);
    kt_row(l, "kv_cache", text, cache, CACHE_BOUNDS[c->kv_type]);
    double bound = cache > 0 ? BOUNDS[c->kv_type] : SAME_ROWS;
    kt_report(l, "attention", text, error, fmax(bound, is_f16 ? F16_BOUND : 0));
}

static void attention_case(struct kernel_test *l, const struct gqa_shape *c, uint32_t pos, uint32_t n,
                           bool use_f16)
{
    attention_case_of(l, c, pos, n, use_f16, false);
}

static const struct gqa_shape
    tiny = {4, 2, 64, 16, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    odd = {6, 2, 64, 32, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    a3b = {16, 2, 256, 64, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    narrow = {3, 1, 20, 6, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    a17b = {32, 2, 256, 64, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    tiny_f16 = {4, 2, 64, 16, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    narrow_f16 = {3, 1, 20, 6, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    a3b_f16 = {16, 2, 256, 64, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    /* without gates, all channels rotated */
    qwen3 = {32, 4, 128, 128, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    plain = {3, 1, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    plain_f16 = {6, 3, 36, 36, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    /* one token: heads that teams do not share evenly, one head a group, more heads than a workgroup has, few
     * channels */
    seven = {28, 4, 128, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    five = {5, 1, 96, 96, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    alone = {4, 4, 80, 20, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    crowd = {40, 1, 64, 32, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    small = {2, 1, 8, 8, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
    /* biases, with norms and without */
    biased = {12, 1, 128, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_HEADS, true, false, 0, {0}, 0, {0}},
    bare = {6,    2,     20, 10,  1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE,
            true, false, 0,  {0}, 0,     {0}}, /* and no norms */
    normless = {4, 4, 64, 64, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_NONE, false, false, 0, {0}, 0, {0}},
    /* one norm of all heads */
    together = {12, 2, 128, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_ALL, false, false, 0, {0}, 0, {0}},
    rows = {5, 1, 20, 10, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_ALL, true, false, 0, {0}, 0, {0}};

#define UNIT                                                                                                 \
    {                                                                                                        \
        true, 0, 0                                                                                           \
    } /* gqa_values: divided by their rms */

/* A chunk of n tokens at position `pos`. */
struct shape_case {
    struct gqa_shape shape;
    uint32_t pos, n;
};

/* Runs cases, those from the n_first-th on for SELFTEST_REST. */
static void shape_cases(struct kernel_test *l, const struct shape_case *cases, size_t n, size_t n_first)
{
    bool has_coopmat = exec_get_caps(l->side[KT_DEVICE]).has_coopmat;
    for (size_t i = 0; i < n; i++) {
        const struct shape_case *c = &cases[i];
        l->is_rest = i >= n_first;
        attention_case(l, &c->shape, c->pos, c->n, true);
        if (c->n >= 16 && c->shape.head_dim % 16 == 0 && has_coopmat) { /* the other kernels of prompts */
            attention_case(l, &c->shape, c->pos, c->n, false);
            attention_case_of(l, &c->shape, c->pos, c->n, true, true);
        }
    }
    l->is_rest = false;
}

/* Sinks, in whole and in parts; windows of less than a step of positions, of parts of tiles, of several
 * splits, of more positions than there are. */
static void window_cases(struct kernel_test *l)
{
    enum { N_FIRST = 4 }; /* what comes then is for SELFTEST_REST */
    static const struct shape_case cases[] = {
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, true, true, 0, {0}, 0, {0}}, 5, 1},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, true, true, 0, {0}, 0, {0}}, 1500, 1},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_NONE, true, true, 5, {0}, 0, {0}}, 254, 5},
        {{8, 1, 64, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_NONE, true, true, 128, {0}, 0, {0}},
         1030,
         1},
        {{8, 1, 64, 64, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, false, false, 600, {0}, 0, {0}},
         2100,
         3},
        {{8, 1, 64, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_NONE, true, true, 7, {0}, 0, {0}}, 0, 70},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, true, true, 33, {0}, 0, {0}},
         300,
         40},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, true, true, 1, {0}, 0, {0}}, 700, 1},
        {{8, 1, 64, 64, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, false, false, 128, {0}, 0, {0}},
         127,
         1},
        {{4, 2, 64, 16, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, true, 700, {0}, 0, {0}},
         1400,
         33},
        {{4, 2, 64, 16, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, true, 3, {0}, 0, {0}}, 40, 1},
        {{64, 8, 64, 64, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_NONE, true, true, 0, {0}, 0, {0}},
         100,
         90},
    };
    shape_cases(l, cases, sizeof cases / sizeof *cases, N_FIRST);
}

/* A scale of the scores and norms of values: one token, several, tiles; heads of 512 channels. */
static void scale_cases(struct kernel_test *l)
{
    enum { N_FIRST = 4 }; /* what comes then is for SELFTEST_REST */
    static const struct shape_case cases[] = {
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, false, 9, {0}, 0.1f, UNIT},
         30,
         1},
        {{4, 1, 512, 512, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0.05f, UNIT},
         40,
         1},
        {{6, 2, 36, 36, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0.1f, UNIT},
         3,
         19},
        {{4, 2, 64, 64, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0.1f, UNIT},
         70,
         1},
        {{4, 1, 512, 512, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0.05f, UNIT},
         300,
         40},
        {{16,
          8,
          256,
          256,
          1e-6f,
          KV_TYPE_F16,
          false,
          ATTENTION_NORM_HEADS,
          false,
          false,
          40,
          {0},
          0.05f,
          UNIT},
         500,
         33},
        {{16,
          2,
          512,
          512,
          1e-6f,
          KV_TYPE_F32,
          false,
          ATTENTION_NORM_HEADS,
          false,
          false,
          0,
          {0},
          0.05f,
          UNIT},
         1500,
         1},
    };
    shape_cases(l, cases, sizeof cases / sizeof *cases, N_FIRST);
}

#define FLOATS KV_TYPE_F32
#define HALVES KV_TYPE_F16
#define CODES  KV_TYPE_Q8_0
#define HEADS  ATTENTION_NORM_HEADS
#define NONE   ATTENTION_NORM_NONE

/* A list for each key head: of tokens that end a block and others, and after tokens that see everything.
 * Values of fewer channels than keys, with a factor; with norms of values, biases, windows and sinks. */
static void list_and_value_cases(struct kernel_test *l)
{
    enum { N_FIRST = 8 }; /* what comes then is for SELFTEST_REST */
    static const struct shape_case cases[] = {
        {{6, 2, 20, 20, 1e-6f, FLOATS, false, HEADS, false, true, 0, {8, 2, 2}, 0, {0}}, 295, 1},
        {{6, 3, 64, 16, 1e-6f, HALVES, false, HEADS, false, false, 0, {16, 2, 3}, 0, {0}}, 40, 30},
        {{8, 4, 32, 16, 1e-6f, FLOATS, false, HEADS, false, false, 0, {128, 3, 4}, 0, {0}}, 1279, 3},
        {{6, 2, 20, 12, 1e-6f, FLOATS, false, NONE, false, true, 9, {0}, 0, {false, 0.7f, 8}}, 30, 1},
        {{6, 2, 48, 16, 1e-6f, HALVES, false, HEADS, true, false, 0, {0}, 0, {true, 0.7f, 32}}, 300, 1},
        {{6, 3, 48, 16, 1e-6f, FLOATS, false, NONE, false, true, 0, {0}, 0, {false, 0.7f, 32}}, 250, 40},
        {{6, 3, 96, 32, 1e-6f, CODES, false, NONE, false, true, 40, {0}, 0, {false, 2, 64}}, 255, 3},
        {{4, 1, 20, 20, 1e-6f, CODES, false, NONE, false, false, 0, {0}, 0, {false, 0, 4}}, 3, 1},
        /* MiMo-V2's */
        {{64, 4, 192, 64, 1e-5f, HALVES, false, NONE, false, false, 0, {0}, 0, {false, 0.707f, 128}}, 900, 1},
        {{64, 8, 192, 64, 1e-5f, HALVES, false, NONE, false, true, 128, {0}, 0, {false, 0.707f, 128}},
         400,
         33},
    };
    shape_cases(l, cases, sizeof cases / sizeof *cases, N_FIRST);
}

/* Lists: of single positions, of blocks that lie in two blocks of the cache; several splits; tokens with and
 * without lists; many tokens. */
static void choice_cases(struct kernel_test *l)
{
    enum { N_FIRST = 4 }; /* what comes then is for SELFTEST_REST */
    static const struct shape_case cases[] = {
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_HEADS, false, true, 0, {3, 5, 0}, 0, {0}},
         300,
         1},
        {{6, 2, 64, 16, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {4, 8, 0}, 0, {0}},
         30,
         9},
        {{4, 1, 64, 64, 1e-6f, KV_TYPE_F32, false, ATTENTION_NORM_NONE, false, false, 0, {1, 70, 0}, 0, {0}},
         60,
         33},
        {{6, 2, 64, 16, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false, false, 0, {4, 150, 0}, 0, {0}},
         1500,
         3},
        {{6, 2, 64, 16, 1e-6f, KV_TYPE_F32, true, ATTENTION_NORM_HEADS, false, false, 0, {16, 1, 0}, 0, {0}},
         31,
         1},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_F16, false, ATTENTION_NORM_NONE, true, false, 0, {128, 2, 0}, 0, {0}},
         900,
         5},
        {{24,
          2,
          256,
          64,
          1e-6f,
          KV_TYPE_F16,
          true,
          ATTENTION_NORM_HEADS,
          false,
          false,
          0,
          {4, 512, 0},
          0,
          {0}},
         2500,
         1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        l->is_rest = i >= N_FIRST;
        attention_case(l, &cases[i].shape, cases[i].pos, cases[i].n, true);
    }
    l->is_rest = false;
}

/* Rows of q8_0: whole blocks, a part of one, an odd number of blocks, dims that 8 does not divide. One token
 * and several, their ranges, tiles, matrix units, a window with sinks, lists. */
static void q8_cases(struct kernel_test *l)
{
    enum { N_FIRST = 7 }; /* what comes then is for SELFTEST_REST */
    static const struct shape_case cases[] = {
        {{6, 2, 64, 32, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         700,
         1},
        {{3, 1, 20, 6, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         250,
         9},
        {{4, 2, 96, 16, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         200,
         64},
        {{4, 2, 64, 16, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_NONE, true, true, 33, {0}, 0, {0}},
         300,
         40},
        {{6,
          2,
          64,
          16,
          1e-6f,
          KV_TYPE_Q8_0,
          true,
          ATTENTION_NORM_HEADS,
          false,
          false,
          0,
          {4, 150, 0},
          0,
          {0}},
         1500,
         3},
        {{5, 1, 20, 10, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_ALL, true, false, 0, {0}, 0, {0}}, 40, 1},
        {{8, 1, 64, 64, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_NONE, true, true, 128, {0}, 0, {0}},
         1030,
         1},
        {{16, 2, 256, 64, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         1500,
         1},
        {{28, 4, 128, 64, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         0,
         1},
        {{28, 4, 128, 64, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         130,
         19},
        {{16, 2, 256, 64, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         13000,
         1},
        {{12, 2, 36, 36, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         254,
         5},
        {{6, 2, 20, 20, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_HEADS, false, true, 0, {3, 5, 0}, 0, {0}},
         300,
         1},
        {{4, 4, 80, 20, 1e-6f, KV_TYPE_Q8_0, true, ATTENTION_NORM_HEADS, false, false, 0, {0}, 0, {0}},
         100,
         90},
    };
    shape_cases(l, cases, sizeof cases / sizeof *cases, N_FIRST);
}

/* Blocks of q8_0 with a number that is not finite: in the first token's key and value. Only rows of the cache
 * are compared. */
static void broken_case(struct kernel_test *l, uint32_t n)
{
    static const struct gqa_shape shape = {
        2, 1, 64, 16, 1e-6f, KV_TYPE_Q8_0, false, ATTENTION_NORM_NONE, false, false, 0, {0}, 0, {0}};
    enum { DIM = 64, KEY = 2 * DIM, VALUE = 3 * DIM, STRIDE = 4 * DIM, MOST = 2 };
    if (!kt_takes(l, false))
        return;
    const struct kt_rows cache = {.n = (uint64_t)2 << KV_BLOCK_SHIFT, .dim = DIM, .type = KV_TYPE_Q8_0};
    struct test_buffer *block = kt_cache(l, &cache), *table = kt_table(l, &block, 1);
    float numbers[MOST * STRIDE];
    for (uint32_t i = 0; i < n * STRIDE; i++)
        numbers[i] = kt_uniform(l, -2, 2);
    numbers[KEY + 20] = NAN;
    numbers[VALUE + 7] = -INFINITY;
    struct test_buffer *qkv = kt_bytes(l, numbers, (uint64_t)n * STRIDE * sizeof *numbers),
                       *rope = kt_floats(l, (uint64_t)n * shape.rotary_dim, -1, 1);
    struct test_buffer *out[2];
    for (int i = 0; i < 2; i++)
        out[i] = kt_bytes(l, NULL, (uint64_t)n * KEY * sizeof *numbers);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    struct test_buffer *partial = kt_bytes(l, NULL, gqa_partial_bytes(&shape, &caps, n, n) + 4);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct gqa op;
        gqa_open(&op, l->side[s], &shape, &l->err);
        const struct gqa_call call = {.qkv = qkv->on[s].address,
                                      .rope = rope->on[s].address,
                                      .blocks = table->on[s].address,
                                      .q = out[0]->on[s].address,
                                      .partial = partial->on[s].address,
                                      .partial_bytes = partial->on[s].bytes,
                                      .dst = out[1]->on[s].address,
                                      .n = n,
                                      .stride = STRIDE};
        exec_begin(l->side[s]);
        if (!l->err.code)
            gqa_run(&op, l->side[s], &call);
        kt_finish(l, s);
        gqa_close(&op, l->side[s]);
    }
    double error = kt_cache_error(l, block, &cache);
    kt_report(l, "kv_cache", n > 1 ? "q8_0 cache, NaN, many tokens" : "q8_0 cache, NaN, one token", error,
              CACHE_BOUNDS[KV_TYPE_Q8_0]);
}

/* Prompts of heads that are wider than attention/prefill.comp takes. */
static void wide_cases(struct kernel_test *l)
{
    struct gqa_shape wide = {.n_heads = 8,
                             .n_kv_heads = 2,
                             .head_dim = 384,
                             .rotary_dim = 96,
                             .eps = 1e-6f,
                             .kv_type = KV_TYPE_F16,
                             .norm = ATTENTION_NORM_HEADS,
                             .scale = 0.05f,
                             .values = {.normed = true}};
    attention_case(l, &wide, 400, 70, true);
    l->is_rest = true;
    wide.kv_type = KV_TYPE_Q8_0;
    attention_case(l, &wide, 250, 100, true);
    l->is_rest = false;
    if (kt_is_brief(l))
        return;
    wide.head_dim = wide.rotary_dim = 512; /* Gemma 4's */
    wide.n_heads = 16;
    attention_case(l, &wide, 200, 300, true);
    attention_case(l, &wide, 15000, 40, true);
}

/* The paths of other cases with the sizes of Qwen's models and others. */
static void attention_sizes(struct kernel_test *l)
{
    if (kt_is_brief(l))
        return;
    attention_case(l, &seven, 41, 4, true);
    attention_case(l, &five, 130, 1, true);
    attention_case(l, &tiny_f16, 1023, 1, true);
    attention_case(l, &tiny_f16, 1024, 1, true);
    attention_case(l, &tiny, 0, 3, true);
    attention_case(l, &a3b, 1000, 1, true);
    attention_case(l, &a3b, 255, 2, true);
    attention_case(l, &a17b, 300, 1, true);
    attention_case(l, &narrow_f16, 250, 9, true);
    attention_case(l, &a3b_f16, 500, 1, true);
    attention_case(l, &a3b, 300, 21, true);
    attention_case(l, &a3b, 300, 21, false);
    attention_case(l, &plain, 255, 3, true);
    attention_case(l, &qwen3, 1000, 1, true);
    /* One token's longer ranges. */
    attention_case(l, &qwen3, 2500, 1, true);
    attention_case(l, &a3b_f16, 3000, 1, true);
    attention_case(l, &a3b_f16, 13000, 1, true);
    attention_case(l, &qwen3, 300, 2, true);
    attention_case(l, &qwen3, 200, 21, false);
    attention_case(l, &qwen3, 500, 40, true);
    /* Where it is on matrix units: rows that fill tiles and positions beyond them, and that do not. */
    attention_case(l, &qwen3, 60, 80, true);
    attention_case(l, &seven, 130, 19, true);
    if (exec_get_caps(l->side[KT_DEVICE]).has_coopmat) {
        attention_case_of(l, &qwen3, 60, 40, true, true);
        attention_case_of(l, &seven, 130, 19, true, true);
    }
}

void selftest_attention_cases(struct kernel_test *l)
{
    attention_case(l, &biased, 300, 1, true);
    attention_case(l, &bare, 254, 5, true);
    if (!kt_is_brief(l)) { /* the way of `rows`, as wide as `biased` */
        attention_case(l, &together, 300, 1, true);
        attention_case(l, &together, 40, 37, true);
    }
    attention_case(l, &rows, 40, 1, true);
    attention_case(l, &small, 1, 1, true);
    attention_case(l, &small, 1023, 1, true);
    attention_case(l, &small, 1024, 1, true);
    attention_case(l, &small, 1025, 1, true);
    l->is_long = true;
    attention_case(l, &odd, 66000, 1, true);
    l->is_long = false;
    attention_case(l, &odd, 254, 5, true);
    attention_case(l, &odd, 700, 1, true);
    /* Tiles: rows that do not fill them, positions within and past the first, splits. */
    attention_case(l, &odd, 200, 64, true);
    attention_case(l, &tiny, 1000, 33, true);
    attention_case(l, &tiny_f16, 0, 70, true);
    attention_case(l, &tiny_f16, 700, 17, false);
    attention_case(l, &plain_f16, 40, 5, true);
    window_cases(l);
    choice_cases(l);
    list_and_value_cases(l);
    q8_cases(l);
    l->is_rest = true;
    attention_case(l, &biased, 1500, 1, true);
    attention_case(l, &biased, 40, 37, true);
    attention_case(l, &normless, 30, 1, true);
    attention_case(l, &plain, 0, 1, true);
    attention_case(l, &a3b_f16, 30, 40, true);
    attention_case(l, &tiny_f16, 65535, 3, true);
    attention_case(l, &alone, 511, 1, true);
    attention_case(l, &narrow, 0, 19, true);
    attention_case(l, &plain, 200, 65, true);
    attention_case(l, &bare, 700, 1, true);
    attention_case(l, &rows, 254, 5, true);
    attention_case(l, &normless, 3, 2, true);
    attention_case(l, &seven, 300, 1, true);
    attention_case(l, &crowd, 260, 1, true);
    attention_case(l, &narrow, 0, 1, true);
    attention_case(l, &plain_f16, 700, 33, true);
    l->is_rest = false;
    broken_case(l, 1);
    broken_case(l, 2);
    scale_cases(l);
    wide_cases(l);
    attention_sizes(l);
}
