/* unpack.h - unpacks the codes of blocks of 64 columns into bytes, in the order of a vector's digits
 * (codes.h).
 *
 * Each block fills two registers: one has the codes of the even columns, one those of the odd ones. A lane of
 * 32 bits has 4 bytes; lane l holds columns 8 l to 8 l + 7. In memory the 8 codes of a lane take `bits`
 * bytes.
 *
 * `kind` is a format's number without its group and scales: a constant where speed counts. Functions do not
 * read past the end of the codes.
 *
 * In the pictures below a digit is a bit of the code with that number, a dot a zero, x any bit; the highest
 * bit comes first. */
#ifndef MOEFLUX_CPU_UNPACK_H
#define MOEFLUX_CPU_UNPACK_H

#include <stdbool.h>

#include "args.h"
#include "cpu/pair.h"
#include "cpu/product.h"

/* Codes that are 4-bit floats (E2M1) become twice their value plus CODES_SHIFT, which is not negative. */
enum { CODES_SHIFT = 12 };

VEC_INLINE bool codes_are_e2m1(int kind)
{
    return kind == FORMAT_MXFP4 || kind == FORMAT_NVFP4 || kind == FORMAT_NVFP4_FACTOR;
}

/* Returns the bits of a code in memory. */
VEC_INLINE int codes_bits(int kind)
{
    switch (kind) {
    case FORMAT_Q2:
        return 2;
    case FORMAT_Q3:
        return 3;
    case FORMAT_Q5:
        return 5;
    case FORMAT_Q6:
        return 6;
    case FORMAT_Q8:
        return 8;
    default:
        return 4;
    }
}

/* Returns the bits of an unpacked code. */
VEC_INLINE int codes_byte_bits(int kind)
{
    return codes_are_e2m1(kind) ? 5 : codes_bits(kind);
}

/* Returns the bytes of a block's codes in memory. */
VEC_INLINE uint64_t codes_bytes(int kind)
{
    return (uint64_t)codes_bits(kind) * CPU_BLOCK / 8;
}

/* Returns the table from 4-bit E2M1 codes to bytes. */
VEC_INLINE const uint8_t *codes_e2m1(void)
{
    static const uint8_t bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return bytes;
}

#if defined(VEC_AVX) || defined(VEC_NEON)
/* How codes of 3, 5 and 6 bits are unpacked: a quarter of a block, 16 codes, from 16 bytes of memory, its
 * even or its odd codes at once. For 5 bits and code 3, whose bits 15 .. 19 lie in bytes 1 and 2:
 *   `at` picks the two bytes      44443333 32222211    a word; code 3 at bits 7 .. 11
 *   * up = 2^4                    33333222 2211....    code 3 at the upper end
 *   >> 11                         ........ ...33333    code 3 at the lower end */
struct codes_table {
    /* [first or second quarter of a half][even or odd codes]: which bytes make up the words */
    uint8_t at[2][2][16];
    uint16_t up[2][8]; /* [even or odd codes]: factors of the words */
};

/* from: where the quarter begins in the 16 bytes. If a code lies in one byte, the second one is shifted out,
 * so any byte will do. */
#define CODES_AT(bits, from, c) (from) + (c) * (bits) / 8, ((from) + (c) * (bits) / 8 + 1) & 15
#define CODES_UP(bits, c)       1 << (16 - (bits) - (c) * (bits) % 8)
#define CODES_EACH(each, first)                                                                              \
    each((first)), each((first) + 2), each((first) + 4), each((first) + 6), each((first) + 8),               \
        each((first) + 10), each((first) + 12), each((first) + 14)
#define CODES_3_FIRST(c)  CODES_AT(3, 0, c)
#define CODES_3_SECOND(c) CODES_AT(3, 6, c)
#define CODES_3_UP(c)     CODES_UP(3, c)
#define CODES_5_FIRST(c)  CODES_AT(5, 0, c)
#define CODES_5_SECOND(c) CODES_AT(5, 6, c)
#define CODES_5_UP(c)     CODES_UP(5, c)
#define CODES_6_FIRST(c)  CODES_AT(6, 0, c)
#define CODES_6_SECOND(c) CODES_AT(6, 4, c)
#define CODES_6_UP(c)     CODES_UP(6, c)
#define CODES_BOTH(each)                                                                                     \
    {CODES_EACH(each, 0)},                                                                                   \
    {                                                                                                        \
        CODES_EACH(each, 1)                                                                                  \
    }
