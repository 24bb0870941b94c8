#include "base/codebook.h"

/* A value of a code, and an entry's values as bytes. */
#define TWO(c)        (8 + 17 * (c) + (c) / 2)
#define THREE_XXS(c)  (4 + 8 * (c) + (c) / 7 * 2)
#define THREE_S(c)    (2 * (c) + 1)
#define SAME(c)       (c)
#define TAKE(e, i, n) ((uint64_t)(e) >> (i) * (n) & ((1 << (n)) - 1))
#define FOUR_BYTES(of, e, n, i)                                                                              \
    (of(TAKE(e, i, n)) | of(TAKE(e, (i) + 1, n)) << 8 | of(TAKE(e, (i) + 2, n)) << 16 |                      \
     of(TAKE(e, (i) + 3, n)) << 24)
#define ENTRY_8(of, e) (FOUR_BYTES(of, e, 2, 0) | FOUR_BYTES(of, e, 2, 4) << 32)
#define ENTRY_4(of, e) (uint32_t) FOUR_BYTES(of, e, 4, 0)
#define BOTH_8(of, w)  ENTRY_8(of, (w)&0xffff), ENTRY_8(of, (w) >> 16)
#define BOTH_4(of, w)  ENTRY_4(of, (w)&0xffff), ENTRY_4(of, (w) >> 16)
#define TWO_WORD(w)    BOTH_8(TWO, w)
#define XXS_WORD(w)    BOTH_4(THREE_XXS, w)
#define S_WORD(w)      BOTH_4(THREE_S, w)
#define PACKED_WORD(w) (w) & 0xffff, (w) >> 16
#define IQ1_WORD(w)    BOTH_8(SAME, w)
#define SIGNED(w, i)   (int8_t)(((w) >> 8 * (i)&255) - ((w) >> (8 * (i) + 7) & 1) * 256)
#define SIGNED_WORD(w) SIGNED(w, 0), SIGNED(w, 1), SIGNED(w, 2), SIGNED(w, 3)

const uint64_t codebook_iq2_xxs[CODEBOOK_IQ2_XXS_ENTRIES] = {CODEBOOK_IQ2_XXS(TWO_WORD)};
const uint64_t codebook_iq2_xs[CODEBOOK_IQ2_XS_ENTRIES] = {CODEBOOK_IQ2_XS(TWO_WORD)};
const uint64_t codebook_iq2_s[CODEBOOK_IQ2_S_ENTRIES] = {CODEBOOK_IQ2_S(TWO_WORD)};
const uint32_t codebook_iq3_xxs[CODEBOOK_IQ3_XXS_ENTRIES] = {CODEBOOK_IQ3_XXS(XXS_WORD)};
const uint32_t codebook_iq3_s[CODEBOOK_IQ3_S_ENTRIES] = {CODEBOOK_IQ3_S(S_WORD)};
const uint16_t codebook_iq3_xxs_packed[CODEBOOK_IQ3_XXS_ENTRIES] = {CODEBOOK_IQ3_XXS(PACKED_WORD)};
const uint16_t codebook_iq3_s_packed[CODEBOOK_IQ3_S_ENTRIES] = {CODEBOOK_IQ3_S(PACKED_WORD)};
const uint64_t codebook_iq1[CODEBOOK_IQ1_ENTRIES] = {CODEBOOK_IQ1(IQ1_WORD)};
const int8_t codebook_iq4[16] = {CODEBOOK_IQ4(SIGNED_WORD)};
const int8_t codebook_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
