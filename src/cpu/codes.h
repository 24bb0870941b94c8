/* codes.h - the codes of a row's next two blocks of 64 columns (unpack.h) times the digits of a vector
 * (product.h).
 *
 * Every instruction set adds four products of bytes into a lane of 32 bits: maddubs and madd, vpdpbusd, sdot,
 * or smull and sadalp. */
#ifndef MOEFLUX_CPU_CODES_H
#define MOEFLUX_CPU_CODES_H

#include "cpu/unpack.h"

enum { DIGIT_BYTES = 2 * CPU_BLOCK, PAIR_DIGITS = 3 * DIGIT_BYTES };

/* The first returns the digits of blocks b and b + 1, b even; the second their shift corrections. */
VEC_INLINE const int8_t *codes_digits(const struct cpu_vector *x, size_t b)
{
    return x->digits + b * (PAIR_DIGITS / 2);
}

VEC_INLINE const int32_t *codes_shifted(const struct cpu_vector *x, size_t b)
{
    return x->shifted + b * VEC_LANES;
}

/* codes_dot(c, x, b, kind) returns each lane's sum of code * x / step over its 8 columns, for x's blocks b
 * and b + 1. */

#if defined(__AVX512VNNI__)
VEC_INLINE __m512i codes_sum(struct codes c, const int8_t *digits, __m512i sum)
{
    sum = _mm512_dpbusd_epi32(sum, c.even, _mm512_loadu_si512(digits));
    return _mm512_dpbusd_epi32(sum, c.odd, _mm512_loadu_si512(digits + CPU_BLOCK));
}

VEC_INLINE struct pair codes_dot(struct codes c, const struct cpu_vector *x, size_t b, int kind)
{
    const int8_t *digits = codes_digits(x, b);
    __m512i high = codes_sum(c, digits, _mm512_setzero_si512());
    high = codes_sum(c, digits + DIGIT_BYTES, _mm512_slli_epi32(high, 8));
    /* The three sums added up fit 32 bits if a code has at most 5 bits. */
    if (codes_byte_bits(kind) <= 5) {
        __m512i sum = codes_sum(c, digits + 2 * DIGIT_BYTES, _mm512_slli_epi32(high, 8));
        if (codes_are_e2m1(kind))
            sum = _mm512_sub_epi32(sum, _mm512_loadu_si512(codes_shifted(x, b)));
        return (struct pair){_mm512_cvtepi32_ps(sum)};
    }
    __m512i rest = codes_sum(c, digits + 2 * DIGIT_BYTES, _mm512_setzero_si512());
    return (struct pair){
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256), _mm512_cvtepi32_ps(rest))};
}

#elif defined(VEC_AVX)
/* Adds four products in 16 bits; codes have at most 6 bits. */
VEC_INLINE __m256i codes_fours(__m256i even, __m256i odd, const int8_t *digits)
{
    return _mm256_add_epi16(
        _mm256_maddubs_epi16(even, _mm256_loadu_si256((const __m256i *)digits)),
        _mm256_maddubs_epi16(odd, _mm256_loadu_si256((const __m256i *)(digits + CPU_BLOCK))));
}

/* Returns the sum of both 16-bit halves of each lane, times `by`. */
VEC_INLINE __m256i codes_widen(__m256i fours, int by)
{
    return _mm256_madd_epi16(fours, _mm256_set1_epi16((int16_t)by));
}

/* Takes codes of 8 bits in halves of 4, because maddubs could not add whole ones in 16 bits. */
VEC_INLINE struct vec codes_dot_halves(__m256i even, __m256i odd, const int8_t *d)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i even_high = _mm256_and_si256(_mm256_srli_epi16(even, 4), low);
    __m256i odd_high = _mm256_and_si256(_mm256_srli_epi16(odd, 4), low);
    even = _mm256_and_si256(even, low);
    odd = _mm256_and_si256(odd, low);
    const int8_t *d1 = d + DIGIT_BYTES, *d2 = d1 + DIGIT_BYTES;
    __m256i high = _mm256_add_epi32(_mm256_add_epi32(codes_widen(codes_fours(even_high, odd_high, d), 4096),
                                                     codes_widen(codes_fours(even_high, odd_high, d1), 16)),
                                    _mm256_add_epi32(codes_widen(codes_fours(even, odd, d), 256),
                                                     codes_widen(codes_fours(even, odd, d1), 1)));
    __m256i rest = _mm256_add_epi32(codes_widen(codes_fours(even_high, odd_high, d2), 16),
                                    codes_widen(codes_fours(even, odd, d2), 1));
    return (struct vec){
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(256), _mm256_cvtepi32_ps(rest))};
}

VEC_INLINE struct vec codes_dot_block(const struct codes *c, int block, const struct cpu_vector *x, size_t b,
                                      int kind)
{
    const int8_t *d = codes_digits(x, b) + block * (CPU_BLOCK / 2);
    __m256i even = c->even[block], odd = c->odd[block];
    if (codes_byte_bits(kind) > 6)
        return codes_dot_halves(even, odd, d);
    __m256i high = _mm256_add_epi32(codes_widen(codes_fours(even, odd, d), 256),
                                    codes_widen(codes_fours(even, odd, d + DIGIT_BYTES), 1));
    __m256i rest = codes_widen(codes_fours(even, odd, d + 2 * DIGIT_BYTES), 1);
    if (codes_byte_bits(kind) <= 5) {
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, 8), rest);
        const int32_t *shifted = codes_shifted(x, b) + (uint64_t)block * VEC_LANES;
        if (codes_are_e2m1(kind))
            sum = _mm256_sub_epi32(sum, _mm256_loadu_si256((const __m256i *)(const void *)shifted));
        return (struct vec){_mm256_cvtepi32_ps(sum)};
    }
    return (struct vec){
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(256), _mm256_cvtepi32_ps(rest))};
}

