/* added.h - a set of added tokens and where they stand in a text. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_ADDED_H
#define MOEFLUX_TEXT_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct steps;

struct added_token {
    char *text; /* owned, len > 0 */
    size_t len;
    int32_t id;
};

struct added {
    struct added_token *tokens; /* sorted by text once added_sort has run */
    size_t n, cap;
    bool starts[256]; /* some text starts with this byte */
};

/* Copies `text`. ERR_MEMORY. */
int added_add(struct added *a, const char *text, size_t len, int32_t id, struct moeflux_err *e);
/* Must run after the last added_add. ERR_FORMAT names a text that is there twice. */
int added_sort(struct added *a, struct moeflux_err *e);
void added_free(struct added *a);

/* The first place in text[from..len) where a token stands, the longest one there. Returns 1 and fills *id,
 * *start and *end; 0 with *start = *end = len when there is none; ERR_UNSUPPORTED, ERR_INTERRUPTED. */
int added_next(const struct added *a, const char *text, size_t len, size_t from, struct steps *steps,
               int32_t *id, size_t *start, size_t *end, struct moeflux_err *e);

/* The id of the token that is exactly this text, or -1. */
int32_t added_find(const struct added *a, const char *text, size_t len);

#endif
