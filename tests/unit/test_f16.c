/* Numbers of 16 bits: widening, rounding, and which are finite.
 *
 * suites: check fast asan */
#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "check.h"

static void finite_is_decided_for_every_length_and_place(void **state)
{
    (void)state;
    static uint8_t bytes[1 + 2 * 1300];
    for (size_t n = 0; n < 1300; n += 37) {
        memset(bytes, 0, sizeof bytes);
        assert_true(bf16_all_finite(bytes + 1, n) && f16_all_finite(bytes + 1, n));
        for (size_t at = 0; at < 1300; at += 13) {
            uint16_t nan = 0xffc0, infinity = 0x7c00;
            memcpy(bytes + 1 + 2 * at, &nan, 2);
            assert_int_equal(bf16_all_finite(bytes + 1, n), at >= n);
            memcpy(bytes + 1 + 2 * at, &infinity, 2);
            assert_int_equal(f16_all_finite(bytes + 1, n), at >= n);
            memset(bytes + 1 + 2 * at, 0, 2);
        }
    }
}

static void finite_is_decided_for_every_number(void **state)
{
    (void)state;
    for (uint32_t u = 0; u <= UINT16_MAX; u++) {
        uint16_t bits = (uint16_t)u;
        assert_int_equal(bf16_all_finite(&bits, 1), isfinite(bf16_to_float(bits)) != 0);
        assert_int_equal(f16_all_finite(&bits, 1), isfinite(f16_to_float(bits)) != 0);
        float number = bf16_to_float(bits);
        assert_int_equal(float_all_finite(&number, 1), isfinite(number) != 0);
    }
}

static void rounding_to_bf16_takes_ties_to_even(void **state)
{
    (void)state;
    assert_int_equal(bf16_from_float(1.0f), 0x3f80);
    assert_int_equal(bf16_from_float(1.00390625f), 0x3f80);
    assert_int_equal(bf16_from_float(1.01171875f), 0x3f82);
    assert_int_equal(bf16_from_float(-1.00390637f), 0xbf81);
    for (uint32_t u = 0; u < 0x7f80; u++)
        assert_int_equal(bf16_from_float(bf16_to_float((uint16_t)u)), u);
}

/* Between neighbours the half way point goes to the even one, and what is nearer to one goes there. */
static void rounding_to_f16_takes_the_nearest_and_ties_to_even(void **state)
{
    (void)state;
    assert_true(f16_to_float(0x3c00) == 1.0f && f16_to_float(0xc500) == -5.0f && f16_to_float(1) == 0x1p-24f);
    for (uint16_t u = 0; u < 0x7bff; u++) {
        float low = f16_to_float(u), high = f16_to_float((uint16_t)(u + 1)), middle = (low + high) / 2;
        assert_true(low < high);
        assert_int_equal(f16_from_float(low), u);
        assert_int_equal(f16_from_float(-low), u | 0x8000);
        assert_int_equal(f16_from_float(middle), u + (u & 1));
        assert_int_equal(f16_from_float(nextafterf(middle, 0)), u);
        assert_int_equal(f16_from_float(nextafterf(middle, 1e9f)), u + 1);
    }
}

static void what_f16_cannot_hold_becomes_its_largest_number(void **state)
{
    (void)state;
    assert_int_equal(f16_from_float(65504), 0x7bff);
    assert_int_equal(f16_from_float(1e9f), 0x7bff);
    assert_int_equal(f16_from_float(-INFINITY), 0xfbff);
}

static void nan_stays_nan_in_f16(void **state)
{
    (void)state;
    assert_true(isnan(f16_to_float(f16_from_float(NAN))) && isnan(f16_to_float(f16_from_float(-NAN))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_is_decided_for_every_length_and_place),
        cmocka_unit_test(finite_is_decided_for_every_number),
        cmocka_unit_test(rounding_to_bf16_takes_ties_to_even),
        cmocka_unit_test(rounding_to_f16_takes_the_nearest_and_ties_to_even),
        cmocka_unit_test(what_f16_cannot_hold_becomes_its_largest_number),
        cmocka_unit_test(nan_stays_nan_in_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
