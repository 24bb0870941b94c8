/* The self-test's cases of attention over compressed rows. */
#include <math.h>
#include <stdio.h>

#include "args.h"
#include "ops/compressed/compressed.h"
#include "selftest/kernel_test.h"

static const double BOUND = 2e-6, ATTEND_BOUND = 1e-5;
/* Rows of the cache by their type, as in mla.c. */
static const double CACHE_BOUNDS[] = {3e-6, 1e-3, 1.07};
enum { LAYER_OFF = 256, DIFFERENT_BLOCKS = 4, MAX_BLOCKS = 40 };

/* Blocks of the cache or of the ring; a long sequence repeats the same few. */
struct bench {
    struct kt_rows rows;
    uint32_t n_blocks;
    struct test_buffer *blocks[MAX_BLOCKS], *table;
};

static void lay_out(struct kernel_test *l, const struct compressed_shape *s, uint32_t stride, uint32_t end,
                    struct bench *b)
{
    b->n_blocks = ((end - 1) >> KV_BLOCK_SHIFT) + 1;
    b->rows = (struct kt_rows){
        .off = LAYER_OFF, .n = (1 << KV_BLOCK_SHIFT) / stride, .dim = s->dim, .type = s->kv_type};
    for (uint32_t i = 0; i < b->n_blocks; i++)
        b->blocks[i] = i < DIFFERENT_BLOCKS ? kt_cache(l, &b->rows) : b->blocks[i % DIFFERENT_BLOCKS];
    b->table = kt_table(l, b->blocks, b->n_blocks);
}

static double rows_error(struct kernel_test *l, const struct bench *b)
{
    double error = 0;
    for (uint32_t i = 0; i < b->n_blocks && i < DIFFERENT_BLOCKS; i++)
        error = fmax(error, kt_cache_error(l, b->blocks[i], &b->rows));
    return error;
}

static const char *type_name(const struct compressed_shape *s)
{
    static const char *const names[] = {"f32", "f16", "q8_0"};
    return names[s->kv_type];
}

/* Where a case of turn puts its vectors. */
enum place { FLOATS, NEAR, FAR };
/* How a case of turn norms its vectors. */
enum norms { NONE, UNIT, WEIGHTS };

static void turn_case(struct kernel_test *l, const struct compressed_shape *s, enum norms norms,
                      enum place place, uint32_t pos, uint32_t n)
{
    bool is_row = place != FLOATS;
    uint32_t n_heads = is_row ? 1 : s->n_heads, x_stride = n_heads * s->dim + 4, width = n_heads * s->dim;
    struct bench b;
    char text[128];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, s, place == FAR ? s->ratio : 1, pos + n, &b);
    struct test_buffer *x = kt_floats(l, (uint64_t)n * x_stride, -2, 2),
                       *norm = kt_floats(l, s->dim, 0.5f, 1.5f),
                       *rope = kt_floats(l, (uint64_t)n * s->rope_dim + 1, -1, 1),
                       *y = kt_bytes(l, NULL, 4 * (uint64_t)n * width);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct compressed op;
        if (compressed_open(&op, l->side[side], s, &l->err) < 0)
            break;
        const struct compressed_turn_call call = {.x = x->on[side].address,
                                                  .norm = norms == WEIGHTS ? norm->on[side].address : 0,
                                                  .rope = rope->on[side].address,
                                                  .y = is_row ? 0 : y->on[side].address,
                                                  .ring = b.table->on[side].address,
                                                  .blocks = place == FAR ? b.table->on[side].address : 0,
                                                  .n = n,
                                                  .pos = pos,
                                                  .n_heads = n_heads,
                                                  .x_stride = x_stride,
                                                  .y_stride = width,
                                                  .row_off = LAYER_OFF,
                                                  .norms = norms != NONE};
        exec_begin(l->side[side]);
        compressed_turn_run(&op, l->side[side], &call);
        kt_finish(l, side);
    }
    snprintf(text, sizeof text, "%u heads of %u, norm %d, %u + %u positions%s%s", n_heads, s->dim, norms, pos,
             n,
             place == FAR ? ", compressed rows of "
             : is_row     ? ", rows of "
                          : "",
             is_row ? type_name(s) : "");
    kt_row(l, "compressed_turn", text, rows_error(l, &b), CACHE_BOUNDS[s->kv_type]);
    kt_report(l, "compressed_turn", text, kt_error(l, y, (uint64_t)n * width), BOUND);
}

