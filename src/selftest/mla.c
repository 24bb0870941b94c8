/* The self-test's cases of latent attention and of the dense feed-forward part. */
#include <math.h>
#include <stdio.h>

#include "args.h"
#include "selftest/kernel_test.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla.h"
#include "ops/add.h"
#include "ops/gating.h"
#include "ops/head_gate.h"
#include "ops/swiglu.h"

/* Products of up to 512 terms, scores, products again. Those of more tokens than batched
 * decode takes exactly may go through float16. */
static const double PREP_BOUND = 2e-6, ATTENTION_BOUND = 1e-5, F16_BOUND = 4e-3;
/* The rows of the cache by their type, as in attention.c; a number of q8_0 may have either of two codes,
 * and with the same codes results are as exact as with float32. */
static const double CACHE_BOUNDS[] = {2e-6, 1e-3, 1.07}, Q8_BOUND = 1.0 / 127 + 4e-3;

/* A long sequence has the same few blocks again and again: its chunk then fits into one slice of the absorbed
 * form. */
enum { LAYER_OFF = 256, KV_AT = 7, DIFFERENT_BLOCKS = 4, MAX_BLOCKS = 260 };

/* The memory of a case. */
struct bench {
    struct kt_rows rows;
    uint32_t n, pos, n_blocks, q_stride, kv_stride;
    uint32_t n_heads; /* that the expanded form has room for; 0: its own choice */
    struct test_buffer *blocks[MAX_BLOCKS], *table, *q, *kv, *norm, *rope, *chosen, *out;
    struct weights matrices[KT_SIDES][2];
};

static void lay_out(struct kernel_test *l, const struct mla_shape *c, uint32_t format, struct bench *b)
{
    uint32_t row = c->latent_dim + c->rope_dim;
    b->n_blocks = ((b->pos + b->n - 1) >> KV_BLOCK_SHIFT) + 1;
    b->rows = (struct kt_rows){LAYER_OFF, 1 << KV_BLOCK_SHIFT, row, c->kv_type, 0, 0};
    b->kv_stride = KV_AT + row + 1;
    for (uint32_t i = 0; i < b->n_blocks; i++)
        b->blocks[i] = i < DIFFERENT_BLOCKS ? kt_cache(l, &b->rows) : b->blocks[i % DIFFERENT_BLOCKS];
    b->table = kt_table(l, b->blocks, b->n_blocks);
    b->q_stride = c->n_heads * (c->nope_dim + c->rope_dim) + 4;
    b->q = kt_floats(l, (uint64_t)b->n * b->q_stride, -2, 2);
    b->kv = kt_floats(l, (uint64_t)b->n * b->kv_stride, -2, 2);
    b->norm = kt_floats(l, c->latent_dim, 0.5f, 1.5f);
    b->rope = kt_floats(l, (uint64_t)b->n * c->rope_dim, -1, 1);
    b->chosen = kt_lists(l, &c->choice, b->pos, b->n);
    b->out = kt_bytes(l, NULL, 4 * (uint64_t)b->n * c->n_heads * c->v_dim);
    struct weights keys[KT_SIDES], values[KT_SIDES] = {0};
    if (c->keys_by_rows) {
        kt_matrix(l, c->n_heads * (c->nope_dim + c->v_dim), c->latent_dim, format, keys);
    } else {
        kt_matrix(l, c->n_heads * c->latent_dim, c->nope_dim, format, keys);
        kt_matrix(l, c->n_heads * c->v_dim, c->latent_dim, c->latent_dim % 64 ? FORMAT_BF16 : FORMAT_Q4,
                  values);
    }
    for (int s = 0; s < KT_SIDES; s++) {
        b->matrices[s][0] = keys[s];
        b->matrices[s][1] = values[s];
    }
}

