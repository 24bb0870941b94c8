#include "base/format.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/f16.h"
#include "base/format_blocks.h"
#include "base/mem.h"

#define BYTES_NONE        0
#define BYTES_BF16        2
#define BYTES_F16         2
#define BYTES_F32         4
#define BYTES_E8M0        1
#define BYTES_E4M3        1
#define BYTES_E4M3_FACTOR 1
/* F32 in a row of the table expands to the type's name (args.h). */
#define BYTES_float BYTES_F32
#define SCALE_float SCALE_F32

#define ONE(row_name, number, row_bits, row_group, row_scheme, row_scale)                                    \
    [number] = {.name = (row_name),                                                                          \
                .bits = (row_bits),                                                                          \
                .group = (row_group),                                                                        \
                .scheme = SCHEME_##row_scheme,                                                               \
                .scale = SCALE_##row_scale,                                                                  \
                .scale_bytes = BYTES_##row_scale,                                                            \
                .has_bias = SCHEME_##row_scheme == SCHEME_AFFINE,                                            \
                .has_factor = SCALE_##row_scale == SCALE_E4M3_FACTOR}
#define ALL_SCALES(name, number, bits, group)                                                                \
    ONE(name, (number) + FORMAT_SCALE_BF16, bits, group, AFFINE, BF16),                                      \
        ONE(name " f16", (number) + FORMAT_SCALE_F16, bits, group, AFFINE, F16),                             \
        ONE(name " f32", (number) + FORMAT_SCALE_F32, bits, group, AFFINE, F32)
#define ROWS_AFFINE(name, number, bits, group, scale)                                                        \
    ALL_SCALES(name, (number) + FORMAT_GROUP_64, bits, 64),                                                  \
        ALL_SCALES(name " g32", (number) + FORMAT_GROUP_32, bits, 32),                                       \
        ALL_SCALES(name " g128", (number) + FORMAT_GROUP_128, bits, 128)
#define ROWS_PLAIN(name, number, bits, group, scale) ONE(name, number, bits, group, PLAIN, scale)
#define ROWS_E2M1(name, number, bits, group, scale)  ONE(name, number, bits, group, E2M1, scale)
#define ROWS_E4M3(name, number, bits, group, scale)  ONE(name, number, bits, group, E4M3, scale)
#define FORMAT_ROWS(name, number, bits, group, scheme, scale, x)                                             \
    ROWS_##scheme(#name, number, bits, group, scale),
#define BLOCK_FORMAT_ROWS(row_name, number, cols, bytes, x)                                                  \
    [number] = {.name = #row_name,                                                                           \
                .bits = (bytes)*8 / (cols),                                                                  \
                .group = (cols),                                                                             \
                .scheme = SCHEME_BLOCK,                                                                      \
                .block_bytes = (bytes)},
static const struct format formats[FORMAT_END] = {FORMAT_TABLE(FORMAT_ROWS, 0)
                                                      FORMAT_TABLE_BLOCKS(BLOCK_FORMAT_ROWS, 0)};

_Static_assert(FORMAT_SET_EXTENDED == FORMAT_F32 + 1 &&
                   FORMAT_SET_EXTENDED + FORMAT_KINDS <= FORMAT_SET_GROUPS,
               "too many kinds");
_Static_assert(FORMAT_END == FORMAT_PAST_BLOCKS && FORMAT_END < FORMAT_NONE &&
                   FORMAT_SET_BLOCKS + FORMAT_END - FORMAT_BLOCK_FIRST <= 64,
               "too many block formats");
#define COUNTED(name, number, cols, bytes, x) COUNTED_##name,
enum { FORMAT_TABLE_BLOCKS(COUNTED, 0) N_BLOCK_FORMATS };
_Static_assert(FORMAT_BLOCK_FIRST + N_BLOCK_FORMATS == FORMAT_END, "a number is missing");

const struct format *format_of(uint32_t number)
{
    return &formats[number];
}

bool format_is_block(uint32_t number)
{
    return number >= FORMAT_BLOCK_FIRST && number < FORMAT_END;
}

uint32_t format_find_block(const char *name)
{
    for (uint32_t i = FORMAT_BLOCK_FIRST; i < FORMAT_END; i++)
        if (strcmp(formats[i].name, name) == 0)
            return i;
    return FORMAT_NONE;
}

uint32_t format_find_affine(uint32_t bits, uint32_t group, uint32_t scale)
{
    for (uint32_t i = 0; i < FORMAT_END; i++)
        if (formats[i].scheme == SCHEME_AFFINE && formats[i].bits == bits && formats[i].group == group &&
            formats[i].scale == scale)
            return i;
    return FORMAT_NONE;
}

bool format_has_group(uint32_t group)
{
    for (uint32_t i = 0; i < FORMAT_END; i++)
        if (formats[i].scheme == SCHEME_AFFINE && formats[i].group == group)
            return true;
    return false;
}

bool format_is_basic(uint32_t number)
{
    return number < FORMAT_SET_EXTENDED;
}

uint64_t format_set(uint32_t number)
{
    if (format_is_basic(number))
        return 1ull << number;
    if (format_is_block(number))
        return 1ull << (FORMAT_SET_BLOCKS + number - FORMAT_BLOCK_FIRST);
    uint64_t set = 1ull << (FORMAT_SET_EXTENDED + (number & FORMAT_KIND_MASK));
    if (formats[number].scheme == SCHEME_AFFINE)
        set |= 1ull << (FORMAT_SET_GROUPS + (number >> FORMAT_GROUP_SHIFT & 3)) |
               1ull << (FORMAT_SET_SCALES + (number >> FORMAT_SCALE_SHIFT & 3));
    return set;
}

/* Returns the i-th format of a set that is not in FORMAT_TABLE_BASIC; FORMAT_NONE past the last. */
static uint32_t find_other(uint64_t set, uint32_t i)
{
    for (uint32_t number = FORMAT_SET_EXTENDED; number < FORMAT_END; number++)
        if (formats[number].bits && (format_set(number) & ~set) == 0 && i-- == 0)
            return number;
    return FORMAT_NONE;
}

uint64_t format_set_part(uint64_t set, uint32_t i)
{
    uint64_t basic = set & ((1u << FORMAT_SET_EXTENDED) - 1);
    if (basic && i == 0)
        return basic;
    uint32_t other = find_other(set, i - (basic != 0));
    return other == FORMAT_NONE ? 0 : format_set(other);
}

bool format_part_is_block(uint64_t part)
{
    return part >> FORMAT_SET_BLOCKS != 0;
}

bool format_part_is_extended(uint64_t part)
{
    return part >> FORMAT_SET_EXTENDED != 0 && !format_part_is_block(part);
}

static uint32_t shift_of(uint32_t group)
{
    uint32_t shift = 0;
    while (1u << shift < group)
        shift++;
    return shift;
}

uint32_t format_constant(uint64_t part)
{
    if (part >> FORMAT_SET_EXTENDED == 0)
        return (uint32_t)part;
    uint32_t number = find_other(part, 0);
    if (format_is_block(number))
        return FORMAT_WORD_BLOCK(number);
    const struct format *f = format_of(number);
    return FORMAT_WORD(f->bits, f->scheme, shift_of(f->group), f->scale);
}

/* Returns the smallest value above `above` that an affine format has in a member; 0: there is none. member:
 * offsetof a uint32_t. */
static uint32_t next_value(size_t member, uint32_t above)
{
    uint32_t least = 0;
    for (uint32_t i = 0; i < FORMAT_END; i++) {
        uint32_t value;
        memcpy(&value, (const char *)&formats[i] + member, sizeof value);
        if (formats[i].scheme == SCHEME_AFFINE && value > above && (!least || value < least))
            least = value;
    }
    return least;
}

/* Writes "a, b or c". */
static const char *list_values(size_t member, char out[FORMAT_LIST_TEXT])
{
    size_t at = 0;
    for (uint32_t v = next_value(member, 0), next; v && at < FORMAT_LIST_TEXT; v = next) {
        next = next_value(member, v);
        const char *before = at == 0 ? "" : next ? ", " : " or ";
        at += (size_t)snprintf(out + at, FORMAT_LIST_TEXT - at, "%s%u", before, v);
    }
    return out;
}

const char *format_list_bits(char out[FORMAT_LIST_TEXT])
{
    return list_values(offsetof(struct format, bits), out);
}

const char *format_list_groups(char out[FORMAT_LIST_TEXT])
{
    return list_values(offsetof(struct format, group), out);
}

bool format_takes_cols(const struct format *f, uint64_t cols)
{
    return cols % f->group == 0;
}

uint64_t format_code_bytes(const struct format *f, uint64_t n)
{
    if (f->scheme == SCHEME_BLOCK)
        return n / f->group * f->block_bytes;
    return n / 8 * f->bits + n % 8 * f->bits / 8;
}

uint64_t format_scale_bytes(const struct format *f, uint64_t n)
{
    return n / f->group * f->scale_bytes;
}

uint64_t format_bias_bytes(const struct format *f, uint64_t n)
{
    return f->has_factor ? FORMAT_FACTOR_BYTES : f->has_bias ? format_scale_bytes(f, n) : 0;
}

uint64_t format_all_bytes(const struct format *f, uint64_t n)
{
    return format_code_bytes(f, n) + format_scale_bytes(f, n) + format_bias_bytes(f, n);
}

static uint16_t short_at(const void *p, uint64_t i)
{
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)p + 2 * i, sizeof bits);
    return bits;
}