/* plain: rows have no biases, and what they are before they are turned is written, too. */
static void pool_case(struct kernel_test *l, const struct compressed_shape *s, uint32_t pos, uint32_t n,
                      bool plain)
{
    uint32_t width = compressed_width(s), stride = 2 * width + 8;
    struct bench b;
    char text[128];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, s, s->ratio, pos + n, &b);
    uint64_t state = compressed_state(s);
    /* totals are positive; at position 0 nothing is in progress */
    struct test_buffer *x = kt_floats(l, (uint64_t)n * stride, -2, 2),
                       *bias = kt_floats(l, (uint64_t)s->ratio * width, -1, 1),
                       *norm = kt_floats(l, s->dim, 0.5f, 1.5f),
                       *rope = kt_floats(l, (uint64_t)n * s->rope_dim + 1, -1, 1),
                       *in = pos ? kt_floats(l, state, 0.5f, 2) : kt_bytes(l, NULL, 4 * state),
                       *out = kt_bytes(l, NULL, 4 * state),
                       *rows = kt_bytes(l, NULL, 4 * (uint64_t)n * s->dim),
                       *angles = kt_bytes(l, NULL, 4 * (uint64_t)n * s->rope_dim + 4);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct compressed op;
        if (compressed_open(&op, l->side[side], s, &l->err) < 0)
            break;
        const struct compressed_pool_call call = {.kv = x->on[side].address,
                                                  .gates = x->on[side].address + 4 * (uint64_t)width,
                                                  .bias = plain ? 0 : bias->on[side].address,
                                                  .plain = plain ? rows->on[side].address : 0,
                                                  .angles = angles->on[side].address,
                                                  .norm = norm->on[side].address,
                                                  .rope = rope->on[side].address,
                                                  .state_in = in->on[side].address,
                                                  .state_out = out->on[side].address,
                                                  .blocks = b.table->on[side].address,
                                                  .n = n,
                                                  .pos = pos,
                                                  .stride = stride,
                                                  .layer_off = LAYER_OFF};
        exec_begin(l->side[side]);
        compressed_pool_run(&op, l->side[side], &call);
        kt_finish(l, side);
    }
    snprintf(text, sizeof text, "rows of %u from %u%s%s, %u + %u positions, %s", s->dim, s->ratio,
             s->overlaps ? ", overlapping" : "", plain ? ", plain" : "", pos, n, type_name(s));
    kt_row(l, "compressed_pool", text, rows_error(l, &b), CACHE_BOUNDS[s->kv_type]);
    double error =
        fmax(kt_error(l, rows, (uint64_t)n * s->dim), kt_error(l, angles, (uint64_t)n * s->rope_dim));
    kt_report(l, "compressed_pool", text, fmax(error, kt_error(l, out, state)), BOUND);
}

static void attend_case(struct kernel_test *l, const struct compressed_shape *s, uint32_t pos, uint32_t n)
{
    uint32_t width = s->n_heads * s->dim, stride = width + 4;
    const struct kv_choice choice = {.ratio = s->budget ? s->ratio : 0, .budget = s->budget};
    struct bench near, far;
    char text[128];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, s, 1, pos + n, &near);
    lay_out(l, s, s->ratio ? s->ratio : 1, pos + n, &far);
    struct test_buffer *q = kt_floats(l, (uint64_t)n * stride, -2, 2),
                       *sinks = kt_floats(l, s->n_heads, -1, 1),
                       *rope = kt_floats(l, (uint64_t)n * s->rope_dim + 1, -1, 1),
                       *chosen = kt_lists(l, &choice, pos, n),
                       *dst = kt_bytes(l, NULL, 4 * (uint64_t)n * width);
    for (int side = 0; side < kt_n_sides(l) && !l->err.code; side++) {
        struct compressed op;
        if (compressed_open(&op, l->side[side], s, &l->err) < 0)
            break;
        const struct compressed_attend_call call = {.q = q->on[side].address,
                                                    .sinks = sinks->on[side].address,
                                                    .rope = rope->on[side].address,
                                                    .ring = near.table->on[side].address,
                                                    .blocks = far.table->on[side].address,
                                                    .chosen = chosen->on[side].address,
                                                    .dst = dst->on[side].address,
                                                    .n = n,
                                                    .pos = pos,
                                                    .q_stride = stride,
                                                    .ring_off = LAYER_OFF,
                                                    .layer_off = LAYER_OFF};
        exec_begin(l->side[side]);
        compressed_attend_run(&op, l->side[side], &call);
        kt_finish(l, side);
    }
    snprintf(text, sizeof text, "%u heads of %u, window %u, %u rows from %u, %u + %u positions, %s",
             s->n_heads, s->dim, s->window, s->budget, s->ratio, pos, n, type_name(s));
    kt_report(l, "compressed_attend", text, kt_error(l, dst, (uint64_t)n * width), ATTEND_BOUND);
}

