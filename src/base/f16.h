/* f16.h - numbers of 16 bits: float16 (IEEE 754 binary16) and bf16 (the upper half of a float32); and smaller
 * ones. */
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

/* Nearest, ties to even. Not for NaN. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* As unpackHalf2x16 of the kernels. */
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

/* As packHalf2x16: nearest, ties to even. What is larger than 65504 in size, infinities too, becomes it; NaN
 * stays NaN. */
uint16_t f16_from_float(float x);

/* Small floats: sign, exponent, mantissa. E4M3 has no infinities; 0x7f and 0xff are NaN. E8M0 is an exponent
 * alone, 2^(bits - 127); 0xff is NaN. */
float e2m1_to_float(uint8_t bits);
float e4m3_to_float(uint8_t bits);
float e8m0_to_float(uint8_t bits);

/* Whether n values are all finite. Any alignment. */
bool bf16_all_finite(const void *values, uint64_t n);
bool f16_all_finite(const void *values, uint64_t n);
bool float_all_finite(const void *values, uint64_t n);

#endif