static float float_at(const void *p, uint64_t i)
{
    float x;
    memcpy(&x, (const uint8_t *)p + 4 * i, sizeof x);
    return x;
}

float format_scale(uint32_t scale, const void *scales, uint64_t i)
{
    const uint8_t *bytes = scales;
    switch (scale) {
    case SCALE_BF16:
        return bf16_to_float(short_at(scales, i));
    case SCALE_F16:
        return f16_to_float(short_at(scales, i));
    case SCALE_F32:
        return float_at(scales, i);
    case SCALE_E8M0:
        return e8m0_to_float(bytes[i]);
    case SCALE_E4M3:
    case SCALE_E4M3_FACTOR:
        return e4m3_to_float(bytes[i]);
    default:
        return 1;
    }
}

bool format_scales_are_finite(uint32_t scale, const void *scales, uint64_t n)
{
    const uint8_t *bytes = scales;
    if (scale == SCALE_BF16)
        return bf16_all_finite(scales, n / 2);
    if (scale == SCALE_F16)
        return f16_all_finite(scales, n / 2);
    if (scale == SCALE_F32)
        return float_all_finite(scales, n / 4);
    uint8_t mask =
        scale == SCALE_E4M3 || scale == SCALE_E4M3_FACTOR ? 0x7f : 0xff; /* all of these bits set: NaN */
    bool bad = false;
    for (uint64_t i = 0; i < n; i++)
        bad |= (bytes[i] & mask) == mask;
    return !bad;
}

