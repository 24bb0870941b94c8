/* Products with many tokens (cpu/product.h): the order of the sums, the error, the bits of every instruction
 * set. What neighbours, threads, addresses and a NaN change holds for gemm_int16, too, whose own rule is in
 * test_cpu_int16.
 *
 * suites: check fast asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "cpu/team.h"
#include "check.h"
#include "cpu_lab.h"

struct shape {
    uint32_t format;
    uint32_t rows, cols, tokens;
};

#define OTHERS(f) {f, 1, 128, 1}, {f, 65, 384, 6}, {f, 33, 640, 13},
#define OF_256(f) {f, 1, 256, 1}, {f, 33, 768, 7},
/* Every number of tokens of a tile, of subs of a strip and of columns after a panel. */
static const struct shape shapes[] = {
    {FORMAT_Q4, 1, 64, 1},
    {FORMAT_Q4, 64, 128, 1},
    {FORMAT_Q4, 50, 192, 2},
    {FORMAT_Q4, 130, 320, 3},
    {FORMAT_Q4, 33, 576, 4},
    {FORMAT_Q4, 16, 256, 5},
    {FORMAT_Q4, 65, 1088, 6},
    {FORMAT_Q4, 70, 320, 7},
    {FORMAT_Q4, 48, 128, 13},
    {FORMAT_Q4, 20, 2048, 48},
    {FORMAT_Q4, 17, 64, 400},
    {FORMAT_Q8, 1, 64, 1},
    {FORMAT_Q8, 47, 192, 2},
    {FORMAT_Q8, 65, 320, 5},
    {FORMAT_Q8, 100, 576, 9},
    {FORMAT_Q8, 16, 1088, 30},
    {FORMAT_BF16, 3, 1, 1},
    {FORMAT_BF16, 15, 15, 2},
    {FORMAT_BF16, 16, 16, 3},
    {FORMAT_BF16, 70, 17, 7},
    {FORMAT_BF16, 65, 257, 6},
    {FORMAT_BF16, 80, 300, 11},
    {FORMAT_F32, 1, 1, 1},
    {FORMAT_F32, 15, 7, 2},
    {FORMAT_F32, 64, 8, 1},
    {FORMAT_F32, 70, 33, 8},
    {FORMAT_F32, 65, 257, 6},
    {FORMAT_F32, 33, 1000, 14},
    OTHERS(FORMAT_Q2) OTHERS(FORMAT_Q3) OTHERS(FORMAT_Q5) OTHERS(FORMAT_Q6)
        OTHERS(FORMAT_Q8 + FORMAT_GROUP_32 + FORMAT_SCALE_F16) OTHERS(FORMAT_Q4 + FORMAT_GROUP_32)
            OTHERS(FORMAT_Q3 + FORMAT_GROUP_32 + FORMAT_SCALE_F16)
                OTHERS(FORMAT_Q6 + FORMAT_GROUP_32 + FORMAT_SCALE_F32) OTHERS(FORMAT_Q4 + FORMAT_GROUP_128)
                    OTHERS(FORMAT_Q5 + FORMAT_GROUP_128 + FORMAT_SCALE_F32) OTHERS(FORMAT_MXFP4)
                        OTHERS(FORMAT_MXFP8) OTHERS(FORMAT_NVFP4){FORMAT_F16, 3, 1, 1},
    {FORMAT_F16, 15, 15, 2},
    {FORMAT_F16, 70, 17, 7},
    {FORMAT_F16, 65, 257, 6},
    OTHERS(FORMAT_G_Q4_0) OTHERS(FORMAT_G_Q4_1) OTHERS(FORMAT_G_Q5_0) OTHERS(FORMAT_G_Q5_1)
        OTHERS(FORMAT_G_Q8_0) OTHERS(FORMAT_G_IQ4_NL) OTHERS(FORMAT_G_MXFP4) OTHERS(FORMAT_G_NVFP4)
            OF_256(FORMAT_G_Q2_K) OF_256(FORMAT_G_Q3_K) OF_256(FORMAT_G_Q4_K) OF_256(FORMAT_G_Q5_K)
                OF_256(FORMAT_G_Q6_K) OF_256(FORMAT_G_IQ1_S) OF_256(FORMAT_G_IQ1_M) OF_256(FORMAT_G_IQ2_XXS)
                    OF_256(FORMAT_G_IQ2_XS) OF_256(FORMAT_G_IQ2_S) OF_256(FORMAT_G_IQ3_XXS)
                        OF_256(FORMAT_G_IQ3_S) OF_256(FORMAT_G_IQ4_XS) OF_256(FORMAT_G_TQ1_0)
                            OF_256(FORMAT_G_TQ2_0) OTHERS(FORMAT_FP8_32) OTHERS(FORMAT_NVFP4_FACTOR)};
