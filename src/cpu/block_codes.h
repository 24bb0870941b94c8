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
    case FORMAT_G_TQ1_0:
    case FORMAT_G_TQ2_0:
        return 1;
    case FORMAT_G_Q3_K:
        return 4;
    case FORMAT_G_Q4_0:
        return 8;
    case FORMAT_G_Q5_0:
    case FORMAT_G_MXFP4:
    case FORMAT_G_IQ1_S:
    case FORMAT_G_IQ1_M:
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
    case FORMAT_G_TQ1_0:
    case FORMAT_G_TQ2_0:
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
 * and b + 1.
 *
 * Codes of at most 6 bits: the sum of all digits fits 32 bits, at most 8 * 32 * 8323071, if codes that had a
 * shift are signed again at its end; sums before that wrap. It becomes the same float as the digits' sums one
 * after the other. */

#if defined(__AVX512VNNI__)
/* Codes with their shift. */
struct block_codes {
    __m512i first, second; /* the lanes' first and second 4 columns: the first block in the lower half */
};

VEC_INLINE struct block_codes block_codes_of(const __m256i first[2], const __m256i second[2])
{
    return (struct block_codes){_mm512_inserti64x4(_mm512_castsi256_si512(first[0]), first[1], 1),
                                _mm512_inserti64x4(_mm512_castsi256_si512(second[0]), second[1], 1)};
}

VEC_INLINE void block_codes_take(struct block_codes c, __m256i first[2], __m256i second[2])
{
    first[0] = _mm512_castsi512_si256(c.first);
    first[1] = _mm512_extracti64x4_epi64(c.first, 1);
    second[0] = _mm512_castsi512_si256(c.second);
    second[1] = _mm512_extracti64x4_epi64(c.second, 1);
}

/* Subtracts what the codes' shift adds. */
VEC_INLINE __m512i block_unshift(__m512i sum, const int32_t *lanes, int shift)
{
    if (shift == 0)
        return sum;
    __m512i v = _mm512_loadu_si512(lanes);
    return _mm512_sub_epi32(sum, _mm512_slli_epi32(v, (unsigned)__builtin_ctz((unsigned)shift)));
}

/* Adds the lanes' products with a digit to `sum`. */
VEC_INLINE __m512i block_eights(struct block_codes c, const int8_t *digits, __m512i sum)
{
    sum = _mm512_dpbusd_epi32(sum, c.first, _mm512_loadu_si512(digits));
    return _mm512_dpbusd_epi32(sum, c.second, _mm512_loadu_si512(digits + CPU_BLOCK));
}

VEC_INLINE struct pair block_dot(struct block_codes c, const struct cpu_vector *x, size_t b, int type)
{
    const int8_t *d = block_digits(x, b);
    int shift = block_shift(type);
    __m512i high = block_eights(c, d, _mm512_setzero_si512());
    high = block_eights(c, d + DIGIT_BYTES, _mm512_slli_epi32(high, 8));
    if (block_bits(type) <= 6) {
        __m512i all = block_eights(c, d + 2 * DIGIT_BYTES, _mm512_slli_epi32(high, 8));
        all = block_unshift(all, x->lanes_all + b * VEC_LANES, shift);
        return (struct pair){_mm512_cvtepi32_ps(all)};
    }
    __m512i low = block_eights(c, d + 2 * DIGIT_BYTES, _mm512_setzero_si512());
    high = block_unshift(high, x->lanes_high + b * VEC_LANES, shift);
    low = block_unshift(low, x->lanes_low + b * VEC_LANES, shift);
    return (struct pair){
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256), _mm512_cvtepi32_ps(low))};
}

#elif defined(VEC_AVX)
/* Codes with their shift. */
struct block_codes {
    __m256i first[2], second[2]; /* [block]: the lanes' first and second 4 columns */
};

VEC_INLINE struct block_codes block_codes_of(const __m256i first[2], const __m256i second[2])
{
    return (struct block_codes){{first[0], first[1]}, {second[0], second[1]}};
}

VEC_INLINE void block_codes_take(struct block_codes c, __m256i first[2], __m256i second[2])
{
    for (int i = 0; i < 2; i++) {
        first[i] = c.first[i];
        second[i] = c.second[i];
    }
}

/* Returns the lanes' sums of products with a digit, times `by`. Codes have at most 6 bits, and four products
 * fit 16 bits. */
