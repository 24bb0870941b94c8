/* block_unpack_avx.h - the part of block_unpack.h for AVX2 and AVX-512. Reads no byte outside of the unit. */
#ifndef MOEFLUX_CPU_BLOCK_UNPACK_AVX_H
#define MOEFLUX_CPU_BLOCK_UNPACK_AVX_H

/* The types: each(name, biases of a unit). */
#define UNIT_KNOWN(each)                                                                                     \
    each(Q4_0, 0) each(Q4_1, 8) each(Q5_0, 0) each(Q5_1, 8) each(Q8_0, 0) each(MXFP4, 0) each(IQ4_NL, 0)     \
        each(Q2_K, 16) each(Q3_K, 0) each(Q4_K, 8) each(Q5_K, 8) each(Q6_K, 0) each(IQ4_XS, 0)               \
            each(IQ1_S, 0) each(IQ1_M, 0) each(IQ2_XXS, 0) each(IQ2_XS, 0) each(IQ2_S, 0) each(IQ3_XXS, 0)   \
                each(IQ3_S, 0) each(TQ1_0, 0) each(TQ2_0, 0)

VEC_INLINE __m256i unit_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Loads 16 bytes at p and 16 at q. */
VEC_INLINE __m256i unit_two(const uint8_t *p, const uint8_t *q)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                   _mm_loadu_si128((const __m128i *)q), 1);
}

VEC_INLINE float unit_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

VEC_INLINE uint32_t unit_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Returns n bits of each byte from bit `from` on, shifted up by `to`. */
VEC_INLINE __m256i unit_bits(__m256i v, int from, int n, int to)
{
    v = from > to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << n) - 1) << to)));
}

/* Turns columns 0 to 31 and 32 to 63 into the lanes' first and second 4 columns, and back. */
VEC_INLINE void unit_swap_lanes(__m256i *first, __m256i *second)
{
    __m256i low = _mm256_unpacklo_epi64(*first, *second);
    *second = _mm256_unpackhi_epi64(*first, *second);
    *first = low;
}

/* Repeats 8 bytes. */
VEC_INLINE __m256i unit_each_8(const void *p)
{
    long long v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi64x(v);
}

/* Repeats 4 bytes at p and 4 at q. */
VEC_INLINE __m256i unit_each_4_of(const uint8_t *p, const uint8_t *q)
{
    return _mm256_blend_epi32(_mm256_set1_epi32((int)unit_word(p)), _mm256_set1_epi32((int)unit_word(q)),
                              0xaa);
}

/* Unpacks 8 bytes at p and 8 at q: low halves are columns 0 to 7 of 32, high halves 16 to 23. */
VEC_INLINE __m256i unit_eight_nibbles(const uint8_t *p, const uint8_t *q)
{
    __m256i v = _mm256_blend_epi32(unit_each_8(p), unit_each_8(q), 0xcc);
    v = _mm256_srlv_epi32(v, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

/* Unpacks 16 bytes at p and 16 at q, in the order of the lanes: low halves are columns 0 to 15 of 32, high
 * halves 16 to 31. */
VEC_INLINE void unit_nibbles(const uint8_t *p, const uint8_t *q, __m256i *first, __m256i *second)
{
    *first = unit_eight_nibbles(p, q);
    *second = unit_eight_nibbles(p + 8, q + 8);
}

/* Unpacks blocks 2 b and 2 b + 1 of 32 columns each. bytes: of a block; at: where its codes begin. */
VEC_INLINE void unit_short(const uint8_t *p, uint32_t b, size_t bytes, size_t at, __m256i *first,
                           __m256i *second)
{
    p += 2 * bytes * b + at;
    unit_nibbles(p, p + bytes, first, second);
}

/* Returns 0xff in the bytes whose bit is set, else 0, for the lanes' first 4 columns (k = 0) or second (1).
 * words: a block's 64 bits, repeated. */
VEC_INLINE __m256i unit_mask(__m256i words, int k)
{
    const long long each = 0x0101010101010101;
    const __m256i bytes = _mm256_setr_epi64x(each * k, each * (4 + k), each * (2 + k), each * (6 + k));
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(words, bytes), bits), bits);
}