/* Runs the case on a side. */
static void run_side(struct kernel_test *l, const struct mla_shape *c, const struct bench *b, int s)
{
    struct exec *x = l->side[s];
    struct exec_caps caps = exec_get_caps(x);
    struct exec_buffer scratch = {0};
    struct mla_matrices matrices = {0};
    struct mla op = {0};
    int rc =
        exec_buffer_new(x, &scratch, EXEC_DEVICE, mla_scratch_bytes(c, &caps, b->n, b->pos + b->n), &l->err);
    if (rc == 0)
        rc = mla_open(&op, x, c, &scratch, &l->err);
    if (b->n_heads)
        op.expanded.room = (uint64_t)b->n_heads * (c->nope_dim + c->rope_dim + c->v_dim) *
                           kv_row_bytes(op.expanded.type, 1) * (b->pos + b->n);
    if (rc == 0)
        rc = mla_matrices_open(&matrices, x, c, b->matrices[s], &l->err);
    if (rc == 0) {
        const struct mla_call call = {.q = b->q->on[s].address,
                                      .kv = b->kv->on[s].address,
                                      .norm = b->norm->on[s].address,
                                      .rope = b->rope->on[s].address,
                                      .blocks = b->table->on[s].address,
                                      .chosen = b->chosen->on[s].address,
                                      .matrices = &matrices,
                                      .dst = b->out->on[s].address,
                                      .use_f16 = true,
                                      .n = b->n,
                                      .pos = b->pos,
                                      .q_stride = b->q_stride,
                                      .kv_stride = b->kv_stride,
                                      .kv_at = KV_AT,
                                      .layer_off = LAYER_OFF};
        exec_begin(x);
        mla_run(&op, x, &call);
        kt_finish(l, s);
    }
    exec_buffer_free(x, &scratch);
    mla_close(&op, x);
    mla_matrices_close(&matrices, x);
}

static void form_case(struct kernel_test *l, const struct mla_shape *c, uint32_t format, struct bench b)
{
    uint32_t pos = b.pos, n = b.n;
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, c, format, &b);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++)
        run_side(l, c, &b, s);
    static const char *const caches[] = {"", ", f16 cache", ", q8_0 cache"};
    char text[128];
    snprintf(text, sizeof text, "%u heads of %u + %u, latent %u, v %u, %u + %u positions%s%s%s%s", c->n_heads,
             c->nope_dim, c->rope_dim, c->latent_dim, c->v_dim, pos, n, caches[c->kv_type],
             c->form == MLA_EXPANDED ? ", expanded" : "", c->keys_by_rows ? ", kv_b" : "",
             c->choice.ratio ? ", chosen" : "");
    double cache = 0;
    for (uint32_t i = 0; i < b.n_blocks && i < DIFFERENT_BLOCKS; i++)
        cache = fmax(cache, kt_cache_error(l, b.blocks[i], &b.rows));
    double error = kt_error(l, b.out, (uint64_t)n * c->n_heads * c->v_dim);
    kt_row(l, "mla_prepare", text, cache, CACHE_BOUNDS[c->kv_type]);
    bool is_q8 = c->kv_type == KV_TYPE_Q8_0;
    bool is_f16 = c->kv_type == KV_TYPE_F16 ||
                  ((n > EXEC_MAX_INVARIANT || is_q8) && exec_get_caps(l->side[KT_DEVICE]).has_coopmat);
    double bound = is_q8 && cache > 0 ? Q8_BOUND
                   : is_f16           ? F16_BOUND
                                      : kt_int16_bound(l, format, pos + n, ATTENTION_BOUND);
    kt_report(l, "mla", text, error, bound);
}

static void mla_case(struct kernel_test *l, const struct mla_shape *c, uint32_t format, uint32_t pos,
                     uint32_t n)
{
    struct mla_shape s = *c;
    s.form = MLA_ABSORBED;
    form_case(l, &s, format, (struct bench){.n = n, .pos = pos});
}

/* The same with keys and values in one matrix, in both forms. */
static void by_rows_case(struct kernel_test *l, const struct mla_shape *c, uint32_t format, uint32_t pos,
                         uint32_t n)
{
    struct mla_shape s = *c;
    s.keys_by_rows = true;
    s.form = MLA_ABSORBED;
    form_case(l, &s, format, (struct bench){.n = n, .pos = pos});
    s.form = MLA_EXPANDED;
    if (n >= 32)
        form_case(l, &s, format, (struct bench){.n = n, .pos = pos, .n_heads = 2});
}

/* n_heads: heads expanded at a time; 0: all that fit. */
static void expanded_case(struct kernel_test *l, const struct mla_shape *c, uint32_t format, uint32_t pos,
                          uint32_t n, uint32_t n_heads)
{
    struct mla_shape s = *c;
    s.form = MLA_EXPANDED;
    form_case(l, &s, format, (struct bench){.n = n, .pos = pos, .n_heads = n_heads});
}

