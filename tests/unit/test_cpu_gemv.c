/* Products with one vector (cpu/product.h): the order of the sums, the error, the bits of every instruction
 * set.
 *
 * suites: check fast asan */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/f16.h"
#include "base/format.h"
#include "base/format_blocks.h"
#include "cpu/team.h"
#include "check.h"
#include "cpu_lab.h"

struct shape {
    uint32_t format;
    uint32_t rows, cols;
};

#define OTHERS(f) {f, 1, 64}, {f, 5, 128}, {f, 6, 192}, {f, 17, 576}, {f, 3, 4160},
#define OF_128(f) {f, 1, 128}, {f, 6, 384}, {f, 9, 1152}, {f, 3, 4224},
#define OF_256(f) {f, 1, 256}, {f, 5, 768}, {f, 3, 4352},
static const struct shape shapes[] = {
    {FORMAT_Q4, 1, 64},
    {FORMAT_Q4, 5, 128},
    {FORMAT_Q4, 7, 192},
    {FORMAT_Q4, 33, 512},
    {FORMAT_Q4, 70, 576},
    {FORMAT_Q4, 16, 2048},
    {FORMAT_Q4, 3, 4160},
    {FORMAT_Q4, 2, 8192},
    {FORMAT_Q8, 1, 64},
    {FORMAT_Q8, 9, 128},
    {FORMAT_Q8, 6, 192},
    {FORMAT_Q8, 34, 512},
    {FORMAT_Q8, 12, 2048},
    {FORMAT_Q8, 3, 4160},
    {FORMAT_BF16, 1, 1},
    {FORMAT_BF16, 3, 15},
    {FORMAT_BF16, 5, 16},
    {FORMAT_BF16, 9, 17},
    {FORMAT_BF16, 4, 127},
    {FORMAT_BF16, 13, 2048},
    {FORMAT_F32, 1, 1},
    {FORMAT_F32, 3, 15},
    {FORMAT_F32, 5, 16},
    {FORMAT_F32, 9, 33},
    {FORMAT_F32, 4, 127},
    {FORMAT_F32, 14, 1024},
    OTHERS(FORMAT_Q2) OTHERS(FORMAT_Q3) OTHERS(FORMAT_Q5) OTHERS(FORMAT_Q6)
        OTHERS(FORMAT_Q8 + FORMAT_GROUP_32 + FORMAT_SCALE_F16) OTHERS(FORMAT_Q4 + FORMAT_GROUP_32)
            OTHERS(FORMAT_Q3 + FORMAT_GROUP_32 + FORMAT_SCALE_F16)
                OTHERS(FORMAT_Q6 + FORMAT_GROUP_32 + FORMAT_SCALE_F32) OTHERS(FORMAT_MXFP4)
                    OTHERS(FORMAT_MXFP8) OTHERS(FORMAT_NVFP4)
                        OF_128(FORMAT_Q2 + FORMAT_GROUP_128 + FORMAT_SCALE_F16)
                            OF_128(FORMAT_Q4 + FORMAT_GROUP_128)
                                OF_128(FORMAT_Q5 + FORMAT_GROUP_128 + FORMAT_SCALE_F32){FORMAT_F16, 1, 1},
    {FORMAT_F16, 3, 15},
    {FORMAT_F16, 9, 17},
    {FORMAT_F16, 4, 1000},
    OTHERS(FORMAT_G_Q4_0) OTHERS(FORMAT_G_Q4_1) OTHERS(FORMAT_G_Q5_0) OTHERS(FORMAT_G_Q5_1)
        OTHERS(FORMAT_G_Q8_0) OTHERS(FORMAT_G_IQ4_NL) OTHERS(FORMAT_G_MXFP4) OTHERS(FORMAT_G_NVFP4)
            OF_256(FORMAT_G_Q2_K) OF_256(FORMAT_G_Q3_K) OF_256(FORMAT_G_Q4_K) OF_256(FORMAT_G_Q5_K)
                OF_256(FORMAT_G_Q6_K) OF_256(FORMAT_G_IQ1_S) OF_256(FORMAT_G_IQ1_M) OF_256(FORMAT_G_IQ2_XXS)
                    OF_256(FORMAT_G_IQ2_XS) OF_256(FORMAT_G_IQ2_S) OF_256(FORMAT_G_IQ3_XXS)
                        OF_256(FORMAT_G_IQ3_S) OF_256(FORMAT_G_IQ4_XS) OF_256(FORMAT_G_TQ1_0)
                            OF_256(FORMAT_G_TQ2_0) OTHERS(FORMAT_FP8_32) OF_128(FORMAT_FP8)
                                OTHERS(FORMAT_NVFP4_FACTOR)};