#define CODES_TABLE(bits)                                                                                    \
    {                                                                                                        \
        .at = {{CODES_BOTH(CODES_##bits##_FIRST)}, {CODES_BOTH(CODES_##bits##_SECOND)}}, .up = {             \
            CODES_BOTH(CODES_##bits##_UP)                                                                    \
        }                                                                                                    \
    }

VEC_INLINE const struct codes_table *codes_table(int bits)
{
    static const struct codes_table three = CODES_TABLE(3), five = CODES_TABLE(5), six = CODES_TABLE(6);
    return bits == 3 ? &three : bits == 5 ? &five : &six;
}
#endif

#if defined(__AVX512VNNI__)
struct codes {
    __m512i even, odd; /* the first block in the lower half, the second in the upper */
};

/* Loads n bytes at p, a multiple of 8; zeros follow. A masked load would take several times as long on some
 * processors. */
VEC_INLINE __m512i codes_bytes_at(const uint8_t *p, uint64_t n)
{
    if (n >= 64)
        return _mm512_loadu_si512(p);
    if (n == 0)
        return _mm512_setzero_si512();
    if (n == 32)
        return _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)p));
    __m128i last = _mm_setzero_si128(); /* after the last whole 16 bytes */
    if (n % 16 > 0)
        last = _mm_loadl_epi64((const __m128i *)(p + n / 16 * 16));
    if (n < 32)
        return _mm512_zextsi256_si512(
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)), last, 1));
    if (n == 48)
        last = _mm_loadu_si128((const __m128i *)(p + 32));
    return _mm512_inserti32x4(_mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)p)), last, 2);
}

VEC_INLINE struct codes codes_of_4(const uint8_t *p, uint64_t n, int kind)
{
    const __m512i low = _mm512_set1_epi8(15), v = codes_bytes_at(p, n);
    struct codes c = {_mm512_and_si512(v, low), _mm512_and_si512(_mm512_srli_epi16(v, 4), low)};
    if (!codes_are_e2m1(kind))
        return c;
    __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codes_e2m1()));
    return (struct codes){_mm512_shuffle_epi8(bytes, c.even), _mm512_shuffle_epi8(bytes, c.odd)};
}

VEC_INLINE struct codes codes_of_8(const uint8_t *p, uint64_t n)
{
    __m512i first = _mm512_loadu_si512(p), second = codes_bytes_at(p + 64, n - 64);
    const __m512i low = _mm512_set1_epi16(255), order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __m512i even = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
    __m512i odd = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    return (struct codes){_mm512_permutexvar_epi64(order, even), _mm512_permutexvar_epi64(order, odd)};
}

/* Widens each byte to a word of four codes of 2 bits:
 *   byte                   33221100
 *   word | word << 4       ....3322 xxxx1100
 *   & 3                    ......22 ......00    even codes, a byte each
 *   >> 2, & 3              ......33 ......11    odd codes */
VEC_INLINE struct codes codes_of_2(const uint8_t *p, uint64_t n)
{
    const __m512i low = _mm512_set1_epi8(3);
    __m512i v = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(codes_bytes_at(p, n)));
    v = _mm512_or_si512(v, _mm512_slli_epi16(v, 4));
    return (struct codes){_mm512_and_si512(v, low), _mm512_and_si512(_mm512_srli_epi16(v, 2), low)};
}

#ifdef __AVX512VBMI__
/* Returns 8 bytes: from, from + step, from + 2 step, ...: indexes of bytes, or positions of bits. */
#define CODES_EIGHT(from, step) (0x0101010101010101 * (from) + 0x0706050403020100 * (step))