/* Rows of q8_0 in both forms: whole blocks, a part of one, matrix units. */
static void q8_cases(struct kernel_test *l)
{
    static const struct mla_shape /* fields in the order of mla.h */
        odd = {4, 64, 32, 128, 64, true, 0.19f, 1e-6f, KV_TYPE_Q8_0, MLA_FASTER, false, {0}},
        lone = {2, 32, 8, 76, 12, true, 0.15f, 1e-6f, KV_TYPE_Q8_0, MLA_FASTER, false, {0}},
        lite = {16, 64, 64, 128, 64, true, 0.135f, 1e-6f, KV_TYPE_Q8_0, MLA_FASTER, false, {0}};
    mla_case(l, &odd, FORMAT_Q4, 254, 3);
    mla_case(l, &lone, FORMAT_BF16, 3, 20);
    expanded_case(l, &odd, FORMAT_Q4, 100, 40, 2);
    l->is_long = true;
    mla_case(l, &lite, FORMAT_Q4, 16383, 1);
    l->is_long = false;
    l->is_rest = true;
    mla_case(l, &odd, FORMAT_Q4, 600, 1);
    mla_case(l, &lite, FORMAT_Q4, 900, 37);
    l->is_rest = false;
}

/* Block formats in every form. */
static void block_cases(struct kernel_test *l, const struct mla_shape *odd, const struct mla_shape *narrow)
{
    expanded_case(l, odd, FORMAT_G_Q8_0, 60, 40, 0);
    l->is_rest = true;
    mla_case(l, odd, FORMAT_G_IQ4_NL, 100, 1);
    by_rows_case(l, narrow, FORMAT_G_Q5_1, 30, 40);
    l->is_rest = false;
}

/* Positions that an indexer chooses: one token, tokens with and without lists in both forms, rows of each
 * type. */
static void choice_cases(struct kernel_test *l)
{
    static const struct mla_shape /* fields in the order of mla.h */
        odd = {5, 64, 16, 128, 64, true, 0.19f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {1, 70, 0}},
        half = {6, 64, 32, 128, 64, true, 0.19f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {1, 33, 0}},
        q8 = {4, 64, 32, 64, 64, true, 0.19f, 1e-6f, KV_TYPE_Q8_0, MLA_FASTER, false, {1, 300, 0}},
        /* GLM-5's */
        glm = {64, 192, 64, 512, 256, true, 0.0625f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {1, 2048, 0}};
    mla_case(l, &odd, FORMAT_Q4, 300, 1);
    mla_case(l, &half, FORMAT_Q4, 600, 9);
    by_rows_case(l, &odd, FORMAT_BF16, 30, 80);
    l->is_rest = true;
    mla_case(l, &q8, FORMAT_Q4, 510, 3);
    mla_case(l, &half, FORMAT_BF16, 20, 40);
    l->is_rest = false;
    if (!kt_is_brief(l))
        by_rows_case(l, &glm, FORMAT_BF16, 2040, 40);
}

/* A head's dimension that groups of 64 do not divide. */
static void small_cases(struct kernel_test *l)
{
    static const struct mla_shape /* fields in the order of mla.h */
        small = {3, 32, 16, 128, 20, true, 0.15f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}};
    by_rows_case(l, &small, FORMAT_Q8, 0, 70);
    by_rows_case(l, &small, FORMAT_Q4, 254, 3);
    mla_case(l, &small, FORMAT_BF16, 250, 40);
}