static const uint32_t formats[] = {CPU_LAB_FORMATS};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_FORMATS = sizeof formats / sizeof *formats,
    MAX_ROWS = 600
};

/* ---- the rule of product.h, one operation after the other */
static float tree(const float acc[2][8])
{
    float t[8];
    for (int l = 0; l < 8; l++)
        t[l] = acc[0][l] + acc[1][l];
    for (int l = 0; l < 4; l++)
        t[l] += t[l + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

static float rule_sum(const float *x)
{
    float acc[2][8] = {{0}};
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < 8; i++)
            acc[0][l] = i == 0 ? x[8 * l] : acc[0][l] + x[8 * l + i];
    return tree(acc);
}

static float rule_step(const float *x)
{
    float most = 0;
    for (int i = 0; i < 64; i++) {
        if (!isfinite(x[i]))
            return NAN;
        most = fmaxf(most, fabsf(x[i]));
    }
    return most > 0 ? fmaxf(most / 8323071.0f, FLT_MIN) : 0;
}

/* What a digit is multiplied with; of E2M1 twice the value. */
static int code(const struct cpu_matrix *w, uint32_t row, uint32_t col)
{
    const struct format *f = format_of(w->format);
    uint32_t c = format_code(w->weight, f->bits, (uint64_t)row * w->cols + col);
    return f->scheme == SCHEME_E2M1 ? (int)(2 * e2m1_to_float((uint8_t)c)) : (int)c;
}

static float group_of(const struct cpu_matrix *w, const void *values, uint32_t row, uint32_t col)
{
    const struct format *f = format_of(w->format);
    float v = format_scale(f->scale, values, ((uint64_t)row * w->cols + col) / f->group);
    if (f->has_factor) {
        float factor;
        memcpy(&factor, w->biases, sizeof factor);
        v *= factor;
    }
    return f->scheme == SCHEME_E2M1 ? v / 2 : v;
}

/* Computes x's digits over 8 columns times whole numbers, in the way of the rule. */
static float rule_lane(const float *x, float step, const int codes[8])
{
    int32_t sum[3] = {0};
    for (int i = 0; i < 8; i++) {
        int32_t v = step > 0 ? (int32_t)rintf(x[i] / step) : 0, d[3];
        d[2] = ((v & 255) ^ 128) - 128;
        v = (v - d[2]) / 256;
        d[1] = ((v & 255) ^ 128) - 128;
        d[0] = (v - d[1]) / 256;
        for (int k = 0; k < 3; k++)
            sum[k] += codes[i] * d[k];
    }
    return fmaf(fmaf((float)sum[0], 256, (float)sum[1]), 256, (float)sum[2]);
}

static void rule_block(const struct cpu_matrix *w, uint32_t row, uint32_t b, const float *x, float acc[8])
{
    float step = rule_step(x + 64 * b);
    for (uint32_t l = 0; l < 8; l++) {
        uint32_t from = 64 * b + 8 * l;
        int codes[8];
        for (uint32_t i = 0; i < 8; i++)
            codes[i] = code(w, row, from + i);
        float f = rule_lane(x + from, step, codes);
        acc[l] = fmaf(f, group_of(w, w->scales, row, from) * step, acc[l]);
    }
}

/* The sum of a group's x. */
static float rule_group(const float *x, uint32_t group)
{
    float half[64] = {0};
    if (group == 128)
        return rule_sum(x) + rule_sum(x + 64);
    memcpy(half, x, group * sizeof *x);
    return rule_sum(half);
}

/* The sum of 8 columns in their order. */
static float rule_eight(const float *x)
{
    float sum = x[0];
    for (int i = 1; i < 8; i++)
        sum += x[i];
    return sum;
}

/* The rule for block formats. */
static float rule_of_blocks(const struct cpu_matrix *w, uint32_t row, const float *x)
{
    static const uint32_t first[8] = {0, 4, 32, 36, 16, 20, 48, 52};
    const struct format *f = format_of(w->format);
    bool has_bias = format_block_has_bias(w->format);
    uint32_t bias_cols = w->format == FORMAT_G_Q2_K ? 16 : 32;
    float acc[2][8] = {{0}}, third[8] = {0};
    for (uint32_t c = 0, lot = 0; c < w->cols; c += 64)
        for (uint32_t l = 0; l < 8; l++) {
            uint32_t col = c + first[l], at = col % f->group;
            uint64_t block = ((uint64_t)row * w->cols + col) / f->group;
            struct format_block b;
            int codes[8];
            float some[8];
            format_block_unpack(w->format, (const uint8_t *)w->weight + block * f->block_bytes, &b);
            for (uint32_t i = 0; i < 8; i++) {
                uint32_t k = i < 4 ? i : i + 4; /* 4 columns, and 4 that are 8 columns after them */
                codes[i] = (int)b.codes[at + k];
                some[i] = x[col + k];
            }
            float step = rule_step(x + c), *to = &acc[c / 64 % 2][l];
            *to = fmaf(rule_lane(some, step, codes), b.scales[at / 16] * step, *to);
            if (has_bias && l % 2 == 0 && col % bias_cols == 0) {
                float sum =
                    bias_cols == 32 ? rule_group(x + col, 32) : rule_eight(x + col) + rule_eight(x + col + 8);
                third[lot % 8] = fmaf(b.biases[at / 16], sum, third[lot % 8]);
                lot++;
            }
        }
    for (int l = 0; l < 8; l++) {
        acc[0][l] = (acc[0][l] + acc[1][l]) + third[l];
        acc[1][l] = 0;
    }
    return tree(acc);
}

static float rule(const struct cpu_matrix *w, uint32_t row, const float *x)
{
    float acc[2][8] = {{0}};
    const struct format *f = format_of(w->format);
    if (format_is_block(w->format))
        return rule_of_blocks(w, row, x);
    if (!cpu_format_takes_digits(w->format)) {
        for (uint32_t c = 0; c < w->cols; c++)
            acc[c / 8 % 2][c % 8] = fmaf((float)cpu_lab_weight(w, row, c), x[c], acc[c / 8 % 2][c % 8]);
        return tree(acc);
    }
    for (uint32_t g = 0; f->has_bias && g < w->cols / f->group; g++)
        acc[0][g % 8] = fmaf(group_of(w, w->biases, row, g * f->group),
                             rule_group(x + (size_t)g * f->group, f->group), acc[0][g % 8]);
    for (uint32_t b = 0; b < w->cols / 64; b++)
        rule_block(w, row, b, x, acc[b % 2]);
    return tree(acc);
}

/* gemv writes to y. NOLINTBEGIN(readability-non-const-parameter) */
static void run(const struct cpu_isa *isa, const struct cpu_matrix *w, const struct cpu_vector *x, uint32_t n,
                float *y)
{
    const struct cpu_gemv_call call = {.w = w, .x = x, .n = n, .last = w->rows, .y = y, .y_stride = MAX_ROWS};
    isa->gemv(&call);
}
/* NOLINTEND(readability-non-const-parameter) */

static void each_output_follows_the_rule_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SHAPES; s++) {
        struct cpu_lab l;
        float y[MAX_ROWS], want[MAX_ROWS];
        char name[64], format[CPU_LAB_NAME];
        cpu_lab_matrix(&l, shapes[s].format, shapes[s].rows, shapes[s].cols, s);
        float *x = cpu_lab_floats(l.w.cols, 1000 + s);
        for (uint32_t c = 64; c < 128 && c < l.w.cols && s % 2; c++)
            x[c] = 0; /* a block without a step */
        for (uint32_t r = 0; r < l.w.rows; r++)
            want[r] = rule(&l.w, r, x);
        snprintf(name, sizeof name, "gemv-%s-%ux%u", cpu_lab_format(l.w.format, format), l.w.rows, l.w.cols);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            void *memory;
            struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
            run(isa, &l.w, &v, 1, y);
            cpu_bits_equal(name, isa->name, y, want, l.w.rows);
            free(memory);
        }
        cpu_bits_check(name, "the rule", want, l.w.rows);
        free(x);
        cpu_lab_free(&l);
    }
}

