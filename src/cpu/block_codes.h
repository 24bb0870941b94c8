/* block_codes.h - the codes of block formats (FORMAT_TABLE_BLOCKS) times the digits of a vector.
 *
 * A unit is 256 columns: one block of 256 columns, 4 of 64 or 8 of 32. Its codes are taken in pairs of 64
 * columns; a block of 64 columns is in this file what it is in product.h. */
#ifndef MOEFLUX_CPU_BLOCK_CODES_H
#define MOEFLUX_CPU_BLOCK_CODES_H

#include <stdbool.h>

#include "args.h"
#include "cpu/codes.h"
#include "cpu/pair.h"
#include "cpu/product.h"

enum {
    UNIT_COLS = 256,
    UNIT_BLOCKS = UNIT_COLS / CPU_BLOCK,
    UNIT_PARTS = 16, /* lots of 16 columns */
    PART_COLS = 16,
    HALF_COLS = CPU_BLOCK / 2
};

/* Whether codes of 7 and 8 bits are multiplied as signed numbers of 16 bits: with AVX2, where products of
 * 8-bit codes would not fit 16 bits, and those of 7 bits take no fewer instructions. */
#if defined(VEC_AVX) && !defined(__AVX512VNNI__)
#define BLOCK_WIDE 1
#else
#define BLOCK_WIDE 0
#endif

/* The number that is added to a type's codes so that they are not negative: 0 or a power of 2. Codes of 7 and
 * 8 bits stay signed with BLOCK_WIDE. */
VEC_INLINE int block_shift(int type)
{
    switch (type) {
    case FORMAT_G_Q4_1:
    case FORMAT_G_Q5_1:
    case FORMAT_G_Q2_K:
    case FORMAT_G_Q4_K:
    case FORMAT_G_Q5_K:
        return 0;
    case FORMAT_G_Q3_K:
        return 4;
    case FORMAT_G_Q4_0:
        return 8;
    case FORMAT_G_Q5_0:
    case FORMAT_G_MXFP4:
    case FORMAT_G_IQ3_S:
        return 16;
    case FORMAT_G_Q6_K:
        return 32;
    case FORMAT_G_IQ2_XXS:
    case FORMAT_G_IQ2_XS:
    case FORMAT_G_IQ2_S:
    case FORMAT_G_IQ3_XXS:
        return BLOCK_WIDE ? 0 : 64;
    default:
        return BLOCK_WIDE ? 0 : 128;
    }
}

/* Returns the bits of such a code. */
VEC_INLINE int block_bits(int type)
{
    switch (type) {
    case FORMAT_G_Q2_K:
        return 2;
    case FORMAT_G_Q3_K:
        return 3;
    case FORMAT_G_Q4_0:
    case FORMAT_G_Q4_1:
    case FORMAT_G_Q4_K:
        return 4;
    case FORMAT_G_Q5_1:
    case FORMAT_G_Q5_K:
        return 5;
    case FORMAT_G_Q6_K:
        return 6;
    case FORMAT_G_IQ2_XXS:
    case FORMAT_G_IQ2_XS:
    case FORMAT_G_IQ2_S:
    case FORMAT_G_IQ3_XXS:
        return 7;
    default:
        return block_shift(type) == 16 ? 5 : 8;
    }
}

/* Returns the column digits of blocks b and b + 1, b even, and their lanes' sums. */
VEC_INLINE const int8_t *block_digits(const struct cpu_vector *x, size_t b)
{
    return x->column_digits + b * (PAIR_DIGITS / 2);
}

/* block_dot(c, x, b, type) returns each lane's sum of code * x / step over its 8 columns, for x's blocks b
 * and b + 1. */

#if defined(__AVX512VNNI__)
/* Codes with their shift. */
struct block_codes {
    __m512i first, second; /* columns 0 to 31 and 32 to 63: the first block in the lower half */
};

VEC_INLINE struct block_codes block_codes_of(const __m256i first[2], const __m256i second[2])
{
    return (struct block_codes){_mm512_inserti64x4(_mm512_castsi256_si512(first[0]), first[1], 1),
                                _mm512_inserti64x4(_mm512_castsi256_si512(second[0]), second[1], 1)};
}

