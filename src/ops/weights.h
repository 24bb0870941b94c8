/* weights.h - where a matrix lies and how it is stored. */
#ifndef MOEFLUX_OPS_WEIGHTS_H
#define MOEFLUX_OPS_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

/* W [rows][cols]: addresses as in kernels/args.h, format FORMAT_*. scales and biases are 0 for plain
 * and block formats; biases is also the address of a matrix's factor. A device's matrix of a block format
 * begins at a multiple of 16 bytes, from which kernels know how its blocks are aligned. */
struct weights {
    uint64_t weight, scales, biases;
    uint32_t rows, cols, format;
};

/* Returns rows [first, first + n) of a matrix. The bytes of a plain row are a multiple of 4. */
struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n);

/* Returns whether the numbers are not quantised. */
bool weights_are_plain(const struct weights *w);

/* Returns whether the fast kernels, which take PRODUCT_COLS columns at once, cannot read it. */
bool weights_are_uneven(const struct weights *w);

/* Checks a matrix. ERR_UNSUPPORTED: it is empty, or its quantised rows are not a multiple of PRODUCT_COLS and
 * of their groups. `what` names the operation in the message. */
int weights_check(const struct weights *w, const char *what, struct moeflux_err *e);

#endif
