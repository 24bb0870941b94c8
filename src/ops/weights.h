/* weights.h - where a matrix lies and how it is stored. */
#ifndef MOEFLUX_OPS_WEIGHTS_H
#define MOEFLUX_OPS_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

/* W [rows][cols]: addresses as in kernels/args.h, format FORMAT_*. scales and biases are 0 for plain formats.
 * */
struct weights {
    uint64_t weight, scales, biases;
    uint32_t rows, cols, format;
};

/* Rows [first, first + n) of a matrix. Plain rows are a multiple of 4 bytes. */
struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n);

/* Whether its numbers are not quantised. */
bool weights_are_plain(const struct weights *w);

/* Whether the fast kernels, which take PRODUCT_COLS columns at once, cannot read it. */
bool weights_are_uneven(const struct weights *w);

/* ERR_UNSUPPORTED: an empty matrix, or quantised rows that are no multiple of PRODUCT_COLS and of their
 * groups. `what` operation, for the message. */
int weights_check(const struct weights *w, const char *what, struct moeflux_err *e);

#endif