/* Gathers 64 bits each from bytes first, first + step, ... of v on. */
VEC_INLINE __m512i codes_qwords(__m512i v, int first, int step)
{
    const __m512i at = _mm512_setr_epi64(CODES_EIGHT(first, 1), CODES_EIGHT(first + step, 1),
                                         CODES_EIGHT(first + 2 * step, 1), CODES_EIGHT(first + 3 * step, 1),
                                         CODES_EIGHT(first + 4 * step, 1), CODES_EIGHT(first + 5 * step, 1),
                                         CODES_EIGHT(first + 6 * step, 1), CODES_EIGHT(first + 7 * step, 1));
    return _mm512_permutexvar_epi8(at, v);
}

/* Extracts from each 64 bits the 8 codes that begin at the bit positions in `at`, as bytes. */
VEC_INLINE __m512i codes_from(__m512i v, uint64_t at, int bits)
{
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)at), v),
                            _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* Two lanes of 3 bytes, 16 codes, fit 64 bits: even codes begin at bits 0, 6, 12, ..., odd ones at 3, 9,
 * .... */
VEC_INLINE struct codes codes_of_3(const uint8_t *p, uint64_t n)
{
    __m512i v = codes_qwords(codes_bytes_at(p, n), 0, 6);
    return (struct codes){codes_from(v, CODES_EIGHT(0ull, 6), 3), codes_from(v, CODES_EIGHT(3ull, 6), 3)};
}

/* Codes of 5 or 6 bits: 64 bits hold a lane. Its even codes go to the lower half, its odd ones to the
 * upper. */
VEC_INLINE struct codes codes_of_odd_bits(const uint8_t *p, uint64_t n, int bits)
{
    const uint64_t even = 0x0000000003020100, at = (even + (even << 32)) * 2 * (uint64_t)bits;
    const uint64_t all = at + (0x0101010100000000 * (uint64_t)bits), half = 8 * (uint64_t)bits;
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
    __m512i low = codes_from(codes_qwords(codes_bytes_at(p, n > 64 ? 64 : n), 0, bits), all, bits);
    __m512i high = _mm512_setzero_si512();
    if (n > half) { /* the last 64 bytes */
        int from = (int)(half - (n - 64));
        high = codes_from(codes_qwords(codes_bytes_at(p + n - 64, 64), from, bits), all, bits);
    }
    return (struct codes){_mm512_permutex2var_epi32(low, evens, high),
                          _mm512_permutex2var_epi32(low, odds, high)};
}
#else
/* Gathers the 16 bytes in which each half's first (second) quarter lies. */
VEC_INLINE void codes_quarters(const uint8_t *p, uint64_t n, int bits, __m512i out[2])
{
    __m512i low = codes_bytes_at(p, n),
            high = n > 64 ? codes_bytes_at(p + 64, n - 64) : _mm512_setzero_si512();
    const __m512i at[2] = {
        bits == 5 ? _mm512_setr_epi32(0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18)
                  : _mm512_setr_epi32(0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21),
        bits == 5 ? _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19)
                  : _mm512_setr_epi32(2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17, 20, 21, 22, 23)};
    for (int i = 0; i < 2; i++)
        out[i] = _mm512_permutex2var_epi32(low, at[i], high);
}

VEC_INLINE __m512i codes_words(__m512i v, const struct codes_table *t, int second, int odd, int bits)
{
    __m512i at = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t->at[second][odd])),
            up = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t->up[odd]));
    v = _mm512_mullo_epi16(_mm512_shuffle_epi8(v, at), up);
    return bits == 5 ? _mm512_srli_epi16(v, 11) : _mm512_srli_epi16(v, 10);
}

/* Unpacks a lane's three bytes, first into two halves of four codes, then into bytes:
 *   lane                    ........ 77766655 54443332 22111000
 *   upper half << 4         ....7776 66555444 xxxx3332 22111000
 *   even codes              .....666 .....444 .....222 .....000    upper bytes << 2, then & 7
 *   odd codes               .....777 .....555 .....333 .....111    upper bytes >> 1, lower bytes >> 3, then &
 *                           7 */
