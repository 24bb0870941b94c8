/* json_sent.h - JSON that clients send. Unlike jansson alone it reads all that JSON allows.
 *
 * A number that jansson cannot hold (a whole number beyond 64 bits, or 1e999) becomes a string with a mark,
 * so that it can be passed on as it was written. */
#ifndef MOEFLUX_BASE_JSON_SENT_H
#define MOEFLUX_BASE_JSON_SENT_H

#include <stddef.h>

struct json_error_t;
struct json_t;

/* Parses JSON of any kind. Escapes that stand for no character (NUL, or half of an emoji that a program has
 * cut) become U+FFFD, so that no string contains a NUL. A byte order mark is skipped. A key given twice is
 * an error. NULL with *why filled. */
struct json_t *json_sent_read(const char *text, size_t len, struct json_error_t *why);
/* Parses JSON as json_loadb with these flags does, except for the numbers. */
struct json_t *json_sent_load(const char *text, size_t len, size_t flags, struct json_error_t *why);

/* Returns the text of a number that jansson cannot hold, borrowed; NULL: the value (may be NULL) is none. */
const char *json_sent_number(const struct json_t *value);
/* Returns a value (NULL: none) as JSON text, as json_dumps with these flags does, with such numbers as they
 * were written; freed with free(). NULL: there is no value, or no memory. */
char *json_sent_dump(const struct json_t *value, size_t flags);
/* Returns a new reference to the value, or to a copy with the nearest reals in the place of such numbers.
 * NULL: the value is NULL, or there is no memory. */
struct json_t *json_sent_round(const struct json_t *value);

#endif
