/* block_books_avx.h - the types with code books, for block_unpack_avx.h.
 *
 * A unit is opened once: its signs, its entries' indices where they are not bytes of the file, and IQ1's
 * eighths. IQ1 and IQ2 have entries of 8 columns, which are loaded. IQ3 has entries of 4 columns, twice as
 * many: with AVX-512 they are looked up by permutes, 32 at once. */
#ifndef MOEFLUX_CPU_BLOCK_BOOKS_AVX_H
#define MOEFLUX_CPU_BLOCK_BOOKS_AVX_H

VEC_INLINE bool unit_is_iq1(int type)
{
    return type == FORMAT_G_IQ1_S || type == FORMAT_G_IQ1_M;
}

VEC_INLINE bool unit_is_iq3(int type)
{
    return type == FORMAT_G_IQ3_XXS || type == FORMAT_G_IQ3_S;
}

VEC_INLINE bool unit_has_book(int type)
{
    return unit_is_iq1(type) || type == FORMAT_G_IQ2_XXS || type == FORMAT_G_IQ2_XS ||
           type == FORMAT_G_IQ2_S || unit_is_iq3(type);
}

/* ---- signs ---- */

/* Puts four times seven bits of each word into its bytes. */
VEC_INLINE __m256i unit_spread_signs(__m256i w)
{
    __m256i a = _mm256_and_si256(w, _mm256_set1_epi32(0x7f)),
            b = _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7f00)),
            c = _mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7f0000)),
            d = _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7f000000));
    return _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
}

/* Adds to seven bits of each byte an eighth that makes the number of ones even. */
VEC_INLINE __m256i unit_even_signs(__m256i seven)
{
    const char odd = (char)0x80; /* the eighth bit for 4 bits with an odd number of ones */
    const __m256i parity = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0));
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(seven, 4), _mm256_set1_epi8(15));
    __m256i eighth = _mm256_xor_si256(_mm256_shuffle_epi8(parity, seven), _mm256_shuffle_epi8(parity, high));
    return _mm256_or_si256(seven, eighth);
}

/* Loads the odd ones of 16 words. */
VEC_INLINE __m256i unit_odd_words(const uint8_t *p)
{
    __m256 a = _mm256_castsi256_ps(unit_load(p)), b = _mm256_castsi256_ps(unit_load(p + 32));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}

/* Returns the signs of a unit, a bit a column. */
VEC_INLINE __m256i unit_signs(const uint8_t *p, int type)
{
    __m256i v;
    switch (type) {
    case FORMAT_G_IQ2_XXS:
        return unit_even_signs(unit_spread_signs(unit_odd_words(p + 2)));
    case FORMAT_G_IQ2_XS: /* the upper bits of 32 halves of words */
        v = _mm256_packus_epi16(_mm256_srli_epi16(unit_load(p + 2), 9),
                                _mm256_srli_epi16(unit_load(p + 34), 9));
        return unit_even_signs(_mm256_permute4x64_epi64(v, 0xd8));
    case FORMAT_G_IQ3_XXS:
        return unit_even_signs(unit_spread_signs(unit_load(p + 66)));
    default: /* bytes of the file */
        return unit_load(p + (type == FORMAT_G_IQ2_S ? 34 : 74));
    }
}

/* ---- indices of entries ---- */

VEC_INLINE __m256i unit_wide_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Repeats each of 4 halves of words at p four times. */
VEC_INLINE __m256i unit_each_four(const uint8_t *p)
{
    const __m256i each = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4,
                                          5, 6, 7, 6, 7, 6, 7, 6, 7);
    return _mm256_shuffle_epi8(unit_each_8(p), each);
}

/* Repeats each of 16 / n bytes at p in n halves of words. */
VEC_INLINE __m256i unit_each_byte(const uint8_t *p, int n)
{
    const __m256i twice = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4,
                                           -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    const __m256i four = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2,
                                          -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
    const __m256i eight = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1,
                                           -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    if (n == 2)
        return _mm256_shuffle_epi8(unit_each_8(p), twice);
    if (n == 4)
        return _mm256_shuffle_epi8(_mm256_set1_epi32((int)unit_word(p)), four);
    return _mm256_shuffle_epi8(_mm256_set1_epi16((int16_t)(p[0] | p[1] << 8)), eight);
}

