/* weights.h - where a matrix lies and how it is stored. */
#ifndef MOEFLUX_OPS_WEIGHTS_H
#define MOEFLUX_OPS_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

/* W [rows][cols]: addresses as in kernels/args.h, format FORMAT_*. scales and biases are 0 for plain formats. */
struct weights {
    uint64_t weight, scales, biases;
    uint32_t rows, cols, format;
};

/* Rows [first, first + n) of a matrix. Plain rows are a multiple of 4 bytes. */
struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n);

/* Whether its numbers are not quantised. */
bool weights_are_plain(const struct weights *w);

#endif
