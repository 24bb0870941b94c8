/* codes.h - the codes of a row's next two blocks of 64 columns, times the digits of a vector (product.h).
 *
 * Codes are unpacked into two registers for each block: those of the even columns and those of the odd ones, 4 bytes to a
 * lane of 32 bits, so that lane l holds columns 8 l to 8 l + 7. Every instruction set adds four products of bytes into such
 * a lane: maddubs and madd, vpdpbusd, sdot, or smull and sadalp. */
#ifndef MOEFLUX_CPU_CODES_H
#define MOEFLUX_CPU_CODES_H

#include "cpu/pair.h"
#include "cpu/product.h"

enum { DIGIT_BYTES = 2 * CPU_BLOCK, PAIR_DIGITS = 3 * DIGIT_BYTES };

/* Bytes of a block's codes. */
VEC_INLINE uint64_t codes_bytes(int bits)
{
    return (uint64_t)bits * CPU_BLOCK / 8;
}

#if defined(__AVX512VNNI__)
struct codes {
    __m512i even, odd; /* the first block below, the second above */
};

VEC_INLINE struct codes codes_split(__m512i first, __m512i second, int bits)
{
    if (bits == 4) { /* second is not used */
        const __m512i low = _mm512_set1_epi8(15);
        return (struct codes){_mm512_and_si512(first, low),
                              _mm512_and_si512(_mm512_srli_epi16(first, 4), low)};
    }
    const __m512i low = _mm512_set1_epi16(255), order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __m512i even = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
    __m512i odd = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    return (struct codes){_mm512_permutexvar_epi64(order, even), _mm512_permutexvar_epi64(order, odd)};
}

VEC_INLINE struct codes codes_load(const uint8_t *p, int bits)
{
    return codes_split(_mm512_loadu_si512(p), bits == 4 ? _mm512_setzero_si512() : _mm512_loadu_si512(p + 64),
                       bits);
}

/* One block, zeros for the second. */
VEC_INLINE struct codes codes_load_last(const uint8_t *p, int bits)
{
    if (bits == 4)
        return codes_split(_mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
                           _mm512_setzero_si512(), bits);
    return codes_split(_mm512_loadu_si512(p), _mm512_setzero_si512(), bits);
}

VEC_INLINE __m512i codes_sum(struct codes c, const int8_t *digits, __m512i sum)
{
    sum = _mm512_dpbusd_epi32(sum, c.even, _mm512_loadu_si512(digits));
    return _mm512_dpbusd_epi32(sum, c.odd, _mm512_loadu_si512(digits + CPU_BLOCK));
}

VEC_INLINE struct pair codes_dot(struct codes c, const int8_t *digits, int bits)
{
    __m512i high = codes_sum(c, digits, _mm512_setzero_si512());
    high = codes_sum(c, digits + DIGIT_BYTES, _mm512_slli_epi32(high, 8));
    /* The three sums together fit 32 bits where a code has 5 bits at most. */
    if (bits <= 5)
        return (struct pair){
            _mm512_cvtepi32_ps(codes_sum(c, digits + 2 * DIGIT_BYTES, _mm512_slli_epi32(high, 8)))};
    __m512i rest = codes_sum(c, digits + 2 * DIGIT_BYTES, _mm512_setzero_si512());
    return (struct pair){
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256), _mm512_cvtepi32_ps(rest))};
}

#elif defined(VEC_AVX)
struct codes {
    __m256i even[2], odd[2]; /* by block */
};

VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int bits)
{
    __m256i first = _mm256_loadu_si256((const __m256i *)p);
    if (bits == 4) {
        const __m256i low = _mm256_set1_epi8(15);
        c->even[block] = _mm256_and_si256(first, low);
        c->odd[block] = _mm256_and_si256(_mm256_srli_epi16(first, 4), low);
        return;
    }
    __m256i second = _mm256_loadu_si256((const __m256i *)(p + 32)), low = _mm256_set1_epi16(255);
    __m256i even = _mm256_packus_epi16(_mm256_and_si256(first, low), _mm256_and_si256(second, low));
    __m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    c->even[block] = _mm256_permute4x64_epi64(even, 0xd8);
    c->odd[block] = _mm256_permute4x64_epi64(odd, 0xd8);
}