/* Unpacks blocks 2 b and 2 b + 1 whose fifth bits are 4 bytes before the halves, bit i for column i. */
VEC_INLINE void unit_short_fives(const uint8_t *p, uint32_t b, size_t bytes, size_t at, __m256i *first,
                                 __m256i *second)
{
    const __m256i fifth = _mm256_set1_epi8(16);
    const uint8_t *words = p + 2 * bytes * b + at - 4;
    __m256i w = unit_each_4_of(words, words + bytes);
    unit_short(p, b, bytes, at, first, second);
    *first = _mm256_or_si256(*first, _mm256_and_si256(unit_mask(w, 0), fifth));
    *second = _mm256_or_si256(*second, _mm256_and_si256(unit_mask(w, 1), fifth));
}

/* Looks codes of 4 bits up in twice the values of E2M1, 16 added. */
VEC_INLINE __m256i unit_e2m1(__m256i codes)
{
    const __m128i values = _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

/* Looks codes of 4 bits up in the values of IQ4_NL, with the type's shift. */
VEC_INLINE __m256i unit_iq4_values(__m256i codes)
{
    __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    values = _mm_add_epi8(values, _mm_set1_epi8((char)block_shift(FORMAT_G_IQ4_XS)));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

/* Unpacks columns 0 to 31 and 32 to 63 of block b of Q6_K: 128 columns have 64 bytes of low halves, and 32
 * bytes of upper bits. */
VEC_INLINE void unit_q6_k(const uint8_t *p, uint32_t b, __m256i *first, __m256i *second)
{
    const uint8_t *low = p + (size_t)64 * (b / 2);
    int odd = (int)(b % 2);
    __m256i high = unit_load(p + 128 + (size_t)32 * (b / 2));
    *first = _mm256_or_si256(unit_bits(unit_load(low), 4 * odd, 4, 0), unit_bits(high, 4 * odd, 2, 4));
    *second =
        _mm256_or_si256(unit_bits(unit_load(low + 32), 4 * odd, 4, 0), unit_bits(high, 4 * odd + 2, 2, 4));
}

/* Returns digits of base 3: v * power mod 256 counts 256 / 3. power: 3^k in halves of words. */
VEC_INLINE __m256i unit_digits(__m256i v, __m256i power)
{
    const __m256i low = _mm256_set1_epi16(0xff), three = _mm256_set1_epi16(3);
    __m256i even = _mm256_and_si256(_mm256_mullo_epi16(v, power), low);
    __m256i odd = _mm256_and_si256(_mm256_mullo_epi16(_mm256_srli_epi16(v, 8), power), low);
    even = _mm256_srli_epi16(_mm256_mullo_epi16(even, three), 8);
    odd = _mm256_andnot_si256(low, _mm256_mullo_epi16(odd, three));
    return _mm256_or_si256(even, odd);
}

/* Returns group g of 32 columns of TQ1_0. A byte has five digits: 32 bytes the first, second, .. ones of 32
 * columns each, then 16 bytes those of 16 columns, then 4 bytes four of 4 columns. */
VEC_INLINE __m256i unit_ternary(const uint8_t *p, uint32_t g)
{
    static const uint16_t powers[] = {1, 3, 9, 27, 81};
    if (g < 5)
        return unit_digits(unit_load(p), _mm256_set1_epi16((int16_t)powers[g]));
    __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)(p + 32));
    if (g < 7) {
        const uint16_t *two = powers + (size_t)2 * (g - 5);
        return unit_digits(
            _mm256_broadcastsi128_si256(sixteen),
            _mm256_inserti128_si256(_mm256_set1_epi16((int16_t)two[0]), _mm_set1_epi16((int16_t)two[1]), 1));
    }
    return unit_digits(
        _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen), _mm_set1_epi32((int)unit_word(p + 48)), 1),
        _mm256_setr_epi16(81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27));
}