VEC_INLINE struct codes codes_of_3(const uint8_t *p, uint64_t n)
{
    const __m512i fours = _mm512_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 11);
    const __m512i threes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    const __m512i half = _mm512_set1_epi32(0xffff), byte = _mm512_set1_epi16(255), low = _mm512_set1_epi8(7);
    enum {
        FIRST_OR_SECOND = 0xca
    }; /* bits of the second argument where the first has ones, else of the third */
    __m512i v = _mm512_permutexvar_epi32(fours, codes_bytes_at(p, n));
    v = _mm512_shuffle_epi8(v, threes);
    v = _mm512_ternarylogic_epi32(half, v, _mm512_slli_epi32(v, 4), FIRST_OR_SECOND);
    __m512i even = _mm512_ternarylogic_epi32(byte, v, _mm512_slli_epi16(v, 2), FIRST_OR_SECOND);
    __m512i odd =
        _mm512_ternarylogic_epi32(byte, _mm512_srli_epi16(v, 3), _mm512_srli_epi16(v, 1), FIRST_OR_SECOND);
    return (struct codes){_mm512_and_si512(even, low), _mm512_and_si512(odd, low)};
}

VEC_INLINE struct codes codes_of_odd_bits(const uint8_t *p, uint64_t n, int bits)
{
    const struct codes_table *t = codes_table(bits);
    __m512i v[2], c[2];
    codes_quarters(p, n, bits, v);
    for (int odd = 0; odd < 2; odd++)
        c[odd] = _mm512_packus_epi16(codes_words(v[0], t, 0, odd, bits), codes_words(v[1], t, 1, odd, bits));
    return (struct codes){c[0], c[1]};
}

#endif

/* n: bytes of one or two blocks. A missing block counts as zeros. */
VEC_INLINE struct codes codes_of(const uint8_t *p, uint64_t n, int kind)
{
    int bits = codes_bits(kind);
    switch (bits) {
    case 2:
        return codes_of_2(p, n);
    case 3:
        return codes_of_3(p, n);
    case 4:
        return codes_of_4(p, n, kind);
    case 8:
        return codes_of_8(p, n);
    default:
        return codes_of_odd_bits(p, n, bits);
    }
}

VEC_INLINE struct codes codes_load(const uint8_t *p, int kind)
{
    return codes_of(p, 2 * codes_bytes(kind), kind);
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int kind)
{
    return codes_of(p, codes_bytes(kind), kind);
}

VEC_INLINE void codes_store(struct codes c, uint8_t *to)
{
    __m256i even = _mm512_castsi512_si256(c.even), odd = _mm512_castsi512_si256(c.odd);
    __m256i low = _mm256_unpacklo_epi8(even, odd), high = _mm256_unpackhi_epi8(even, odd);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_permute2x128_si256(low, high, 0x31));
}

#elif defined(VEC_AVX)
struct codes {
    __m256i even[2], odd[2]; /* [block] */
};

/* Loads 16 bytes at p and 16 at q. */
VEC_INLINE __m256i codes_two(const uint8_t *p, const uint8_t *q)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                   _mm_loadu_si128((const __m128i *)q), 1);
}

VEC_INLINE void codes_block_4(const uint8_t *p, int kind, __m256i *even, __m256i *odd)
{
    const __m256i low = _mm256_set1_epi8(15), v = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_and_si256(v, low);
    *odd = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    if (!codes_are_e2m1(kind))
        return;
    __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes_e2m1()));
    *even = _mm256_shuffle_epi8(bytes, *even);
    *odd = _mm256_shuffle_epi8(bytes, *odd);
}

VEC_INLINE void codes_block_8(const uint8_t *p, __m256i *even, __m256i *odd)
{
    __m256i first = _mm256_loadu_si256((const __m256i *)p),
            second = _mm256_loadu_si256((const __m256i *)(p + 32)), low = _mm256_set1_epi16(255);
    __m256i e = _mm256_packus_epi16(_mm256_and_si256(first, low), _mm256_and_si256(second, low));
    __m256i o = _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    *even = _mm256_permute4x64_epi64(e, 0xd8);
    *odd = _mm256_permute4x64_epi64(o, 0xd8);
}

/* Widens each byte to a word of four codes of 2 bits; see the picture at codes_of_2 above. */
VEC_INLINE void codes_block_2(const uint8_t *p, __m256i *even, __m256i *odd)
{
    const __m256i low = _mm256_set1_epi8(3);
    __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    v = _mm256_or_si256(v, _mm256_slli_epi16(v, 4));
    *even = _mm256_and_si256(v, low);
    *odd = _mm256_and_si256(_mm256_srli_epi16(v, 2), low);
}