/* Returns the indices of entries 16 i to 16 i + 15: bytes of the file and, above them, bits that a shift to
 * the left brings there. IQ1: sets *less to -1 where an eighth is subtracted, else 0. */
VEC_INLINE __m256i unit_sixteen_entries(const uint8_t *p, size_t i, int type, __m256i *less)
{
    __m256i w;
    switch (type) {
    case FORMAT_G_IQ2_XS:
        return _mm256_and_si256(unit_load(p + 2 + 32 * i), _mm256_set1_epi16(511));
    case FORMAT_G_IQ2_S: /* 2 bits */
        w = _mm256_mullo_epi16(unit_each_byte(p + 66 + 4 * i, 4), _mm256_set1_epi64x(0x0004001000400100));
        return _mm256_or_si256(unit_wide_bytes(p + 2 + 16 * i),
                               _mm256_and_si256(w, _mm256_set1_epi16(0x300)));
    case FORMAT_G_IQ3_S: /* a bit */
        w = _mm256_mullo_epi16(unit_each_byte(p + 66 + 2 * i, 8),
                               _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2)));
        return _mm256_or_si256(unit_wide_bytes(p + 2 + 16 * i),
                               _mm256_and_si256(w, _mm256_set1_epi16(0x100)));
    case FORMAT_G_IQ1_S: /* 3 bits; the sign of four entries is the highest bit of all 16 */
        w = unit_each_four(p + 34 + 8 * i);
        *less = _mm256_srai_epi16(w, 15);
        w = _mm256_srli_epi16(_mm256_mullo_epi16(w, _mm256_set1_epi64x(0x0001000800400200)), 1);
        return _mm256_or_si256(unit_wide_bytes(p + 2 + 16 * i),
                               _mm256_and_si256(w, _mm256_set1_epi16(0x700)));
    default: /* FORMAT_G_IQ1_M: 3 bits, and a sign above them */
        w = _mm256_mullo_epi16(unit_each_byte(p + 32 + 8 * i, 2), _mm256_set1_epi32(0x01001000));
        *less = _mm256_srai_epi16(w, 15);
        w = _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi16(0x700));
        return _mm256_or_si256(unit_wide_bytes(p + 16 * i), w);
    }
}

VEC_INLINE void unit_open_book(struct unit *u, int type)
{
    const bool is_read_in_place = type == FORMAT_G_IQ2_XXS || type == FORMAT_G_IQ3_XXS;
    const size_t n = is_read_in_place ? 0 : type == FORMAT_G_IQ3_S ? 4 : 2; /* sixteens of entries */
    __m256i less[4];
    for (size_t i = 0; i < n; i++) {
        __m256i entries = unit_sixteen_entries(u->p, i, type, &less[i]);
        _mm256_storeu_si256((__m256i *)(void *)(u->entries + 16 * i), entries);
    }
    __m256i v;
    if (unit_is_iq1(type)) {
        /* A code is 8 times the entry's value from 0 on, and the shift less 8, and 1 more or less. */
        v = _mm256_permute4x64_epi64(_mm256_packs_epi16(less[0], less[1]), 0xd8);
        v = _mm256_add_epi8(_mm256_add_epi8(v, v), _mm256_set1_epi8((char)(block_shift(type) - 8 + 1)));
        _mm256_storeu_si256((__m256i *)(void *)u->eighths, v);
        return;
    }
    v = unit_signs(u->p, type);
#ifdef __AVX512BW__
    /* The lanes' first, then their second 4 columns of two blocks. */
    const __m128i order = _mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15);
    v = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
#endif
    _mm256_storeu_si256((__m256i *)(void *)u->signs, v);
}

/* ---- entries of 8 columns ---- */

/* A block's entries of 8 columns in the order of the lanes' first 4 columns; their second ones are 1 after
 * them. */
static const uint8_t unit_lane_entries[4] = {0, 4, 2, 6};

/* Returns where entry i of a unit is. */
VEC_INLINE const void *unit_entry_8(const struct unit *u, size_t i, int type)
{
    switch (type) {
    case FORMAT_G_IQ2_XXS: /* 4 bytes of each 8 */
        return codebook_iq2_xxs + u->p[2 + i / 4 * 8 + i % 4];
    case FORMAT_G_IQ2_XS:
        return codebook_iq2_xs + u->entries[i];
    case FORMAT_G_IQ2_S:
        return codebook_iq2_s + u->entries[i];
    default: /* IQ1 */
        return codebook_iq1 + u->entries[i];
    }
}

