#include "convert/gguf/blocks.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"

static float half_at(const uint8_t *p)
{
    return f16_to_float((uint16_t)(p[0] | p[1] << 8));
}

/* --- plain numbers --- */

static void decode_f32(const uint8_t *block, float *out)
{
    memcpy(out, block, sizeof *out);
}

static void decode_f16(const uint8_t *block, float *out)
{
    *out = half_at(block);
}

static void decode_bf16(const uint8_t *block, float *out)
{
    *out = bf16_to_float((uint16_t)(block[0] | block[1] << 8));
}

/* --- groups of 32 --- */

/* Splits 16 bytes: low halves are numbers 0 to 15, high halves 16 to 31. */
static void split_halves(const uint8_t *bytes, uint8_t codes[GGUF_GROUP])
{
    for (int i = 0; i < 16; i++) {
        codes[i] = bytes[i] & 15;
        codes[i + 16] = bytes[i] >> 4;
    }
}

/* Adds a fifth bit: bit i of the word is that of number i. */
static void add_fifth(const uint8_t *word, uint8_t codes[GGUF_GROUP])
{
    for (int i = 0; i < GGUF_GROUP; i++)
        codes[i] |= (uint8_t)((word[i / 8] >> (i % 8) & 1) << 4);
}

static void groups_q4_0(const uint8_t *b, struct gguf_group *g)
{
    g->scale = half_at(b);
    g->bias = -8 * g->scale;
    split_halves(b + 2, g->codes);
}

static void groups_q4_1(const uint8_t *b, struct gguf_group *g)
{
    g->scale = half_at(b);
    g->bias = half_at(b + 2);
    split_halves(b + 4, g->codes);
}

static void groups_q5_0(const uint8_t *b, struct gguf_group *g)
{
    g->scale = half_at(b);
    g->bias = -16 * g->scale;
    split_halves(b + 6, g->codes);
    add_fifth(b + 2, g->codes);
}

static void groups_q5_1(const uint8_t *b, struct gguf_group *g)
{
    g->scale = half_at(b);
    g->bias = half_at(b + 2);
    split_halves(b + 8, g->codes);
    add_fifth(b + 4, g->codes);
}

static void groups_q8_0(const uint8_t *b, struct gguf_group *g)
{
    g->scale = half_at(b);
    g->bias = -128 * g->scale;
    for (int i = 0; i < GGUF_GROUP; i++)
        g->codes[i] = b[2 + i] ^ 0x80;
}

/* Unpacks scale and minimum i of the eight of a block: 6 bits each in 12 bytes. */
static void six_bits(const uint8_t *q, int i, uint8_t *scale, uint8_t *least)
{
    if (i < 4) {
        *scale = q[i] & 63;
        *least = q[i + 4] & 63;
    } else {
        *scale = (uint8_t)((q[i + 4] & 15) | (q[i - 4] >> 6) << 4);
        *least = (uint8_t)((q[i + 4] >> 4) | (q[i] >> 6) << 4);
    }
}

/* Decodes Q4_K and Q5_K: 64 numbers in 32 bytes, those of the low halves first. high: a fifth bit of each, or
 * NULL. */
static void groups_k(const uint8_t *b, const uint8_t *high, const uint8_t *low, struct gguf_group *g)
{
    float d = half_at(b), least_of_all = half_at(b + 2);
    for (int i = 0; i < 8; i++) {
        uint8_t scale, least;
        six_bits(b + 4, i, &scale, &least);
        g[i].scale = d * (float)scale;
        g[i].bias = -(least_of_all * (float)least);
        for (int k = 0; k < GGUF_GROUP; k++) {
            int code = low[i / 2 * 32 + k] >> (i % 2 * 4) & 15;
            g[i].codes[k] = (uint8_t)(code | (high ? (high[k] >> i & 1) << 4 : 0));
        }
    }
}

static void groups_q4_k(const uint8_t *b, struct gguf_group *g)
{
    groups_k(b, NULL, b + 16, g);
}

static void groups_q5_k(const uint8_t *b, struct gguf_group *g)
{
    groups_k(b, b + 16, b + 48, g);
}

