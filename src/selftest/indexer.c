/* The self-test's cases of the indexer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"
#include "base/mem.h"
#include "ops/indexer/indexer.h"
#include "selftest/kernel_test.h"

static const double BOUND = 2e-6, HALF_BOUND = 1e-3;
enum { LAYER_OFF = 256, MAX_BLOCKS = 300, OWN_BLOCKS = 4 };

struct bench {
    struct test_buffer *proj, *keys, *q_norm, *k_norm, *k_bias, *pool_bias, *rope, *window, *window_out, *q,
        *weights, *chosen, *candidates, *table;
    struct test_buffer *blocks[MAX_BLOCKS];
    uint32_t n_blocks, stride, key_stride;
    uint64_t block; /* numbers of a block of the cache */
};

/* Small integers, so that scores are exact and many of them are equal. */
static struct test_buffer *integers(struct kernel_test *l, uint64_t n, enum kv_type type)
{
    uint8_t *v = mem_new(n, kv_row_bytes(type, 1), &l->err);
    for (uint64_t i = 0; v && i < n; i++) {
        float x = (float)(kt_random(l) % 5) - 2;
        uint16_t half = f16_from_float(x);
        memcpy(v + i * kv_row_bytes(type, 1), type == KV_TYPE_F16 ? (const void *)&half : (const void *)&x,
               kv_row_bytes(type, 1));
    }
    struct test_buffer *t = kt_bytes(l, v, v ? n * kv_row_bytes(type, 1) : 0);
    free(v);
    return t;
}

/* Lists of candidates with the last group, spread over the groups; to be written, zeros. */
static struct test_buffer *candidates(struct kernel_test *l, const struct indexer_shape *s, uint32_t pos,
                                      uint32_t n)
{
    uint32_t each = s->groups + 1, *v = mem_new((uint64_t)n * each, sizeof *v, &l->err);
    for (uint32_t t = 0; v && !s->finds && t < n; t++) {
        uint32_t n_groups = indexer_n_groups(s, pos + t);
        for (uint32_t i = 0; n_groups && i < s->groups; i++)
            v[t * each + i] = i + 1 == s->groups ? n_groups - 1 : i * (n_groups - 1) / (s->groups - 1);
        v[t * each + s->groups] = n_groups;
    }
    struct test_buffer *list = kt_bytes(l, v, v ? sizeof *v * n * each : 0);
    free(v);
    return list;
}

/* A long sequence repeats the same few blocks; the last two are its own. */
static void lay_out(struct kernel_test *l, const struct indexer_shape *s, uint32_t pos, uint32_t n,
                    struct bench *b)
{
    *b = (struct bench){.n_blocks = ((pos + n - 1) >> KV_BLOCK_SHIFT) + 1,
                        .stride = s->n_heads * s->dim + 4,
                        .key_stride = (s->pooled ? 2 : 1) * s->dim + 5,
                        .block = (LAYER_OFF + indexer_block_bytes(s)) / kv_row_bytes(s->kv_type, 1)};
    for (uint32_t i = 0; i < b->n_blocks; i++)
        b->blocks[i] = i < OWN_BLOCKS || i + 2 >= b->n_blocks ? integers(l, b->block, s->kv_type)
                                                              : b->blocks[i % OWN_BLOCKS];
    b->table = kt_table(l, b->blocks, b->n_blocks);
    b->proj = kt_floats(l, (uint64_t)n * b->stride, -2, 2);
    b->keys = kt_floats(l, (uint64_t)n * b->key_stride, -2, 2);
    b->q_norm = kt_floats(l, s->dim, 0.5f, 1.5f);
    b->k_norm = kt_floats(l, s->dim, 0.5f, 1.5f);
    b->k_bias = kt_floats(l, s->dim, -1, 1);
    b->pool_bias = kt_floats(l, (uint64_t)s->choice.ratio * s->dim, -2, 2);
    b->rope = kt_floats(l, (uint64_t)n * s->rotary_dim + 1, -1, 1);
    b->window = kt_floats(l, indexer_window(s) + 1, -1, 1);
    b->window_out = kt_bytes(l, NULL, 4 * indexer_window(s) + 4);
    b->q = integers(l, (uint64_t)n * s->n_heads * s->dim, KV_TYPE_F32);
    b->weights = integers(l, (uint64_t)n * (s->n_heads + 3), KV_TYPE_F32);
    b->chosen = kt_bytes(l, NULL, 4 * (uint64_t)n * kv_choice_stride(&s->choice));
    b->candidates = candidates(l, s, pos, n);
}