/* Gathers the 16 bytes in which each half's first (second) quarter lies. */
VEC_INLINE void codes_quarters(const uint8_t *p, int bits, __m256i out[2])
{
    uint64_t half = (uint64_t)bits * 4;
    if (bits == 3) { /* the last 16 bytes begin 4 bytes before the second half */
        const __m256i v = codes_two(p, p + 8);
        out[0] = out[1] = _mm256_blend_epi32(v, _mm256_srli_si256(v, 4), 0xf0);
        return;
    }
    out[0] = codes_two(p, p + half);
    out[1] = codes_two(p + half - 16, p + 2 * half - 16);
}

VEC_INLINE __m256i codes_words(__m256i v, const struct codes_table *t, int second, int odd, int bits)
{
    __m256i at = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t->at[second][odd])),
            up = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t->up[odd]));
    return _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(v, at), up), 16 - bits);
}

VEC_INLINE void codes_block_odd_bits(const uint8_t *p, int bits, __m256i *even, __m256i *odd)
{
    const struct codes_table *t = codes_table(bits);
    __m256i v[2];
    codes_quarters(p, bits, v);
    *even = _mm256_packus_epi16(codes_words(v[0], t, 0, 0, bits), codes_words(v[1], t, 1, 0, bits));
    *odd = _mm256_packus_epi16(codes_words(v[0], t, 0, 1, bits), codes_words(v[1], t, 1, 1, bits));
}

VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int kind)
{
    int bits = codes_bits(kind);
    if (bits == 2)
        codes_block_2(p, &c->even[block], &c->odd[block]);
    else if (bits == 4)
        codes_block_4(p, kind, &c->even[block], &c->odd[block]);
    else if (bits == 8)
        codes_block_8(p, &c->even[block], &c->odd[block]);
    else
        codes_block_odd_bits(p, bits, &c->even[block], &c->odd[block]);
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int kind)
{
    struct codes c = {.even = {_mm256_setzero_si256(), _mm256_setzero_si256()},
                      .odd = {_mm256_setzero_si256(), _mm256_setzero_si256()}};
    codes_block(&c, 0, p, kind);
    return c;
}

VEC_INLINE void codes_store(struct codes c, uint8_t *to)
{
    __m256i low = _mm256_unpacklo_epi8(c.even[0], c.odd[0]), high = _mm256_unpackhi_epi8(c.even[0], c.odd[0]);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_permute2x128_si256(low, high, 0x31));
}

#elif defined(VEC_NEON)
struct codes {
    uint8x16_t even[2][2], odd[2][2]; /* [block][lanes 0 to 3, 4 to 7] */
};

VEC_INLINE void codes_half_4(const uint8_t *p, int kind, uint8x16_t *even, uint8x16_t *odd)
{
    uint8x16_t v = vld1q_u8(p);
    *even = vandq_u8(v, vdupq_n_u8(15));
    *odd = vshrq_n_u8(v, 4);
    if (codes_are_e2m1(kind)) {
        *even = vqtbl1q_u8(vld1q_u8(codes_e2m1()), *even);
        *odd = vqtbl1q_u8(vld1q_u8(codes_e2m1()), *odd);
    }
}

/* Bytes k of even and odd come from half k % 2 of a byte. */
VEC_INLINE void codes_half_2(const uint8_t *p, uint8x16_t *even, uint8x16_t *odd)
{
    uint8x8_t v = vld1_u8(p), high = vshr_n_u8(v, 4);
    uint8x16_t halves = vcombine_u8(vzip1_u8(v, high), vzip2_u8(v, high));
    *even = vandq_u8(halves, vdupq_n_u8(3));
    *odd = vandq_u8(vshrq_n_u8(halves, 2), vdupq_n_u8(3));
}

VEC_INLINE uint16x8_t codes_words(uint8x16_t v, const struct codes_table *t, int second, int odd, int bits)
{
    uint16x8_t words = vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(t->at[second][odd])));
    return vshlq_u16(vmulq_u16(words, vld1q_u16(t->up[odd])), vdupq_n_s16((int16_t)(bits - 16)));
}