/* The sixteen values of IQ4_NL and IQ4_XS, 128 added. */
static const uint8_t uneven[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static void groups_iq4(const uint8_t *halves, float scale, struct gguf_group *g)
{
    g->scale = scale;
    g->bias = -128 * scale;
    split_halves(halves, g->codes);
    for (int i = 0; i < GGUF_GROUP; i++)
        g->codes[i] = uneven[g->codes[i]];
}

static void groups_iq4_nl(const uint8_t *b, struct gguf_group *g)
{
    groups_iq4(b + 2, half_at(b), g);
}

/* Eight scales of 6 bits: the low four in bytes 4 to 7, the high two in bytes 2 and 3. */
static void groups_iq4_xs(const uint8_t *b, struct gguf_group *g)
{
    uint32_t high = (uint32_t)b[2] | (uint32_t)b[3] << 8;
    for (int i = 0; i < 8; i++) {
        int scale = (b[4 + i / 2] >> (i % 2 * 4) & 15) | (int)(high >> (2 * i) & 3) << 4;
        groups_iq4(b + 8 + (ptrdiff_t)i * 16, half_at(b) * (float)(scale - 32), &g[i]);
    }
}

/* Twice the values of E2M1 are whole, -12 to 12. */
static void groups_mxfp4(const uint8_t *b, struct gguf_group *g)
{
    g->scale = e8m0_to_float(b[0]) * 0.5f;
    g->bias = -12 * g->scale;
    split_halves(b + 1, g->codes);
    for (int i = 0; i < GGUF_GROUP; i++)
        g->codes[i] = (uint8_t)(12 + (int)(2 * e2m1_to_float(g->codes[i])));
}

void gguf_mxfp4(const uint8_t *block, uint8_t codes[16], uint8_t *scale)
{
    uint8_t each[GGUF_GROUP];
    *scale = block[0];
    split_halves(block + 1, each);
    for (size_t i = 0; i < 16; i++)
        codes[i] = (uint8_t)(each[2 * i] | each[2 * i + 1] << 4);
}

static void decode_groups(const uint8_t *b, void (*groups)(const uint8_t *, struct gguf_group *), int n,
                          float *out)
{
    struct gguf_group g[GGUF_MAX_BLOCK / GGUF_GROUP];
    groups(b, g);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < GGUF_GROUP; k++)
            *out++ = (float)g[i].codes[k] * g[i].scale + g[i].bias;
}