static struct indexer_call call_of(const struct bench *b, const struct indexer_shape *s, int side,
                                   uint32_t pos, uint32_t n)
{
    return (struct indexer_call){.queries = b->proj->on[side].address,
                                 .keys = b->keys->on[side].address,
                                 .q_norm = b->q_norm->on[side].address,
                                 .k_norm = b->k_norm->on[side].address,
                                 .k_bias = b->k_bias->on[side].address,
                                 .pool_bias = b->pool_bias->on[side].address,
                                 .rope = b->rope->on[side].address,
                                 .window_in = b->window->on[side].address,
                                 .window_out = b->window_out->on[side].address,
                                 .blocks = b->table->on[side].address,
                                 .q = b->q->on[side].address,
                                 .weights = b->weights->on[side].address,
                                 .chosen = b->chosen->on[side].address,
                                 .candidates = b->candidates->on[side].address,
                                 .n = n,
                                 .pos = pos,
                                 .stride = b->stride,
                                 .key_stride = b->key_stride,
                                 .layer_off = LAYER_OFF,
                                 .weight_stride = s->n_heads + 3};
}

static void describe(const struct indexer_shape *s, uint32_t pos, uint32_t n, char *text, size_t size)
{
    snprintf(text, size, "%u heads of %u, %u blocks of %u%s, %u + %u positions%s%s%s%s%s%s", s->n_heads,
             s->dim, s->choice.budget, s->choice.ratio, s->choice.heads ? " each" : "", pos, n,
             s->weighted ? ", weights" : "", s->layer_norm ? ", layer norm" : "",
             s->interleaved ? ", pairs" : "", s->pooled ? ", pooled" : "",
             s->kv_type == KV_TYPE_F16 ? ", f16" : "",
             !s->groups ? ""
             : s->finds ? ", finds candidates"
                        : ", takes candidates");
}

static void prepare_case(struct kernel_test *l, const struct indexer_shape *s, uint32_t pos, uint32_t n)
{
    struct bench b;
    char text[128];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, s, pos, n, &b);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct indexer op;
        if (indexer_open(&op, l->side[side], s, &l->err) < 0)
            break;
        const struct indexer_call call = call_of(&b, s, side, pos, n);
        exec_begin(l->side[side]);
        indexer_prepare_run(&op, l->side[side], &call);
        kt_finish(l, side);
    }
    describe(s, pos, n, text, sizeof text);
    const struct test_buffer *last = b.blocks[b.n_blocks - 1],
                             *before = b.blocks[b.n_blocks > 1 ? b.n_blocks - 2 : 0];
    bool is_half = s->kv_type == KV_TYPE_F16;
    double rows = is_half
                      ? fmax(kt_f16_error(l, last, b.block / 2 * 2), kt_f16_error(l, before, b.block / 2 * 2))
                      : fmax(kt_error(l, last, b.block), kt_error(l, before, b.block));
    double error = fmax(kt_error(l, b.q, (uint64_t)n * s->n_heads * s->dim),
                        kt_error(l, b.window_out, indexer_window(s) + 1));
    kt_row(l, "indexer_prepare", text, rows, is_half ? HALF_BOUND : BOUND);
    kt_report(l, "indexer_prepare", text, error, BOUND);
}

