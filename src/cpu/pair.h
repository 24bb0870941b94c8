/* pair.h - 16 floats or integers: two vectors of vec.h. One register with AVX-512. */
#ifndef MOEFLUX_CPU_PAIR_H
#define MOEFLUX_CPU_PAIR_H

#include "cpu/scales.h"

enum { PAIR_LANES = 2 * VEC_LANES };

#ifdef __AVX512F__
struct pair {
    __m512 v;
};
struct ipair {
    __m512i v;
};

VEC_INLINE struct pair pair_of(struct vec low, struct vec high)
{
    return (struct pair){_mm512_insertf32x8(_mm512_castps256_ps512(low.a), high.a, 1)};
}

VEC_INLINE struct pair pair_set1(float x)
{
    return (struct pair){_mm512_set1_ps(x)};
}

/* Sets the first 8 lanes to values[0], the others to values[1]. */
VEC_INLINE struct pair pair_set2(const float *values)
{
    const __m512i idx = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512d both = _mm512_castpd128_pd512(_mm_load_sd((const double *)(const void *)values));
    return (struct pair){_mm512_permutexvar_ps(idx, _mm512_castpd_ps(both))};
}

/* Repeats each of 2 n floats in the next 8 / n lanes. n: 1, 2 or 4. */
VEC_INLINE struct pair pair_each(const float *p, uint32_t n)
{
    if (n == 1)
        return pair_set2(p);
    if (n == 2)
        return (struct pair){
            _mm512_permutexvar_ps(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
                                  _mm512_castps128_ps512(_mm_loadu_ps(p)))};
    return (struct pair){
        _mm512_permutexvar_ps(_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                              _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}

VEC_INLINE struct pair pair_load(const float *p)
{
    return (struct pair){_mm512_loadu_ps(p)};
}

VEC_INLINE void pair_store(float *p, struct pair x)
{
    _mm512_storeu_ps(p, x.v);
}

VEC_INLINE struct ipair ipair_load(const int32_t *p)
{
    return (struct ipair){_mm512_loadu_si512(p)};
}

/* Widens 16 unsigned bytes. */
VEC_INLINE struct ipair ipair_load_bytes(const uint8_t *p)
{
    return (struct ipair){_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))};
}

VEC_INLINE struct pair pair_add(struct pair x, struct pair y)
{
    return (struct pair){_mm512_add_ps(x.v, y.v)};
}

VEC_INLINE struct ipair ipair_add(struct ipair x, struct ipair y)
{
    return (struct ipair){_mm512_add_epi32(x.v, y.v)};
}

VEC_INLINE struct pair pair_mul(struct pair x, struct pair y)
{
    return (struct pair){_mm512_mul_ps(x.v, y.v)};
}

VEC_INLINE struct pair pair_fma(struct pair x, struct pair y, struct pair z)
{
    return (struct pair){_mm512_fmadd_ps(x.v, y.v, z.v)};
}

VEC_INLINE struct pair pair_from_int(struct ipair x)
{
    return (struct pair){_mm512_cvtepi32_ps(x.v)};
}

VEC_INLINE struct pair pair_bits(struct ipair x)
{
    return (struct pair){_mm512_castsi512_ps(x.v)};
}

VEC_INLINE struct ipair ipair_set1(int32_t x)
{
    return (struct ipair){_mm512_set1_epi32(x)};
}

VEC_INLINE struct ipair ipair_and(struct ipair x, struct ipair y)
{
    return (struct ipair){_mm512_and_si512(x.v, y.v)};
}

VEC_INLINE struct ipair ipair_or(struct ipair x, struct ipair y)
{
    return (struct ipair){_mm512_or_si512(x.v, y.v)};
}

VEC_INLINE void ipair_store(void *p, struct ipair x)
{
    _mm512_storeu_si512(p, x.v);
}

/* Transposes words 4 at .. 4 at + 3 of the rows into out[0] .. out[3]: four squares of 4 x 4, each within a
 * quarter of a register. */
VEC_INLINE void ipair_turn_four(const void *const rows[PAIR_LANES], int at, struct ipair out[4])
{
    __m512i r[4], t[4];
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)rows[i] + at));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x00f0, _mm_loadu_si128((const __m128i *)rows[4 + i] + at));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x0f00, _mm_loadu_si128((const __m128i *)rows[8 + i] + at));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0xf000, _mm_loadu_si128((const __m128i *)rows[12 + i] + at));
    }
    for (int i = 0; i < 2; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        out[2 * i].v = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        out[2 * i + 1].v = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    }
}

