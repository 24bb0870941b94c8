/* cpu.h - scores of contiguous index rows on the CPU. Private to indexer.
 *
 * A dot product has two sums in 8 lanes, of even and odd vectors, and ends in one tree; heads are added up in
 * their order, without weights and negative products, or each head's products are kept. */
#ifndef MOEFLUX_OPS_INDEXER_CPU_H
#define MOEFLUX_OPS_INDEXER_CPU_H

#include <stdbool.h>
#include <stdint.h>

struct indexer_tile {
    const float *q;       /* [n_heads][dim] */
    const float *weights; /* [n_heads], or NULL: all 1 */
    const void *rows;     /* [n][dim], float32 or float16 */
    float *wide;          /* scratch: [dim] */
    float *scores;        /* [n]; by_head: [n_heads][stride], each head's products */
    uint32_t n_heads, dim, n, stride;
    bool f16, by_head;
};

#endif
