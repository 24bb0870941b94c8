/* scales.h - the scales and biases of groups, and numbers of 16 and 8 bits, as floats. */
#ifndef MOEFLUX_CPU_SCALES_H
#define MOEFLUX_CPU_SCALES_H

#include <stdbool.h>

#include "args.h"
#include "base/f16.h"
#include "cpu/vec.h"

/* Widens 8 unsigned bytes. */
VEC_INLINE struct ivec ivec_load_bytes(const uint8_t *p)
{
#if defined(VEC_AVX)
    return (struct ivec){(VEC_OF(int32_t))_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))};
#elif defined(VEC_NEON)
    uint16x8_t h = vmovl_u8(vld1_u8(p));
    return (struct ivec){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h))),
                         vreinterpretq_s32_u32(vmovl_high_u16(h))};
#else
    int32_t wide[VEC_LANES];
    for (int l = 0; l < VEC_LANES; l++)
        wide[l] = p[l];
    return ivec_load(wide);
#endif
}

/* Returns 1/256 of an E4M3 number as float16. With this factor the mantissa bits mean the same in both, also
 * for denormals:
 *   E4M3      seeeemmm
 *   float16   s0eeeemmm0000000 */
static inline uint16_t e4m3_to_f16(uint8_t b)
{
    uint32_t h = (b & 0x7fu) << 7 | ((b & 0x7f) == 0x7f ? 0x7fffu : 0);
    return (uint16_t)(h | (b & 0x80u) << 8);
}

#ifdef VEC_AVX
/* The sign extension copies the sign into the exponent's highest bit, too; the mask clears it there. */
VEC_INLINE __m256i e4m3_to_f16_16(__m128i bytes)
{
    __m256i b = _mm256_cvtepi8_epi16(bytes);
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((short)0xbf80));
    const __m256i size = _mm256_set1_epi16(0x3f80);
    return _mm256_or_si256(h, _mm256_cmpeq_epi16(_mm256_and_si256(h, size), size));
}
#endif

VEC_INLINE struct vec vec_load_e4m3(const uint8_t *p)
{
#ifdef VEC_AVX
    __m256i h = e4m3_to_f16_16(_mm_loadl_epi64((const __m128i *)p));
    struct vec v = {_mm256_cvtph_ps(_mm256_castsi256_si128(h))};
#else
    uint16_t h[VEC_LANES];
    for (int l = 0; l < VEC_LANES; l++)
        h[l] = e4m3_to_f16(p[l]);
    struct vec v = vec_load_f16(h);
#endif
    return vec_mul(v, vec_set1(256));
}

#ifdef VEC_AVX
/* Returns whether 32 numbers are all normal: no zero, no denormal, no NaN. */
VEC_INLINE bool e4m3_are_normal(const uint8_t *p)
{
    const __m256i least = _mm256_set1_epi8(8), range = _mm256_set1_epi8(0x7e - 8);
    __m256i b = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8(0x7f));
    __m256i above = _mm256_sub_epi8(b, least);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(above, range), above)) == -1;
}
#endif

/* Returns 2^(byte - 127). Byte 0 is a denormal float, 255 a NaN. */
VEC_INLINE struct vec vec_load_e8m0(const uint8_t *p)
{
    struct ivec b = ivec_load_bytes(p), half = ivec_set1(1 << 22);
    struct ivec edge = ivec_or(ivec_equal(b, ivec_set1(0)), ivec_equal(b, ivec_set1(255)));
    return vec_bits(ivec_or(ivec_left(b, 23), ivec_and(edge, half)));
}

/* Returns the bytes of one scale. */
VEC_INLINE uint32_t scales_bytes(uint32_t scale)
{
    return scale == SCALE_F32 ? 4 : scale == SCALE_BF16 || scale == SCALE_F16 ? 2 : 1;
}

VEC_INLINE struct vec scales_eight(const uint8_t *p, uint32_t scale)
{
    switch (scale) {
    case SCALE_BF16:
        return vec_load_bf16(p);
    case SCALE_F16:
        return vec_load_f16(p);
    case SCALE_F32:
        return vec_bits(ivec_load(p));
    case SCALE_E8M0:
        return vec_load_e8m0(p);
    default:
        return vec_load_e4m3(p);
    }
}

/* Loads scales i to i + 7 of n. Lanes past the end have no meaning, but are numbers. */
VEC_INLINE struct vec scales_load(const uint8_t *p, uint32_t scale, uint32_t i, uint32_t n)
{
    uint32_t bytes = scales_bytes(scale);
    uint8_t some[VEC_LANES * sizeof(float)] = {0};
    p += (uint64_t)i * bytes;
    if (n - i >= VEC_LANES)
        return scales_eight(p, scale);
    for (uint32_t k = 0; k < n - i; k++)
        memcpy(some + (size_t)k * bytes, p + (size_t)k * bytes, bytes);
    return scales_eight(some, scale);
}

/* Returns scale i. */
VEC_INLINE float scales_one(const void *scales, uint32_t scale, uint64_t i)
{
    const uint8_t *p = (const uint8_t *)scales + i * scales_bytes(scale);
    uint32_t word = 0;
    uint16_t half;
    float x;
    switch (scale) {
    case SCALE_BF16:
        memcpy(&half, p, sizeof half);
        return bf16_to_float(half);
    case SCALE_F16:
        memcpy(&half, p, sizeof half);
        return f16_to_float(half);
    case SCALE_F32:
        memcpy(&x, p, sizeof x);
        return x;
    case SCALE_E8M0:
        word = (uint32_t)*p << 23 | (*p == 0 || *p == 255 ? 1u << 22 : 0);
        memcpy(&x, &word, sizeof x);
        return x;
    default:
        return f16_to_float(e4m3_to_f16(*p)) * 256;
    }
}

/* Repeats each of n floats in the next 8 / n lanes. n: 1, 2, 4 or 8. */
VEC_INLINE struct vec vec_each(const float *p, uint32_t n)
{
    if (n == 8)
        return vec_load(p);
    if (n == 1)
        return vec_set1(*p);
#if defined(VEC_AVX)
    if (n == 4)
        return (struct vec){_mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                                     _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))};
    __m128 two = _mm_castpd_ps(_mm_load_sd((const double *)(const void *)p));
    return (struct vec){
        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(two), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))};
#else
    if (n == 4)
        return (struct vec){(VEC_OF(float)){p[0], p[0], p[1], p[1]}, (VEC_OF(float)){p[2], p[2], p[3], p[3]}};
    return (struct vec){(VEC_OF(float)){p[0], p[0], p[0], p[0]}, (VEC_OF(float)){p[1], p[1], p[1], p[1]}};
#endif
}

#endif
