#include "base/format.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define FORMAT_ROW(row_name, number, row_bits, row_group, row_scheme, scale, x)                              \
    [number] = {.name = #row_name,                                                                           \
                .bits = (row_bits),                                                                          \
                .group = (row_group),                                                                        \
                .scheme = SCHEME_##row_scheme,                                                               \
                .scale_bytes = SCALE_##scale,                                                                \
                .has_bias = SCHEME_##row_scheme == SCHEME_AFFINE},
static const struct format formats[FORMAT_COUNT] = {FORMAT_TABLE(FORMAT_ROW, 0)};

/* Sets of formats are masks of 32 bits. */
_Static_assert(FORMAT_COUNT <= 32, "too many formats");

const struct format *format_of(uint32_t number)
{
    return &formats[number];
}

uint32_t format_find_affine(uint32_t bits, uint32_t group)
{
    uint32_t i = 0;
    while (i < FORMAT_COUNT &&
           !(formats[i].scheme == SCHEME_AFFINE && formats[i].bits == bits && formats[i].group == group))
        i++;
    return i;
}

bool format_has_group(uint32_t group)
{
    for (uint32_t i = 0; i < FORMAT_COUNT; i++)
        if (formats[i].scheme == SCHEME_AFFINE && formats[i].group == group)
            return true;
    return false;
}

/* The smallest member above `above` of an affine row, 0: there is none. member: offsetof of a uint32_t. */
static uint32_t next_value(size_t member, uint32_t above)
{
    uint32_t least = 0;
    for (uint32_t i = 0; i < FORMAT_COUNT; i++) {
        uint32_t value;
        memcpy(&value, (const char *)&formats[i] + member, sizeof value);
        if (formats[i].scheme == SCHEME_AFFINE && value > above && (!least || value < least))
            least = value;
    }
    return least;
}

/* "a, b or c" */
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
    return n / 8 * f->bits + n % 8 * f->bits / 8;
}

uint64_t format_scale_bytes(const struct format *f, uint64_t n)
{
    return n / f->group * f->scale_bytes;
}

uint64_t format_all_bytes(const struct format *f, uint64_t n)
{
    return format_code_bytes(f, n) + (1u + f->has_bias) * format_scale_bytes(f, n);
}
