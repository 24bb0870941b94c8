/* json.h - JSON files with limits, and typed reads of objects whose errors name the file and the key.
 *
 * A json_view looks a key up in up to four objects. The first one that has it with a value other than null
 * wins (text_config before the top level). The first failure sticks in the view: later reads return 0 or
 * NULL, and the caller checks `rc` once at the end. */
#ifndef MOEFLUX_BASE_JSON_H
#define MOEFLUX_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/quote.h"

struct moeflux_err;
struct json_t;

enum { JSON_MAX_NESTING = 64, JSON_VIEW_OBJECTS = 4 };

/* A parsed value takes up to JSON_VALUE_BYTES of memory in addition to its strings: 80 times its source text
 * ("{},"). So the values are counted before parsing. JSON_MAX_SMALL: limit for configurations;
 * JSON_MAX_LARGE: limit for lists of tensors or tokens. */
enum { JSON_VALUE_BYTES = 320, JSON_MAX_SMALL = 1 << 17, JSON_MAX_LARGE = 1 << 21 };

/* Returns an upper bound of the number of values in valid JSON: its commas and opening brackets. */
size_t json_count_values(const char *text, size_t len);

/* Parses text[0..len). The root must be an object; the caller releases it with json_decref. ERR_FORMAT names
 * `where` and the line: more than max_values values, bad syntax, invalid UTF-8, a key given twice, nesting
 * deeper than JSON_MAX_NESTING. */
int json_read(const char *text, size_t len, const char *where, size_t max_values, struct json_t **root,
              struct moeflux_err *e);

/* Parses a file of at most max_bytes in the same way. */
int json_read_file(const char *path, uint64_t max_bytes, size_t max_values, struct json_t **root,
                   struct moeflux_err *e);

/* Returns the member `key` of an object, borrowed; NULL: it is absent or null, or `object` is not an
 * object. */
const struct json_t *json_member(const struct json_t *object, const char *key);
/* Returns whether `value` (may be NULL) is this string. */
bool json_is_text(const struct json_t *value, const char *text);
/* Returns a value for an error line: a string in quotes, other scalars as JSON; of others what they are. */
struct quote json_quote(const struct json_t *value);
/* Quotes a member's string for an error line; "" if it is not a string. */
struct quote json_quote_member(const struct json_t *object, const char *key);

struct json_view {
    const struct json_t *objects[JSON_VIEW_OBJECTS]; /* NULL entries are skipped */
    const char *where; /* begins the errors: name of the file, place of the object */
    struct moeflux_err *e;
    int rc;
};

/* Returns a view of one object. */
struct json_view json_view_of(const struct json_t *object, const char *where, struct moeflux_err *e);

/* Returns the value of `key`, or NULL when no object has it (null counts as absent). Never fails. */
const struct json_t *json_view_get(const struct json_view *v, const char *key);

/* Read whole numbers from lo to hi; the key must be there. */
uint64_t json_view_u64(struct json_view *v, const char *key, uint64_t lo, uint64_t hi);
uint32_t json_view_u32(struct json_view *v, const char *key, uint32_t lo, uint32_t hi);
/* Returns `fallback` when the key is absent. */
uint32_t json_view_u32_or(struct json_view *v, const char *key, uint32_t fallback, uint32_t lo, uint32_t hi);

/* Reads a finite number from lo to hi; returns `fallback` when the key is absent. */
double json_view_real_or(struct json_view *v, const char *key, double fallback, double lo, double hi);
bool json_view_bool_or(struct json_view *v, const char *key, bool fallback);
/* Reads true or false; the key must be there. */
bool json_view_bool(struct json_view *v, const char *key);
/* Fails with ERR_UNSUPPORTED if the value is true: it asks for something that this program does not do. */
void json_view_need_false(struct json_view *v, const char *key, bool fallback);
/* Returns a string, borrowed; `fallback` (may be NULL) when the key is absent. */
const char *json_view_text_or(struct json_view *v, const char *key, const char *fallback);
/* Return an object or array, borrowed; NULL when the key is absent. */
const struct json_t *json_view_object(struct json_view *v, const char *key);
const struct json_t *json_view_array(struct json_view *v, const char *key);

/* Returns a text that identifies a request: by its id, a string or a whole number, or else by its line; freed
 * with free(). NULL: no memory. */
char *json_id_key(const struct json_t *id, uint64_t line);

#endif
