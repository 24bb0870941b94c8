/* Rows of the KV cache: how q8_0 quantises, what is at the end of a row, which numbers are refused.
 *
 * suites: check fast asan */
#include <math.h>
#include <string.h>

#include "check.h"
#include "ops/attention/kv_cache.h"

enum { DIM = 64, ROW = 72 };

static void fill(float x[DIM])
{
    for (uint32_t i = 0; i < DIM; i++)
        x[i] = ((float)((i * 37 + 11) % 64) - 31.5f) * (i < 32 ? 0.037f : 1.31f);
}

/* The codes and scales are those of the package gguf, quants.quantize(x, Q8_0). */
static void a_row_has_the_codes_and_scales_of_ggml(void **state)
{
    (void)state;
    static const int8_t codes[DIM] = {-83, 67,  -42, 107, -2,   -111, 38,  -71, 79,  -30, 119,  10,   -99,
                                      50,  -58, 91,  -18, -127, 22,   -87, 62,  -46, 103, -6,   -115, 34,
                                      -75, 75,  -34, 115, 6,    -103, 46,  -62, 87,  -22, 127,  18,   -91,
                                      58,  -50, 99,  -10, -119, 30,   -79, 71,  -38, 111, 2,    -107, 42,
                                      -67, 83,  -26, 123, 14,   -95,  54,  -54, 95,  -14, -123, 26};
    static const uint16_t scales[] = {0x20b3, 0x3533};
    static const uint8_t zeros[4] = {0};
    uint8_t row[ROW];
    float x[DIM];
    fill(x);
    memset(row, 0xff, sizeof row);
    assert_int_equal(kv_row_bytes(KV_TYPE_Q8_0, DIM), ROW);
    kv_row_put(KV_TYPE_Q8_0, x, DIM, row);
    assert_memory_equal(row, codes, sizeof codes);
    assert_memory_equal(row + DIM, scales, sizeof scales);
    assert_memory_equal(row + DIM + sizeof scales, zeros, sizeof zeros);
    for (uint32_t i = 0; i < DIM; i++)
        assert_true(kv_row_get(KV_TYPE_Q8_0, row, DIM, i) ==
                    (float)codes[i] * f16_to_float(scales[i / KV_Q8_BLOCK]));
}

static void the_last_block_may_have_fewer_numbers(void **state)
{
    (void)state;
    uint8_t row[ROW];
    float x[DIM] = {0};
    x[31] = 1000;
    x[35] = -0.5f;
    kv_row_put(KV_TYPE_Q8_0, x, 36, row);
    assert_int_equal(kv_row_bytes(KV_TYPE_Q8_0, 36), 40);
    assert_int_equal((int8_t)row[35], -127);
    assert_true(fabsf(kv_row_get(KV_TYPE_Q8_0, row, 36, 35) + 0.5f) < 1e-3f);
    assert_true(fabsf(kv_row_get(KV_TYPE_Q8_0, row, 36, 31) - 1000) < 0.5f);
}

static void halves_are_rounded_away_from_zero(void **state)
{
    (void)state;
    float x[4] = {127, 0.5f, -2.5f, 0.49999997f};
    uint8_t row[8];
    kv_row_put(KV_TYPE_Q8_0, x, 4, row);
    assert_int_equal((int8_t)row[1], 1);
    assert_int_equal((int8_t)row[2], -3);
    assert_int_equal((int8_t)row[3], 0);
}

static void numbers_of_any_size_give_finite_rows_or_nan(void **state)
{
    (void)state;
    static const float sizes[] = {0, 1e-45f, 1e-30f, 1e-6f, 65504, 3e38f};
    uint8_t row[8];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const float x[4] = {0, sizes[i], -sizes[i], sizes[i] / 2};
        kv_row_put(KV_TYPE_Q8_0, x, 4, row);
        assert_null(kv_row_find_infinite(KV_TYPE_Q8_0, row, 1, 4));
        assert_true(kv_row_get(KV_TYPE_Q8_0, row, 4, 0) == 0);
    }
    for (int i = 0; i < 3; i++) {
        float x[4] = {1, 2, 3, 4};
        x[i] = i == 0 ? NAN : INFINITY;
        kv_row_put(KV_TYPE_Q8_0, x, 4, row);
        assert_true(kv_row_find_infinite(KV_TYPE_Q8_0, row, 1, 4) == row + 4);
        assert_true(isnan(kv_row_get(KV_TYPE_Q8_0, row, 4, 3)));
    }
}

/* What was stored once gets the same bytes when it is stored again. */
static void a_row_that_is_read_and_stored_again_stays(void **state)
{
    (void)state;
    uint8_t row[ROW], again[ROW];
    float x[DIM];
    fill(x);
    kv_row_put(KV_TYPE_Q8_0, x, DIM, row);
    for (uint32_t i = 0; i < DIM; i++)
        x[i] = kv_row_get(KV_TYPE_Q8_0, row, DIM, i);
    kv_row_put(KV_TYPE_Q8_0, x, DIM, again);
    assert_memory_equal(row, again, sizeof row);
}

static void the_first_number_that_is_not_finite_is_found(void **state)
{
    (void)state;
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    uint8_t rows[3][4 * DIM];
    float x[DIM];
    for (size_t t = 0; t < 3; t++) {
        uint32_t bytes = kv_row_bytes(types[t], DIM), at = types[t] == KV_TYPE_F32 ? 4 * 40 : 2 * 40;
        uint8_t *all = rows[0];
        const float bad = NAN;
        const uint16_t half = 0x7e00;
        fill(x);
        for (uint32_t r = 0; r < 3; r++)
            kv_row_put(types[t], x, DIM, all + r * bytes);
        assert_null(kv_row_find_infinite(types[t], all, 3, DIM));
        at = bytes + (types[t] == KV_TYPE_Q8_0 ? DIM + 2 : at);
        if (types[t] == KV_TYPE_F32)
            memcpy(all + at, &bad, sizeof bad);
        else
            memcpy(all + at, &half, sizeof half);
        assert_true(kv_row_find_infinite(types[t], all, 3, DIM) == all + at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_codes_and_scales_of_ggml),
        cmocka_unit_test(the_last_block_may_have_fewer_numbers),
        cmocka_unit_test(halves_are_rounded_away_from_zero),
        cmocka_unit_test(numbers_of_any_size_give_finite_rows_or_nan),
        cmocka_unit_test(a_row_that_is_read_and_stored_again_stays),
        cmocka_unit_test(the_first_number_that_is_not_finite_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
