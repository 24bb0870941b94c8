/* stops.h - finds stop texts, which end an answer, in text that comes in pieces.
 *
 * Bytes that may still become a stop text are held back. The first complete stop text ends the answer,
 * however the text is cut into pieces. If two are complete with the same byte, the longer one counts. */
#ifndef MOEFLUX_TEXT_STOPS_H
#define MOEFLUX_TEXT_STOPS_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;

enum { STOPS_NONE = -1 };

struct stops { /* zeroed: no stop texts; freed with stops_free */
    size_t n;
    struct stop_text {
        const char *text;
        size_t len, n_matched; /* bytes; the text so far ends with the first n_matched of them */
        size_t *shorter; /* [len] Knuth-Morris-Pratt: the longest proper prefix that bytes 0..i end with */
    } * items;
    struct str held; /* the bytes held back: the largest n_matched */
};

/* Starts a search for n texts, which are borrowed and not empty. ERR_MEMORY. */
int stops_init(struct stops *s, const char *const *texts, size_t n, struct moeflux_err *e);

/* Appends to `out` the bytes that are certainly not part of a stop text. Returns the index of a complete stop
 * text, or STOPS_NONE. `out` then has nothing of the stop text, nor of what follows it. */
int stops_push(struct stops *s, const char *bytes, size_t len, struct str *out);

/* Ends the text (or interrupts it for other text): appends what was held back. */
void stops_end(struct stops *s, struct str *out);

void stops_free(struct stops *s);

#endif
