/* Products of many tokens in fixed point (cpu/product.h): the order of the sums, the error, the shapes. On
 * every processor with emulated tile registers; where it has AMX that is compared with them.
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
#include "fixed_probe.h"

/* Every size of a tile of tokens, subs of a strip, blocks after a panel, tokens after a chunk. */
static const struct shape {
    uint32_t format;
    uint32_t rows, cols, tokens;
} shapes[] = {{FORMAT_Q4, 1, 64, 1},     {FORMAT_Q4, 64, 128, 2},   {FORMAT_Q4, 50, 192, 4},
              {FORMAT_Q4, 130, 320, 5},  {FORMAT_Q4, 33, 576, 8},   {FORMAT_Q4, 16, 512, 9},
              {FORMAT_Q4, 65, 1088, 16}, {FORMAT_Q4, 70, 320, 17},  {FORMAT_Q4, 48, 128, 33},
              {FORMAT_Q4, 20, 2048, 48}, {FORMAT_Q4, 17, 64, 400},  {FORMAT_Q4, 17, 128, 778},
              {FORMAT_Q8, 1, 64, 1},     {FORMAT_Q8, 47, 192, 6},   {FORMAT_Q8, 65, 320, 12},
              {FORMAT_Q8, 100, 576, 19}, {FORMAT_Q8, 16, 1088, 30}, {FORMAT_Q8, 130, 2048, 7}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The digits of x in its block, as one number. */
static double fixed_point(double x, float step)
{
    return step > 0 ? nearbyint((double)((float)x / step)) : 0;
}

static float step_of(const float *x)
{
    float most = 0;
    for (int i = 0; i < CPU_BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most / 8323071;
}

/* The sum of a group's x, as product.h orders it: 8 lanes of neighbours, then a tree. */
static float group_sum(const float *x)
{
    float l[8];
    for (int i = 0; i < 8; i++) {
        l[i] = x[8 * i];
        for (int k = 1; k < 8; k++)
            l[i] += x[8 * i + k];
    }
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

static uint32_t code_of(const struct cpu_matrix *w, uint32_t row, uint32_t col)
{
    const uint8_t *codes = w->weight;
    uint64_t i = (uint64_t)row * w->cols + col;
    return w->format == FORMAT_Q8 ? codes[i] : (uint32_t)codes[i / 2] >> (i % 2 * 4) & 15;
}

static float bf16_of(const void *values, uint64_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static float rule(const struct cpu_matrix *w, uint32_t row, const float *x)
{
    float y = 0;
    for (uint32_t b = 0; b < w->cols / CPU_BLOCK; b++, x += CPU_BLOCK) {
        uint64_t group = (uint64_t)row * (w->cols / CPU_BLOCK) + b;
        float step = step_of(x);
        int32_t sums[3] = {0};
        for (uint32_t c = 0; c < CPU_BLOCK; c++) {
            int32_t v = (int32_t)fixed_point((double)x[c], step),
                    code = (int32_t)code_of(w, row, b * CPU_BLOCK + c);
            for (int k = 2; k >= 0; k--) {
                int32_t digit = k > 0 ? (int8_t)(v & 255) : v;
                sums[k] += code * digit;
                v = (v - digit) / 256;
            }
        }
        float f = fmaf(fmaf((float)sums[0], 256, (float)sums[1]), 256, (float)sums[2]);
        y = fmaf(f, bf16_of(w->scales, group) * step, y);
        y = fmaf(bf16_of(w->biases, group), group_sum(x), y);
    }
    return y;
}

/* Vectors of the n tokens, and they packed. */
struct input {
    struct cpu_vector *v;
    void **memory, *packed;
    struct cpu_fixed x;
};

static void input_new(struct input *in, const struct cpu_isa *isa, const struct cpu_matrix *w, const float *x,
                      const uint32_t *pick, uint32_t n_vectors, uint32_t n)
{
    *in = (struct input){.v = calloc(n_vectors, sizeof *in->v),
                         .memory = calloc(n_vectors, sizeof *in->memory),
                         .packed = cpu_lab_room(cpu_fixed_bytes(w->cols, n) / 4)};
    assert_true(in->v && in->memory);
    for (uint32_t i = 0; i < n_vectors; i++)
        in->v[i] = cpu_lab_vector(isa, w, x + (uint64_t)i * w->cols, &in->memory[i]);
    cpu_fixed_place(&in->x, w->cols, n, in->packed);
    uint32_t tiles = cpu_fixed_tiles(&in->x);
    struct cpu_pack_fixed_call call = {.x = in->v, .pick = pick, .to = &in->x, .last = tiles / 2};
    isa->pack_fixed(&call);
    call.first = call.last;
    call.last = tiles;
    isa->pack_fixed(&call);
}

static void input_free(struct input *in, uint32_t n_vectors)
{
    for (uint32_t i = 0; i < n_vectors; i++)
        free(in->memory[i]);
    free(in->memory);
    free(in->v);
    free(in->packed);
}

/* y [n][rows] */
static float *multiply(cpu_gemm_fixed_fn *gemm, const struct cpu_matrix *w, const struct cpu_fixed *x)
{
    float *y = cpu_lab_room((uint64_t)x->n * w->rows),
          *scratch = cpu_lab_room(cpu_gemm_fixed_scratch_bytes(w->cols) / sizeof *scratch);
    gemm(&(struct cpu_gemm_fixed_call){
        .w = w, .x = x, .last = w->rows, .y = y, .y_stride = w->rows, .scratch = scratch});
    free(scratch);
    return y;
}

static float *product(const struct cpu_isa *isa, const struct cpu_matrix *w, const float *x, uint32_t n)
{
    struct input in;
    input_new(&in, isa, w, x, NULL, n, n);
    float *y = multiply(fixed_probe_for(isa), w, &in.x);
    if (isa->gemm_fixed) {
        float *real = multiply(isa->gemm_fixed, w, &in.x);
        cpu_bits_equal("next to the emulation", isa->name, real, y, (uint64_t)n * w->rows);
        free(real);
    }
    input_free(&in, n);
    return y;
}

static void each_output_is_one_chain_of_blocks_with_exact_sums(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SHAPES; s++) {
        struct cpu_lab l;
        char name[64], format[CPU_LAB_NAME];
        uint32_t n = shapes[s].tokens, rows = shapes[s].rows, idx = 0;
        cpu_lab_matrix(&l, shapes[s].format, rows, shapes[s].cols, 700 + s);
        float *x = cpu_lab_floats((uint64_t)n * l.w.cols, 800 + s), *want = cpu_lab_room((uint64_t)n * rows);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < rows; r++)
                want[(uint64_t)i * rows + r] = rule(&l.w, r, x + (uint64_t)i * l.w.cols);
        snprintf(name, sizeof name, "fixed-%s-%ux%ux%u", cpu_lab_format(l.w.format, format), rows, l.w.cols,
                 n);
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            float *y = product(isa, &l.w, x, n);
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
    for (uint32_t f = FORMAT_Q4; f <= FORMAT_Q8; f++) {
        enum { ROWS = 200, N = 5 };
        struct cpu_lab l;
        double want[ROWS * N];
        uint32_t idx = 0;
        cpu_lab_matrix(&l, f, ROWS, 2048, 600 + f);
        float *x = cpu_lab_floats((uint64_t)N * l.w.cols, 610 + f);
        for (uint32_t i = 0; i < N; i++)
            cpu_lab_product(&l.w, x + (uint64_t)i * l.w.cols, want + i * ROWS);
        float *y = product(cpu_next_isa(&idx), &l.w, x, N);
        double error = cpu_lab_worst(y, want, ROWS * N) / cpu_lab_rms(want, ROWS * N);
        /* Below the chain of gemm, which has 64 times as many roundings. */
        if (!(error < 4e-6))
            fail_msg("%s: largest error / rms %.2g", format_of(f)->name, error);
        free(y);
        free(x);
        cpu_lab_free(&l);
    }
}

static void a_token_has_the_same_bits_among_any_others(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 320, N = 40 };
    struct cpu_lab l;
    cpu_lab_matrix(&l, FORMAT_Q4, ROWS, COLS, 620);
    float *x = cpu_lab_floats(N * COLS, 621);
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        float *all = product(isa, &l.w, x, N);
        for (uint32_t n = 1; n <= N; n++) {
            float *some = product(isa, &l.w, x + (uint64_t)(N - n) * COLS, n);
            cpu_bits_equal("among others", isa->name, some, all + (uint64_t)(N - n) * ROWS,
                           (uint64_t)n * ROWS);
            free(some);
        }
        free(all);
    }
    free(x);
    cpu_lab_free(&l);
}

static void picked_tokens_are_packed_as_if_they_were_contiguous(void **state)
{
    (void)state;
    enum { N = 23, TOKENS = 50, COLS = 192, ROWS = 3 };
    struct cpu_lab l;
    struct cpu_random r = {631};
    uint32_t pick[N], idx = 0;
    cpu_lab_matrix(&l, FORMAT_Q4, ROWS, COLS, 632);
    float *x = cpu_lab_floats(TOKENS * COLS, 630), *contiguous = cpu_lab_room(N * COLS);
    for (uint32_t t = 0; t < N; t++) {
        pick[t] = (uint32_t)(cpu_random_next(&r) % TOKENS);
        memcpy(contiguous + (uint64_t)t * COLS, x + (uint64_t)pick[t] * COLS, COLS * sizeof *x);
    }
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        struct input a;
        input_new(&a, isa, &l.w, x, pick, TOKENS, N);
        float *y = multiply(fixed_probe_for(isa), &l.w, &a.x), *want = product(isa, &l.w, contiguous, N);
        cpu_bits_equal("picked", isa->name, y, want, N * ROWS);
        free(y);
        free(want);
        input_free(&a, TOKENS);
    }
    free(x);
    free(contiguous);
    cpu_lab_free(&l);
}