#define DECODE_GROUPS(name, n)                                                                               \
    static void decode_##name(const uint8_t *b, float *out)                                                  \
    {                                                                                                        \
        decode_groups(b, groups_##name, n, out);                                                             \
    }
DECODE_GROUPS(q4_0, 1)
DECODE_GROUPS(q4_1, 1)
DECODE_GROUPS(q5_0, 1)
DECODE_GROUPS(q5_1, 1)
DECODE_GROUPS(q8_0, 1)
DECODE_GROUPS(q4_k, 8)
DECODE_GROUPS(q5_k, 8)
DECODE_GROUPS(iq4_nl, 1)
DECODE_GROUPS(iq4_xs, 8)
DECODE_GROUPS(mxfp4, 1)

/* --- groups of 16 --- */

/* Returns the two bits of number i of a block: 128 numbers in 32 bytes, 32 in each pair of bits. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

static void decode_q2_k(const uint8_t *b, float *out)
{
    float d = half_at(b + 80), least = half_at(b + 82);
    for (int i = 0; i < GGUF_MAX_BLOCK; i++) {
        uint8_t s = b[i / 16];
        out[i] = d * (float)(s & 15) * (float)two_bits(b + 16, i) - least * (float)(s >> 4);
    }
}

/* Sixteen signed scales of 6 bits in 12 bytes: four low bits of each in 8 bytes, two high ones in 4. */
static int scale_q3_k(const uint8_t *q, int i)
{
    int low = q[i % 8] >> (i / 8 * 4) & 15;
    return (low | (q[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
}

static void decode_q3_k(const uint8_t *b, float *out)
{
    float d = half_at(b + 108);
    for (int i = 0; i < GGUF_MAX_BLOCK; i++) {
        int high = b[i % 32] >> (i / 32) & 1;
        out[i] = d * (float)scale_q3_k(b + 96, i / 16) * (float)(two_bits(b + 32, i) - (high ? 0 : 4));
    }
}

static void decode_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *low = b, *high = b + 128;
    float d = half_at(b + 208);
    for (int i = 0; i < GGUF_MAX_BLOCK; i++) {
        int in_half = i % 128, half = i / 128;
        int code = low[half * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
        code |= (high[half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3) << 4;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(code - 32);
    }
}

/* --- the table --- */

static const struct {
    uint32_t number;
    struct gguf_type type;
} types[] = {
    {GGUF_F32_TYPE, {"F32", 1, 4, 0, SCALE_NONE, 8, decode_f32, NULL}},
    {GGUF_F16_TYPE, {"F16", 1, 2, 0, SCALE_NONE, 8, decode_f16, NULL}},
    {GGUF_BF16_TYPE, {"BF16", 1, 2, 0, SCALE_NONE, 8, decode_bf16, NULL}},
    {2, {"Q4_0", 32, 18, 4, SCALE_F16, 4, decode_q4_0, groups_q4_0}},
    {3, {"Q4_1", 32, 20, 4, SCALE_F16, 4, decode_q4_1, groups_q4_1}},
    {6, {"Q5_0", 32, 22, 5, SCALE_F16, 5, decode_q5_0, groups_q5_0}},
    {7, {"Q5_1", 32, 24, 5, SCALE_F16, 5, decode_q5_1, groups_q5_1}},
    {8, {"Q8_0", 32, 34, 8, SCALE_F16, 8, decode_q8_0, groups_q8_0}},
    {10, {"Q2_K", 256, 84, 0, SCALE_NONE, 4, decode_q2_k, NULL}},
    {11, {"Q3_K", 256, 110, 0, SCALE_NONE, 5, decode_q3_k, NULL}},
    {12, {"Q4_K", 256, 144, 4, SCALE_F32, 5, decode_q4_k, groups_q4_k}},
    {13, {"Q5_K", 256, 176, 5, SCALE_F32, 6, decode_q5_k, groups_q5_k}},
    {14, {"Q6_K", 256, 210, 0, SCALE_NONE, 8, decode_q6_k, NULL}},
    {20, {"IQ4_NL", 32, 18, 8, SCALE_F16, 8, decode_iq4_nl, groups_iq4_nl}},
    {23, {"IQ4_XS", 256, 136, 8, SCALE_F32, 8, decode_iq4_xs, groups_iq4_xs}},
    {GGUF_MXFP4_TYPE, {"MXFP4", 32, 17, 5, SCALE_F32, 5, decode_mxfp4, groups_mxfp4}},
};
enum { N_TYPES = sizeof types / sizeof *types };

const struct gguf_type *gguf_type_find(uint32_t type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].number == type)
            return &types[i].type;
    return NULL;
}

const char *gguf_type_name(uint32_t type)
{
    static const char *const others[] = {
        [4] = "Q4_2",    [5] = "Q4_3",      [9] = "Q8_1",      [15] = "Q8_K",     [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS",  [19] = "IQ1_S",    [21] = "IQ3_S",    [22] = "IQ2_S",
        [24] = "I8",     [25] = "I16",      [26] = "I32",      [27] = "I64",      [28] = "F64",
        [29] = "IQ1_M",  [31] = "Q4_0_4_4", [32] = "Q4_0_4_8", [33] = "Q4_0_8_8", [34] = "TQ1_0",
        [35] = "TQ2_0",  [40] = "NVFP4",
    };
    const struct gguf_type *read = gguf_type_find(type);
    if (read)
        return read->name;
    return type < sizeof others / sizeof *others ? others[type] : NULL;
}

const char *gguf_type_list(char out[GGUF_TYPE_LIST])
{
    size_t at = 0;
    for (size_t i = 0; i < N_TYPES && at < GGUF_TYPE_LIST; i++) {
        const char *between = i == 0 ? "" : i + 1 < N_TYPES ? ", " : " or ";
        at += (size_t)snprintf(out + at, GGUF_TYPE_LIST - at, "%s%s", between, types[i].type.name);
    }
    return out;
}