#include "cpu/block_books_avx.h"

/* Unpacks columns 0 to 31 and 32 to 63 of block b of a type whose blocks have 256 columns. */
VEC_INLINE void unit_long(const uint8_t *p, uint32_t b, int type, __m256i *first, __m256i *second)
{
    const int odd = (int)(b % 2), bit = 2 * (int)b;
    __m256i v;
    switch (type) {
    case FORMAT_G_Q4_K:
        v = unit_load(p + 16 + (size_t)32 * b);
        *first = unit_bits(v, 0, 4, 0);
        *second = unit_bits(v, 4, 4, 0);
        break;
    case FORMAT_G_Q5_K:
        v = unit_load(p + 16);
        *first = unit_bits(v, bit, 1, 4);
        *second = unit_bits(v, bit + 1, 1, 4);
        v = unit_load(p + 48 + (size_t)32 * b);
        *first = _mm256_or_si256(*first, unit_bits(v, 0, 4, 0));
        *second = _mm256_or_si256(*second, unit_bits(v, 4, 4, 0));
        break;
    case FORMAT_G_Q2_K:
    case FORMAT_G_TQ2_0:
        v = unit_load(p + (type == FORMAT_G_Q2_K ? 16 : 0) + (size_t)32 * (b / 2));
        *first = unit_bits(v, 4 * odd, 2, 0);
        *second = unit_bits(v, 4 * odd + 2, 2, 0);
        break;
    case FORMAT_G_Q3_K:
        v = unit_load(p);
        *first = unit_bits(v, bit, 1, 2);
        *second = unit_bits(v, bit + 1, 1, 2);
        v = unit_load(p + 32 + (size_t)32 * (b / 2));
        *first = _mm256_or_si256(*first, unit_bits(v, 4 * odd, 2, 0));
        *second = _mm256_or_si256(*second, unit_bits(v, 4 * odd + 2, 2, 0));
        break;
    case FORMAT_G_TQ1_0:
        *first = unit_ternary(p, 2 * b);
        *second = unit_ternary(p, 2 * b + 1);
        break;
    default: /* FORMAT_G_Q6_K */
        unit_q6_k(p, b, first, second);
        break;
    }
}

/* Unpacks the codes of block b of a unit, in the order of the lanes, with their shift. */
VEC_INLINE void unit_block(const struct unit *u, uint32_t b, int type, __m256i *first, __m256i *second)
{
    const uint8_t *p = u->p;
    const __m256i sign = _mm256_set1_epi8((char)block_shift(FORMAT_G_Q8_0));
    switch (type) {
    case FORMAT_G_Q8_0:
        *first = _mm256_xor_si256(unit_load(p + (size_t)68 * b + 2), sign);
        *second = _mm256_xor_si256(unit_load(p + (size_t)68 * b + 36), sign);
        unit_swap_lanes(first, second);
        break;
    case FORMAT_G_Q4_0:
        unit_short(p, b, 18, 2, first, second);
        break;
    case FORMAT_G_Q4_1:
        unit_short(p, b, 20, 4, first, second);
        break;
    case FORMAT_G_Q5_0:
        unit_short_fives(p, b, 22, 6, first, second);
        break;
    case FORMAT_G_Q5_1:
        unit_short_fives(p, b, 24, 8, first, second);
        break;
    case FORMAT_G_MXFP4:
        unit_short(p, b, 17, 1, first, second);
        *first = unit_e2m1(*first);
        *second = unit_e2m1(*second);
        break;
    case FORMAT_G_IQ4_NL:
        unit_short(p, b, 18, 2, first, second);
        *first = unit_iq4_values(*first);
        *second = unit_iq4_values(*second);
        break;
    case FORMAT_G_IQ4_XS:
        unit_nibbles(p + 8 + (size_t)32 * b, p + 24 + (size_t)32 * b, first, second);
        *first = unit_iq4_values(*first);
        *second = unit_iq4_values(*second);
        break;
    case FORMAT_G_Q4_K:
    case FORMAT_G_Q5_K:
    case FORMAT_G_Q2_K:
    case FORMAT_G_Q3_K:
    case FORMAT_G_Q6_K:
    case FORMAT_G_TQ1_0:
    case FORMAT_G_TQ2_0:
        unit_long(p, b, type, first, second);
        unit_swap_lanes(first, second);
        break;
    default: /* a code book */
        unit_book(u, b, type, first, second);
        break;
    }
}

