/* cpu.h - a tile of attention on the CPU: some queries of one or more key heads meet some positions.
 *
 * The softmax is online: top is the largest score so far, what was added up before is scaled when it grows. A
 * score is a sum in 16 lanes, or one chain of multiply-adds where many queries share the keys (by_panel);
 * weights are added up in lane (position mod 8), values in the order of the positions. Private to
 * attention. */
#ifndef MOEFLUX_OPS_ATTENTION_CPU_H
#define MOEFLUX_OPS_ATTENTION_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/vec.h"

enum { ATTENTION_POSITIONS = 32 };

struct attention_tile {
    /* Key heads side by side in memory, n_rows queries each; more than one only without by_panel. Dims are
     * multiples of 16, with zeros behind the channels that there are. */
    uint32_t n_heads, n_rows, key_dim, value_dim;
    bool by_panel, f16; /* f16: keys and values are float16, not where the keys are turned into panels */
    float *q;           /* [rows][key_dim], times the scale */
    uint32_t *ends;     /* [rows]: a row sees the positions below, */
    uint32_t *begins;   /* [rows]: from these on */
    /* Positions first .. first + n - 1, n <= ATTENTION_POSITIONS; rows of keys and values are so many numbers
     * apart. */
    uint32_t first, n;
    const uint8_t *keys, *values;
    const uint8_t *next_keys; /* of the tile that follows */
    uint64_t key_stride, value_stride;
    /* Room: [key_dim][ATTENTION_POSITIONS], [value_dim][ATTENTION_POSITIONS], [rows][ATTENTION_POSITIONS]. */
    float *panel, *value_panel, *weights;
    const float *zeros; /* [key_dim] */
    /* What is added up: [rows], [rows][8], [rows][value_dim]. Begins with -INFINITY, 0 and 0, or a sink's
     * score, its weight 1 in the first lane and 0. */
    float *top, *total, *sums;
};

#endif