static void tiles_are_as_equal_as_they_can_be(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 2000; n++) {
        struct cpu_fixed f;
        cpu_fixed_place(&f, 64, n, NULL);
        uint32_t tiles = cpu_fixed_tiles(&f);
        assert_int_equal(tiles, (n + 15) / 16);
        assert_true(f.tile_tokens % 4 == 0 && f.tile_tokens <= 16 && tiles * f.tile_tokens >= n &&
                    tiles * f.tile_tokens < n + 4 * tiles);
    }
}

/* Each thread has registers of its own. */
struct split {
    cpu_gemm_fixed_fn *gemm;
    struct cpu_gemm_fixed_call call;
    uint32_t rows_a_block;
    float *scratch[5];
};

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct split *s = ctx;
    struct cpu_gemm_fixed_call call = s->call;
    call.first = block * s->rows_a_block;
    call.last = call.first + s->rows_a_block;
    call.last = call.last < call.w->rows ? call.last : call.w->rows;
    call.scratch = s->scratch[thread];
    s->gemm(&call);
}

static void threads_and_the_division_of_the_rows_change_no_bit(void **state)
{
    (void)state;
    enum { ROWS = 203, COLS = 320, N = 17 };
    struct moeflux_err e = {0};
    const struct cpu_isa *isa = cpu_isa_find(NULL, &e);
    for (uint32_t f = FORMAT_Q4; f <= FORMAT_Q8; f++) {
        struct cpu_lab l;
        struct input in;
        cpu_lab_matrix(&l, f, ROWS, COLS, 640);
        float *x = cpu_lab_floats(N * COLS, 641), *want = product(isa, &l.w, x, N),
              *y = cpu_lab_room(N * 256);
        input_new(&in, isa, &l.w, x, NULL, N, N);
        struct split s = {.gemm = isa->gemm_fixed ? isa->gemm_fixed : fixed_probe_for(isa),
                          .call = {.w = &l.w, .x = &in.x, .y = y, .y_stride = 256}};
        for (uint32_t i = 0; i < 5; i++)
            s.scratch[i] = cpu_lab_room(cpu_gemm_fixed_scratch_bytes(COLS) / 4);
        for (uint32_t n = 1; n <= 5; n += 2) {
            struct team *t = team_new(n, &e);
            assert_non_null(t);
            for (s.rows_a_block = 22; s.rows_a_block < 300; s.rows_a_block += 42) {
                memset(y, 0xff, sizeof *y * N * 256);
                team_for(t, (ROWS + s.rows_a_block - 1) / s.rows_a_block, run_block, &s);
                for (uint32_t i = 0; i < N; i++) {
                    cpu_bits_equal("threads", isa->name, y + i * 256, want + i * ROWS, ROWS);
                    for (uint32_t r = ROWS; r < 256; r++)
                        assert_true(isnan(y[i * 256 + r]));
                }
            }
            team_free(t);
        }
        for (uint32_t i = 0; i < 5; i++)
            free(s.scratch[i]);
        input_free(&in, N);
        free(x);
        free(y);
        free(want);
        cpu_lab_free(&l);
    }
}