VEC_INLINE struct pair codes_dot(struct codes c, const struct cpu_vector *x, size_t b, int kind)
{
    return pair_of(codes_dot_block(&c, 0, x, b, kind), codes_dot_block(&c, 1, x, b, kind));
}

#elif defined(VEC_NEON)
/* Adds four products to each lane; codes have at most 7 bits. */
VEC_INLINE int32x4_t codes_fours(int8x16_t codes, int8x16_t digits, int32x4_t sum)
{
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, codes, digits);
#else
    int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(digits)), high = vmull_high_s8(codes, digits);
    return vpadalq_s16(vpadalq_s16(sum, vuzp1q_s16(low, high)), vuzp2q_s16(low, high));
#endif
}

VEC_INLINE int32x4_t codes_sum(uint8x16_t even, uint8x16_t odd, const int8_t *digits)
{
    return codes_fours(vreinterpretq_s8_u8(odd), vld1q_s8(digits + CPU_BLOCK),
                       codes_fours(vreinterpretq_s8_u8(even), vld1q_s8(digits), vdupq_n_s32(0)));
}

VEC_INLINE float32x4_t codes_dot_half(uint8x16_t even, uint8x16_t odd, const int8_t *digits,
                                      const int32_t *shifted, int kind)
{
    int bits = codes_byte_bits(kind);
    int32x4_t sum[3];
    for (size_t k = 0; k < 3; k++) {
        const int8_t *d = digits + k * DIGIT_BYTES;
        if (bits < 8) {
            sum[k] = codes_sum(even, odd, d);
            continue;
        }
        /* Bytes above 127 would be negative here, so they are taken in halves of 4 bits. */
        const uint8x16_t low = vdupq_n_u8(15);
        int32x4_t high = codes_sum(vshrq_n_u8(even, 4), vshrq_n_u8(odd, 4), d);
        sum[k] = vaddq_s32(vshlq_n_s32(high, 4), codes_sum(vandq_u8(even, low), vandq_u8(odd, low), d));
    }
    int32x4_t high = vaddq_s32(vshlq_n_s32(sum[0], 8), sum[1]);
    if (bits <= 5) {
        int32x4_t all = vaddq_s32(vshlq_n_s32(high, 8), sum[2]);
        return vcvtq_f32_s32(codes_are_e2m1(kind) ? vsubq_s32(all, vld1q_s32(shifted)) : all);
    }
    return vfmaq_f32(vcvtq_f32_s32(sum[2]), vcvtq_f32_s32(high), vdupq_n_f32(256));
}

VEC_INLINE struct pair codes_dot(struct codes c, const struct cpu_vector *x, size_t b, int kind)
{
    struct vec v[2];
    for (size_t block = 0; block < 2; block++) {
        const int8_t *d = codes_digits(x, b) + block * (CPU_BLOCK / 2);
        const int32_t *shifted = codes_shifted(x, b + block);
        v[block].a = codes_dot_half(c.even[block][0], c.odd[block][0], d, shifted, kind);
        v[block].b = codes_dot_half(c.even[block][1], c.odd[block][1], d + 16, shifted + 4, kind);
    }
    return pair_of(v[0], v[1]);
}

#else
/* Computes 16 sums of eight products. Not inlined: copies of these loops for each product of each format
 * would take the compiler half a minute. */
static __attribute__((noinline)) void codes_sum(const struct codes *c, const int8_t *digits,
                                                int32_t sums[PAIR_LANES])
{
    for (int i = 0; i < PAIR_LANES; i++) {
        int block = i / VEC_LANES, from = i % VEC_LANES * 4;
        sums[i] = 0;
        for (int odd = 0; odd < 2; odd++)
            for (int k = from; k < from + 4; k++)
                sums[i] += c->of[odd][block][k] * digits[(odd * 2 + block) * (CPU_BLOCK / 2) + k];
    }
}

VEC_INLINE struct pair codes_dot(struct codes c, const struct cpu_vector *x, size_t b, int kind)
{
    const int8_t *digits = codes_digits(x, b);
    const int32_t *shifted = codes_shifted(x, b);
    int32_t s[3][PAIR_LANES];
    float f[PAIR_LANES];
    for (size_t k = 0; k < 3; k++)
        codes_sum(&c, digits + k * DIGIT_BYTES, s[k]);
    for (int i = 0; i < PAIR_LANES; i++) {
        /* The float is the same as that of the 32-bit sum used for few bits. */
        if (codes_are_e2m1(kind))
            f[i] = (float)((s[0][i] * 256 + s[1][i]) * 256 + s[2][i] - shifted[i]);
        else
            f[i] = vec_fma_lane(vec_fma_lane((float)s[0][i], 256, (float)s[1][i]), 256, (float)s[2][i]);
    }
    return pair_load(f);
}
#endif

#endif
