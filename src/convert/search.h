/* search.h - scale and bias of a group of an affine format with the smallest squared error, instead of the
 * ones that its smallest and largest value give.
 *
 * Eight groups at a time, one in each lane. The same bits on every processor. */
#ifndef MOEFLUX_CONVERT_SEARCH_H
#define MOEFLUX_CONVERT_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

enum { SEARCH_GROUPS = 8, SEARCH_MAX_GROUP = 128 };

struct search {
    uint32_t group, bits;
    float x[SEARCH_GROUPS * SEARCH_MAX_GROUP]; /* the groups one behind the other; finite */
    uint16_t scales[SEARCH_GROUPS];            /* bf16; in: to begin with, out: the best ones */
    uint16_t biases[SEARCH_GROUPS];
    bool found[SEARCH_GROUPS]; /* out: these are better than those it began with */
    /* Out: the codes for the best ones; sums of squares of x, and of the errors with the first and with the
     * best ones. */
    uint8_t codes[SEARCH_GROUPS * SEARCH_MAX_GROUP];
    float squares[SEARCH_GROUPS], first_error[SEARCH_GROUPS], error[SEARCH_GROUPS];
};

/* Looks for better ones; `more` false: only measures those it is given. */
typedef void search_fn(struct search *s, bool more);

/* That of the best instruction set here. */
search_fn *search_find(void);

#endif