VEC_INLINE __m256i block_eights(__m256i first, __m256i second, const int8_t *digits, int by)
{
    __m256i a = _mm256_maddubs_epi16(first, _mm256_loadu_si256((const __m256i *)digits));
    __m256i b = _mm256_maddubs_epi16(second, _mm256_loadu_si256((const __m256i *)(digits + CPU_BLOCK)));
    return codes_widen(_mm256_add_epi16(a, b), by);
}

/* Adds two products to the lanes of 32 bits. even, odd: signed codes of 16 bits; digits: 32 of them. */
VEC_INLINE __m256i block_wide_fours(__m256i even, __m256i odd, const int16_t *digits)
{
    const __m256i *v = (const __m256i *)(const void *)digits;
    return _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_loadu_si256(v)),
                            _mm256_madd_epi16(odd, _mm256_loadu_si256(v + 1)));
}

/* Returns the lanes' sums of signed codes * x / step of a block. d: its wide digits. */
VEC_INLINE __m256 block_wide_dot(__m256i first, __m256i second, const int16_t *d)
{
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(first, 8), 8), odd = _mm256_srai_epi16(first, 8);
    __m256i high = block_wide_fours(even, odd, d), low = block_wide_fours(even, odd, d + HALF_COLS);
    even = _mm256_srai_epi16(_mm256_slli_epi16(second, 8), 8);
    odd = _mm256_srai_epi16(second, 8);
    high = _mm256_add_epi32(high, block_wide_fours(even, odd, d + 2 * HALF_COLS));
    low = _mm256_add_epi32(low, block_wide_fours(even, odd, d + 3 * HALF_COLS));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(256), _mm256_cvtepi32_ps(low));
}

VEC_INLINE struct pair block_dot(struct block_codes c, const struct cpu_vector *x, size_t b, int type)
{
    struct vec v[2];
    int shift = block_shift(type);
    for (size_t i = 0; i < 2; i++) {
        if (block_bits(type) > 6) {
            v[i].a = block_wide_dot(c.first[i], c.second[i], x->wide_digits + (b + i) * BLOCK_WIDE_DIGITS);
            continue;
        }
        const int8_t *d = block_digits(x, b) + i * HALF_COLS;
        __m256i high = _mm256_add_epi32(block_eights(c.first[i], c.second[i], d, 256),
                                        block_eights(c.first[i], c.second[i], d + DIGIT_BYTES, 1));
        __m256i low = block_eights(c.first[i], c.second[i], d + 2 * DIGIT_BYTES, 1);
        __m256i all = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
        if (shift > 0) {
            const int32_t *lanes = x->lanes_all + (b + i) * VEC_LANES;
            __m256i sums = _mm256_loadu_si256((const __m256i *)(const void *)lanes);
            all = _mm256_sub_epi32(all, _mm256_slli_epi32(sums, __builtin_ctz((unsigned)shift)));
        }
        v[i].a = _mm256_cvtepi32_ps(all);
    }
    return pair_of(v[0], v[1]);
}

#else
/* Signed codes. */
struct block_codes {
    int8_t of[2][2][HALF_COLS]; /* [block][the lanes' first, second 4 columns] */
};

#ifdef VEC_NEON
/* Adds sums of four products of a digit to 4 lanes. */
VEC_INLINE int32x4_t block_fours(int8x16_t codes, int8x16_t digits, int32x4_t sum)
{
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, codes, digits);
#else
    int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(digits)), high = vmull_high_s8(codes, digits);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

/* Computes the lanes' sums of a digit's products for one block. */
VEC_INLINE void block_sums(const int8_t codes[2][HALF_COLS], const int8_t *digits, int32_t sums[VEC_LANES])
{
    for (int i = 0; i < VEC_LANES; i += 4) {
        int32x4_t sum = block_fours(vld1q_s8(codes[0] + 4 * i), vld1q_s8(digits + 4 * i), vdupq_n_s32(0));
        sum = block_fours(vld1q_s8(codes[1] + 4 * i), vld1q_s8(digits + CPU_BLOCK + 4 * i), sum);
        vst1q_s32(sums + i, sum);
    }
}
#else
/* Not inlined: copies of these loops would take the compiler long. */
static __attribute__((noinline)) void block_sums(const int8_t codes[2][HALF_COLS], const int8_t *digits,
                                                 int32_t sums[VEC_LANES])
{
    for (uint32_t l = 0; l < VEC_LANES; l++) {
        sums[l] = 0;
        for (uint32_t k = 4 * l; k < 4 * l + 4; k++)
            sums[l] += codes[0][k] * digits[k] + codes[1][k] * digits[CPU_BLOCK + k];
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
