#include "model/quant.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "base/format.h"

/* --- encoding --- */

/* Inline so that `group` is a constant: then the compiler makes vector code without checks of the loops. */
#define INLINE static inline __attribute__((always_inline))

/* Finds the smallest and largest value. Integers in the order of the floats are compared: this vectorises and
 * sorts NaN outside the infinities, so that checking the two ends finds every NaN. */
INLINE void find_range(const float *x, uint32_t group, float *lo, float *hi)
{
    int32_t key[QUANT_MAX_GROUP], min = INT32_MAX, max = INT32_MIN;
    memcpy(key, x, group * sizeof *key);
    for (uint32_t i = 0; i < group; i++)
        key[i] ^= (key[i] >> 31) & INT32_MAX;
    for (uint32_t i = 0; i < group; i++)
        min = key[i] < min ? key[i] : min;
    for (uint32_t i = 0; i < group; i++)
        max = key[i] > max ? key[i] : max;
    min ^= min < 0 ? INT32_MAX : 0;
    max ^= max < 0 ? INT32_MAX : 0;
    memcpy(lo, &min, sizeof *lo);
    memcpy(hi, &max, sizeof *hi);
}

/* Rounds half to even without a library call (x86-64's base instruction set has no such instruction). Floats
 * of 2^23 and more are whole. */
static float round_even(float x)
{
    float a = fabsf(x);
    if (a < 8388608.0f)
        a = (a + 8388608.0f) - 8388608.0f;
    return copysignf(a, x);
}

/* Chooses scale and bias. The end of the range with the larger magnitude becomes the bias and is exact. */
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

/* Computes rint((x - bias) / scale), clamped. Clamping first gives the same, since the limits are whole. The
 * value is then small enough for adding 2^23, which rounds to a whole number, ties to even, and leaves it in
 * the low bits. */
INLINE void find_codes(const float *x, uint32_t group, float scale, float bias, float levels, uint32_t *code)
{
    float y[QUANT_MAX_GROUP] = {0};
    for (uint32_t i = 0; i < group; i++) {
        float v = (x[i] - bias) / scale;
        v = v > 0 ? v : 0;
        v = v < levels ? v : levels;
        y[i] = v + 8388608.0f;
    }
    memcpy(code, y, group * sizeof *y);
    for (uint32_t i = 0; i < group; i++)
        code[i] &= 0xff;
}

INLINE void pack(const uint32_t *code, uint32_t group, uint32_t bits, uint8_t *out)
{
    if (bits == 8) {
        for (uint32_t i = 0; i < group; i++)
            out[i] = (uint8_t)code[i];
    } else if (bits == 4) {
        uint64_t pair[QUANT_MAX_GROUP / 2];
        memcpy(pair, code, group * sizeof *code);
        for (uint32_t i = 0; i < group / 2; i++)
            out[i] = (uint8_t)(pair[i] | pair[i] >> 28);
    } else {
        for (uint32_t i = 0; i < group; i += 8) {
            uint64_t eight = 0;
            for (uint32_t k = 0; k < 8; k++)
                eight |= (uint64_t)code[i + k] << (k * bits);
            for (uint32_t k = 0; k < bits; k++)
                *out++ = (uint8_t)(eight >> (8 * k));
        }
    }
}

INLINE bool encode_group(const float *x, uint32_t group, uint32_t bits, uint8_t *codes, uint16_t *scale,
                         uint16_t *bias)
{
    float lo, hi, levels = (float)((1u << bits) - 1);
    uint32_t code[QUANT_MAX_GROUP];
    find_range(x, group, &lo, &hi);
    choose_scale(lo, hi, levels, scale, bias);
    float s = bf16_to_float(*scale), b = bf16_to_float(*bias);
    if (!isfinite(lo) || !isfinite(hi) || !isfinite(s) || !isfinite(b))
        return false;
    find_codes(x, group, s, b, levels, code);
    pack(code, group, bits, codes);
    return true;
}

INLINE bool encode_group_bf16(const uint16_t *w, uint32_t group, uint32_t bits, uint8_t *codes,
                              uint16_t *scale, uint16_t *bias)
{
    float x[QUANT_MAX_GROUP];
    uint32_t wide[QUANT_MAX_GROUP] = {0};
    for (uint32_t i = 0; i < group; i++)
        wide[i] = (uint32_t)w[i] << 16;
    memcpy(x, wide, group * sizeof *x);
    return encode_group(x, group, bits, codes, scale, bias);
}

INLINE bool encode_group_f16(const uint16_t *w, uint32_t group, uint32_t bits, uint8_t *codes,
                             uint16_t *scale, uint16_t *bias)
{
    float x[QUANT_MAX_GROUP];
    for (uint32_t i = 0; i < group; i++)
        x[i] = f16_to_float(w[i]);
    return encode_group(x, group, bits, codes, scale, bias);
}

bool quant_encode_f16(const uint16_t *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                      uint16_t *scales, uint16_t *biases)
{
    uint64_t bytes = format_code_bytes(f, f->group);
    bool ok = true;
    for (uint64_t g = 0; ok && g < n_groups; g++)
        ok = encode_group_f16(w + g * f->group, f->group, f->bits, codes + g * bytes, &scales[g], &biases[g]);
    return ok;
}

/* Groups of 64 numbers, which most files have, get specialised code. */
bool quant_encode_bf16(const uint16_t *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                       uint16_t *scales, uint16_t *biases)
{
    uint64_t bytes = format_code_bytes(f, f->group);
    bool ok = true;
    for (uint64_t g = 0; ok && g < n_groups; g++)
        ok = f->group == 64
                 ? encode_group_bf16(w + g * 64, 64, f->bits, codes + g * bytes, &scales[g], &biases[g])
                 : encode_group_bf16(w + g * f->group, f->group, f->bits, codes + g * bytes, &scales[g],
                                     &biases[g]);
    return ok;
}

bool quant_encode_f32(const float *w, uint64_t n_groups, const struct format *f, uint8_t *codes,
                      uint16_t *scales, uint16_t *biases)
{
    uint64_t bytes = format_code_bytes(f, f->group);
    bool ok = true;
    for (uint64_t g = 0; ok && g < n_groups; g++)
        ok = f->group == 64 ? encode_group(w + g * 64, 64, f->bits, codes + g * bytes, &scales[g], &biases[g])
                            : encode_group(w + g * f->group, f->group, f->bits, codes + g * bytes, &scales[g],
                                           &biases[g]);
    return ok;
}

/* --- decoding --- */

void quant_decode(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint64_t n_groups,
                  const struct format *f, float *out)
{
    for (uint64_t g = 0; g < n_groups; g++) {
        float s = bf16_to_float(scales[g]), b = bf16_to_float(biases[g]);
        for (uint64_t i = g * f->group; i < (g + 1) * f->group; i++)
            out[i] = (float)format_code(codes, f->bits, i) * s + b;
    }
}
