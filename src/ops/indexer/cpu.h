/* cpu.h - scores of contiguous index rows on the CPU. Private to indexer.
 *
 * A dot product has two sums in 8 lanes, of even and odd vectors, and ends in one tree; heads are added up in
 * their order. */
#ifndef MOEFLUX_OPS_INDEXER_CPU_H
#define MOEFLUX_OPS_INDEXER_CPU_H

#include <stdbool.h>
#include <stdint.h>

struct indexer_tile {
    const float *q;       /* [n_heads][dim] */
    const float *weights; /* [n_heads], or NULL: all 1 */
    const void *rows;     /* [n][dim], float32 or float16 */
    float *wide;          /* scratch: [dim] */
    float *scores;        /* [n] */
    uint32_t n_heads, dim, n;
    bool f16;
};

#endif
