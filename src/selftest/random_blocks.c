#include "selftest/random_blocks.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"
#include "base/format.h"
#include "base/format_blocks.h"

/* The bytes at which a block has its float16 numbers. */
struct halves {
    uint32_t n, at[2];
};

static struct halves halves_of(uint32_t format)
{
    switch (format) {
    case FORMAT_G_MXFP4:
    case FORMAT_G_NVFP4:
    case FORMAT_G_IQ1_M:
        return (struct halves){0};
    case FORMAT_G_Q2_K:
        return (struct halves){2, {80, 82}};
    case FORMAT_G_Q4_1:
    case FORMAT_G_Q5_1:
    case FORMAT_G_Q4_K:
    case FORMAT_G_Q5_K:
        return (struct halves){2, {0, 2}};
    case FORMAT_G_Q3_K:
        return (struct halves){1, {108}};
    case FORMAT_G_Q6_K:
        return (struct halves){1, {208}};
    case FORMAT_G_TQ1_0:
        return (struct halves){1, {52}};
    case FORMAT_G_TQ2_0:
        return (struct halves){1, {64}};
    default:
        return (struct halves){1, {0}};
    }
}

/* Returns the second float16 number over the first one, so that the numbers are about as often negative as
 * positive. */
static float ratio_of(uint32_t format)
{
    switch (format) {
    case FORMAT_G_Q2_K:
        return 1.5f;
    case FORMAT_G_Q4_K:
        return 7.5f;
    case FORMAT_G_Q5_K:
        return 15.5f;
    default:
        return format == FORMAT_G_Q4_1 ? -7.5f : -15.5f;
    }
}

static void put_half(uint8_t *to, float x)
{
    uint16_t h = f16_from_float(x);
    memcpy(to, &h, sizeof h);
}

/* Sets the scale that a whole block has. */
static void set_scale(uint32_t format, float scale, uint8_t *block)
{
    struct halves h = halves_of(format);
    if (h.n > 0)
        put_half(block + h.at[0], scale);
    if (h.n > 1)
        put_half(block + h.at[1], scale * ratio_of(format));
    if (format == FORMAT_G_MXFP4)
        block[0] = (uint8_t)lrintf(128 + log2f(fabsf(scale)));
    for (int i = 0; format == FORMAT_G_IQ1_M && i < 4; i++) { /* four bits in each word of scales */
        uint8_t *high = block + 49 + (ptrdiff_t)2 * i;
        *high = (uint8_t)((*high & 15) | (f16_from_float(scale) >> 4 * i & 15) << 4);
    }
}

static float size_of(uint32_t format, const uint8_t *block)
{
    float numbers[FORMAT_MAX_BLOCK], squares = 0;
    uint32_t cols = format_of(format)->group;
    format_block_decode(format, block, numbers);
    for (uint32_t i = 0; i < cols; i++)
        squares += numbers[i] * numbers[i];
    return sqrtf(squares / (float)cols);
}

void random_blocks_fill(uint32_t format, uint64_t n, float spread, uint32_t (*next)(void *ctx), void *ctx,
                        uint8_t *out)
{
    uint32_t bytes = format_of(format)->block_bytes;
    int exponent = (int)lrintf(log2f(spread / 4)); /* NVFP4's scales have it; their smallest is 2^-9 */
    for (uint64_t b = 0; b < n; b++, out += bytes) {
        for (uint32_t i = 0; i < bytes; i++)
            out[i] = (uint8_t)(next(ctx) >> 16);
        for (uint32_t i = 0; format == FORMAT_G_NVFP4 && i < 4; i++)
            out[i] = (uint8_t)((exponent + 7 > 0 ? (exponent + 7) * 8 : 1) + (int)(next(ctx) >> 16 & 7));
        if (format == FORMAT_G_NVFP4)
            continue;
        set_scale(format, 1, out);
        uint32_t r = next(ctx) >> 8;
        float by = 0.5f + (float)(r & 0xffff) / 65536, size = size_of(format, out);
        set_scale(format, (size > 0 ? spread * by / size : 1) * (r >> 16 & 1 ? -1.0f : 1.0f), out);
    }
}
