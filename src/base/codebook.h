/* codebook.h - the code books of kernels/codebooks.h with a byte for each value, for C. */
#ifndef MOEFLUX_BASE_CODEBOOK_H
#define MOEFLUX_BASE_CODEBOOK_H

#include <stdint.h>

#include "codebooks.h"

/* Entries of 8 or 4 bytes, the first value in the lowest byte. */
extern const uint64_t codebook_iq2_xxs[CODEBOOK_IQ2_XXS_ENTRIES];
extern const uint64_t codebook_iq2_xs[CODEBOOK_IQ2_XS_ENTRIES];
extern const uint64_t codebook_iq2_s[CODEBOOK_IQ2_S_ENTRIES];
extern const uint32_t codebook_iq3_xxs[CODEBOOK_IQ3_XXS_ENTRIES];
extern const uint32_t codebook_iq3_s[CODEBOOK_IQ3_S_ENTRIES];
/* The same with 4 bits for each number c of codebooks.h, the first one lowest. */
extern const uint16_t codebook_iq3_xxs_packed[CODEBOOK_IQ3_XXS_ENTRIES];
extern const uint16_t codebook_iq3_s_packed[CODEBOOK_IQ3_S_ENTRIES];
/* Bytes 0, 1 and 2 mean -1, 0 and 1. */
extern const uint64_t codebook_iq1[CODEBOOK_IQ1_ENTRIES];
/* The 16 values of IQ4_NL and IQ4_XS. */
extern const int8_t codebook_iq4[16];
/* Twice the 16 values of E2M1. */
extern const int8_t codebook_e2m1[16];

/* Returns eight signs of the seven that are stored: the eighth makes their number even. */
static inline uint32_t codebook_signs(uint32_t seven)
{
    return (seven & 127) | (uint32_t)__builtin_parity(seven & 127) << 7;
}

#endif
