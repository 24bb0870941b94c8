/* Products of block formats with many tokens in 16-bit fixed point (gemm_int16 of cpu/product.h): the rule
 * and the error. What changes no bit is in test_cpu_gemm. Only processors with avx512 have them.
 *
 * suites: check fast asan */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "base/format_blocks.h"
#include "check.h"
#include "cpu_lab.h"

static const uint32_t formats[] = {CPU_LAB_SHORT_BLOCKS, CPU_LAB_BLOCKS};
enum { N_FORMATS = sizeof formats / sizeof *formats, UNIT = 256, LOT = 16 };

/* Skips the test if no instruction set has such products. */
static const struct cpu_isa *set_with_int16(void)
{
    const struct cpu_isa *found = NULL;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));)
        found = isa->gemm_int16 ? isa : found;
    if (!found) {
        print_message("SKIP: this processor has no avx512\n");
        skip();
    }
    return found;
}

/* y [n][rows] */
static float *product(const struct cpu_isa *isa, const struct cpu_matrix *w, const float *x, uint32_t n)
{
    float *y = cpu_lab_room((uint64_t)n * w->rows), *packed = cpu_lab_room((uint64_t)n * w->cols);
    float *scratch = cpu_lab_room(cpu_gemm_scratch_bytes(w->cols) / sizeof *scratch);
    isa->pack_int16(&(struct cpu_pack_call){
        .x = x, .x_stride = w->cols, .n = n, .cols = w->cols, .last = cpu_n_tiles(n), .packed = packed});
    isa->gemm_int16(&(struct cpu_gemm_call){
        .w = w, .packed = packed, .n = n, .last = w->rows, .y = y, .y_stride = w->rows, .scratch = scratch});
    free(packed);
    free(scratch);
    return y;
}

/* ---- the rule ---- */

static uint32_t columns_of_scale(uint32_t format)
{
    switch (format) {
    case FORMAT_G_Q2_K:
    case FORMAT_G_Q3_K:
    case FORMAT_G_Q6_K:
    case FORMAT_G_IQ1_M:
    case FORMAT_G_IQ2_XS:
    case FORMAT_G_IQ2_S:
    case FORMAT_G_NVFP4:
        return LOT;
    default:
        return 2 * LOT;
    }
}

/* Takes a row of a matrix apart. scales, biases: of 16 columns. */
static void open_row(const struct cpu_matrix *w, uint32_t row, int8_t *codes, float *scales, float *biases)
{
    const struct format *f = format_of(w->format);
    const uint8_t *p = (const uint8_t *)w->weight + (uint64_t)row * (w->cols / f->group) * f->block_bytes;
    for (uint32_t c = 0; c < w->cols; c += f->group, p += f->block_bytes) {
        struct format_block b;
        format_block_unpack(w->format, p, &b);
        memcpy(codes + c, b.codes, f->group);
        memcpy(scales + c / LOT, b.scales, f->group / LOT * sizeof *scales);
        for (uint32_t i = 0; i < f->group / LOT; i++)
            biases[c / LOT + i] = format_block_has_bias(w->format) ? b.biases[i] : 0;
    }
}

/* Sets v to x / step of a unit and returns the step. */
static float unit_in_16_bits(const float *x, uint32_t n, int32_t *v)
{
    float largest = 0, step;
    for (uint32_t c = 0; c < n; c++)
        largest = fmaxf(largest, fabsf(x[c]));
    step = largest / 32767;
    bool is_small = step < FLT_MIN;
    for (uint32_t c = 0; c < n; c++)
        v[c] = largest > 0 ? (int32_t)nearbyintf(x[c] * (is_small ? 1 / FLT_MIN : 32767 / largest)) : 0;
    return is_small && largest > 0 ? FLT_MIN : step;
}

/* Adds a part of 32 columns to the unit's f. */
static float add_part(const struct cpu_matrix *w, const int8_t *codes, const float *scales,
                      const float *biases, const int32_t *v, float f)
{
    uint32_t group = columns_of_scale(w->format);
    int64_t x_sum = 0;
    for (uint32_t at = 0; at < 2 * LOT; at += group) {
        int64_t sum = 0;
        for (uint32_t c = at; c < at + group; c++)
            sum += codes[c] * v[c];
        f = fmaf((float)sum, scales[at / LOT], f);
    }
    for (uint32_t at = 0; at < 2 * LOT && format_block_has_bias(w->format); at += group, x_sum = 0) {
        for (uint32_t c = at; c < at + group; c++)
            x_sum += v[c];
        f = fmaf(biases[at / LOT], (float)x_sum, f);
    }
    return f;
}