/* The lists are the reference's, ties included; one token alone gets the same list as in the chunk. */
static void choose_case(struct kernel_test *l, const struct indexer_shape *s, uint32_t pos, uint32_t n)
{
    struct bench b;
    char text[128];
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, s, pos, n, &b);
    struct test_buffer *scores = kt_bytes(l, NULL, 4 * indexer_scratch(s, &caps, n, pos + n) + 4);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct indexer op;
        if (indexer_open(&op, l->side[side], s, &l->err) < 0)
            break;
        struct indexer_call call = call_of(&b, s, side, pos, n);
        call.scores = scores->on[side].address;
        exec_begin(l->side[side]);
        indexer_choose_run(&op, l->side[side], &call);
        kt_finish(l, side);
    }
    describe(s, pos, n, text, sizeof text);
    kt_report(l, "indexer_choose", text,
              fmax(kt_difference(l, b.chosen, (uint64_t)n * kv_choice_stride(&s->choice)),
                   kt_difference(l, b.candidates, (uint64_t)n * (s->groups + 1))),
              0);
}

/* One token of each of several sequences. None of them ends a block, so they can share the cache. The first
 * is the longest; the others have no candidates to take. */
static void batched_case(struct kernel_test *l, const struct indexer_shape *s, const uint32_t *pos,
                         uint32_t n)
{
    struct bench b;
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    uint32_t longest = 0, stride = kv_choice_stride(&s->choice);
    if (!kt_takes(l, l->is_rest))
        return;
    for (uint32_t i = 0; i < n; i++)
        longest = pos[i] > longest ? pos[i] : longest;
    lay_out(l, s, longest, n, &b);
    uint64_t window = indexer_window(s), scores = indexer_scratch(s, &caps, 1, longest + 1);
    struct test_buffer *windows = kt_bytes(l, NULL, 4 * (uint64_t)n * window + 4),
                       *scratch = kt_bytes(l, NULL, 4 * (uint64_t)n * scores + 4);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct indexer op;
        struct indexer_call calls[EXEC_MAX_INVARIANT];
        if (indexer_open(&op, l->side[side], s, &l->err) < 0)
            break;
        for (uint64_t i = 0; i < n; i++) {
            calls[i] = call_of(&b, s, side, pos[i], 1);
            calls[i].queries += 4 * i * b.stride;
            calls[i].keys += 4 * i * b.key_stride;
            calls[i].rope += 4 * i * s->rotary_dim;
            calls[i].q += 4 * i * s->n_heads * s->dim;
            calls[i].chosen += 4 * i * stride;
            calls[i].candidates += 4 * i * (s->groups + 1);
            calls[i].window_out = windows->on[side].address + 4 * i * window;
            calls[i].scores = scratch->on[side].address + 4 * i * scores;
        }
        exec_begin(l->side[side]);
        indexer_run(&op, l->side[side], calls, n);
        kt_finish(l, side);
    }
    char text[64];
    snprintf(text, sizeof text, "%u sequences batched", n);
    kt_row(l, "indexer_prepare", text, kt_error(l, windows, n * window), BOUND);
    kt_report(l, "indexer_choose", text,
              fmax(kt_difference(l, b.chosen, (uint64_t)n * stride),
                   kt_difference(l, b.candidates, (uint64_t)n * (s->groups + 1))),
              0);
}

