/* cpu.h - a tile of attention on the CPU: some queries of one or more key heads meet some positions.
 *
 * The softmax is online: `top` is the largest score so far, and the earlier sums are scaled when it grows. A
 * score is a sum in 16 lanes, or one chain of multiply-adds if many queries share the keys (by_panel).
 * Weights are added up in lane (position mod 8), values in the order of the positions. Private to
 * attention. */
#ifndef MOEFLUX_OPS_ATTENTION_CPU_H
#define MOEFLUX_OPS_ATTENTION_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/vec.h"

enum { ATTENTION_POSITIONS = 32 };

struct attention_tile {
    /* Key heads that are contiguous in memory, with n_rows queries each; more than one only without by_panel.
     * Dims are multiples of 16; zeros fill up the channels. */
    uint32_t n_heads, n_rows, key_dim, value_dim;
    bool by_panel, f16; /* f16: keys and values are float16; never with by_panel */
    float *q;           /* [rows][key_dim], already multiplied by the scale */
    uint32_t *ends;     /* [rows]: a row sees the positions below its end */
    uint32_t *begins;   /* [rows]: and from its begin on */
    /* Positions first .. first + n - 1, n <= ATTENTION_POSITIONS. The strides of keys and values count
     * numbers. */
    uint32_t first, n;
    const uint8_t *keys, *values;
    const uint8_t *next_keys; /* keys of the next tile */
    uint64_t key_stride, value_stride;
    /* Scratch: [key_dim][ATTENTION_POSITIONS], [value_dim][ATTENTION_POSITIONS],
     * [rows][ATTENTION_POSITIONS]. */
    float *panel, *value_panel, *weights;
    const float *zeros; /* [key_dim] */
    /* The running sums: [rows], [rows][8], [rows][value_dim]. They begin with -INFINITY, 0 and 0; with a
     * sink: its score, 1 in the first lane, and 0. */
    float *top, *total, *sums;
};

#endif
