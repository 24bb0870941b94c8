#include "base/f16.h"

#include <math.h>

/* ---- finite? ---- */

enum { BLOCK = 512 };

/* Numbers at any address. */
typedef uint16_t bits16 __attribute__((aligned(1), may_alias));

/* The count is fixed so that the compiler makes vector code without checks. exponent: the mask of its bits,
 * which are all set in an infinity and in NaN. */
static bool block_is_finite(const bits16 x[BLOCK], uint16_t exponent)
{
    uint16_t bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= (uint16_t)((x[i] & exponent) == exponent);
    return !bad;
}

static bool all_finite(const void *values, uint64_t n, uint16_t exponent)
{
    const bits16 *p = values;
    for (; n >= BLOCK; n -= BLOCK, p += BLOCK)
        if (!block_is_finite(p, exponent))
            return false;
    uint16_t rest[BLOCK] = {0};
    if (n > 0)
        memcpy(rest, p, n * sizeof *rest);
    return block_is_finite(rest, exponent);
}

bool bf16_all_finite(const void *values, uint64_t n)
{
    return all_finite(values, n, 0x7f80);
}

bool f16_all_finite(const void *values, uint64_t n)
{
    return all_finite(values, n, 0x7c00);
}

typedef uint32_t bits32 __attribute__((aligned(1), may_alias));

bool float_all_finite(const void *values, uint64_t n)
{
    const bits32 *p = values;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < n; i++)
        bad |= (p[i] & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

/* ---- smaller floats ---- */

float e2m1_to_float(uint8_t bits)
{
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float x = values[bits & 7];
    return bits & 8 ? -x : x;
}

float e4m3_to_float(uint8_t bits)
{
    int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    float x = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if (exponent == 15 && mantissa == 7)
        x = NAN;
    return bits & 0x80 ? -x : x;
}

float e8m0_to_float(uint8_t bits)
{
    return bits == 0xff ? NAN : ldexpf(1, bits - 127);
}

/* ---- float16 ---- */

uint16_t f16_from_float(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    float size = fminf(fabsf(x), 65504.0f);
    int exponent;
    frexpf(size, &exponent);
    /* The place of the last bit: 2^-24 for the smallest numbers, 11 bits below the first for the others. */
    int last = exponent - 11 < -24 ? -24 : exponent - 11;
    float units = rintf(ldexpf(size, -last));
    float rounded = fminf(ldexpf(units, last), 65504.0f);
    if (rounded < ldexpf(1, -14))
        return (uint16_t)(sign | (uint16_t)ldexpf(rounded, 24));
    frexpf(rounded, &exponent);
    return (uint16_t)(sign | (uint16_t)((exponent + 14) << 10) |
                      ((uint16_t)ldexpf(rounded, 11 - exponent) & 1023));
}