/* Transposes 16 rows like vec_turn: out[i] gets word i of all rows. */
VEC_INLINE void ipair_turn(const void *const rows[PAIR_LANES], struct ipair out[VEC_LANES])
{
    ipair_turn_four(rows, 0, out);
    ipair_turn_four(rows, 1, out + 4);
}

VEC_INLINE struct ipair ipair_left(struct ipair x, int by)
{
    return (struct ipair){_mm512_slli_epi32(x.v, (unsigned)by)};
}

VEC_INLINE struct ipair ipair_right(struct ipair x, int by)
{
    return (struct ipair){_mm512_srli_epi32(x.v, (unsigned)by)};
}

VEC_INLINE struct ipair ipair_right_signed(struct ipair x, int by)
{
    return (struct ipair){_mm512_srai_epi32(x.v, (unsigned)by)};
}

/* Returns the sum of both halves. */
VEC_INLINE struct vec pair_fold(struct pair x)
{
    return (struct vec){_mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1))};
}

VEC_INLINE struct pair pair_load_bf16(const void *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return (struct pair){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}

VEC_INLINE struct pair pair_load_f16(const void *p)
{
    return (struct pair){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))};
}

VEC_INLINE struct pair pair_load_e4m3(const uint8_t *p)
{
    return pair_mul((struct pair){_mm512_cvtph_ps(e4m3_to_f16_16(_mm_loadu_si128((const __m128i *)p)))},
                    pair_set1(256));
}

/* Loads 2^-120 of each number, if e4m3_are_normal. A float with the same exponent and mantissa bits is that
 * much smaller:
 *   E4M3    seeeemmm
 *   float   s0000eeeemmm00000000000000000000 */
VEC_INLINE struct pair pair_load_e4m3_small(const uint8_t *p)
{
    __m512i b = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
    return (struct pair){
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_slli_epi32(b, 20), _mm512_set1_epi32((int)0x87f00000)))};
}

#else

struct pair {
    struct vec low, high;
};
struct ipair {
    struct ivec low, high;
};

VEC_INLINE struct pair pair_of(struct vec low, struct vec high)
{
    return (struct pair){low, high};
}

VEC_INLINE struct ipair ipair_of(struct ivec low, struct ivec high)
{
    return (struct ipair){low, high};
}

VEC_INLINE struct pair pair_set1(float x)
{
    return (struct pair){vec_set1(x), vec_set1(x)};
}

VEC_INLINE struct pair pair_set2(const float *values)
{
    return (struct pair){vec_set1(values[0]), vec_set1(values[1])};
}

VEC_INLINE struct pair pair_each(const float *p, uint32_t n)
{
    return (struct pair){vec_each(p, n), vec_each(p + n, n)};
}

VEC_INLINE struct pair pair_load(const float *p)
{
    return (struct pair){vec_load(p), vec_load(p + VEC_LANES)};
}

VEC_INLINE void pair_store(float *p, struct pair x)
{
    vec_store(p, x.low);
    vec_store(p + VEC_LANES, x.high);
}

VEC_INLINE struct ipair ipair_load(const int32_t *p)
{
    return (struct ipair){ivec_load(p), ivec_load(p + VEC_LANES)};
}

VEC_INLINE struct ipair ipair_load_bytes(const uint8_t *p)
{
    return (struct ipair){ivec_load_bytes(p), ivec_load_bytes(p + VEC_LANES)};
}

VEC_INLINE struct pair pair_add(struct pair x, struct pair y)
{
    return (struct pair){vec_add(x.low, y.low), vec_add(x.high, y.high)};
}

VEC_INLINE struct ipair ipair_add(struct ipair x, struct ipair y)
{
    return (struct ipair){ivec_add(x.low, y.low), ivec_add(x.high, y.high)};
}

VEC_INLINE struct pair pair_mul(struct pair x, struct pair y)
{
    return (struct pair){vec_mul(x.low, y.low), vec_mul(x.high, y.high)};
}

VEC_INLINE struct pair pair_fma(struct pair x, struct pair y, struct pair z)
{
    return (struct pair){vec_fma(x.low, y.low, z.low), vec_fma(x.high, y.high, z.high)};
}