static const uint32_t formats[] = {CPU_LAB_FORMATS};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_FORMATS = sizeof formats / sizeof *formats };

static float rule(const struct cpu_matrix *w, uint32_t row, const float *x)
{
    static float weights[2048];
    float y = 0;
    assert_true(w->cols <= sizeof weights / sizeof *weights);
    format_decode(format_of(w->format), w->weight, w->scales, w->biases, (uint64_t)row * w->cols, w->cols,
                  weights);
    for (uint32_t c = 0; c < w->cols; c++)
        y = fmaf(weights[c], x[c], y);
    return y;
}

/* One way to multiply many tokens. */
struct way {
    const char *name;
    bool is_int16;
    cpu_pack_fn *pack;
    cpu_gemm_fn *gemm;
};

static struct way gemm_of(const struct cpu_isa *isa)
{
    return (struct way){isa->name, false, isa->pack, isa->gemm};
}

/* Steps through gemm of every set, and gemm_int16 where a set has it for the format. *idx begins at 0. */
static bool next_way(uint32_t *idx, uint32_t format, struct way *out)
{
    for (; *idx < 2 * CPU_N_ISAS; ++*idx) {
        const struct cpu_isa *isa = cpu_isa_at(*idx / 2);
        bool is_int16 = *idx % 2;
        if (!isa || (is_int16 && !(isa->gemm_int16 && cpu_format_takes_int16(format))))
            continue;
        *out = is_int16 ? (struct way){isa->name, true, isa->pack_int16, isa->gemm_int16} : gemm_of(isa);
        ++*idx;
        return true;
    }
    return false;
}

static float *packed(const struct way *way, const float *x, const uint32_t *pick, uint32_t n, uint32_t cols)
{
    float *to = cpu_lab_room((uint64_t)n * cols);
    struct cpu_pack_call call = {.x = x,
                                 .x_stride = cols,
                                 .pick = pick,
                                 .n = n,
                                 .cols = cols,
                                 .last = cpu_n_tiles(n) / 2,
                                 .packed = to};
    way->pack(&call);
    call.first = call.last;
    call.last = cpu_n_tiles(n);
    way->pack(&call);
    return to;
}

/* y [n][rows] */
static float *product(const struct way *way, const struct cpu_matrix *w, const float *x, uint32_t n)
{
    float *y = cpu_lab_room((uint64_t)n * w->rows), *p = packed(way, x, NULL, n, w->cols);
    float *scratch = cpu_lab_room(cpu_gemm_scratch_bytes(w->cols) / sizeof *scratch);
    const struct cpu_gemm_call call = {
        .w = w, .packed = p, .n = n, .last = w->rows, .y = y, .y_stride = w->rows, .scratch = scratch};
    way->gemm(&call);
    free(p);
    free(scratch);
    return y;
}

static void each_output_is_one_chain_in_the_order_of_the_columns(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SHAPES; s++) {
        struct cpu_lab l;
        char name[64], format[CPU_LAB_NAME];
        uint32_t n = shapes[s].tokens, rows = shapes[s].rows, idx = 0;
        cpu_lab_matrix(&l, shapes[s].format, rows, shapes[s].cols, 400 + s);
        float *x = cpu_lab_floats((uint64_t)n * l.w.cols, 500 + s), *want = cpu_lab_room((uint64_t)n * rows);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < rows; r++)
                want[(uint64_t)i * rows + r] = rule(&l.w, r, x + (uint64_t)i * l.w.cols);
        snprintf(name, sizeof name, "gemm-%s-%ux%ux%u", cpu_lab_format(l.w.format, format), rows, l.w.cols,
                 n);
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            const struct way way = gemm_of(isa);
            float *y = product(&way, &l.w, x, n);
            cpu_bits_equal(name, isa->name, y, want, (uint64_t)n * rows);
            free(y);
        }
        cpu_bits_check(name, "the rule", want, (uint64_t)n * rows);
        free(x);
        free(want);
        cpu_lab_free(&l);
    }
}