static float plain_at(const struct format *f, const void *weight, uint64_t i)
{
    if (f->bits == 32)
        return float_at(weight, i);
    return f == &formats[FORMAT_F16] ? f16_to_float(short_at(weight, i)) : bf16_to_float(short_at(weight, i));
}

static float code_value(const struct format *f, uint32_t code)
{
    if (f->scheme == SCHEME_E2M1)
        return e2m1_to_float((uint8_t)code);
    return f->scheme == SCHEME_E4M3 ? e4m3_to_float((uint8_t)code) : (float)code;
}

static void decode_plain(const struct format *f, const void *weight, uint64_t first, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = plain_at(f, weight, first + i);
}

/* Decodes n numbers of one group. */
static void decode_group(const struct format *f, const void *weight, uint64_t first, uint64_t n, float scale,
                         float bias, float *out)
{
    for (uint64_t i = 0; i < n; i++) {
        float value = code_value(f, format_code(weight, f->bits, first + i)) * scale;
        out[i] = f->has_bias ? value + bias : value;
    }
}

/* Decodes n numbers of one block. */
static void decode_block(const struct format *f, const void *weight, uint64_t first, uint64_t n, float *out)
{
    float numbers[FORMAT_MAX_BLOCK];
    const uint8_t *block = (const uint8_t *)weight + first / f->group * f->block_bytes;
    format_block_decode((uint32_t)(f - formats), block, numbers);
    memcpy(out, numbers + first % f->group, n * sizeof *out);
}

void format_decode(const struct format *f, const void *weight, const void *scales, const void *biases,
                   uint64_t first, uint64_t n, float *out)
{
    if (f->scheme == SCHEME_PLAIN) {
        decode_plain(f, weight, first, n, out);
        return;
    }
    uint64_t some;
    float factor = f->has_factor ? float_at(biases, 0) : 1;
    for (uint64_t i = 0; i < n; i += some) {
        uint64_t at = first + i, group = at / f->group;
        some = size_min(n - i, (group + 1) * f->group - at);
        if (f->scheme == SCHEME_BLOCK)
            decode_block(f, weight, at, some, out + i);
        else
            decode_group(f, weight, at, some, format_scale(f->scale, scales, group) * factor,
                         f->has_bias ? format_scale(f->scale, biases, group) : 0, out + i);
    }
}
