#include "base/format_blocks.h"

#include <stddef.h>
#include <string.h>

#include "args.h"
#include "base/codebook.h"
#include "base/f16.h"
#include "base/format.h"

enum {
    PART = FORMAT_BLOCK_PART,
    PARTS = FORMAT_MAX_BLOCK / PART,
    GROUP = 32,
    GROUPS = FORMAT_MAX_BLOCK / GROUP
};

static float half_at(const uint8_t *p)
{
    return f16_to_float((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t short_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t word_at(const uint8_t *p)
{
    return short_at(p) | short_at(p + 2) << 16;
}

/* Sets the scale of group i of 32 columns. */
static void set_scale(struct format_block *o, int i, float scale)
{
    float *two = o->scales + (ptrdiff_t)2 * i;
    two[0] = two[1] = scale;
}

static void set_bias(struct format_block *o, int i, float bias)
{
    float *two = o->biases + (ptrdiff_t)2 * i;
    two[0] = two[1] = bias;
}

/* --- groups of 32 with a scale of their own --- */

/* Splits n bytes: low halves are numbers 0 to n - 1, high halves n to 2 n - 1. */
static void split_halves(const uint8_t *bytes, int n, int8_t *codes)
{
    for (int i = 0; i < n; i++) {
        codes[i] = (int8_t)(bytes[i] & 15);
        codes[i + n] = (int8_t)(bytes[i] >> 4);
    }
}

/* Adds a fifth bit, bit i of the word being that of number i, and then `by`. */
static void add_fifth(const uint8_t *word, int by, int8_t *codes)
{
    for (int i = 0; i < GROUP; i++)
        codes[i] = (int8_t)((codes[i] | (word[i / 8] >> (i % 8) & 1) << 4) + by);
}

static void look_up(const int8_t *values, int n, int8_t *codes)
{
    for (int i = 0; i < n; i++)
        codes[i] = values[codes[i]];
}

static void unpack_q4_0(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    split_halves(b + 2, 16, o->codes);
    for (int i = 0; i < GROUP; i++)
        o->codes[i] = (int8_t)(o->codes[i] - 8);
}

static void unpack_q4_1(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    set_bias(o, 0, half_at(b + 2));
    split_halves(b + 4, 16, o->codes);
}

static void unpack_q5_0(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    split_halves(b + 6, 16, o->codes);
    add_fifth(b + 2, -16, o->codes);
}

static void unpack_q5_1(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    set_bias(o, 0, half_at(b + 2));
    split_halves(b + 8, 16, o->codes);
    add_fifth(b + 4, 0, o->codes);
}

static void unpack_q8_0(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    memcpy(o->codes, b + 2, GROUP);
}

static void unpack_iq4_nl(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_at(b));
    split_halves(b + 2, 16, o->codes);
    look_up(codebook_iq4, GROUP, o->codes);
}

/* Returns 2^(byte - 128), half of an E8M0 scale, because the codes are twice the values of E2M1. Bytes 0 and
 * 1 are denormal floats, and 255 is a number. */
static float half_e8m0(uint8_t byte)
{
    uint32_t bits = byte < 2 ? 0x00200000u << byte : (uint32_t)(byte - 1) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void unpack_mxfp4(const uint8_t *b, struct format_block *o)
{
    set_scale(o, 0, half_e8m0(b[0]));
    split_halves(b + 1, 16, o->codes);
    look_up(codebook_e2m1, GROUP, o->codes);
}

/* Returns half of an E4M3 scale without its sign. 0x7f is zero, 0xff is not. */
static float half_e4m3(uint8_t byte)
{
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (byte == 0x7f)
        return 0;
    return exponent ? (float)(8 + mantissa) * (float)(1 << exponent) * 0x1p-11f : (float)mantissa * 0x1p-10f;
}

static void unpack_nvfp4(const uint8_t *b, struct format_block *o)
{
    for (int i = 0; i < 4; i++) {
        o->scales[i] = half_e4m3(b[i]);
        split_halves(b + 4 + (size_t)8 * (size_t)i, 8, o->codes + (size_t)PART * (size_t)i);
    }
    look_up(codebook_e2m1, 64, o->codes);
}

/* --- blocks of 256: whole scales of groups, times one float16 --- */

/* Unpacks scale and minimum i of the eight of a block: 6 bits each in 12 bytes. */
static void six_bits(const uint8_t *q, int i, uint8_t *scale, uint8_t *min)
{
    if (i < 4) {
        *scale = q[i] & 63;
        *min = q[i + 4] & 63;
    } else {
        *scale = (uint8_t)((q[i + 4] & 15) | (q[i - 4] >> 6) << 4);
        *min = (uint8_t)((q[i + 4] >> 4) | (q[i] >> 6) << 4);
    }
}

/* Unpacks Q4_K and Q5_K: 64 numbers in 32 bytes, those of the low halves first. high: a fifth bit of each, or
 * NULL. */
static void unpack_k(const uint8_t *b, const uint8_t *high, const uint8_t *low, struct format_block *o)
{
    float d = half_at(b), d_min = half_at(b + 2);
    for (int i = 0; i < GROUPS; i++) {
        uint8_t scale, min;
        six_bits(b + 4, i, &scale, &min);
        set_scale(o, i, d * (float)scale);
        set_bias(o, i, -(d_min * (float)min));
        for (int k = 0; k < GROUP; k++) {
            int code = low[i / 2 * GROUP + k] >> (i % 2 * 4) & 15;
            o->codes[i * GROUP + k] = (int8_t)(code | (high ? (high[k] >> i & 1) << 4 : 0));
        }
    }
}

static void unpack_q4_k(const uint8_t *b, struct format_block *o)
{
    unpack_k(b, NULL, b + 16, o);
}

static void unpack_q5_k(const uint8_t *b, struct format_block *o)
{
    unpack_k(b, b + 16, b + 48, o);
}

/* Returns the two bits of number i of a block: 128 numbers in 32 bytes, 32 in each pair of bits. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

static void unpack_q2_k(const uint8_t *b, struct format_block *o)
{
    float d = half_at(b + 80), d_min = half_at(b + 82);
    for (int i = 0; i < PARTS; i++) {
        o->scales[i] = d * (float)(b[i] & 15);
        o->biases[i] = -(d_min * (float)(b[i] >> 4));
    }
    for (int i = 0; i < FORMAT_MAX_BLOCK; i++)
        o->codes[i] = (int8_t)two_bits(b + 16, i);
}

/* Returns signed scale i of sixteen, 6 bits each in 12 bytes: four low bits in 8 bytes, two high ones in
 * 4. */
static int scale_q3_k(const uint8_t *q, int i)
{
    int low = q[i % 8] >> (i / 8 * 4) & 15;
    return (low | (q[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
}

static void unpack_q3_k(const uint8_t *b, struct format_block *o)
{
    float d = half_at(b + 108);
    for (int i = 0; i < PARTS; i++)
        o->scales[i] = d * (float)scale_q3_k(b + 96, i);
    for (int i = 0; i < FORMAT_MAX_BLOCK; i++)
        o->codes[i] = (int8_t)(two_bits(b + 32, i) - (b[i % 32] >> (i / 32) & 1 ? 0 : 4));
}

static void unpack_q6_k(const uint8_t *b, struct format_block *o)
{
    const uint8_t *low = b, *high = b + 128;
    float d = half_at(b + 208);
    for (int i = 0; i < PARTS; i++)
        o->scales[i] = d * (float)(int8_t)b[192 + i];
    for (int i = 0; i < FORMAT_MAX_BLOCK; i++) {
        int in_half = i % 128, half = i / 128;
        int code = low[half * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
        code |= (high[half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3) << 4;
        o->codes[i] = (int8_t)(code - 32);
    }
}

/* Eight scales of 6 bits: the low four in bytes 4 to 7, the high two in bytes 2 and 3. */
static void unpack_iq4_xs(const uint8_t *b, struct format_block *o)
{
    uint32_t high = short_at(b + 2);
    for (int i = 0; i < GROUPS; i++) {
        int scale = (b[4 + i / 2] >> (i % 2 * 4) & 15) | (int)(high >> (2 * i) & 3) << 4;
        set_scale(o, i, half_at(b) * (float)(scale - 32));
        split_halves(b + 8 + (ptrdiff_t)i * 16, 16, o->codes + (ptrdiff_t)i * GROUP);
    }
    look_up(codebook_iq4, FORMAT_MAX_BLOCK, o->codes);
}

/* --- ternary numbers --- */

/* Writes n numbers for each of the powers 1, 3, 9, .. of 3: digit k of a byte counts 256 / 3^(k + 1). */
static int8_t *ternary(const uint8_t *bytes, int n, int n_digits, int8_t *codes)
{
    uint8_t power = 1;
    for (int k = 0; k < n_digits; k++, power = (uint8_t)(power * 3))
        for (int i = 0; i < n; i++)
            *codes++ = (int8_t)(((uint8_t)(bytes[i] * power) * 3 >> 8) - 1);
    return codes;
}

static void set_all_scales(struct format_block *o, float d)
{
    for (int i = 0; i < PARTS; i++)
        o->scales[i] = d;
}

static void unpack_tq1_0(const uint8_t *b, struct format_block *o)
{
    set_all_scales(o, half_at(b + 52));
    int8_t *codes = ternary(b, 32, 5, o->codes);
    codes = ternary(b + 32, 16, 5, codes);
    ternary(b + 48, 4, 4, codes);
}

static void unpack_tq2_0(const uint8_t *b, struct format_block *o)
{
    set_all_scales(o, half_at(b + 64));
    for (int i = 0; i < FORMAT_MAX_BLOCK; i++)
        o->codes[i] = (int8_t)(two_bits(b, i) - 1);
}

/* --- code books --- */

/* Writes n values of an entry; a set bit of `signs` negates. */
static void put_entry(uint64_t entry, int n, uint32_t signs, int8_t *codes)
{
    for (int i = 0; i < n; i++) {
        int value = (int)(entry >> 8 * i & 255);
        codes[i] = (int8_t)(signs >> i & 1 ? -value : value);
    }
}

/* Returns the scale of a group: d * (s + 1/2) / 4, or / 2 if `by` is that. */
static float scale_of_half(float d, uint32_t s, float by)
{
    return d * (0.5f + (float)s) * by;
}

static void unpack_iq2_xxs(const uint8_t *b, struct format_block *o)
{
    for (int i = 0; i < GROUPS; i++) {
        const uint8_t *q = b + 2 + (ptrdiff_t)8 * i;
        uint32_t rest = word_at(q + 4);
        set_scale(o, i, scale_of_half(half_at(b), rest >> 28, 0.25f));
        for (int k = 0; k < 4; k++)
            put_entry(codebook_iq2_xxs[q[k]], 8, codebook_signs(rest >> 7 * k),
                      o->codes + (ptrdiff_t)GROUP * i + (ptrdiff_t)8 * k);
    }
}

static void unpack_iq2_xs(const uint8_t *b, struct format_block *o)
{
    for (int i = 0; i < PARTS; i++)
        o->scales[i] = scale_of_half(half_at(b), b[66 + i / 2] >> (i % 2 * 4) & 15, 0.25f);
    for (int i = 0; i < FORMAT_MAX_BLOCK / 8; i++) {
        uint32_t q = short_at(b + 2 + (ptrdiff_t)2 * i);
        put_entry(codebook_iq2_xs[q & 511], 8, codebook_signs(q >> 9), o->codes + (ptrdiff_t)8 * i);
    }
}

static void unpack_iq2_s(const uint8_t *b, struct format_block *o)
{
    const uint8_t *low = b + 2, *signs = b + 34, *high = b + 66, *scales = b + 74;
    for (int i = 0; i < PARTS; i++)
        o->scales[i] = scale_of_half(half_at(b), scales[i / 2] >> (i % 2 * 4) & 15, 0.25f);
    for (int i = 0; i < FORMAT_MAX_BLOCK / 8; i++) {
        uint32_t idx = low[i] | (uint32_t)(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        put_entry(codebook_iq2_s[idx], 8, signs[i], o->codes + (ptrdiff_t)8 * i);
    }
}

static void unpack_iq3_xxs(const uint8_t *b, struct format_block *o)
{
    const uint8_t *low = b + 2, *words = b + 66;
    for (int i = 0; i < GROUPS; i++) {
        uint32_t rest = word_at(words + (ptrdiff_t)4 * i);
        set_scale(o, i, scale_of_half(half_at(b), rest >> 28, 0.5f));
        for (int k = 0; k < 8; k++)
            put_entry(codebook_iq3_xxs[low[8 * i + k]], 4, codebook_signs(rest >> k / 2 * 7) >> k % 2 * 4,
                      o->codes + (ptrdiff_t)GROUP * i + (ptrdiff_t)4 * k);
    }
}

static void unpack_iq3_s(const uint8_t *b, struct format_block *o)
{
    const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
    for (int i = 0; i < GROUPS; i++)
        set_scale(o, i, half_at(b) * (float)(1 + 2 * (scales[i / 2] >> (i % 2 * 4) & 15)));
    for (int i = 0; i < FORMAT_MAX_BLOCK / 4; i++) {
        uint32_t idx = low[i] | (uint32_t)(high[i / 8] >> i % 8 & 1) << 8;
        put_entry(codebook_iq3_s[idx], 4, (uint32_t)signs[i / 2] >> i % 2 * 4, o->codes + (ptrdiff_t)4 * i);
    }
}

/* Writes an entry of IQ1 in eighths: a value v is v - 1/8 if `is_less`, else v + 1/8. */
static void put_eighths(uint32_t idx, bool is_less, int8_t *codes)
{
    for (int i = 0; i < 8; i++)
        codes[i] = (int8_t)(8 * ((int)(codebook_iq1[idx] >> 8 * i & 255) - 1) + (is_less ? -1 : 1));
}

static void unpack_iq1_s(const uint8_t *b, struct format_block *o)
{
    for (int i = 0; i < GROUPS; i++) {
        uint32_t high = short_at(b + 34 + (ptrdiff_t)2 * i);
        set_scale(o, i, half_at(b) * (float)(2 * (high >> 12 & 7) + 1) / 8);
        for (int k = 0; k < 4; k++)
            put_eighths(b[2 + 4 * i + k] | (high >> 3 * k & 7) << 8, high >> 15,
                        o->codes + (ptrdiff_t)GROUP * i + (ptrdiff_t)8 * k);
    }
}

/* The float16 scale is in the upper four bits of the four words of scales. */
static void unpack_iq1_m(const uint8_t *b, struct format_block *o)
{
    const uint8_t *low = b, *high = b + 32, *scales = b + 48;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(scales[2 * i + 1] >> 4) << 4 * i;
    for (int i = 0; i < PARTS; i++) {
        uint32_t s = short_at(scales + (ptrdiff_t)i / 4 * 2) >> i % 4 * 3 & 7;
        o->scales[i] = f16_to_float((uint16_t)d) * (float)(2 * s + 1) / 8;
    }
    for (int i = 0; i < FORMAT_MAX_BLOCK / 8; i++) {
        uint32_t h = (uint32_t)high[i / 2] >> i % 2 * 4;
        put_eighths(low[i] | (h & 7) << 8, h >> 3 & 1, o->codes + (ptrdiff_t)8 * i);
    }
}

/* --- the table --- */

static const struct {
    void (*unpack)(const uint8_t *block, struct format_block *out);
    bool has_bias;
} kinds[FORMAT_PAST_BLOCKS - FORMAT_BLOCK_FIRST] = {
#define KIND(name, lower, ...) [FORMAT_G_##name - FORMAT_BLOCK_FIRST] = {unpack_##lower, __VA_ARGS__}
    KIND(Q4_0, q4_0, false),       KIND(Q4_1, q4_1, true),      KIND(Q5_0, q5_0, false),
    KIND(Q5_1, q5_1, true),        KIND(Q8_0, q8_0, false),     KIND(Q2_K, q2_k, true),
    KIND(Q3_K, q3_k, false),       KIND(Q4_K, q4_k, true),      KIND(Q5_K, q5_k, true),
    KIND(Q6_K, q6_k, false),       KIND(IQ1_S, iq1_s, false),   KIND(IQ1_M, iq1_m, false),
    KIND(IQ2_XXS, iq2_xxs, false), KIND(IQ2_XS, iq2_xs, false), KIND(IQ2_S, iq2_s, false),
    KIND(IQ3_XXS, iq3_xxs, false), KIND(IQ3_S, iq3_s, false),   KIND(IQ4_NL, iq4_nl, false),
    KIND(IQ4_XS, iq4_xs, false),   KIND(TQ1_0, tq1_0, false),   KIND(TQ2_0, tq2_0, false),
    KIND(MXFP4, mxfp4, false),     KIND(NVFP4, nvfp4, false),
#undef KIND
};

bool format_block_has_bias(uint32_t format)
{
    return kinds[format - FORMAT_BLOCK_FIRST].has_bias;
}

void format_block_unpack(uint32_t format, const uint8_t *block, struct format_block *out)
{
    kinds[format - FORMAT_BLOCK_FIRST].unpack(block, out);
}

void format_block_decode(uint32_t format, const uint8_t *block, float out[FORMAT_MAX_BLOCK])
{
    struct format_block b;
    bool has_bias = format_block_has_bias(format);
    format_block_unpack(format, block, &b);
    for (uint32_t i = 0; i < format_of(format)->group; i++) {
        float value = (float)b.codes[i] * b.scales[i / PART];
        out[i] = has_bias ? value + b.biases[i / PART] : value;
    }
}