static void the_error_is_that_of_float32(void **state)
{
    (void)state;
    static const struct shape large[] = {{FORMAT_Q4, 600, 2048},
                                         {FORMAT_Q4, 400, 512},
                                         {FORMAT_Q8, 400, 2048},
                                         {FORMAT_BF16, 400, 2048},
                                         {FORMAT_F32, 400, 1000}};
    enum { N_LARGE = sizeof large / sizeof *large };
    for (uint32_t s = 0; s < N_LARGE + N_FORMATS; s++) {
        struct cpu_lab l;
        static double want[MAX_ROWS];
        static float y[MAX_ROWS];
        uint32_t format = s < N_LARGE ? large[s].format : formats[s - N_LARGE];
        cpu_lab_matrix(&l, format, s < N_LARGE ? large[s].rows : 100, s < N_LARGE ? large[s].cols : 1024,
                       50 + s);
        float *x = cpu_lab_floats(l.w.cols, 60 + s);
        cpu_lab_product(&l.w, x, want);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            void *memory;
            struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
            run(isa, &l.w, &v, 1, y);
            double error = cpu_lab_worst(y, want, l.w.rows) / cpu_lab_rms(want, l.w.rows);
            if (!(error < 3e-6))
                fail_msg("%s, %s: largest error / rms %.2g", isa->name, format_of(format)->name, error);
            free(memory);
        }
        free(x);
        cpu_lab_free(&l);
    }
}

