#include "convert/gguf/blocks.h"

#include <stddef.h>

#include "args.h"
#include "base/format.h"
#include "base/format_blocks.h"

/* Columns and bytes of a block. */
#define COLS_BYTES(name, number, cols, bytes, x) COLS_##name = (cols), BYTES_##name = (bytes),
enum { FORMAT_TABLE_BLOCKS(COLS_BYTES, 0) };

/* PLAIN(number, name, bytes), BLOCK(number, name, bits, scale, instead, below); see struct gguf_type. */
#define TYPES(PLAIN, BLOCK)                                                                                  \
    PLAIN(GGUF_F32_TYPE, F32, 4)                                                                             \
    PLAIN(GGUF_F16_TYPE, F16, 2)                                                                             \
    PLAIN(GGUF_BF16_TYPE, BF16, 2)                                                                           \
    BLOCK(2, Q4_0, 4, SCALE_F16, 4, 8)                                                                       \
    BLOCK(3, Q4_1, 4, SCALE_F16, 4, 0)                                                                       \
    BLOCK(6, Q5_0, 5, SCALE_F16, 5, 16)                                                                      \
    BLOCK(7, Q5_1, 5, SCALE_F16, 5, 0)                                                                       \
    BLOCK(8, Q8_0, 8, SCALE_F16, 8, 128)                                                                     \
    BLOCK(10, Q2_K, 0, SCALE_NONE, 4, 0)                                                                     \
    BLOCK(11, Q3_K, 0, SCALE_NONE, 5, 0)                                                                     \
    BLOCK(12, Q4_K, 4, SCALE_F32, 5, 0)                                                                      \
    BLOCK(13, Q5_K, 5, SCALE_F32, 6, 0)                                                                      \
    BLOCK(14, Q6_K, 0, SCALE_NONE, 8, 0)                                                                     \
    BLOCK(16, IQ2_XXS, 0, SCALE_NONE, 5, 0)                                                                  \
    BLOCK(17, IQ2_XS, 0, SCALE_NONE, 5, 0)                                                                   \
    BLOCK(18, IQ3_XXS, 0, SCALE_NONE, 6, 0)                                                                  \
    BLOCK(19, IQ1_S, 5, SCALE_F32, 4, 16)                                                                    \
    BLOCK(20, IQ4_NL, 8, SCALE_F16, 8, 128)                                                                  \
    BLOCK(21, IQ3_S, 5, SCALE_F32, 6, 16)                                                                    \
    BLOCK(22, IQ2_S, 0, SCALE_NONE, 5, 0)                                                                    \
    BLOCK(23, IQ4_XS, 8, SCALE_F32, 8, 128)                                                                  \
    BLOCK(29, IQ1_M, 0, SCALE_NONE, 4, 0)                                                                    \
    BLOCK(34, TQ1_0, 2, SCALE_F16, 2, 1)                                                                     \
    BLOCK(35, TQ2_0, 2, SCALE_F16, 2, 1)                                                                     \
    BLOCK(GGUF_MXFP4_TYPE, MXFP4, 5, SCALE_F32, 5, 12)                                                       \
    BLOCK(40, NVFP4, 0, SCALE_NONE, 6, 0)
#define PLAIN_ROW(number, name, bytes) {number, {#name, 1, bytes, FORMAT_##name, 0, SCALE_NONE, 8, 0}},
#define BLOCK_ROW(number, name, bits, scale, instead, below)                                                 \
    {number, {#name, COLS_##name, BYTES_##name, FORMAT_G_##name, bits, scale, instead, below}},
static const struct {
    uint32_t number;
    struct gguf_type type;
} types[] = {TYPES(PLAIN_ROW, BLOCK_ROW)};
enum { N_TYPES = sizeof types / sizeof *types };

void gguf_type_decode(const struct gguf_type *t, const uint8_t *block, float *out)
{
    format_decode(format_of(t->format), block, NULL, NULL, 0, t->block, out);
}

void gguf_type_groups(const struct gguf_type *t, const uint8_t *block, struct gguf_group *out)
{
    enum { PARTS = GGUF_GROUP / FORMAT_BLOCK_PART };
    struct format_block b;
    bool has_bias = format_block_has_bias(t->format);
    format_block_unpack(t->format, block, &b);
    for (size_t i = 0; i < t->block / GGUF_GROUP; i++) {
        struct gguf_group *g = &out[i];
        g->scale = b.scales[i * PARTS];
        g->bias = has_bias ? b.biases[i * PARTS] : (float)-t->below * g->scale;
        for (uint32_t k = 0; k < GGUF_GROUP; k++)
            g->codes[k] = (uint8_t)(b.codes[i * GGUF_GROUP + k] + t->below);
    }
}

void gguf_mxfp4(const uint8_t *block, uint8_t codes[16], uint8_t *scale)
{
    enum { HALF = GGUF_GROUP / 2 };
    *scale = *block++;
    /* The first half of the codes is in the lower halves of the bytes. */
    for (uint32_t i = 0; i < HALF; i++) {
        uint32_t from = 2 * i % HALF, shift = i < HALF / 2 ? 0 : 4;
        codes[i] = (uint8_t)((block[from] >> shift & 15) | (block[from + 1] >> shift & 15) << 4);
    }
}

const struct gguf_type *gguf_type_find(uint32_t type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].number == type)
            return &types[i].type;
    return NULL;
}
