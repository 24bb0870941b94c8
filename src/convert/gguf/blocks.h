/* blocks.h - the types of GGUF tensors that are read, and the numbers that their blocks stand for.
 *
 * A row is blocks of `block` numbers, `bytes` each. In most types a group of 32 numbers is value = code *
 * scale + bias with whole codes: those are exact in a storage format of as many bits whose scales hold them.
 * In some, scales go with 16 numbers, which no affine format has; these are known as numbers alone. */
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
    uint32_t bits;  /* of the codes of groups of 32; 0: there are none */
    uint32_t scale; /* SCALE_* that holds a group's scale and bias */
    /* where bits is 0 or not to be had: the affine codes of 32 that lose little; 0: plain numbers */
    uint32_t instead;
    void (*decode)(const uint8_t *block, float *out); /* [block] numbers, in float32 as ggml computes them */
    void (*groups)(const uint8_t *block, struct gguf_group *out); /* [block / 32], where bits > 0 */
};

/* NULL: the type is not read. */
const struct gguf_type *gguf_type_find(uint32_t type);
/* The name of any type that ggml has or had; NULL: it has no such type. */
const char *gguf_type_name(uint32_t type);
/* "F32, F16, ... or MXFP4" */
enum { GGUF_TYPE_LIST = 160 };
const char *gguf_type_list(char out[GGUF_TYPE_LIST]);

/* An MXFP4 block as the storage format has it: 16 bytes of codes, and the scale's byte. */
void gguf_mxfp4(const uint8_t *block, uint8_t codes[16], uint8_t *scale);

#endif
