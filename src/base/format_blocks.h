/* format_blocks.h - takes apart the blocks of block formats (FORMAT_TABLE_BLOCKS in kernels/args.h).
 *
 * In all of them a number is code * scale, or code * scale + bias, each operation rounded to float32, with
 * whole codes of at most 8 bits. These are the values of ggml's formulas. 16 columns have one scale; in many
 * formats 32 columns or more have. */
#ifndef MOEFLUX_BASE_FORMAT_BLOCKS_H
#define MOEFLUX_BASE_FORMAT_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"

/* Columns and bytes of a block: FORMAT_COLS_Q4_0, FORMAT_BYTES_Q4_0 and so on. */
#define FORMAT_COLS_BYTES(name, number, cols, bytes, x)                                                      \
    FORMAT_COLS_##name = (cols), FORMAT_BYTES_##name = (bytes),
enum { FORMAT_TABLE_BLOCKS(FORMAT_COLS_BYTES, 0) };
#undef FORMAT_COLS_BYTES

enum { FORMAT_MAX_BLOCK = 256, FORMAT_BLOCK_PART = 16 };

struct format_block {
    int8_t codes[FORMAT_MAX_BLOCK];
    /* [columns / FORMAT_BLOCK_PART]; biases are those of formats that have them, else undefined */
    float scales[FORMAT_MAX_BLOCK / FORMAT_BLOCK_PART], biases[FORMAT_MAX_BLOCK / FORMAT_BLOCK_PART];
};

/* Returns whether the numbers of a block format (its number) have biases. */
bool format_block_has_bias(uint32_t format);
/* Takes one block apart. block: any alignment. */
void format_block_unpack(uint32_t format, const uint8_t *block, struct format_block *out);
/* Decodes one block. */
void format_block_decode(uint32_t format, const uint8_t *block, float out[FORMAT_MAX_BLOCK]);

#endif
