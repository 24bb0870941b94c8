#include "model/quant.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"

/* --- encoding --- */

/* Fixed counts throughout, so that the compiler turns these loops into vector code without checks. */

/* Smallest and largest value. Compared as integers in the order of the floats, which vectorises and puts NaN beyond
 * the infinities, so that looking at the two ends is enough to see one. */
static void find_range(const float x[QUANT_GROUP], float *lo, float *hi)
{
    int32_t key[QUANT_GROUP], min = INT32_MAX, max = INT32_MIN;
    memcpy(key, x, sizeof key);
    for (int i = 0; i < QUANT_GROUP; i++)
        key[i] ^= (key[i] >> 31) & INT32_MAX;
    for (int i = 0; i < QUANT_GROUP; i++)
        min = key[i] < min ? key[i] : min;
    for (int i = 0; i < QUANT_GROUP; i++)
        max = key[i] > max ? key[i] : max;
    min ^= (min >> 31) & INT32_MAX;
    max ^= (max >> 31) & INT32_MAX;
    memcpy(lo, &min, sizeof *lo);
    memcpy(hi, &max, sizeof *hi);
}

/* Half to even without a library call (x86-64's base instruction set has none). From 2^23 on a float is whole. */
static float round_even(float x)
{
    float a = fabsf(x);
    if (a < 8388608.0f)
        a = (a + 8388608.0f) - 8388608.0f;
    return copysignf(a, x);
}

/* The end of the range that is larger in magnitude becomes the bias and is met exactly. */
static void choose_scale(float lo, float hi, float levels, uint16_t *scale, uint16_t *bias)
{
    float s = fmaxf((hi - lo) / levels, 1e-7f);
    float edge = fabsf(lo) > fabsf(hi) ? lo : hi;
    if (!(fabsf(lo) > fabsf(hi)))
        s = -s;
    float steps = round_even(edge / s);
    *scale = bf16_from_float(steps != 0 ? edge / steps : s);
    *bias = bf16_from_float(steps != 0 ? edge : 0);
}

/* rint((x - bias) / scale), clamped. Clamping first is the same, the limits being whole; the value then is small
 * enough for adding 2^23, which rounds to a whole number, ties to even, and leaves it in the low bits. */
static void find_codes(const float x[QUANT_GROUP], float scale, float bias, float levels,
                       uint32_t code[QUANT_GROUP])
{
    float y[QUANT_GROUP];
    for (int i = 0; i < QUANT_GROUP; i++) {
        float v = (x[i] - bias) / scale;
        v = v > 0 ? v : 0;
        v = v < levels ? v : levels;
        y[i] = v + 8388608.0f;
    }
    memcpy(code, y, sizeof y);
    for (int i = 0; i < QUANT_GROUP; i++)
        code[i] &= 0xff;
}

static void pack(const uint32_t code[QUANT_GROUP], uint32_t bits, uint8_t *out)
{
    uint8_t bytes[QUANT_GROUP];
    if (bits == 4) {
        uint64_t pair[QUANT_GROUP / 2];
        memcpy(pair, code, sizeof pair);
        for (int i = 0; i < QUANT_GROUP / 2; i++)
            bytes[i] = (uint8_t)(pair[i] | pair[i] >> 28);
        memcpy(out, bytes, QUANT_GROUP / 2);
    } else {
        for (int i = 0; i < QUANT_GROUP; i++)
            bytes[i] = (uint8_t)code[i];
        memcpy(out, bytes, QUANT_GROUP);
    }
}

static bool encode_group(const float x[QUANT_GROUP], uint32_t bits, uint8_t *codes, uint16_t *scale,
                         uint16_t *bias)
{
    float lo, hi, levels = (float)((1u << bits) - 1);
    uint32_t code[QUANT_GROUP];
    find_range(x, &lo, &hi);
    choose_scale(lo, hi, levels, scale, bias);
    float s = bf16_to_float(*scale), b = bf16_to_float(*bias);
    if (!isfinite(lo) || !isfinite(hi) || !isfinite(s) || !isfinite(b))
        return false;
    find_codes(x, s, b, levels, code);
    pack(code, bits, codes);
    return true;
}

bool quant_encode_bf16(const uint16_t *w, uint64_t n_groups, uint32_t bits, uint8_t *codes, uint16_t *scales,
                       uint16_t *biases)
{
    float x[QUANT_GROUP];
    uint32_t wide[QUANT_GROUP];
    for (uint64_t g = 0; g < n_groups; g++) {
        for (int i = 0; i < QUANT_GROUP; i++)
            wide[i] = (uint32_t)w[g * QUANT_GROUP + (uint64_t)i] << 16;
        memcpy(x, wide, sizeof x);
        if (!encode_group(x, bits, codes + g * 8 * bits, &scales[g], &biases[g]))
            return false;
    }
    return true;
}

bool quant_encode_f32(const float *w, uint64_t n_groups, uint32_t bits, uint8_t *codes, uint16_t *scales,
                      uint16_t *biases)
{
    for (uint64_t g = 0; g < n_groups; g++)
        if (!encode_group(w + g * QUANT_GROUP, bits, codes + g * 8 * bits, &scales[g], &biases[g]))
            return false;
    return true;
}

/* --- decoding --- */

void quant_decode(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint64_t n_groups,
                  uint32_t bits, float *out)
{
    for (uint64_t g = 0; g < n_groups; g++) {
        float s = bf16_to_float(scales[g]), b = bf16_to_float(biases[g]);
        const uint8_t *c = codes + g * 8 * bits;
        float *y = out + g * QUANT_GROUP;
        for (int i = 0; i < QUANT_GROUP; i++) {
            uint32_t code = bits == 8 ? c[i] : ((uint32_t)c[i / 2] >> (4 * (i & 1))) & 15u;
            y[i] = (float)code * s + b;
        }
    }
}