#ifdef __AVX512BW__
VEC_INLINE __m512i unit_eight_entries(const struct unit *u, size_t first, int type)
{
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const void *entry = unit_entry_8(u, first + i / 4 * 8 + unit_lane_entries[i % 4], type);
        v = _mm512_mask_broadcastq_epi64(v, (__mmask8)(1 << i), _mm_loadl_epi64((const __m128i *)entry));
    }
    return v;
}

/* ---- entries of 4 columns ---- */

VEC_INLINE __m512i unit_book_of_64(const uint16_t *book, __m512i idx)
{
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(book), idx, _mm512_loadu_si512(book + 32));
}

/* Looks 32 entries up in a book of 256. */
VEC_INLINE __m512i unit_book_of_256(const uint16_t *book, __m512i idx)
{
    __mmask32 odd = _mm512_test_epi16_mask(idx, _mm512_set1_epi16(64));
    __m512i low = _mm512_mask_blend_epi16(odd, unit_book_of_64(book, idx), unit_book_of_64(book + 64, idx));
    __m512i high =
        _mm512_mask_blend_epi16(odd, unit_book_of_64(book + 128, idx), unit_book_of_64(book + 192, idx));
    return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(idx, _mm512_set1_epi16(128)), low, high);
}

/* Spreads 16 entries of four 4-bit numbers over bytes and looks these up. */
VEC_INLINE __m512i unit_spread_fours(__m256i entries, __m128i values)
{
    enum { OR_AND = 0xa8 }; /* (a | b) & c; clang wants a constant */
    __m512i v = _mm512_cvtepu16_epi32(entries);
    v = _mm512_ternarylogic_epi32(v, _mm512_slli_epi32(v, 8), _mm512_set1_epi32(0x00ff00ff), OR_AND);
    v = _mm512_ternarylogic_epi32(v, _mm512_slli_epi32(v, 4), _mm512_set1_epi32(0x0f0f0f0f), OR_AND);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), v);
}

/* Returns the numbers of blocks 2 i and 2 i + 1 of IQ3, without signs, with their shift. */
VEC_INLINE struct block_codes unit_two_iq3_blocks(const struct unit *u, size_t i, int type)
{
    /* The lanes' first entries of two blocks, then their second ones. */
    const __m512i order = _mm512_set_epi16(31, 30, 23, 22, 27, 26, 19, 18, 15, 14, 7, 6, 11, 10, 3, 2, 29, 28,
                                           21, 20, 25, 24, 17, 16, 13, 12, 5, 4, 9, 8, 1, 0);
    const __m128i xxs = _mm_setr_epi8(4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i s = _mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0);
    __m128i values = _mm_add_epi8(type == FORMAT_G_IQ3_S ? s : xxs, _mm_set1_epi8((char)block_shift(type)));
    __m512i idx, found;
    if (type == FORMAT_G_IQ3_S) {
        idx = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(u->entries + 32 * i));
        found = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(idx, _mm512_set1_epi16(256)),
                                        unit_book_of_256(codebook_iq3_s_packed, idx),
                                        unit_book_of_256(codebook_iq3_s_packed + 256, idx));
    } else {
        idx = _mm512_permutexvar_epi16(order, _mm512_cvtepu8_epi16(unit_load(u->p + 2 + 32 * i)));
        found = unit_book_of_256(codebook_iq3_xxs_packed, idx);
    }
    return (struct block_codes){unit_spread_fours(_mm512_castsi512_si256(found), values),
                                unit_spread_fours(_mm512_extracti64x4_epi64(found, 1), values)};
}

/* Repeats the eighths of two blocks' entries for the lanes' first 4 columns (k = 0) or second (1). */
VEC_INLINE __m512i unit_eighths_of(const struct unit *u, size_t i, int k)
{
    const long long each = 0x0101010101010101;
    const __m512i order =
        _mm512_setr_epi64(0, 4 * each, 2 * each, 6 * each, 8 * each, 12 * each, 10 * each, 14 * each);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(u->eighths + 16 * i)));
    return _mm512_shuffle_epi8(v, _mm512_add_epi8(order, _mm512_set1_epi8((char)k)));
}