static void results_of_several_vectors_are_batch_invariant(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SHAPES; s++) {
        struct cpu_lab l;
        cpu_lab_matrix(&l, shapes[s].format, shapes[s].rows, shapes[s].cols, 200 + s);
        float *x = cpu_lab_floats((uint64_t)l.w.cols * CPU_MAX_BATCHED, 300 + s);
        float *batched = cpu_lab_room(MAX_ROWS * CPU_MAX_BATCHED);
        static float single[MAX_ROWS];
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            struct cpu_vector v[CPU_MAX_BATCHED];
            void *memory[CPU_MAX_BATCHED];
            for (uint32_t i = 0; i < CPU_MAX_BATCHED; i++)
                v[i] = cpu_lab_vector(isa, &l.w, x + (uint64_t)i * l.w.cols, &memory[i]);
            for (uint32_t n = 1; n <= CPU_MAX_BATCHED; n++) {
                run(isa, &l.w, v, n, batched);
                for (uint32_t i = 0; i < n; i++) {
                    run(isa, &l.w, &v[i], 1, single);
                    cpu_bits_equal("batched", isa->name, batched + i * MAX_ROWS, single, l.w.rows);
                }
            }
            for (uint32_t i = 0; i < CPU_MAX_BATCHED; i++)
                free(memory[i]);
        }
        free(x);
        free(batched);
        cpu_lab_free(&l);
    }
}

struct split {
    const struct cpu_isa *isa;
    struct cpu_gemv_call call;
    uint32_t rows_a_block;
};

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct split *s = ctx;
    struct cpu_gemv_call call = s->call;
    (void)thread;
    call.first = block * s->rows_a_block;
    call.last = call.first + s->rows_a_block;
    call.last = call.last < call.w->rows ? call.last : call.w->rows;
    s->isa->gemv(&call);
}

static void threads_and_the_division_of_the_rows_change_no_bit(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        uint32_t f = formats[i];
        struct cpu_lab l;
        static float want[MAX_ROWS], y[MAX_ROWS];
        cpu_lab_matrix(&l, f, 203, 512, 70);
        float *x = cpu_lab_floats(512, 71);
        const struct cpu_isa *isa = cpu_isa_find(NULL, &e);
        void *memory;
        struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
        run(isa, &l.w, &v, 1, want);
        for (uint32_t n = 1; n <= 5; n += 2) {
            struct team *t = team_new(n, &e);
            assert_non_null(t);
            for (uint32_t rows = 1; rows < 300; rows += 41) {
                struct split s = {isa, {.w = &l.w, .x = &v, .n = 1, .y = y}, rows};
                memset(y, 0xff, sizeof y);
                team_for(t, (203 + rows - 1) / rows, run_block, &s);
                cpu_bits_equal("threads", isa->name, y, want, 203);
            }
            team_free(t);
        }
        free(memory);
        free(x);
        cpu_lab_free(&l);
    }
}

/* Every output of a product with x changed at one place. */
static void expect_all(uint32_t f, float at_100, bool nan)
{
    struct cpu_lab l;
    cpu_lab_matrix(&l, f, 20, 768, 80);
    float *x = cpu_lab_floats(768, 81), y[MAX_ROWS];
    x[100] = at_100;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        void *memory;
        struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
        run(isa, &l.w, &v, 1, y);
        for (uint32_t r = 0; r < 20; r++)
            if (nan ? !isnan(y[r]) : isfinite(y[r]))
                fail_msg("%s, %s, %g: output %u is %g", isa->name, format_of(f)->name, (double)at_100, r,
                         (double)y[r]);
        free(memory);
    }
    free(x);
    cpu_lab_free(&l);
}

static void a_value_that_is_no_number_poisons_every_output(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        uint32_t f = formats[i];
        expect_all(f, NAN, true);
        expect_all(f, INFINITY, cpu_format_takes_digits(f));
        expect_all(f, -INFINITY, cpu_format_takes_digits(f));
    }
}