/* Returns the codes of blocks 2 i and 2 i + 1 of a unit, with their shift. */
VEC_INLINE struct block_codes unit_two_blocks(const struct unit *u, uint32_t i, int type)
{
    __m256i first[2], second[2];
#ifdef __AVX512BW__
    if (unit_has_book(type))
        return unit_two_book_blocks(u, i, type);
#endif
    for (uint32_t k = 0; k < 2; k++)
        unit_block(u, 2 * i + k, type, &first[k], &second[k]);
    return block_codes_of(first, second);
}

/* Returns 8 signed bytes times a float. */
VEC_INLINE __m256 unit_eight(uint64_t bytes, float by)
{
    __m256i v = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(by));
}

/* Puts 16 bytes, of 16 columns each, into the order of the lanes. */
VEC_INLINE __m128i unit_of_parts(__m128i bytes)
{
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm_shuffle_epi8(bytes, order);
}

/* Returns signed bytes times a float. */
VEC_INLINE struct pair unit_times(__m128i bytes, float by)
{
#ifdef __AVX512F__
    struct pair v = {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
#else
    struct pair v = pair_of((struct vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))},
                            (struct vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))});
#endif
    return pair_mul(v, pair_set1(by));
}

/* Eight numbers of 6 bits in 12 bytes, as in Q4_K: the scales; with `is_min` the minima. */
VEC_INLINE uint64_t unit_six_bits(const uint8_t *q, bool is_min)
{
    uint32_t low = unit_word(q + (is_min ? 4 : 0)), high = unit_word(q + 8) >> (is_min ? 4 : 0);
    uint32_t upper = (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030);
    return (uint64_t)upper << 32 | (low & 0x3f3f3f3f);
}

/* Sixteen numbers of 6 bits in 12 bytes, as in Q3_K. */
VEC_INLINE __m128i unit_q3_scales(const uint8_t *q)
{
    uint32_t a = unit_word(q), b = unit_word(q + 4), c = unit_word(q + 8);
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    __m128i v = _mm_setr_epi32((int)((a & low) | (c << 4 & high)), (int)((b & low) | (c << 2 & high)),
                               (int)((a >> 4 & low) | (c & high)), (int)((b >> 4 & low) | (c >> 2 & high)));
    return _mm_sub_epi8(v, _mm_set1_epi8(32));
}

/* Spreads 8 halves of bytes over 8 bytes. */
VEC_INLINE uint64_t unit_spread_halves(uint32_t halves)
{
    uint64_t w = halves;
    w = (w | w << 16) & 0x0000ffff0000ffff;
    w = (w | w << 8) & 0x00ff00ff00ff00ff;
    return (w | w << 4) & 0x0f0f0f0f0f0f0f0f;
}

/* Eight numbers of 6 bits as in IQ4_XS: low halves in 4 bytes at p + 4, two bits each at p + 2. */
VEC_INLINE uint64_t unit_iq4_scales(const uint8_t *p)
{
    const uint64_t top = 0x8080808080808080;
    uint64_t high = unit_word(p) >> 16;
    high = (high | high << 24) & 0x000000ff000000ff;
    high = (high | high << 12) & 0x000f000f000f000f;
    high = (high | high << 6) & 0x0303030303030303;
    /* The upper bits keep a byte from borrowing from the next one. */
    return ((unit_spread_halves(unit_word(p + 4)) | high << 4 | top) - 0x2020202020202020) ^ top;
}

