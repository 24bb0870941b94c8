/* stops.h - texts that end an answer, looked for in text that comes in pieces.
 *
 * What may still become one of them is held back. The first that is complete ends the text, wherever the
 * pieces part; of two that are complete with the same byte, the longer one. */
#ifndef MOEFLUX_TEXT_STOPS_H
#define MOEFLUX_TEXT_STOPS_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;

enum { STOPS_NONE = -1 };

struct stops { /* zeroed: there are none; freed with stops_free */
    size_t n;
    struct stop_text {
        const char *text;
        size_t len, n_matched; /* bytes; the first n_matched of them have come last */
        size_t *shorter; /* [len] after i + 1 bytes: the longest shorter beginning that the bytes end with */
    } * items;
    struct str held; /* the longest n_matched of bytes */
};

/* The texts are borrowed and not empty. ERR_MEMORY. */
int stops_init(struct stops *s, const char *const *texts, size_t n, struct moeflux_err *e);

/* Appends to `out` what is certainly no part of a stop. Returns the number of the one that is complete, of
 * which nothing is in `out`, nor of what follows it; or STOPS_NONE. */
int stops_push(struct stops *s, const char *bytes, size_t len, struct str *out);

/* The text ends, or is interrupted by other text: appends what was held back. */
void stops_end(struct stops *s, struct str *out);

void stops_free(struct stops *s);

#endif