static void zeros_give_zero(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SHAPES; s++) {
        struct cpu_lab l;
        cpu_lab_matrix(&l, shapes[s].format, shapes[s].rows, shapes[s].cols, 90 + s);
        float *x = calloc(l.w.cols, sizeof *x), y[MAX_ROWS];
        assert_non_null(x);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            void *memory;
            struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
            run(isa, &l.w, &v, 1, y);
            for (uint32_t r = 0; r < l.w.rows; r++)
                assert_true(y[r] == 0);
            free(memory);
        }
        free(x);
        cpu_lab_free(&l);
    }
}

/* Largest error over the largest output, of x times a power of two. */
static double error_of_scaled(const struct cpu_isa *isa, int exponent)
{
    struct cpu_lab l;
    cpu_lab_matrix(&l, FORMAT_Q4, 100, 512, 95);
    float *x = cpu_lab_floats(512, 96), y[MAX_ROWS];
    double want[MAX_ROWS];
    for (uint32_t i = 0; i < 512; i++)
        x[i] = ldexpf(x[i], exponent);
    cpu_lab_product(&l.w, x, want);
    void *memory;
    struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
    run(isa, &l.w, &v, 1, y);
    double error = cpu_lab_worst(y, want, 100) / cpu_lab_rms(want, 100);
    free(memory);
    free(x);
    cpu_lab_free(&l);
    return error;
}

static void very_small_and_large_vectors_keep_their_digits(void **state)
{
    (void)state;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        assert_true(error_of_scaled(isa, -90) < 3e-6);
        assert_true(error_of_scaled(isa, 100) < 3e-6);
        /* A step below FLT_MIN is not taken: digits are lost, but none overflow. */
        assert_true(error_of_scaled(isa, -110) < 1e-3);
        assert_true(error_of_scaled(isa, -120) < 1);
    }
}

static void a_matrix_may_lie_at_any_address(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        uint32_t f = formats[i];
        struct cpu_lab l, odd;
        cpu_lab_matrix(&l, f, 70, 768, 660);
        cpu_lab_move(&odd, &l.w);
        float *x = cpu_lab_floats(768, 661);
        uint32_t idx = 0;
        float want[MAX_ROWS], y[MAX_ROWS];
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            void *memory;
            struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
            run(isa, &l.w, &v, 1, want);
            run(isa, &odd.w, &v, 1, y);
            cpu_bits_equal("odd addresses", isa->name, y, want, l.w.rows);
            free(memory);
        }
        free(x);
        cpu_lab_free(&l);
        cpu_lab_free(&odd);
    }
}

/* A scale of each exponent; with numbers that all have a leading one, and with one that is 0, without one, or
 * no number. */
static void every_scale_and_number_of_mxfp8_follows_the_rule(void **state)
{
    (void)state;
    enum { ROWS = 256, COLS = 64, GROUP = 32 };
    static const uint8_t one_of[] = {0x40, 0x00, 0x80, 0x01, 0x87, 0x08, 0x7e, 0xfe, 0x7f, 0xff};
    for (size_t k = 0; k < sizeof one_of; k++) {
        struct cpu_lab l;
        float want[ROWS], y[ROWS];
        cpu_lab_matrix(&l, FORMAT_MXFP8, ROWS, COLS, 90);
        uint8_t *codes = l.weight, *scales = l.scales;
        for (uint32_t i = 0; i < ROWS * COLS; i++) {
            codes[i] = (uint8_t)((codes[i] & 0x8f) + 0x48);
            if (i % GROUP == (i / COLS) % GROUP)
                codes[i] = one_of[k];
        }
        for (uint32_t i = 0; i < ROWS * COLS / GROUP; i++)
            scales[i] = (uint8_t)(i / (COLS / GROUP));
        float *x = cpu_lab_floats(COLS, 91);
        for (uint32_t r = 0; r < ROWS; r++)
            want[r] = rule(&l.w, r, x);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            void *memory;
            struct cpu_vector v = cpu_lab_vector(isa, &l.w, x, &memory);
            run(isa, &l.w, &v, 1, y);
            cpu_bits_equal("scales", isa->name, y, want, ROWS);
            free(memory);
        }
        free(x);
        cpu_lab_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_output_follows_the_rule_bit_for_bit),
        cmocka_unit_test(the_error_is_that_of_float32),
        cmocka_unit_test(results_of_several_vectors_are_batch_invariant),
        cmocka_unit_test(threads_and_the_division_of_the_rows_change_no_bit),
        cmocka_unit_test(a_value_that_is_no_number_poisons_every_output),
        cmocka_unit_test(zeros_give_zero),
        cmocka_unit_test(very_small_and_large_vectors_keep_their_digits),
        cmocka_unit_test(a_matrix_may_lie_at_any_address),
        cmocka_unit_test(every_scale_and_number_of_mxfp8_follows_the_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
