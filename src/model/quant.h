/* quant.h - bf16, and MLX affine groups: value = code * scale + bias, one scale and bias per 64 inputs. */
#ifndef MOEFLUX_MODEL_QUANT_H
#define MOEFLUX_MODEL_QUANT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { QUANT_GROUP = 64 };

static inline float quant_bf16_to_f32(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Nearest, ties to even. Not for NaN. */
static inline uint16_t quant_f32_to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Whether n bf16 values are all finite. Any alignment. */
bool quant_bf16_finite(const void *values, uint64_t n);

#endif
