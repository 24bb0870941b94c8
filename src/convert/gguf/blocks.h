/* blocks.h - what conversion makes of the block formats of GGUF tensors (base/ggml_type.h has the types).
 *
 * In many of them groups of 32 numbers are value = code * scale + bias with whole codes. A storage format
 * with as many bits, whose scales can represent theirs, holds these exactly. In the others fewer numbers
 * share a scale, which no affine format has, or codes are far apart; these are decoded to numbers only. */
#ifndef MOEFLUX_CONVERT_GGUF_BLOCKS_H
#define MOEFLUX_CONVERT_GGUF_BLOCKS_H

#include <stdint.h>

enum { GGUF_GROUP = 32 };

struct gguf_group {
    float scale, bias;
    uint8_t codes[GGUF_GROUP];
};

struct gguf_type {
    uint32_t format; /* FORMAT_* of the blocks; FORMAT_NONE: plain numbers */
    uint32_t bits;   /* bits of a code in groups of 32; 0: it has no such groups */
    uint32_t scale;  /* SCALE_* that represents a group's scale and bias exactly */
    /* bits of affine codes in groups of 32 that lose little, if `bits` is 0 or unavailable */
    uint32_t instead;
    int32_t below; /* added to a code of the block format, gives the code of a group, which is not negative */
};

/* Takes one block apart; `bits` is not 0. out: [columns of a block / 32]. */
void gguf_type_groups(const struct gguf_type *t, const uint8_t *block, struct gguf_group *out);
/* Returns what is made of a block format; of any other, what is made of plain numbers. */
const struct gguf_type *gguf_type_find(uint32_t format);
/* Reorders an MXFP4 block for the storage format: 16 bytes of codes, and the scale's byte. */
void gguf_mxfp4(const uint8_t *block, uint8_t codes[16], uint8_t *scale);

#endif
