/* closest.h - which of several words was probably meant by a mistyped one ("did you mean ...?"). */
#ifndef MOEFLUX_CLI_OPTIONS_CLOSEST_H
#define MOEFLUX_CLI_OPTIONS_CLOSEST_H

#include <stddef.h>

struct closest { /* zeroed at first */
    const char *word;
    const char *best; /* [n], borrowed; NULL: no word is close enough */
    size_t n, distance;
};

/* Begins a search. `word` is borrowed until its end. */
struct closest closest_begin(const char *word);

/* Compares `candidate` [n] with the word. A slip is a letter too many, too few or wrong, or two in the wrong
 * order. A candidate is close enough with one slip for each three letters, at most 3. Of equally close ones
 * the first counts. */
void closest_try(struct closest *x, const char *candidate, size_t n);

#endif