/* Repeats 8 floats, of groups of 32 columns, in the order of the lanes. */
VEC_INLINE struct pair unit_floats(__m256 v)
{
    return pair_of((struct vec){_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3))},
                   (struct vec){_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 5, 4, 5, 6, 7, 6, 7))});
}

/* Loads the float16 numbers of 8 blocks of 32 columns. */
VEC_INLINE __m256 unit_halves(const uint8_t *p, size_t bytes)
{
    uint16_t h[8];
    for (size_t i = 0; i < 8; i++)
        memcpy(&h[i], p + i * bytes, sizeof h[i]);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h));
}

/* Loads the scales of 8 blocks of MXFP4: 2^(byte - 128). Those of bytes 0 and 1 are denormal floats. */
VEC_INLINE __m256 unit_mxfp4_scales(const uint8_t *p)
{
    int32_t bytes[8];
    for (size_t i = 0; i < 8; i++)
        bytes[i] = p[17 * i];
    __m256i e = _mm256_loadu_si256((const __m256i *)(const void *)bytes);
    __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i least = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    bits = _mm256_blendv_epi8(bits, least, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    return _mm256_castsi256_ps(bits);
}

/* Returns (2 s + 1) * by, s being the upper 4 bits of each word. */
VEC_INLINE __m256 unit_odd_scales(__m256i words, float by)
{
    __m256i s = _mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1);
    s = _mm256_or_si256(s, _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(by));
}

/* Returns 2 s + 1 for the 16 halves of 8 bytes, the lower one of each first. */
VEC_INLINE __m128i unit_odd_halves(const uint8_t *p)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i v = _mm_loadl_epi64((const __m128i *)p);
    v = _mm_unpacklo_epi8(_mm_and_si128(v, low), _mm_and_si128(_mm_srli_epi16(v, 4), low));
    return _mm_or_si128(_mm_add_epi8(v, v), _mm_set1_epi8(1));
}

/* Returns the scales of IQ1_S: 2 s + 1 eighths, s being bits 12 to 14 of a half of a word for each group. */
VEC_INLINE __m256 unit_iq1_s_scales(const uint8_t *p)
{
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 34)));
    __m256i s = _mm256_and_si256(_mm256_srli_epi32(high, 11), _mm256_set1_epi32(14));
    s = _mm256_or_si256(s, _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(unit_half(p) / 8));
}

