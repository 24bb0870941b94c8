/* jsonscan.h - a forward reader over JSON text. A part of the tokenizer.
 *
 * A vocabulary and its merges are a million values, for which jansson's tree takes most of a second and 120
 * MB. All other JSON is read by jansson. All calls skip white space first. Errors are ERR_FORMAT with the
 * line where reading stopped. */
#ifndef MOEFLUX_TEXT_TOKENIZER_JSONSCAN_H
#define MOEFLUX_TEXT_TOKENIZER_JSONSCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct str;

struct jsonscan {
    const char *text; /* borrowed; strings in it must be valid UTF-8 */
    size_t at, end;   /* offsets of the next byte and of the end */
};

struct jsonscan_text { /* borrowed from the JSON text or from the scratch */
    const char *bytes;
    size_t len;
};

bool jsonscan_is(struct jsonscan_text text, const char *word);

/* Returns the next character that is not white space, without taking it; '\0' at the end. */
char jsonscan_peek(struct jsonscan *s);

/* Takes `bracket`, '{' or '['. */
int jsonscan_open(struct jsonscan *s, char bracket, struct moeflux_err *e);

/* Called before element `idx` of a list. Returns 1 if it follows (its comma is taken), 0 if `bracket` closed
 * the list. */
int jsonscan_more(struct jsonscan *s, char bracket, size_t idx, struct moeflux_err *e);

/* Takes a string; *out holds it without quotes and escapes. Refuses \u0000, as jansson does. */
int jsonscan_string(struct jsonscan *s, struct str *scratch, struct jsonscan_text *out,
                    struct moeflux_err *e);

/* Takes an object: calls `member` for each key. `member` must take the value; `key`
 * may lie in the scratch. */
int jsonscan_members(struct jsonscan *s, struct str *scratch,
                     int (*member)(void *ctx, struct jsonscan *s, struct jsonscan_text key,
                                   struct moeflux_err *e),
                     void *ctx, struct moeflux_err *e);

/* Takes an integer of at most 18 digits. */
int jsonscan_integer(struct jsonscan *s, int64_t *value, struct moeflux_err *e);

/* Takes a whole value of any kind and depth. Checks only that strings and brackets end. */
int jsonscan_skip(struct jsonscan *s, struct moeflux_err *e);

/* Returns ERR_FORMAT with "not valid JSON: expected WHAT (line N)". */
int jsonscan_fault(const struct jsonscan *s, const char *what, struct moeflux_err *e);

#endif
