/* lookup.h - finds earlier occurrences of the end of a text, in tokens.
 *
 * A table has the last position of each hash of LOOKUP_LEAST tokens, and each position the one before it with
 * the same hash. So a position is added and looked up in constant time. */
#ifndef MOEFLUX_GENERATE_LOOKUP_H
#define MOEFLUX_GENERATE_LOOKUP_H

#include <stdint.h>

struct moeflux_err;

enum { LOOKUP_LEAST = 2, LOOKUP_MOST = 32 };

struct lookup {       /* zeroed: closed */
    uint32_t *heads;  /* [1 << bits]: position + 1; 0: none */
    uint32_t *before; /* [most]: position + 1 */
    uint32_t bits, most;
    uint32_t n; /* positions added */
};

/* Makes a table for texts of up to `most` tokens: 4 to 8 bytes for each. ERR_MEMORY. */
int lookup_open(struct lookup *l, uint32_t most, struct moeflux_err *e);
void lookup_close(struct lookup *l);
/* Forgets the positions. */
void lookup_clear(struct lookup *l);
/* Adds the positions up to n, at most lookup.most, of a text that has not changed up to lookup.n. */
void lookup_add(struct lookup *l, const int32_t *text, uint32_t n);

/* The end of a text: `n` tokens, then one more. */
struct lookup_end {
    const int32_t *ids; /* [n] */
    uint32_t n;
    int32_t last;
};
/* Returns the position in `text`, the table's, after the longest occurrence of the end of `e`; of equal ones
 * the latest. *len: its tokens, LOOKUP_LEAST to LOOKUP_MOST. 0: there is none of at least `least` tokens. */
uint32_t lookup_find(const struct lookup *l, const int32_t *text, const struct lookup_end *e, uint32_t least,
                     uint32_t *len);

#endif