/* Returns the numbers 2 s + 1 of the 16 lots of IQ1_M: s has 3 bits, four of them in a half of a word. */
VEC_INLINE __m128i unit_iq1_m_scales(const uint8_t *p)
{
    __m256i s = unit_each_four(p + 48);
    s = _mm256_mullo_epi16(s, _mm256_set1_epi64x(0x0001000800400200)); /* s is in bits 9 to 11 */
    s = _mm256_and_si256(_mm256_srli_epi16(s, 8), _mm256_set1_epi16(14));
    s = _mm256_or_si256(s, _mm256_set1_epi16(1));
    return _mm_packus_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

/* Returns the float16 scale of IQ1_M, whose bits are the upper 4 of each of four halves of words. */
VEC_INLINE float unit_iq1_m_scale(const uint8_t *p)
{
    uint32_t a = unit_word(p + 48), b = unit_word(p + 52);
    return _cvtsh_ss((uint16_t)((a >> 12 & 15) | (a >> 24 & 0xf0) | (b >> 4 & 0xf00) | (b >> 16 & 0xf000)));
}

/* Returns whether a type has a scale, and if it has biases a bias, for each 32 columns. */
VEC_INLINE bool unit_has_groups(int type)
{
    return type != FORMAT_G_Q2_K && type != FORMAT_G_Q3_K && type != FORMAT_G_Q6_K &&
           type != FORMAT_G_IQ1_M && type != FORMAT_G_IQ2_XS && type != FORMAT_G_IQ2_S &&
           type != FORMAT_G_NVFP4 && type != BLOCK_ANY;
}

/* Returns the scales of the groups of a unit, if the type has groups. */
VEC_INLINE struct vec unit_group_scales(const uint8_t *p, int type)
{
    const uint64_t ones = 0x0101010101010101;
    switch (type) {
    case FORMAT_G_Q8_0:
        return (struct vec){unit_halves(p, 34)};
    case FORMAT_G_Q4_0:
    case FORMAT_G_IQ4_NL:
        return (struct vec){unit_halves(p, 18)};
    case FORMAT_G_Q4_1:
        return (struct vec){unit_halves(p, 20)};
    case FORMAT_G_Q5_0:
        return (struct vec){unit_halves(p, 22)};
    case FORMAT_G_Q5_1:
        return (struct vec){unit_halves(p, 24)};
    case FORMAT_G_MXFP4:
        return (struct vec){unit_mxfp4_scales(p)};
    case FORMAT_G_Q4_K:
    case FORMAT_G_Q5_K:
        return (struct vec){unit_eight(unit_six_bits(p + 4, false), unit_half(p))};
    case FORMAT_G_IQ4_XS:
        return (struct vec){unit_eight(unit_iq4_scales(p), unit_half(p))};
    case FORMAT_G_TQ1_0:
        return vec_set1(unit_half(p + 52));
    case FORMAT_G_TQ2_0:
        return vec_set1(unit_half(p + 64));
    case FORMAT_G_IQ1_S:
        return (struct vec){unit_iq1_s_scales(p)};
    case FORMAT_G_IQ2_XXS:
        return (struct vec){unit_odd_scales(unit_odd_words(p + 2), unit_half(p) / 8)};
    case FORMAT_G_IQ3_XXS:
        return (struct vec){unit_odd_scales(unit_load(p + 66), unit_half(p) / 4)};
    default: /* FORMAT_G_IQ3_S: 8 halves of 4 bytes */
        return (struct vec){unit_eight(unit_spread_halves(unit_word(p + 106)) << 1 | ones, unit_half(p))};
    }
}

VEC_INLINE struct vec unit_group_biases(const uint8_t *p, int type)
{
    if (type == FORMAT_G_Q4_1)
        return (struct vec){unit_halves(p + 2, 20)};
    if (type == FORMAT_G_Q5_1)
        return (struct vec){unit_halves(p + 2, 24)};
    return (struct vec){unit_eight(unit_six_bits(p + 4, true), -unit_half(p + 2))};
}

VEC_INLINE struct pair unit_known_scales(const uint8_t *p, int type)
{
    __m128i v;
    switch (type) {
    case FORMAT_G_Q2_K:
        v = _mm_and_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(15));
        return unit_times(unit_of_parts(v), unit_half(p + 80));
    case FORMAT_G_Q3_K:
        return unit_times(unit_of_parts(unit_q3_scales(p + 96)), unit_half(p + 108));
    case FORMAT_G_Q6_K:
        v = _mm_loadu_si128((const __m128i *)(p + 192));
        return unit_times(unit_of_parts(v), unit_half(p + 208));
    case FORMAT_G_IQ1_M:
        return unit_times(unit_of_parts(unit_iq1_m_scales(p)), unit_iq1_m_scale(p) / 8);
    case FORMAT_G_IQ2_XS:
        return unit_times(unit_of_parts(unit_odd_halves(p + 66)), unit_half(p) / 8);
    case FORMAT_G_IQ2_S:
        return unit_times(unit_of_parts(unit_odd_halves(p + 74)), unit_half(p) / 8);
    default:
        return unit_floats(unit_group_scales(p, type).a);
    }
}

VEC_INLINE struct pair unit_known_biases(const uint8_t *p, int type)
{
    if (type != FORMAT_G_Q2_K)
        return unit_floats(unit_group_biases(p, type).a);
    __m128i v = _mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4);
    return unit_times(unit_of_parts(_mm_and_si128(v, _mm_set1_epi8(15))), -unit_half(p + 82));
}

#endif
