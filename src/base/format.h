/* format.h - how the numbers of a matrix are stored: the rows of kernels/args.h's table, and the bytes that
 * follow from them. A format is known by its number, FORMAT_*. */
#ifndef MOEFLUX_BASE_FORMAT_H
#define MOEFLUX_BASE_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"

struct format {
    const char *name;     /* "Q4", "Q3 g32 f16" */
    uint32_t bits;        /* of a code or a number */
    uint32_t group;       /* columns that share a scale and a bias; 1: plain */
    uint32_t scheme;      /* SCHEME_* */
    uint32_t scale;       /* SCALE_*, of the scales and biases */
    uint32_t scale_bytes; /* of one scale, of one bias; 0: plain */
    bool has_bias;
};

/* Its bits are 0 where no format has this number. number < FORMAT_END. */
const struct format *format_of(uint32_t number);

/* The number of the affine format with codes of so many bits in such groups with such scales (SCALE_*);
 * FORMAT_NONE: there is none. */
uint32_t format_find_affine(uint32_t bits, uint32_t group, uint32_t scale);
/* Whether some affine format has such groups. */
bool format_has_group(uint32_t group);

/* Whether it is one of those that kernels take mixed (FORMAT_TABLE_BASIC). */
bool format_is_basic(uint32_t number);
/* The set with this format alone, as kernels/args.h has sets. Sets are united by |; of other formats than the
 * usual ones a union has all that go together from its kinds, groups and scales. */
uint32_t format_set(uint32_t number);
/* The i-th part of a set that a kernel of its own takes: its usual formats together, or one of the others. 0:
 * past the last. */
uint32_t format_set_part(uint32_t set, uint32_t i);
/* Of such a part: what kernels have as FORMATS. */
uint32_t format_constant(uint32_t part);

/* What affine formats there are, for messages: "4 or 8", "64". */
enum { FORMAT_LIST_TEXT = 64 };
const char *format_list_bits(char out[FORMAT_LIST_TEXT]);
const char *format_list_groups(char out[FORMAT_LIST_TEXT]);

/* Whether rows of so many columns have whole groups. */
bool format_takes_cols(const struct format *f, uint64_t cols);

/* Bytes of `n` neighbouring codes or numbers that begin a group, and of their scales. Whole groups; of a
 * plain format any number. Rows lie one behind the other, so n may be that of a row or of a matrix. */
uint64_t format_code_bytes(const struct format *f, uint64_t n);
uint64_t format_scale_bytes(const struct format *f, uint64_t n);
/* The same with their scales and biases. */
uint64_t format_all_bytes(const struct format *f, uint64_t n);

/* n numbers of a matrix from the first-th on, rounded to float32 as mlx rounds them: code * scale, then +
 * bias. scales, biases: of the whole matrix, not used where the format has none. No pointer need be aligned.
 * */
void format_decode(const struct format *f, const void *weight, const void *scales, const void *biases,
                   uint64_t first, uint64_t n, float *out);
/* One scale or bias of a type. */
float format_scale(uint32_t scale, const void *scales, uint64_t i);

/* Code i of a stream of codes of 1 to 8 bits. Reads no byte that has no bit of it. */
static inline uint32_t format_code(const uint8_t *codes, uint32_t bits, uint64_t i)
{
    uint64_t at = i * bits;
    uint32_t from = (uint32_t)(at % 8), word = codes[at / 8];
    if (from + bits > 8)
        word |= (uint32_t)codes[at / 8 + 1] << 8;
    return (word >> from) & ((1u << bits) - 1);
}

#endif