VEC_INLINE struct pair pair_from_int(struct ipair x)
{
    return (struct pair){vec_from_int(x.low), vec_from_int(x.high)};
}

VEC_INLINE struct pair pair_bits(struct ipair x)
{
    return (struct pair){vec_bits(x.low), vec_bits(x.high)};
}

VEC_INLINE struct ipair ipair_set1(int32_t x)
{
    return (struct ipair){ivec_set1(x), ivec_set1(x)};
}

VEC_INLINE struct ipair ipair_and(struct ipair x, struct ipair y)
{
    return (struct ipair){ivec_and(x.low, y.low), ivec_and(x.high, y.high)};
}

VEC_INLINE struct ipair ipair_or(struct ipair x, struct ipair y)
{
    return (struct ipair){ivec_or(x.low, y.low), ivec_or(x.high, y.high)};
}

VEC_INLINE void ipair_store(void *p, struct ipair x)
{
    ivec_store(p, x.low);
    ivec_store((int32_t *)p + VEC_LANES, x.high);
}

/* Transposes 16 rows like vec_turn: out[i] gets word i of all rows. */
VEC_INLINE void ipair_turn(const void *const rows[PAIR_LANES], struct ipair out[VEC_LANES])
{
    struct ivec low[VEC_LANES], high[VEC_LANES];
    vec_turn(rows, low);
    vec_turn(rows + VEC_LANES, high);
    for (int i = 0; i < VEC_LANES; i++)
        out[i] = ipair_of(low[i], high[i]);
}

VEC_INLINE struct ipair ipair_left(struct ipair x, int by)
{
    return (struct ipair){ivec_left(x.low, by), ivec_left(x.high, by)};
}

VEC_INLINE struct ipair ipair_right(struct ipair x, int by)
{
    return (struct ipair){ivec_right(x.low, by), ivec_right(x.high, by)};
}

VEC_INLINE struct ipair ipair_right_signed(struct ipair x, int by)
{
    return (struct ipair){ivec_right_signed(x.low, by), ivec_right_signed(x.high, by)};
}

VEC_INLINE struct vec pair_fold(struct pair x)
{
    return vec_add(x.low, x.high);
}

VEC_INLINE struct pair pair_load_bf16(const void *p)
{
    return (struct pair){vec_load_bf16(p), vec_load_bf16((const uint8_t *)p + sizeof(uint16_t) * VEC_LANES)};
}

VEC_INLINE struct pair pair_load_f16(const void *p)
{
    return (struct pair){vec_load_f16(p), vec_load_f16((const uint8_t *)p + sizeof(uint16_t) * VEC_LANES)};
}

VEC_INLINE struct pair pair_load_e4m3(const uint8_t *p)
{
#ifdef VEC_AVX
    __m256i h = e4m3_to_f16_16(_mm_loadu_si128((const __m128i *)p));
    struct pair v = pair_of((struct vec){_mm256_cvtph_ps(_mm256_castsi256_si128(h))},
                            (struct vec){_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))});
    return pair_mul(v, pair_set1(256));
#else
    return pair_of(vec_load_e4m3(p), vec_load_e4m3(p + VEC_LANES));
#endif
}

#ifdef VEC_AVX
VEC_INLINE struct vec vec_load_e4m3_small(const uint8_t *p)
{
    __m256i b = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return (struct vec){
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(b, 20), _mm256_set1_epi32((int)0x87f00000)))};
}

/* Loads 2^-120 of each number, if e4m3_are_normal; see the other one above. */
VEC_INLINE struct pair pair_load_e4m3_small(const uint8_t *p)
{
    return pair_of(vec_load_e4m3_small(p), vec_load_e4m3_small(p + VEC_LANES));
}
#endif
#endif

/* Loads 16 scales of a type. */
VEC_INLINE struct pair pair_load_scales(const uint8_t *p, uint32_t scale)
{
    switch (scale) {
    case SCALE_BF16:
        return pair_load_bf16(p);
    case SCALE_F16:
        return pair_load_f16(p);
    case SCALE_E4M3:
    case SCALE_E4M3_FACTOR:
        return pair_load_e4m3(p);
    default:
        return pair_of(scales_eight(p, scale),
                       scales_eight(p + (size_t)VEC_LANES * scales_bytes(scale), scale));
    }
}

#endif
