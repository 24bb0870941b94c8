/* search.h - searches a group's scale and bias in an affine format for the smallest squared error.
 * The alternative is to take them from its smallest and largest value (model/quant.h).
 *
 * Eight groups are computed at a time, one in each lane. The result is bit-identical on every processor. */
#ifndef MOEFLUX_CONVERT_SEARCH_H
#define MOEFLUX_CONVERT_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

enum { SEARCH_GROUPS = 8, SEARCH_MAX_GROUP = 128 };

struct search {
    uint32_t group, bits;
    float x[SEARCH_GROUPS * SEARCH_MAX_GROUP]; /* the groups, contiguous; finite */
    uint16_t scales[SEARCH_GROUPS];            /* bf16; in: the start, out: the best */
    uint16_t biases[SEARCH_GROUPS];            /* the same */
    bool found[SEARCH_GROUPS];                 /* out: the best are better than the start */
    /* Out: codes with the best; sums of squares of x, of the errors with the start, and of those with the
     * best. */
    uint8_t codes[SEARCH_GROUPS * SEARCH_MAX_GROUP];
    float squares[SEARCH_GROUPS], first_error[SEARCH_GROUPS], error[SEARCH_GROUPS];
};

/* Searches for better scales and biases; `more` false: only measures the start. */
typedef void search_fn(struct search *s, bool more);

/* Returns the function for this processor's best instruction set. */
search_fn *search_find(void);

#endif
