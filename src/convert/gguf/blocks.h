/* blocks.h - the types of GGUF tensors, as conversion reads them.
 *
 * A row is blocks of `block` numbers, `bytes` bytes each. In many types groups of 32 numbers are value = code
 * * scale + bias with whole codes. A storage format with as many bits, whose scales can represent theirs,
 * holds these exactly. In the other types fewer numbers share a scale, which no affine format has, or codes
 * are far apart; these are decoded to numbers only. */
#ifndef MOEFLUX_CONVERT_GGUF_BLOCKS_H
#define MOEFLUX_CONVERT_GGUF_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GGUF_F32_TYPE = 0,
    GGUF_F16_TYPE = 1,
    GGUF_BF16_TYPE = 30,
    GGUF_MXFP4_TYPE = 39,
};

enum { GGUF_GROUP = 32, GGUF_MAX_BLOCK = 256, GGUF_MAX_BLOCK_BYTES = 4 * GGUF_GROUP + 256 };

struct gguf_group {
    float scale, bias;
    uint8_t codes[GGUF_GROUP];
};

struct gguf_type {
    const char *name;
    uint32_t block, bytes;
    uint32_t format; /* FORMAT_* of the blocks as they are */
    uint32_t bits;   /* bits of a code in groups of 32; 0: it has no such groups */
    uint32_t scale;  /* SCALE_* that represents a group's scale and bias exactly */
    /* bits of affine codes in groups of 32 that lose little, if `bits` is 0 or unavailable; 0: plain
     * numbers */
    uint32_t instead;
    int32_t below; /* added to a code of the block format, gives the code of a group, which is not negative */
};

/* Decodes one block to [block] numbers, in float32 as ggml computes them. */
void gguf_type_decode(const struct gguf_type *t, const uint8_t *block, float *out);
/* Takes one block apart; `bits` is not 0. out: [block / 32]. */
void gguf_type_groups(const struct gguf_type *t, const uint8_t *block, struct gguf_group *out);
/* Returns the type, or NULL if it is not supported. */
const struct gguf_type *gguf_type_find(uint32_t type);
/* Reorders an MXFP4 block for the storage format: 16 bytes of codes, and the scale's byte. */
void gguf_mxfp4(const uint8_t *block, uint8_t codes[16], uint8_t *scale);

#endif
