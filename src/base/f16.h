/* f16.h - small floating-point types: float16 (IEEE 754 binary16), bf16 (the upper half of a float32), and
 * types of 4 and 8 bits. */
#ifndef MOEFLUX_BASE_F16_H
#define MOEFLUX_BASE_F16_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even. x must not be NaN. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Gives the result of unpackHalf2x16 in the kernels. */
static inline float f16_to_float(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    uint32_t u = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float x;
    memcpy(&x, &u, sizeof x);
    if (exponent == 0)
        x = (float)mantissa * 0x1p-24f;
    return bits >> 15 ? -x : x;
}

/* Rounds like packHalf2x16: to nearest, ties to even. Magnitudes above 65504, also infinities, become 65504;
 * NaN stays NaN. */
uint16_t f16_from_float(float x);

/* Widen small floats of a sign, an exponent and a mantissa. E4M3 has no infinities; 0x7f and 0xff are NaN.
 * E8M0 has only an exponent, 2^(bits - 127); 0xff is NaN. */
float e2m1_to_float(uint8_t bits);
float e4m3_to_float(uint8_t bits);
float e8m0_to_float(uint8_t bits);

/* Return whether n values at any alignment are all finite. */
bool bf16_all_finite(const void *values, uint64_t n);
bool f16_all_finite(const void *values, uint64_t n);
bool float_all_finite(const void *values, uint64_t n);

#endif