VEC_INLINE struct codes codes_load(const uint8_t *p, int bits)
{
    struct codes c;
    codes_block(&c, 0, p, bits);
    codes_block(&c, 1, p + codes_bytes(bits), bits);
    return c;
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int bits)
{
    struct codes c = {.even = {_mm256_setzero_si256(), _mm256_setzero_si256()},
                      .odd = {_mm256_setzero_si256(), _mm256_setzero_si256()}};
    codes_block(&c, 0, p, bits);
    return c;
}

/* Sums of four products in 16 bits: codes of at most 6 bits. */
VEC_INLINE __m256i codes_fours(__m256i even, __m256i odd, const int8_t *digits)
{
    return _mm256_add_epi16(
        _mm256_maddubs_epi16(even, _mm256_loadu_si256((const __m256i *)digits)),
        _mm256_maddubs_epi16(odd, _mm256_loadu_si256((const __m256i *)(digits + CPU_BLOCK))));
}

/* x.even * y + x.odd * y in 32 bits */
VEC_INLINE __m256i codes_widen(__m256i fours, int by)
{
    return _mm256_madd_epi16(fours, _mm256_set1_epi16((int16_t)by));
}

/* 8 bits: what maddubs cannot add in 16 bits is taken in halves of 4. */
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

VEC_INLINE struct vec codes_dot_block(const struct codes *c, int block, const int8_t *digits, int bits)
{
    const int8_t *d = digits + block * (CPU_BLOCK / 2);
    __m256i even = c->even[block], odd = c->odd[block];
    if (bits > 6)
        return codes_dot_halves(even, odd, d);
    __m256i high = _mm256_add_epi32(codes_widen(codes_fours(even, odd, d), 256),
                                    codes_widen(codes_fours(even, odd, d + DIGIT_BYTES), 1));
    __m256i rest = codes_widen(codes_fours(even, odd, d + 2 * DIGIT_BYTES), 1);
    if (bits <= 5)
        return (struct vec){_mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(high, 8), rest))};
    return (struct vec){
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(256), _mm256_cvtepi32_ps(rest))};
}

VEC_INLINE struct pair codes_dot(struct codes c, const int8_t *digits, int bits)
{
    return pair_of(codes_dot_block(&c, 0, digits, bits), codes_dot_block(&c, 1, digits, bits));
}

#elif defined(VEC_NEON)
struct codes {
    int8x16_t even[2][2], odd[2][2]; /* [block][lanes 0 to 3, 4 to 7]; 8 bits as unsigned bytes */
};

VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int bits)
{
    for (int half = 0; half < 2; half++) {
        if (bits == 4) {
            uint8x16_t v = vld1q_u8(p + 16 * half);
            c->even[block][half] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
            c->odd[block][half] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
        } else {
            uint8x16x2_t v = vld2q_u8(p + 32 * half);
            c->even[block][half] = vreinterpretq_s8_u8(v.val[0]);
            c->odd[block][half] = vreinterpretq_s8_u8(v.val[1]);
        }
    }
}

VEC_INLINE struct codes codes_load(const uint8_t *p, int bits)
{
    struct codes c;
    codes_block(&c, 0, p, bits);
    codes_block(&c, 1, p + codes_bytes(bits), bits);
    return c;
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int bits)
{
    const int8x16_t zero = vdupq_n_s8(0);
    struct codes c = {.even = {{zero, zero}, {zero, zero}}, .odd = {{zero, zero}, {zero, zero}}};
    codes_block(&c, 0, p, bits);
    return c;
}

/* Sums of four products a lane, codes of at most 7 bits. */
VEC_INLINE int32x4_t codes_fours(int8x16_t codes, int8x16_t digits, int32x4_t sum)
{
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, codes, digits);
#else
    int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(digits)), high = vmull_high_s8(codes, digits);
    return vpadalq_s16(vpadalq_s16(sum, vuzp1q_s16(low, high)), vuzp2q_s16(low, high));