/* Returns the codes of blocks 2 i and 2 i + 1, with their shift. */
VEC_INLINE struct block_codes unit_two_book_blocks(const struct unit *u, size_t i, int type)
{
    const __m512i shift = _mm512_set1_epi8((char)block_shift(type));
    const __m512i twice = _mm512_add_epi8(shift, shift);
    struct block_codes c;
    if (unit_is_iq3(type)) {
        c = unit_two_iq3_blocks(u, i, type);
    } else {
        c.first = unit_eight_entries(u, 16 * i, type);
        c.second = unit_eight_entries(u, 16 * i + 1, type);
        if (unit_is_iq1(type)) {
            c.first = _mm512_add_epi8(_mm512_slli_epi16(c.first, 3), unit_eighths_of(u, i, 0));
            c.second = _mm512_add_epi8(_mm512_slli_epi16(c.second, 3), unit_eighths_of(u, i, 1));
            return c;
        }
        c.first = _mm512_add_epi8(c.first, shift);
        c.second = _mm512_add_epi8(c.second, shift);
    }
    c.first = _mm512_mask_sub_epi8(c.first, u->signs[2 * i], twice, c.first);
    c.second = _mm512_mask_sub_epi8(c.second, u->signs[2 * i + 1], twice, c.second);
    return c;
}

#endif

VEC_INLINE __m256i unit_four_entries(const struct unit *u, size_t first, int type)
{
    __m256i v[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        v[i] = unit_each_8(unit_entry_8(u, first + unit_lane_entries[i], type));
    return _mm256_blend_epi32(_mm256_blend_epi32(v[0], v[1], 0x0c), _mm256_blend_epi32(v[2], v[3], 0xc0),
                              0xf0);
}

/* Returns numbers of block b of IQ3 without signs: the lanes' first 4 columns (k = 0) or their second
 * (1). Loads into all lanes and blends take fewer operations than a gather. */
VEC_INLINE __m256i unit_iq3(const struct unit *u, size_t b, int k, int type)
{
    /* A block's entries of the lanes' first 4 columns; their second ones are 2 after them. */
    static const uint8_t lane_entries[8] = {0, 1, 8, 9, 4, 5, 12, 13};
    __m256i v[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        size_t at = 16 * b + lane_entries[i] + 2 * (size_t)k;
        v[i] = _mm256_set1_epi32(
            (int)(type == FORMAT_G_IQ3_S ? codebook_iq3_s[u->entries[at]] : codebook_iq3_xxs[u->p[2 + at]]));
    }
    __m256i low =
        _mm256_blend_epi32(_mm256_blend_epi32(v[0], v[1], 0x02), _mm256_blend_epi32(v[2], v[3], 0x08), 0x0c);
    __m256i high =
        _mm256_blend_epi32(_mm256_blend_epi32(v[4], v[5], 0x20), _mm256_blend_epi32(v[6], v[7], 0x80), 0xc0);
    return _mm256_blend_epi32(low, high, 0xf0);
}

/* Unpacks the lanes' first 4 columns (k = 0) of block b, or their second (1), with their shift. */
VEC_INLINE __m256i unit_half_book(const struct unit *u, size_t b, int k, int type)
{
    if (unit_is_iq1(type)) {
        const long long each = 0x0101010101010101;
        const __m256i order = _mm256_setr_epi64x(each * k, each * (4 + k), each * (2 + k), each * (6 + k));
        __m256i eighths = _mm256_shuffle_epi8(unit_each_8(u->eighths + 8 * b), order);
        __m256i v = unit_four_entries(u, 8 * b + (size_t)k, type);
        return _mm256_add_epi8(_mm256_slli_epi16(v, 3), eighths);
    }
    __m256i v = unit_is_iq3(type) ? unit_iq3(u, b, k, type) : unit_four_entries(u, 8 * b + (size_t)k, type);
    __m256i m = unit_mask(unit_each_8(u->signs + b), k);
    v = _mm256_sub_epi8(_mm256_xor_si256(v, m), m);
    return block_shift(type) ? _mm256_add_epi8(v, _mm256_set1_epi8((char)block_shift(type))) : v;
}

/* Unpacks block b of a type with a code book, in the order of the lanes, with its shift. */
VEC_INLINE void unit_book(const struct unit *u, size_t b, int type, __m256i *first, __m256i *second)
{
    *first = unit_half_book(u, b, 0, type);
    *second = unit_half_book(u, b, 1, type);
}

#endif