static void a_token_that_is_no_number_poisons_its_own_outputs_alone(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 128, N = 8, BAD = 4 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t k = 0; k < 3; k++) {
        struct cpu_lab l;
        uint32_t idx = 0;
        cpu_lab_matrix(&l, FORMAT_Q4, ROWS, COLS, 650);
        float *x = cpu_lab_floats(N * COLS, 651);
        x[BAD * COLS + 100] = bad[k];
        memset(x, 0, CPU_BLOCK * sizeof *x); /* a step of 0 */
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            float *y = product(isa, &l.w, x, N);
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
    for (uint32_t f = FORMAT_Q4; f <= FORMAT_Q8; f++) {
        struct cpu_lab l, odd;
        cpu_lab_matrix(&l, f, 70, 192, 660);
        cpu_lab_move(&odd, &l.w);
        float *x = cpu_lab_floats(7 * 192, 661);
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            float *want = product(isa, &l.w, x, 7), *y = product(isa, &odd.w, x, 7);
            cpu_bits_equal("odd addresses", isa->name, y, want, 7 * l.w.rows);
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
        cmocka_unit_test(each_output_is_one_chain_of_blocks_with_exact_sums),
        cmocka_unit_test(the_error_is_that_of_float32),
        cmocka_unit_test(a_token_has_the_same_bits_among_any_others),
        cmocka_unit_test(picked_tokens_are_packed_as_if_they_were_contiguous),
        cmocka_unit_test(tiles_are_as_equal_as_they_can_be),
        cmocka_unit_test(threads_and_the_division_of_the_rows_change_no_bit),
        cmocka_unit_test(a_token_that_is_no_number_poisons_its_own_outputs_alone),
        cmocka_unit_test(a_matrix_may_lie_at_any_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