void selftest_mla_cases(struct kernel_test *l)
{
    static const struct mla_shape /* fields in the order of mla.h */
        odd = {4, 64, 32, 128, 64, true, 0.19f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        narrow = {3, 64, 4, 64, 20, false, 0.1f, 1e-3f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        one = {1, 128, 12, 192, 64, true, 0.08f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        uneven = {32, 64, 4, 64, 6, true, 0.1f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        crowd = {64, 64, 4, 64, 20, false, 0.1f, 1e-3f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        v3 = {16, 128, 64, 512, 128, true, 0.135f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        /* matrix units, where present: rows that fill tiles, and rows that do not */
        v3_f16 = {128, 128, 64, 512, 128, true, 0.135f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {0}},
        lite_f16 = {16, 64, 64, 128, 64, true, 0.135f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {0}},
        many_f16 = {48, 64, 64, 128, 20, false, 0.135f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {0}},
        /* dims that groups of 64 do not divide */
        lone = {5, 30, 12, 100, 7, false, 0.15f, 1e-6f, KV_TYPE_F32, MLA_FASTER, false, {0}},
        lone_f16 = {2, 32, 8, 76, 12, true, 0.15f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {0}},
        odd_f16 = {4, 64, 32, 128, 64, true, 0.19f, 1e-6f, KV_TYPE_F16, MLA_FASTER, false, {0}},
        narrow_f16 = {3, 64, 4, 64, 20, false, 0.1f, 1e-3f, KV_TYPE_F16, MLA_FASTER, false, {0}};
    mla_case(l, &narrow, FORMAT_Q4, 0, 1);
    mla_case(l, &narrow, FORMAT_BF16, 250, 40);
    mla_case(l, &odd, FORMAT_F32, 254, 5);
    mla_case(l, &odd, FORMAT_F32, 700, 1);
    mla_case(l, &odd, FORMAT_Q4, 0, 70);
    mla_case(l, &narrow, FORMAT_Q4, 16383, 1);
    l->is_long = true;
    mla_case(l, &lite_f16, FORMAT_Q4, 16383, 1);
    mla_case(l, &odd, FORMAT_Q4, 100, 300);
    mla_case(l, &narrow, FORMAT_Q4, 40000, 2);
    mla_case(l, &crowd, FORMAT_Q4, 12300, 1);
    expanded_case(l, &odd_f16, FORMAT_Q4, 100, 300, 2);
    l->is_long = false;
    mla_case(l, &odd_f16, FORMAT_Q4, 250, 9);
    mla_case(l, &odd_f16, FORMAT_F32, 600, 1);
    form_case(l, &uneven, FORMAT_Q4, (struct bench){.n = 17});
    expanded_case(l, &narrow, FORMAT_BF16, 250, 40, 0);
    by_rows_case(l, &narrow, FORMAT_BF16, 250, 40);
    by_rows_case(l, &odd, FORMAT_F32, 254, 1);
    mla_case(l, &lone_f16, FORMAT_BF16, 3, 20);
    expanded_case(l, &odd, FORMAT_Q3, 60, 40, 0);
    expanded_case(l, &narrow, FORMAT_MXFP4, 0, 33, 0);
    by_rows_case(l, &lone_f16, FORMAT_BF16, 3, 20);
    q8_cases(l);
    choice_cases(l);
    l->is_rest = true;
    mla_case(l, &one, FORMAT_Q4, 0, 3);
    mla_case(l, &one, FORMAT_Q4, 513, 1);
    mla_case(l, &narrow_f16, FORMAT_Q4, 30, 40);
    mla_case(l, &lite_f16, FORMAT_Q4, 0, 1);
    mla_case(l, &lite_f16, FORMAT_Q4, 700, 1);
    mla_case(l, &crowd, FORMAT_Q4, 13000, 3);
    expanded_case(l, &odd, FORMAT_Q4, 900, 64, 3);
    mla_case(l, &lone, FORMAT_F32, 255, 1);
    mla_case(l, &lone, FORMAT_BF16, 90, 33);
    by_rows_case(l, &lone, FORMAT_BF16, 255, 1);
    by_rows_case(l, &lone, FORMAT_F32, 90, 21);
    small_cases(l);
    by_rows_case(l, &odd, FORMAT_Q6, 100, 1);
    expanded_case(l, &narrow_f16, FORMAT_Q4, 4200, 32, 0);
    expanded_case(l, &odd, FORMAT_F32, 0, 70, 1);
    l->is_rest = false;
    block_cases(l, &odd, &narrow);
    if (kt_is_brief(l)) /* what follows has the sizes of DeepSeek's models and others */
        return;
    mla_case(l, &v3, FORMAT_Q4, 700, 20);
    mla_case(l, &many_f16, FORMAT_Q4, 5503, 1);
    mla_case(l, &many_f16, FORMAT_Q4, 1100, 5);
    mla_case(l, &v3, FORMAT_Q4, 300, 1);
    mla_case(l, &v3, FORMAT_Q4, 255, 2);
    mla_case(l, &lite_f16, FORMAT_Q4, 900, 37);
    mla_case(l, &lite_f16, FORMAT_Q4, 0, 270);
    mla_case(l, &many_f16, FORMAT_Q4, 66000, 1);
    mla_case(l, &v3_f16, FORMAT_Q4, 2100, 1);
    form_case(l, &v3, FORMAT_Q4, (struct bench){.n = 40});
    expanded_case(l, &one, FORMAT_Q8, 0, 33, 0);
    expanded_case(l, &v3, FORMAT_Q4, 20, 50, 0);
    by_rows_case(l, &one, FORMAT_Q8, 0, 3);
    by_rows_case(l, &odd_f16, FORMAT_Q4, 100, 300);
    by_rows_case(l, &v3, FORMAT_Q4, 300, 1);
    by_rows_case(l, &v3, FORMAT_Q4, 20, 50);
}

static void swiglu_case(struct kernel_test *l, uint32_t inner, uint32_t n, float gating)
{
    if (!kt_takes(l, l->is_rest))
        return;
    struct test_buffer *src = kt_floats(l, 2 * (uint64_t)n * inner, -8, 8),
                       *dst = kt_bytes(l, NULL, 4 * (uint64_t)n * inner);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct swiglu op;
        if (swiglu_open(&op, l->side[s], gating, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        swiglu_run(&op, l->side[s],
                   &(struct swiglu_call){
                       .src = src->on[s].address, .dst = dst->on[s].address, .n = n, .inner = inner});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u, %u token%s%s", inner, n, n > 1 ? "s" : "", kt_gating_name(gating));
    kt_report(l, "swiglu", text, kt_error(l, dst, (uint64_t)n * inner), PREP_BOUND);
}

void selftest_swiglu_cases(struct kernel_test *l)
{
    swiglu_case(l, 4, 1, 0);
    swiglu_case(l, 320, 3, 0);
    swiglu_case(l, 18432, 2, 0);
    swiglu_case(l, 68, 5, GATING_GELU);
    swiglu_case(l, 2112, 1, GATING_GELU);
    swiglu_case(l, 68, 3, GATING_RELU);
    swiglu_case(l, 68, 2, 1.5f);
    swiglu_case(l, 68, 2, -1.5f);
    swiglu_case(l, 68, 2, -1.5f * GATING_INPUTS);
    swiglu_case(l, 3072, 1, gating_situ(4, 25));
    swiglu_case(l, 68, 3, gating_situ(0.5f, 0));
    swiglu_case(l, 68, 3, gating_situ(2, 1.5f));
}

/* The gates are a part of longer rows. */
static void head_gate_case(struct kernel_test *l, uint32_t n_heads, uint32_t dim, uint32_t n)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t stride = n_heads + 3;
    struct test_buffer *x = kt_floats(l, (uint64_t)n * n_heads * dim, -8, 8),
                       *gate = kt_floats(l, (uint64_t)n * stride, -8, 8);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct head_gate op;
        if (head_gate_open(&op, l->side[s], &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        head_gate_run(&op, l->side[s],
                      &(struct head_gate_call){.x = x->on[s].address,
                                               .gate = gate->on[s].address,
                                               .n = n,
                                               .n_heads = n_heads,
                                               .dim = dim,
                                               .stride = stride});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u heads of %u, %u token%s", n_heads, dim, n, n > 1 ? "s" : "");
    kt_report(l, "head_gate", text, kt_error(l, x, (uint64_t)n * n_heads * dim), PREP_BOUND);
}

void selftest_head_gate_cases(struct kernel_test *l)
{
    head_gate_case(l, 1, 4, 1);
    head_gate_case(l, 3, 36, 5);
    head_gate_case(l, 32, 128, 2);
    head_gate_case(l, 300, 1, 3);
}

static void add_case(struct kernel_test *l, uint32_t n, uint32_t every, bool sets)
{
    if (!kt_takes(l, l->is_rest))
        return;
    struct test_buffer *y = kt_floats(l, every ? every : n, -8, 8), *x = kt_floats(l, n, -8, 8);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct add op;
        if (add_open(&op, l->side[s], &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        add_run(&op, l->side[s],
                &(struct add_call){
                    .y = y->on[s].address, .x = x->on[s].address, .n = n, .every = every, .sets = sets});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, every ? "%u, every %u%s" : "%u", n, every, sets ? ", set" : "");
    kt_report(l, "add", text, kt_error(l, x, n), PREP_BOUND);
}

void selftest_add_cases(struct kernel_test *l)
{
    add_case(l, 4, 0, false);
    add_case(l, 1028, 0, false);
    add_case(l, 64 * 2048, 0, false);
    add_case(l, 7, 7, true);
    add_case(l, 3 * 2880, 2880, false);
    add_case(l, 37 * 5, 5, true);
}
