/* near.h - which of several words was probably meant by one that is none of them. */
#ifndef MOEFLUX_CLI_OPTIONS_CLOSEST_H
#define MOEFLUX_CLI_OPTIONS_CLOSEST_H

#include <stddef.h>

struct closest { /* zeroed at first */
    const char *word;
    size_t n; /* of `best`, which is borrowed; NULL: nothing is near */
    const char *best;
    size_t distance;
};

/* Begins a search for what `word` was meant to be, which has to live as long. */
struct closest closest_begin(const char *word);

/* Compares `candidate` of n bytes. Near is what a few slips of the keyboard part from it, a letter too many,
 * too few, another one or two in the wrong order: one for each three letters, at most 3; the first of the
 * nearest counts. */
void closest_try(struct closest *x, const char *candidate, size_t n);

#endif