static void the_error_is_that_of_float32(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < N_FORMATS; k++) {
        uint32_t f = formats[k];
        enum { ROWS = 200, N = 5 };
        struct cpu_lab l;
        double *want = malloc(ROWS * N * sizeof *want);
        assert_non_null(want);
        cpu_lab_matrix(&l, f, ROWS, 2048, 600 + f);
        float *x = cpu_lab_floats((uint64_t)N * l.w.cols, 610 + f);
        for (uint32_t i = 0; i < N; i++)
            cpu_lab_product(&l.w, x + (uint64_t)i * l.w.cols, want + i * ROWS);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            const struct way way = gemm_of(isa);
            float *y = product(&way, &l.w, x, N);
            double error = cpu_lab_worst(y, want, ROWS * N) / cpu_lab_rms(want, ROWS * N);
            /* One chain of 2,048 roundings: 2.5 to 6.2e-6 with outliers of ten sigma, numbers of any kind. */
            if (!(error < 8e-6))
                fail_msg("%s, %s: largest error / rms %.2g", isa->name, format_of(f)->name, error);
            free(y);
        }
        free(want);
        free(x);
        cpu_lab_free(&l);
    }
}

static void a_token_has_the_same_bits_among_any_others(void **state)
{
    (void)state;
    enum { ROWS = 100, N = 40 };
    static const uint32_t some_formats[] = {FORMAT_Q4, FORMAT_G_Q4_K, FORMAT_G_Q6_K, FORMAT_G_Q8_0};
    for (uint32_t k = 0; k < 4; k++) {
        struct cpu_lab l;
        struct way way;
        uint32_t idx = 0, cols = k == 0 ? 320 : 512;
        cpu_lab_matrix(&l, some_formats[k], ROWS, cols, 620);
        float *x = cpu_lab_floats((uint64_t)N * cols, 621);
        while (next_way(&idx, some_formats[k], &way)) {
            float *all = product(&way, &l.w, x, N);
            for (uint32_t n = 1; n <= N; n++) {
                float *some = product(&way, &l.w, x + (uint64_t)(N - n) * cols, n);
                cpu_bits_equal("among others", way.name, some, all + (uint64_t)(N - n) * ROWS,
                               (uint64_t)n * ROWS);
                free(some);
            }
            free(all);
        }
        free(x);
        cpu_lab_free(&l);
    }
}

static void picked_tokens_are_packed_as_if_they_were_contiguous(void **state)
{
    (void)state;
    enum { N = 23, TOKENS = 50 };
    static const uint32_t widths[] = {1, 7, 16, 40, 320};
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t cols = widths[i], pick[N], idx = 0;
        float *x = cpu_lab_floats((uint64_t)TOKENS * cols, 630),
              *contiguous = cpu_lab_room((uint64_t)N * cols);
        struct cpu_random r = {631};
        for (uint32_t t = 0; t < N; t++) {
            pick[t] = (uint32_t)(cpu_random_next(&r) % TOKENS);
            memcpy(contiguous + (uint64_t)t * cols, x + (uint64_t)pick[t] * cols, cols * sizeof *x);
        }
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));)
            for (uint32_t n = 1; n <= N; n++) {
                const struct way way = gemm_of(isa);
                float *a = packed(&way, x, pick, n, cols), *b = packed(&way, contiguous, NULL, n, cols);
                cpu_bits_equal("picked", isa->name, a, b, (uint64_t)n * cols);
                free(a);
                free(b);
            }
        free(x);
        free(contiguous);
    }
}

static void the_tiles_are_as_equal_as_they_can_be(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 2000; n++) {
        uint32_t tiles = cpu_n_tiles(n), least = 6, most = 0;
        assert_int_equal(tiles, (n + 5) / 6);
        for (uint32_t i = 0; i < tiles; i++) {
            uint32_t t = cpu_tile_begin(n, i + 1) - cpu_tile_begin(n, i);
            least = t < least ? t : least;
            most = t > most ? t : most;
        }
        assert_int_equal(cpu_tile_begin(n, 0), 0);
        assert_int_equal(cpu_tile_begin(n, tiles), n);
        assert_true(n == 0 || (least >= 1 && most <= 6 && most - least <= 1));
    }
}

struct split {
    struct way way;
    struct cpu_gemm_call call;
    uint32_t rows_a_block;
    float *scratch[8];
};

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct split *s = ctx;
    struct cpu_gemm_call call = s->call;
    call.first = block * s->rows_a_block;
    call.last = call.first + s->rows_a_block;
    call.last = call.last < call.w->rows ? call.last : call.w->rows;
    call.scratch = s->scratch[thread];
    s->way.gemm(&call);
}