#endif
}

VEC_INLINE int32x4_t codes_sum(int8x16_t even, int8x16_t odd, const int8_t *digits)
{
    return codes_fours(odd, vld1q_s8(digits + CPU_BLOCK),
                       codes_fours(even, vld1q_s8(digits), vdupq_n_s32(0)));
}

VEC_INLINE float32x4_t codes_dot_half(int8x16_t even, int8x16_t odd, const int8_t *digits, int bits)
{
    int32x4_t sum[3];
    for (size_t k = 0; k < 3; k++) {
        const int8_t *d = digits + k * DIGIT_BYTES;
        if (bits < 8) {
            sum[k] = codes_sum(even, odd, d);
            continue;
        }
        /* Bytes above 127 are negative here: halves of 4 bits. */
        uint8x16_t e = vreinterpretq_u8_s8(even), o = vreinterpretq_u8_s8(odd), low = vdupq_n_u8(15);
        int32x4_t high =
            codes_sum(vreinterpretq_s8_u8(vshrq_n_u8(e, 4)), vreinterpretq_s8_u8(vshrq_n_u8(o, 4)), d);
        sum[k] = vaddq_s32(vshlq_n_s32(high, 4), codes_sum(vreinterpretq_s8_u8(vandq_u8(e, low)),
                                                           vreinterpretq_s8_u8(vandq_u8(o, low)), d));
    }
    int32x4_t high = vaddq_s32(vshlq_n_s32(sum[0], 8), sum[1]);
    if (bits <= 5)
        return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), sum[2]));
    return vfmaq_f32(vcvtq_f32_s32(sum[2]), vcvtq_f32_s32(high), vdupq_n_f32(256));
}

VEC_INLINE struct pair codes_dot(struct codes c, const int8_t *digits, int bits)
{
    struct vec v[2];
    for (int block = 0; block < 2; block++) {
        const int8_t *d = digits + block * (CPU_BLOCK / 2);
        v[block].a = codes_dot_half(c.even[block][0], c.odd[block][0], d, bits);
        v[block].b = codes_dot_half(c.even[block][1], c.odd[block][1], d + 16, bits);
    }
    return pair_of(v[0], v[1]);
}

#else
struct codes {
    uint8_t of[2][2][CPU_BLOCK / 2]; /* [even, odd columns][block] */
};

VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int bits)
{
    for (size_t i = 0; i < CPU_BLOCK / 2; i++) {
        c->of[0][block][i] = bits == 4 ? p[i] & 15 : p[2 * i];
        c->of[1][block][i] = bits == 4 ? p[i] >> 4 : p[2 * i + 1];
    }
}

VEC_INLINE struct codes codes_load(const uint8_t *p, int bits)
{
    struct codes c;
    codes_block(&c, 0, p, bits);
    codes_block(&c, 1, p + codes_bytes(bits), bits);
    return c;
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int bits)
{
    struct codes c = {0};
    codes_block(&c, 0, p, bits);
    return c;
}

VEC_INLINE int32_t codes_sum(const struct codes *c, int block, int lane, const int8_t *digits)
{
    int32_t sum = 0;
    for (int odd = 0; odd < 2; odd++)
        for (int i = 4 * lane; i < 4 * lane + 4; i++)
            sum += c->of[odd][block][i] * digits[(odd * 2 + block) * (CPU_BLOCK / 2) + i];
    return sum;
}

VEC_INLINE struct pair codes_dot(struct codes c, const int8_t *digits, int bits)
{
    float f[PAIR_LANES];
    (void)bits; /* where the sums fit 32 bits their float is the same */
    for (int i = 0; i < PAIR_LANES; i++) {
        int32_t s[3];
        for (size_t k = 0; k < 3; k++)
            s[k] = codes_sum(&c, i / VEC_LANES, i % VEC_LANES, digits + k * DIGIT_BYTES);
        f[i] = vec_fma_lane(vec_fma_lane((float)s[0], 256, (float)s[1]), 256, (float)s[2]);
    }
    return pair_load(f);
}
#endif

#endif
