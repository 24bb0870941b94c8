/* bits.h - bitmaps of token ids, in words of 64 bits. */
#ifndef MOEFLUX_SAMPLE_BITS_H
#define MOEFLUX_SAMPLE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#define WORD_BITS 64u

static inline void bits_set(uint64_t *bits, uint32_t id)
{
    bits[id / WORD_BITS] |= (uint64_t)1 << id % WORD_BITS;
}

static inline void bits_clear(uint64_t *bits, uint32_t id)
{
    bits[id / WORD_BITS] &= ~((uint64_t)1 << id % WORD_BITS);
}

static inline bool bits_has(const uint64_t *bits, uint32_t id)
{
    return bits[id / WORD_BITS] >> id % WORD_BITS & 1;
}

#endif
