/* added.h - a set of added tokens, and the search for them in a text. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_ADDED_H
#define MOEFLUX_TEXT_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct work_limit;

struct added_token {
    char *text; /* owned, len > 0 */
    size_t len;
    int32_t id;
};

struct added {
    struct added_token *tokens; /* sorted by text once added_sort has run */
    size_t n, cap;
    bool starts[256]; /* some token's text starts with this byte */
};

/* Copies `text`. ERR_MEMORY. */
int added_add(struct added *a, const char *text, size_t len, int32_t id, struct moeflux_err *e);
/* Sorts the tokens by text. Must run after the last added_add. ERR_FORMAT names a text that occurs twice. */
int added_sort(struct added *a, struct moeflux_err *e);
void added_free(struct added *a);

/* Finds the first token in text[from..len), and the longest of those that begin there. Returns 1 and fills
 * *id, *start and *end; 0 with *start = *end = len if there is none; ERR_UNSUPPORTED, ERR_INTERRUPTED. */
int added_next(const struct added *a, const char *text, size_t len, size_t from, struct work_limit *limit,
               int32_t *id, size_t *start, size_t *end, struct moeflux_err *e);

/* Returns the id of the token with exactly this text, or -1. */
int32_t added_find(const struct added *a, const char *text, size_t len);

#endif