/* Loads the 16 bytes in which the half's first and second quarter lie. */
VEC_INLINE void codes_quarters(const uint8_t *p, int bits, uint32_t half, uint8x16_t v[2])
{
    uint64_t bytes = (uint64_t)bits * 4;
    if (bits != 3) {
        v[0] = vld1q_u8(p + half * bytes);
        v[1] = vld1q_u8(p + half * bytes + bytes - 16);
        return;
    }
    /* The last 16 bytes begin 4 bytes before the second half. */
    v[0] = v[1] = half == 0 ? vld1q_u8(p) : vextq_u8(vld1q_u8(p + 8), vdupq_n_u8(0), 4);
}

VEC_INLINE void codes_half_odd_bits(const uint8_t *p, int bits, uint32_t half, uint8x16_t *even,
                                    uint8x16_t *odd)
{
    const struct codes_table *t = codes_table(bits);
    uint8x16_t v[2], c[2];
    codes_quarters(p, bits, half, v);
    for (int i = 0; i < 2; i++)
        c[i] = vuzp1q_u8(vreinterpretq_u8_u16(codes_words(v[0], t, 0, i, bits)),
                         vreinterpretq_u8_u16(codes_words(v[1], t, 1, i, bits)));
    *even = c[0];
    *odd = c[1];
}

VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int kind)
{
    int bits = codes_bits(kind);
    for (uint32_t half = 0; half < 2; half++) {
        uint8x16_t *even = &c->even[block][half], *odd = &c->odd[block][half];
        if (bits == 2) {
            codes_half_2(p + 8 * half, even, odd);
        } else if (bits == 4) {
            codes_half_4(p + 16 * half, kind, even, odd);
        } else if (bits == 8) {
            uint8x16x2_t v = vld2q_u8(p + 32 * half);
            *even = v.val[0];
            *odd = v.val[1];
        } else {
            codes_half_odd_bits(p, bits, half, even, odd);
        }
    }
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int kind)
{
    const uint8x16_t zero = vdupq_n_u8(0);
    struct codes c = {.even = {{zero, zero}, {zero, zero}}, .odd = {{zero, zero}, {zero, zero}}};
    codes_block(&c, 0, p, kind);
    return c;
}

VEC_INLINE void codes_store(struct codes c, uint8_t *to)
{
    for (int half = 0; half < 2; half++)
        vst2q_u8(to + 32 * half, (uint8x16x2_t){{c.even[0][half], c.odd[0][half]}});
}

#else
struct codes {
    uint8_t of[2][2][CPU_BLOCK / 2]; /* [even, odd columns][block] */
};

/* Unpacks 8 codes at a time, because these are whole bytes. */
VEC_INLINE void codes_block(struct codes *c, int block, const uint8_t *p, int kind)
{
    size_t bits = (size_t)codes_bits(kind);
    for (size_t l = 0; l < VEC_LANES; l++, p += bits) {
        uint64_t word = 0;
        for (size_t i = 0; i < bits; i++)
            word |= (uint64_t)p[i] << 8 * i;
        for (size_t i = 0; i < 8; i++) {
            uint8_t code = (uint8_t)(word >> i * bits & ((1u << bits) - 1));
            c->of[i % 2][block][4 * l + i / 2] = codes_are_e2m1(kind) ? codes_e2m1()[code] : code;
        }
    }
}

VEC_INLINE struct codes codes_load_last(const uint8_t *p, int kind)
{
    struct codes c = {0};
    codes_block(&c, 0, p, kind);
    return c;
}

VEC_INLINE void codes_store(struct codes c, uint8_t *to)
{
    for (int i = 0; i < CPU_BLOCK; i++)
        to[i] = c.of[i % 2][0][i / 2];
}
#endif

#ifndef __AVX512VNNI__
/* Unpacks two blocks. */
VEC_INLINE struct codes codes_load(const uint8_t *p, int kind)
{
    struct codes c;
    codes_block(&c, 0, p, kind);
    codes_block(&c, 1, p + codes_bytes(kind), kind);
    return c;
}

#endif

#endif