static float rule(const struct cpu_matrix *w, uint32_t row, const float *x)
{
    static int8_t codes[4096];
    static float scales[4096 / LOT], biases[4096 / LOT];
    float y = 0;
    assert_true(w->cols <= sizeof codes);
    open_row(w, row, codes, scales, biases);
    for (uint32_t unit = 0; unit < w->cols; unit += UNIT) {
        uint32_t n = w->cols - unit < UNIT ? w->cols - unit : UNIT;
        int32_t v[UNIT];
        float f = 0, step = unit_in_16_bits(x + unit, n, v);
        for (uint32_t c = 0; c < n; c += 2 * LOT)
            f = add_part(w, codes + unit + c, scales + (unit + c) / LOT, biases + (unit + c) / LOT, v + c, f);
        y = fmaf(f, step, y);
    }
    return y;
}

static void outputs_follow_the_rule(void **state)
{
    (void)state;
    /* Every number of tokens of a tile, one sub and two, columns after the last unit. */
    static const struct {
        uint32_t rows, cols, tokens;
    } shapes[] = {{1, 256, 1},   {16, 512, 2},  {17, 768, 3},  {33, 256, 4},
                  {32, 1024, 5}, {70, 512, 13}, {47, 256, 400}};
    const struct cpu_isa *isa = set_with_int16();
    for (uint32_t k = 0; k < N_FORMATS; k++)
        for (uint32_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            uint32_t n = shapes[s].tokens, rows = shapes[s].rows,
                     more = format_of(formats[k])->group < UNIT ? 64 : 0;
            struct cpu_lab l;
            char name[64], format[CPU_LAB_NAME];
            cpu_lab_matrix(&l, formats[k], rows, shapes[s].cols + more, 700 + s);
            float *x = cpu_lab_floats((uint64_t)n * l.w.cols, 710 + s);
            memset(x, 0, 64 * sizeof *x);
            x[l.w.cols - 1] = 1e-39f;
            float *want = cpu_lab_room((uint64_t)n * rows), *y = product(isa, &l.w, x, n);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t r = 0; r < rows; r++)
                    want[(uint64_t)i * rows + r] = rule(&l.w, r, x + (uint64_t)i * l.w.cols);
            snprintf(name, sizeof name, "int16-%s-%ux%ux%u", cpu_lab_format(l.w.format, format), rows,
                     l.w.cols, n);
            cpu_bits_equal(name, isa->name, y, want, (uint64_t)n * rows);
            free(x);
            free(y);
            free(want);
            cpu_lab_free(&l);
        }
}

static void the_error_is_that_of_16_bits(void **state)
{
    (void)state;
    enum { ROWS = 200, N = 5, COLS = 2048 };
    const struct cpu_isa *isa = set_with_int16();
    for (uint32_t k = 0; k < N_FORMATS; k++) {
        struct cpu_lab l;
        double *want = malloc(ROWS * N * sizeof *want);
        assert_non_null(want);
        cpu_lab_matrix(&l, formats[k], ROWS, COLS, 720 + k);
        float *x = cpu_lab_floats((uint64_t)N * COLS, 721 + k), *y = product(isa, &l.w, x, N);
        for (uint32_t i = 0; i < N; i++)
            cpu_lab_product(&l.w, x + (uint64_t)i * COLS, want + (uint64_t)i * ROWS);
        double error = cpu_lab_worst(y, want, ROWS * N) / cpu_lab_rms(want, ROWS * N);
        /* 2.7 to 4.1e-4: nearly every unit has outliers of ten sigma, and so a step of about 1e-3. */
        if (!(error < 5e-4))
            fail_msg("%s: largest error / rms %.2g", format_of(formats[k])->name, error);
        free(want);
        free(x);
        free(y);
        cpu_lab_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_follow_the_rule),
        cmocka_unit_test(the_error_is_that_of_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