/* Divides the rows of a product among 1, 3 and 5 threads. */
static void divide(const struct way *way, const struct cpu_lab *l, uint32_t n, const float *x)
{
    uint32_t rows = l->w.rows, cols = l->w.cols, f = l->w.format;
    struct moeflux_err e = {0};
    float *want = product(way, &l->w, x, n), *y = cpu_lab_room((uint64_t)n * 256);
    struct split s = {.way = *way, .call = {.w = &l->w, .n = n, .y = y, .y_stride = 256}};
    s.call.packed = packed(way, x, NULL, n, cols);
    for (uint32_t i = 0; i < 5; i++)
        s.scratch[i] = cpu_lab_room(cpu_gemm_scratch_bytes(cols) / 4);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct team *t = team_new(threads, &e);
        assert_non_null(t);
        for (s.rows_a_block = 1; s.rows_a_block < 300; s.rows_a_block += format_is_block(f) ? 140 : 21) {
            memset(y, 0xff, sizeof *y * n * 256);
            team_for(t, (rows + s.rows_a_block - 1) / s.rows_a_block, run_block, &s);
            for (uint32_t i = 0; i < n; i++) {
                cpu_bits_equal("threads", way->name, y + (size_t)i * 256, want + (size_t)i * rows, rows);
                for (uint32_t r = rows; r < 256; r++)
                    assert_true(isnan(y[i * 256 + r]));
            }
        }
        team_free(t);
    }
    for (uint32_t i = 0; i < 5; i++)
        free(s.scratch[i]);
    free((void *)s.call.packed);
    free(y);
    free(want);
}

static void threads_and_the_division_of_the_rows_change_no_bit(void **state)
{
    (void)state;
    enum { ROWS = 203, COLS = 256, N = 17 };
    struct moeflux_err e = {0};
    const struct cpu_isa *best = cpu_isa_find(NULL, &e);
    for (uint32_t k = 0; k < N_FORMATS; k++) {
        struct cpu_lab l;
        struct way way;
        uint32_t idx = 2 * best->idx;
        cpu_lab_matrix(&l, formats[k], ROWS, COLS, 640);
        float *x = cpu_lab_floats(N * COLS, 641);
        while (next_way(&idx, formats[k], &way))
            divide(&way, &l, N, x);
        free(x);
        cpu_lab_free(&l);
    }
}

static void a_token_that_is_no_number_poisons_its_own_outputs_alone(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 256, N = 8, BAD = 4 };
    for (uint32_t k = 0; k < N_FORMATS; k++) {
        uint32_t f = formats[k];
        struct cpu_lab l;
        cpu_lab_matrix(&l, f, ROWS, COLS, 650);
        float *x = cpu_lab_floats(N * COLS, 651);
        struct way way;
        uint32_t idx = 0;
        while (next_way(&idx, f, &way)) {
            x[BAD * COLS + 100] = way.is_int16 && k % 2 ? INFINITY : NAN;
            float *y = product(&way, &l.w, x, N);
            for (uint32_t i = 0; i < N; i++)
                for (uint32_t r = 0; r < ROWS; r++)
                    assert_true(isnan(y[i * ROWS + r]) == (i == BAD));
            free(y);
        }
        free(x);
        cpu_lab_free(&l);
    }
}

static void a_matrix_may_lie_at_any_address(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < N_FORMATS; k++) {
        uint32_t f = formats[k];
        struct cpu_lab l, odd;
        cpu_lab_matrix(&l, f, 70, 768, 660);
        cpu_lab_move(&odd, &l.w);
        float *x = cpu_lab_floats(3 * 768, 661);
        struct way way;
        uint32_t idx = 0;
        while (next_way(&idx, f, &way)) {
            float *want = product(&way, &l.w, x, 3), *y = product(&way, &odd.w, x, 3);
            cpu_bits_equal("odd addresses", way.name, y, want, 3 * l.w.rows);
            free(want);
            free(y);
        }
        free(x);
        cpu_lab_free(&l);
        cpu_lab_free(&odd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_output_is_one_chain_in_the_order_of_the_columns),
        cmocka_unit_test(the_error_is_that_of_float32),
        cmocka_unit_test(a_token_has_the_same_bits_among_any_others),
        cmocka_unit_test(picked_tokens_are_packed_as_if_they_were_contiguous),
        cmocka_unit_test(the_tiles_are_as_equal_as_they_can_be),
        cmocka_unit_test(threads_and_the_division_of_the_rows_change_no_bit),
        cmocka_unit_test(a_token_that_is_no_number_poisons_its_own_outputs_alone),
        cmocka_unit_test(a_matrix_may_lie_at_any_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