/* Adds neighbouring lanes: quarters of the result are two sums of the first and two of the second. */
VEC_INLINE __m512i block_add_lanes(__m512i first, __m512i second)
{
    __m512 a = _mm512_castsi512_ps(first), b = _mm512_castsi512_ps(second);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

/* Subtracts what the codes' shift adds. */
VEC_INLINE __m512i block_unshift(__m512i sum, const int32_t *lanes, int shift)
{
    if (shift == 0)
        return sum;
    __m512i v = _mm512_loadu_si512(lanes);
    return _mm512_sub_epi32(sum, _mm512_slli_epi32(v, (unsigned)__builtin_ctz((unsigned)shift)));
}

/* Sums of four products with the digits that are `at` bytes after the first ones, added to `sum`. */
VEC_INLINE __m512i block_fours(__m512i codes, const int8_t *digits, int at, __m512i sum)
{
    return _mm512_dpbusd_epi32(sum, codes, _mm512_loadu_si512(digits + at));
}

VEC_INLINE struct pair block_dot(struct block_codes c, const struct cpu_vector *x, size_t b, int type)
{
    const int8_t *d = block_digits(x, b), *d_second = d + CPU_BLOCK;
    const __m512i zero = _mm512_setzero_si512();
    int shift = block_shift(type);
    __m512i first = block_fours(c.first, d, 0, zero), second = block_fours(c.second, d_second, 0, zero);
    first = block_fours(c.first, d, DIGIT_BYTES, _mm512_slli_epi32(first, 8));
    second = block_fours(c.second, d_second, DIGIT_BYTES, _mm512_slli_epi32(second, 8));
    if (block_bits(type) <= 5) { /* the sum of all digits fits 32 bits and gives the same float */
        first = block_fours(c.first, d, 2 * DIGIT_BYTES, _mm512_slli_epi32(first, 8));
        second = block_fours(c.second, d_second, 2 * DIGIT_BYTES, _mm512_slli_epi32(second, 8));
        __m512i all = block_unshift(block_add_lanes(first, second), x->lanes_all + b * VEC_LANES, shift);
        return (struct pair){_mm512_cvtepi32_ps(all)};
    }
    __m512i low = block_add_lanes(block_fours(c.first, d, 2 * DIGIT_BYTES, zero),
                                  block_fours(c.second, d_second, 2 * DIGIT_BYTES, zero));
    __m512i high = block_unshift(block_add_lanes(first, second), x->lanes_high + b * VEC_LANES, shift);
    low = block_unshift(low, x->lanes_low + b * VEC_LANES, shift);
    return (struct pair){
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256), _mm512_cvtepi32_ps(low))};
}

#elif defined(VEC_AVX)
/* Codes with their shift. */
struct block_codes {
    __m256i first[2], second[2]; /* [block]: columns 0 to 31 and 32 to 63 */
};

VEC_INLINE struct block_codes block_codes_of(const __m256i first[2], const __m256i second[2])
{
    return (struct block_codes){{first[0], first[1]}, {second[0], second[1]}};
}

/* Returns sums of four products of a digit, times `by`. */
VEC_INLINE __m256i block_fours(__m256i codes, const int8_t *digits, int by)
{
    return codes_widen(_mm256_maddubs_epi16(codes, _mm256_loadu_si256((const __m256i *)digits)), by);
}

/* Computes, for 32 columns, the sums of four products with d0 * 256 + d1 and with d2. Codes have at most 6
 * bits. */
VEC_INLINE void block_half(__m256i codes, const int8_t *d, __m256i *high, __m256i *low)
{
    const int8_t *d1 = d + DIGIT_BYTES, *d2 = d1 + DIGIT_BYTES;
    *high = _mm256_add_epi32(block_fours(codes, d, 256), block_fours(codes, d1, 1));
    *low = block_fours(codes, d2, 1);
}

/* The same for signed codes. d: the half's wide digits. */
VEC_INLINE void block_wide_half(__m256i codes, const int16_t *d, __m256i *high, __m256i *low)
{
    const __m256i *v = (const __m256i *)(const void *)d;
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8), odd = _mm256_srai_epi16(codes, 8);
    *high = _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_loadu_si256(v)),
                             _mm256_madd_epi16(odd, _mm256_loadu_si256(v + 1)));
    *low = _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_loadu_si256(v + 2)),
                            _mm256_madd_epi16(odd, _mm256_loadu_si256(v + 3)));
}

/* Subtracts what the codes' shift adds. */
VEC_INLINE __m256i block_unshift(__m256i sum, const int32_t *lanes, int shift)
{
    if (shift == 0)
        return sum;
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)lanes);
    return _mm256_sub_epi32(sum, _mm256_slli_epi32(v, __builtin_ctz((unsigned)shift)));
}