void selftest_indexer_cases(struct kernel_test *l)
{
    static const uint32_t pos[] = {18, 300, 3}, longest_first[] = {300, 18, 4};
    const struct indexer_shape odd = {3,     20,          6,     {3, 5, 0}, false, false, false,
                                      1e-6f, KV_TYPE_F32, false, 0,         0,     false};
    const struct indexer_shape tokens = {5,     36,          36,    {1, 40, 0}, true, true, false,
                                         1e-6f, KV_TYPE_F16, false, 0,          0,    false};
    const struct indexer_shape next = {4,     128,         64,    {4, 512, 0}, false, false, false,
                                       1e-6f, KV_TYPE_F16, false, 0,           0,     false};
    const struct indexer_shape wide = {33,    64,          0,     {16, 2, 0}, true, true, true,
                                       1e-6f, KV_TYPE_F32, false, 0,          0,    false};
    const struct indexer_shape whole = {1,     4,           2,     {256, 1, 0}, false, false, false,
                                        1e-6f, KV_TYPE_F32, false, 0,           0,     false};
    const struct indexer_shape pairs = {6,     24,          10,    {1, 9, 0}, true, true, true,
                                        1e-6f, KV_TYPE_F32, false, 0,         0,    false};
    const struct indexer_shape pool = {5,     36,          0,    {4, 6, 0}, true, true, false,
                                       1e-6f, KV_TYPE_F32, true, 0,         0,    false};
    const struct indexer_shape one = {2,     20,          0,    {1, 7, 0}, true, true, false,
                                      1e-6f, KV_TYPE_F16, true, 0,         0,    false};
    /* finds candidates, takes them */
    const struct indexer_shape finds = {5,     20,          6,     {2, 7, 0}, true, true, true,
                                        1e-6f, KV_TYPE_F32, false, 4,         3,    true};
    const struct indexer_shape takes = {5,     20,          6,     {2, 7, 0}, true, true, true,
                                        1e-6f, KV_TYPE_F16, false, 4,         3,    false};
    /* DeepSeek-V4.1-Flash's, with fewer candidates */
    const struct indexer_shape v41 = {32,    128,         64,    {1, 512, 0}, true, true, true,
                                      1e-6f, KV_TYPE_F16, false, 80,          8,    true};
    /* GLM-5's and GLM-5.3-Flash's */
    const struct indexer_shape glm = {32,    128, 64, {1, 2048, 0}, true, true, true, 1e-6f, KV_TYPE_F16,
                                      false, 0,   0,  false};
    const struct indexer_shape flash = {32,   128, 0, {16, 128, 0}, true, true, false, 1e-6f, KV_TYPE_F16,
                                        true, 0,   0, false};
    const struct indexer_shape heads = {3,     20,          6,     {8, 2, 3}, false, false, false,
                                        1e-6f, KV_TYPE_F32, false, 0,         0,     false};
    /* MiniMax-M3's */
    const struct indexer_shape m3 = {4,     128, 64, {128, 15, 4}, false, false, false, 1e-6f, KV_TYPE_F16,
                                     false, 0,   0,  false};
    prepare_case(l, &odd, 254, 1);
    prepare_case(l, &odd, 253, 1); /* completes a block */
    prepare_case(l, &odd, 250, 19);
    prepare_case(l, &tokens, 255, 3);
    prepare_case(l, &wide, 14, 5);
    prepare_case(l, &pairs, 253, 5);
    prepare_case(l, &pool, 5, 1);
    prepare_case(l, &pool, 6, 11);
    prepare_case(l, &one, 3, 2);
    choose_case(l, &odd, 17, 1);
    choose_case(l, &odd, 10, 50);
    choose_case(l, &tokens, 900, 3);
    choose_case(l, &pairs, 5, 20);
    choose_case(l, &next, 9001, 1);
    choose_case(l, &wide, 1000, 21);
    choose_case(l, &finds, 10, 40);
    choose_case(l, &finds, 700, 3);
    choose_case(l, &takes, 10, 40);
    choose_case(l, &takes, 711, 2);
    choose_case(l, &v41, 2000, 3);
    prepare_case(l, &heads, 253, 5);
    choose_case(l, &heads, 20, 40);
    choose_case(l, &heads, 295, 1);
    choose_case(l, &m3, 2044, 8);
    batched_case(l, &odd, pos, 3);
    batched_case(l, &finds, longest_first, 3);
    batched_case(l, &takes, longest_first, 3);
    l->is_rest = true;
    prepare_case(l, &next, 510, 2);
    prepare_case(l, &whole, 200, 100);
    choose_case(l, &whole, 60000, 2);
    choose_case(l, &next, 2040, 30);
    prepare_case(l, &glm, 510, 3);
    choose_case(l, &glm, 2040, 12);
    prepare_case(l, &flash, 510, 40);
    batched_case(l, &flash, pos, 3);
    choose_case(l, &m3, 9000, 1);
    choose_case(l, &m3, 70000, 35);
    l->is_rest = false;
    if (!kt_is_brief(l))
        choose_case(l, &next, 70001, 300);
}