void selftest_compressed_cases(struct kernel_test *l)
{
    static const struct compressed_shape plain = {20, 6, 0, false, 1e-6f, KV_TYPE_F32, 3, 9, 0, 0.3f},
                                         odd = {36, 10, 4, true, 1e-6f, KV_TYPE_F32, 5, 11, 3, 0.2f},
                                         heavy = {24, 24, 16, false, 1e-5f, KV_TYPE_F16, 2, 5, 0, 0.2f},
                                         codes = {68, 4, 2, true, 1e-6f, KV_TYPE_Q8_0, 9, 7, 6, 0.1f},
                                         index = {16, 8, 4, true, 1e-6f, KV_TYPE_F16, 0, 0, 0, 0},
                                         pair = {20, 6, 2, false, 1e-6f, KV_TYPE_F32, 3, 5, 4, 0.2f},
                                         one = {36, 8, 1, false, 1e-6f, KV_TYPE_F16, 2, 5, 7, 0.2f},
                                         /* DeepSeek-V4-Flash's */
        sparse = {512, 64, 4, true, 1e-6f, KV_TYPE_F16, 64, 128, 512, 0.0441942f},
                                         heavily = {512,         64, 128, false, 1e-6f,
                                                    KV_TYPE_F32, 64, 128, 0,     0.0441942f};
    turn_case(l, &plain, NONE, FLOATS, 0, 3);
    turn_case(l, &odd, UNIT, FLOATS, 5, 7);
    turn_case(l, &odd, WEIGHTS, NEAR, 250, 9);
    turn_case(l, &heavy, WEIGHTS, NEAR, 3, 2);
    turn_case(l, &codes, WEIGHTS, NEAR, 255, 2);
    for (uint32_t pos = 0; pos < 9; pos++)
        pool_case(l, &odd, pos, 1 + pos % 3 * 5, false);
    pool_case(l, &odd, 253, 9, false);
    pool_case(l, &heavy, 0, 15, false);
    pool_case(l, &heavy, 3, 45, false);
    pool_case(l, &heavy, 31, 1, false);
    pool_case(l, &codes, 7, 6, false);
    pool_case(l, &index, 6, 3, false);
    turn_case(l, &pair, WEIGHTS, FAR, 253, 9);
    turn_case(l, &one, WEIGHTS, FAR, 255, 3);
    pool_case(l, &pair, 7, 6, true);
    pool_case(l, &pair, 0, 1, true);
    pool_case(l, &one, 254, 5, true);
    attend_case(l, &plain, 0, 4);
    attend_case(l, &plain, 300, 2);
    attend_case(l, &odd, 0, 40);
    attend_case(l, &odd, 1200, 3);
    attend_case(l, &heavy, 14, 20);
    attend_case(l, &codes, 600, 3);
    attend_case(l, &pair, 300, 5);
    attend_case(l, &one, 0, 20);
    l->is_rest = true;
    turn_case(l, &sparse, UNIT, FLOATS, 100, 2);
    turn_case(l, &sparse, WEIGHTS, NEAR, 100, 2);
    pool_case(l, &sparse, 1000, 3, false);
    pool_case(l, &heavily, 200, 130, false);
    attend_case(l, &sparse, 3000, 2);
    attend_case(l, &heavily, 2000, 1);
    l->is_rest = false;
}