VEC_INLINE struct pair block_dot(struct block_codes c, const struct cpu_vector *x, size_t b, int type)
{
    struct vec v[2];
    int shift = block_shift(type), bits = block_bits(type);
    for (size_t i = 0; i < 2; i++) {
        const int8_t *d = block_digits(x, b) + i * HALF_COLS;
        size_t lanes = (b + i) * VEC_LANES;
        __m256i high[2], low[2];
        if (bits >= 7) {
            const int16_t *wide = x->wide_digits + (b + i) * BLOCK_WIDE_DIGITS;
            block_wide_half(c.first[i], wide, &high[0], &low[0]);
            block_wide_half(c.second[i], wide + BLOCK_WIDE_DIGITS / 2, &high[1], &low[1]);
        } else {
            block_half(c.first[i], d, &high[0], &low[0]);
            block_half(c.second[i], d + CPU_BLOCK, &high[1], &low[1]);
        }
        if (bits <= 5) { /* the sum of all digits fits 32 bits and gives the same float */
            __m256i all = _mm256_hadd_epi32(_mm256_add_epi32(_mm256_slli_epi32(high[0], 8), low[0]),
                                            _mm256_add_epi32(_mm256_slli_epi32(high[1], 8), low[1]));
            v[i].a = _mm256_cvtepi32_ps(block_unshift(all, x->lanes_all + lanes, shift));
            continue;
        }
        __m256i h = block_unshift(_mm256_hadd_epi32(high[0], high[1]), x->lanes_high + lanes, shift);
        __m256i l = block_unshift(_mm256_hadd_epi32(low[0], low[1]), x->lanes_low + lanes, shift);
        v[i].a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h), _mm256_set1_ps(256), _mm256_cvtepi32_ps(l));
    }
    return pair_of(v[0], v[1]);
}

#else
/* Signed codes. */
struct block_codes {
    int8_t of[2][CPU_BLOCK]; /* [block][column] */
};

#ifdef VEC_NEON
/* Sums of four products of a digit over 32 columns: 8 lanes. */
VEC_INLINE void block_fours(const int8_t *codes, const int8_t *digits, int32x4_t out[2])
{
    for (int i = 0; i < 2; i++) {
        int8x16_t c = vld1q_s8(codes + 16 * i), d = vld1q_s8(digits + 16 * i);
#ifdef __ARM_FEATURE_DOTPROD
        out[i] = vdotq_s32(vdupq_n_s32(0), c, d);
#else
        int16x8_t low = vmull_s8(vget_low_s8(c), vget_low_s8(d)), high = vmull_high_s8(c, d);
        out[i] = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
    }
}

/* Computes the lanes' sums of a digit's products for one block. */
VEC_INLINE void block_sums(const int8_t *codes, const int8_t *digits, int32_t sums[VEC_LANES])
{
    int32x4_t first[2], second[2];
    block_fours(codes, digits, first);
    block_fours(codes + HALF_COLS, digits + CPU_BLOCK, second);
    vst1q_s32(sums, vpaddq_s32(first[0], second[0]));
    vst1q_s32(sums + 4, vpaddq_s32(first[1], second[1]));
}
#else
/* Not inlined: copies of these loops would take the compiler long. */
static __attribute__((noinline)) void block_sums(const int8_t *codes, const int8_t *digits,
                                                 int32_t sums[VEC_LANES])
{
    for (uint32_t l = 0; l < VEC_LANES; l++) {
        size_t from = cpu_block_lane(l);
        const int8_t *d = digits + from / HALF_COLS * CPU_BLOCK + from % HALF_COLS;
        sums[l] = 0;
        for (uint32_t k = 0; k < 8; k++)
            sums[l] += codes[from + k] * d[k];
    }
}
#endif

VEC_INLINE struct pair block_dot(struct block_codes c, const struct cpu_vector *x, size_t b, int type)
{
    const int8_t *digits = block_digits(x, b);
    struct vec v[2];
    (void)type;
    for (size_t i = 0; i < 2; i++) {
        int32_t s[3][VEC_LANES];
        for (size_t k = 0; k < 3; k++)
            block_sums(c.of[i], digits + k * DIGIT_BYTES + i * HALF_COLS, s[k]);
        for (size_t l = 0; l < VEC_LANES; l++)
            s[0][l] = s[0][l] * 256 + s[1][l];
        v[i] = vec_fma(vec_from_int(ivec_load(s[0])), vec_set1(256), vec_from_int(ivec_load(s[2])));
    }
    return pair_of(v[0], v[1]);
}
#endif

#endif
