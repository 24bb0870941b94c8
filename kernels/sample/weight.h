/* weight.h - the weight of a token, read by C and by GLSL, so that host and device choose the same one. All
 * operations are on integers, except the two correctly rounded ones of sample_exponent.
 *
 * Logits are compared and passed as their bits. Denormals count as 0, because a device may or may not keep
 * them. */
#ifndef MOEFLUX_SAMPLE_WEIGHT_H
#define MOEFLUX_SAMPLE_WEIGHT_H

#include "args.h"

#ifdef VULKAN
#define SAMPLE_FN
#define sample_bits(x)  floatBitsToUint(x)
#define sample_float(x) uintBitsToFloat(x)
#define sample_whole(x) uint(x)
#define SAMPLE_EXACT    precise
#else
#include <string.h>
#define sample_whole(x) ((U32)(x))
#define SAMPLE_FN       static inline
#define SAMPLE_EXACT
SAMPLE_FN U32 sample_bits(F32 x)
{
    U32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
SAMPLE_FN F32 sample_float(U32 bits)
{
    F32 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#endif

/* Returns the upper word of a product. */
SAMPLE_FN U32 sample_high(U32 a, U32 b)
{
#ifdef VULKAN
    U32 high, low;
    umulExtended(a, b, high, low);
    return high;
#else
    return (U32)((uint64_t)a * b >> 32);
#endif
}

/* Returns a float's bits, 0 for zeros and denormals. */
SAMPLE_FN U32 sample_flush(U32 bits)
{
    return (bits & 0x7f800000u) == 0u ? 0u : bits;
}

/* Returns a number that grows with the float of these (flushed) bits; no NaN. */
SAMPLE_FN U32 sample_key(U32 bits)
{
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

SAMPLE_FN U32 sample_key_bits(U32 key)
{
    return (key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key;
}

/* Returns a logit after the repeat penalty; flushed bits. inverse: 1 / penalty. */
SAMPLE_FN U32 sample_penalise(U32 bits, F32 penalty, F32 inverse)
{
    SAMPLE_EXACT F32 x = sample_float(bits) * ((bits & 0x80000000u) != 0u ? penalty : inverse);
    return sample_flush(sample_bits(x));
}

/* A weight is 2^-e. Returns e in steps of 2^-24 for e = (max - logit) * scale, scale = log2(e) / temperature,
 * if e is below 32; else SAMPLE_NO_WEIGHT. */
#define SAMPLE_NO_WEIGHT 0x20000000u
SAMPLE_FN U32 sample_exponent(U32 bits, U32 max_bits, F32 scale)
{
    SAMPLE_EXACT F32 d = sample_float(max_bits) - sample_float(bits);
    SAMPLE_EXACT F32 e = sample_float(sample_flush(sample_bits(d))) * scale;
    return e < 32.0f ? sample_whole(e * 16777216.0f) : SAMPLE_NO_WEIGHT;
}

/* Returns 2^31 times the weight, rounded; 2^31 for e = 0. A polynomial of the fraction, 1 - f (c1 - f (c2 -
 * ...)), relative error 1e-8. */
SAMPLE_FN U32 sample_weight(U32 exponent)
{
    U32 f = exponent << 8, n = exponent >> 24, c = 493577u, w;
    if (exponent >= SAMPLE_NO_WEIGHT)
        return 0u;
    c = 5547538u - sample_high(f, c);
    c = 41218952u - sample_high(f, c);
    c = 238367376u - sample_high(f, c);
    c = 1031763206u - sample_high(f, c);
    c = 2977044447u - sample_high(f, c);
    w = 0x80000000u - (sample_high(f, c) >> 1);
    return n == 0u ? w : (w + (1u << (n - 1u))) >> n;
}

#endif
