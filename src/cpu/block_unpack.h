/* block_unpack.h - takes apart units of block formats (block_codes.h): codes, scales and biases.
 *
 * Types that have functions for vectors here are unpacked where they lie; `type` is a constant then. All
 * other types, and all types of processors without AVX2, go through base/format_blocks.h. Scales and biases
 * are in the order of the lanes (product.h): 4 lots of 16 columns of each block, those of cpu_block_lane(2
 * i). */
#ifndef MOEFLUX_CPU_BLOCK_UNPACK_H
#define MOEFLUX_CPU_BLOCK_UNPACK_H

#include "base/codebook.h"
#include "base/format_blocks.h"
#include "cpu/block_codes.h"

/* Stands for a type that is not a constant. Its codes count as those of Q8_0. */
#define BLOCK_ANY FORMAT_END
VEC_INLINE int block_code_type(int type)
{
    return type == BLOCK_ANY ? FORMAT_G_Q8_0 : type;
}

/* The most bytes of a unit of several blocks: 8 of Q8_0. */
enum { UNIT_MOST_BYTES = 8 * 34, UNIT_GROUPS = UNIT_COLS / 32, UNIT_EIGHTS = UNIT_COLS / 8 };

struct unit {
    const uint8_t *p; /* the unit's first block */
    /* What known types with a code book have, found by unit_open_book. */
    uint64_t signs[UNIT_BLOCKS];     /* a bit a column, set for negative ones */
    uint16_t entries[UNIT_COLS / 4]; /* indices in the order of the columns */
    uint8_t eighths[UNIT_EIGHTS];    /* IQ1: the number that is added to an entry's 8 codes */
    struct format_block some;        /* what the unit has, for BLOCK_ANY */
};

/* Takes n blocks of a type that is not a constant apart; missing ones count as zeros. cols, bytes: of a
 * block. */
static __attribute__((noinline, unused)) void unit_open(struct unit *u, uint32_t type, const uint8_t *p,
                                                        uint32_t n, uint32_t cols, uint32_t bytes)
{
    bool has_bias = format_block_has_bias(type);
    u->p = p;
    memset(&u->some, 0, sizeof u->some);
    if (cols == UNIT_COLS) {
        format_block_unpack(type, p, &u->some);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct format_block b;
        uint32_t parts = cols / PART_COLS;
        format_block_unpack(type, p + (size_t)i * bytes, &b);
        memcpy(u->some.codes + (size_t)i * cols, b.codes, cols);
        memcpy(u->some.scales + (size_t)i * parts, b.scales, parts * sizeof *b.scales);
        if (has_bias)
            memcpy(u->some.biases + (size_t)i * parts, b.biases, parts * sizeof *b.biases);
    }
}

/* Puts the 16 lots of a unit into the order of the lanes. */
VEC_INLINE struct pair unit_in_order(const float *parts)
{
    float out[UNIT_PARTS];
    for (uint32_t i = 0; i < UNIT_PARTS; i++)
        out[i] = parts[i / 4 * 4 + cpu_block_lane(i % 4 * 2) / PART_COLS];
    return pair_load(out);
}

#ifdef VEC_AVX
#include "cpu/block_unpack_avx.h"
#else
#define UNIT_KNOWN(each)
VEC_INLINE bool unit_has_groups(int type)
{
    (void)type;
    return false;
}

VEC_INLINE struct vec unit_group_scales(const uint8_t *p, int type)
{
    (void)p;
    (void)type;
    return vec_zero(); /* no type has groups */
}
#endif

/* Begins with a unit of a type that is a constant. */
VEC_INLINE void unit_begin(struct unit *u, const uint8_t *p, int type)
{
    u->p = p;
#ifdef VEC_AVX
    if (unit_has_book(type))
        unit_open_book(u, type);
#endif
    (void)type;
}

/* Returns the codes of blocks 2 i and 2 i + 1. */
VEC_INLINE struct block_codes unit_codes(const struct unit *u, uint32_t i, int type)
{
    const int8_t *codes = u->some.codes + (size_t)i * 2 * CPU_BLOCK;
#ifdef VEC_AVX
    const __m256i sign = _mm256_set1_epi8(BLOCK_WIDE ? 0 : (char)0x80);
    __m256i first[2], second[2];
    if (type != BLOCK_ANY)
        return unit_two_blocks(u, i, type);
    for (uint32_t k = 0; k < 2; k++, codes += CPU_BLOCK) {
        first[k] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)codes), sign);
        second[k] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(codes + HALF_COLS)), sign);
        unit_swap_lanes(&first[k], &second[k]);
    }
    return block_codes_of(first, second);
#else
    struct block_codes c = {0};
    (void)type;
    for (uint32_t k = 0; k < 2; k++, codes += CPU_BLOCK)
        for (uint32_t l = 0; l < VEC_LANES; l++) {
            memcpy(c.of[k][0] + (size_t)4 * l, codes + cpu_block_lane(l), 4);
            memcpy(c.of[k][1] + (size_t)4 * l, codes + cpu_block_lane(l) + 8, 4);
        }
    return c;
#endif
}

/* Stores the codes of a unit in the order of the columns, `more` added. */
VEC_INLINE void unit_store(const struct unit *u, int type, int more, uint8_t out[UNIT_COLS])
{
#ifdef VEC_AVX
    const __m256i by = _mm256_set1_epi8((char)(more - block_shift(block_code_type(type))));
#pragma GCC unroll 2
    for (uint32_t i = 0; i < UNIT_BLOCKS / 2; i++) {
        __m256i first[2], second[2];
        block_codes_take(unit_codes(u, i, type), first, second);
        for (int k = 0; k < 2; k++, out += CPU_BLOCK) {
            unit_swap_lanes(&first[k], &second[k]);
            _mm256_storeu_si256((__m256i *)(void *)out, _mm256_add_epi8(first[k], by));
            _mm256_storeu_si256((__m256i *)(void *)(out + HALF_COLS), _mm256_add_epi8(second[k], by));
        }
    }
#else
    (void)type;
    for (uint32_t i = 0; i < UNIT_COLS; i++)
        out[i] = (uint8_t)(u->some.codes[i] + more);
#endif
}

/* Returns the unit's scales. */
VEC_INLINE struct pair unit_scales(const struct unit *u, int type)
{
#ifdef VEC_AVX
    if (type != BLOCK_ANY)
        return unit_known_scales(u->p, type);
#endif
    (void)type;
    /* cppcheck-suppress uninitvar; a known type has returned, others are opened by unit_open */
    return unit_in_order(u->some.scales);
}

/* Returns the biases of a unit with one for each 32 columns, in the order of the columns. */
VEC_INLINE struct vec unit_biases_32(const struct unit *u, int type)
{
#ifdef VEC_AVX
    if (type != BLOCK_ANY)
        return unit_group_biases(u->p, type);
#endif
    float out[UNIT_GROUPS];
    (void)type;
    for (uint32_t g = 0; g < UNIT_GROUPS; g++)
        out[g] = u->some.biases[(size_t)2 * g];
    return vec_load(out);
}

/* Returns the unit's biases; the format has some. */
VEC_INLINE struct pair unit_biases(const struct unit *u, int type)
{
#ifdef VEC_AVX
    if (type != BLOCK_ANY)
        return unit_known_biases(u->p, type);
#endif
    (void)type;
    return unit_in_order(u->some.biases);
}

#endif
