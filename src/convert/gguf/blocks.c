#include "convert/gguf/blocks.h"

#include <stddef.h>

#include "args.h"
#include "base/format.h"
#include "base/format_blocks.h"

/* See struct gguf_type. */
static const struct gguf_type types[] = {
    /* clang-format off */
    {FORMAT_G_Q4_0, 4, SCALE_F16, 4, 8},
    {FORMAT_G_Q4_1, 4, SCALE_F16, 4, 0},
    {FORMAT_G_Q5_0, 5, SCALE_F16, 5, 16},
    {FORMAT_G_Q5_1, 5, SCALE_F16, 5, 0},
    {FORMAT_G_Q8_0, 8, SCALE_F16, 8, 128},
    {FORMAT_G_Q2_K, 0, SCALE_NONE, 4, 0},
    {FORMAT_G_Q3_K, 0, SCALE_NONE, 5, 0},
    {FORMAT_G_Q4_K, 4, SCALE_F32, 5, 0},
    {FORMAT_G_Q5_K, 5, SCALE_F32, 6, 0},
    {FORMAT_G_Q6_K, 0, SCALE_NONE, 8, 0},
    {FORMAT_G_IQ2_XXS, 0, SCALE_NONE, 5, 0},
    {FORMAT_G_IQ2_XS, 0, SCALE_NONE, 5, 0},
    {FORMAT_G_IQ3_XXS, 0, SCALE_NONE, 6, 0},
    {FORMAT_G_IQ1_S, 5, SCALE_F32, 4, 16},
    {FORMAT_G_IQ4_NL, 8, SCALE_F16, 8, 128},
    {FORMAT_G_IQ3_S, 5, SCALE_F32, 6, 16},
    {FORMAT_G_IQ2_S, 0, SCALE_NONE, 5, 0},
    {FORMAT_G_IQ4_XS, 8, SCALE_F32, 8, 128},
    {FORMAT_G_IQ1_M, 0, SCALE_NONE, 4, 0},
    {FORMAT_G_TQ1_0, 2, SCALE_F16, 2, 1},
    {FORMAT_G_TQ2_0, 2, SCALE_F16, 2, 1},
    {FORMAT_G_MXFP4, 5, SCALE_F32, 5, 12},
    {FORMAT_G_NVFP4, 0, SCALE_NONE, 6, 0},
    /* clang-format on */
};

void gguf_type_groups(const struct gguf_type *t, const uint8_t *block, struct gguf_group *out)
{
    enum { PARTS = GGUF_GROUP / FORMAT_BLOCK_PART };
    struct format_block b;
    bool has_bias = format_block_has_bias(t->format);
    format_block_unpack(t->format, block, &b);
    for (size_t i = 0; i < format_of(t->format)->group / GGUF_GROUP; i++) {
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

const struct gguf_type *gguf_type_find(uint32_t format)
{
    static const struct gguf_type plain = {FORMAT_NONE, 0, SCALE_NONE, 8, 0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].format == format)
            return &types[i];
    return &plain;
}
