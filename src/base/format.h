/* format.h - how the numbers of a matrix are stored: the rows of the table in kernels/args.h, and sizes in
 * bytes that follow from them. A format is identified by its number, FORMAT_*. */
#ifndef MOEFLUX_BASE_FORMAT_H
#define MOEFLUX_BASE_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"

struct format {
    const char *name;     /* "Q4", "Q3 g32 f16" */
    uint32_t bits;        /* bits of a code or a number; block formats: of a number in all, rounded down */
    uint32_t group;       /* columns that share a scale and a bias; 1: plain; block formats: of a block */
    uint32_t scheme;      /* SCHEME_* */
    uint32_t scale;       /* SCALE_*, the type of scales and biases */
    uint32_t scale_bytes; /* bytes of one scale or one bias; 0: plain and block formats */
    uint32_t block_bytes; /* bytes of a block; 0: no block format */
    bool has_bias;        /* there are biases next to the codes and scales */
    bool has_factor;      /* there is one float32 for the matrix, by which its scales are multiplied */
};

/* Returns the format with this number (< FORMAT_END). Its `bits` are 0 if there is none. */
const struct format *format_of(uint32_t number);

/* Returns whether it is a block format. */
bool format_is_block(uint32_t number);

/* Returns the number of the affine format with these bits of a code, columns of a group and type of scales
 * (SCALE_*); FORMAT_NONE: there is none. */
uint32_t format_find_affine(uint32_t bits, uint32_t group, uint32_t scale);
/* Returns the block format with ggml's name, "Q4_K"; FORMAT_NONE: there is none. */
uint32_t format_find_block(const char *name);
/* Returns whether an affine format has groups of this size. */
bool format_has_group(uint32_t group);

/* Returns whether it is one of the formats that kernels take mixed in one dispatch (FORMAT_TABLE_BASIC). */
bool format_is_basic(uint32_t number);
/* Returns the set of this format alone, encoded as in kernels/args.h. The union of sets is their |. It has
 * every combination of the kinds, groups and scales of its extended members. */
uint64_t format_set(uint32_t number);
/* Returns the i-th part of a set that needs its own kernel: all its formats of FORMAT_TABLE_BASIC, or one of
 * its other formats. 0: past the last part. */
uint64_t format_set_part(uint64_t set, uint32_t i);
/* Returns the kernels' constant FORMATS for such a part. */
uint32_t format_constant(uint64_t part);
/* Returns whether a part is one block format, and whether it is one extended format. */
bool format_part_is_block(uint64_t part);
bool format_part_is_extended(uint64_t part);

/* List the bits and the groups of all affine formats, for messages: "4 or 8", "64". */
enum { FORMAT_LIST_TEXT = 64 };
const char *format_list_bits(char out[FORMAT_LIST_TEXT]);
const char *format_list_groups(char out[FORMAT_LIST_TEXT]);

/* Returns whether rows of `cols` columns consist of whole groups. */
bool format_takes_cols(const struct format *f, uint64_t cols);

/* Return the bytes of `n` adjacent codes, numbers or blocks, and of their scales. The first one begins a
 * group and n is a number of whole groups; any n in a plain format. Rows are contiguous: n may span a row or
 * a matrix. */
uint64_t format_code_bytes(const struct format *f, uint64_t n);
uint64_t format_scale_bytes(const struct format *f, uint64_t n);
/* Returns the bytes of n biases. A factor has FORMAT_FACTOR_BYTES whatever n is: a float32, then zeros, so
 * that what follows is aligned. */
enum { FORMAT_FACTOR_BYTES = 16 };
uint64_t format_bias_bytes(const struct format *f, uint64_t n);
/* Returns the bytes of the codes with their scales and biases, or a matrix's with its factor. */
uint64_t format_all_bytes(const struct format *f, uint64_t n);

/* Decodes n numbers of a matrix from number `first` on. Rounds to float32 as mlx and ggml do: code * scale,
 * then + bias. scales, biases: of the whole matrix; not used if the format has none. A format with a factor
 * has it in `biases`; scale * factor is rounded first. Pointers may have any alignment. */
void format_decode(const struct format *f, const void *weight, const void *scales, const void *biases,
                   uint64_t first, uint64_t n, float *out);
/* Returns the i-th scale or bias, widened from the type `scale` (SCALE_*), without a factor. */
float format_scale(uint32_t scale, const void *scales, uint64_t i);
/* Returns whether n bytes of scales or biases of this type, whole ones at any alignment, are finite. */
bool format_scales_are_finite(uint32_t scale, const void *scales, uint64_t n);

/* Returns code i of a stream of codes of 1 to 8 bits. Reads only bytes that contain a bit of it. */
static inline uint32_t format_code(const uint8_t *codes, uint32_t bits, uint64_t i)
{
    uint64_t at = i * bits;
    uint32_t from = (uint32_t)(at % 8), word = codes[at / 8];
    if (from + bits > 8)
        word |= (uint32_t)codes[at / 8 + 1] << 8;
    return (word >> from) & ((1u << bits) - 1);
}

#endif
