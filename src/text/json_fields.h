/* json_fields.h - members of jansson objects with one-line errors. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_JSON_FIELDS_H
#define MOEFLUX_TEXT_JSON_FIELDS_H

#include <jansson.h>
#include <stdbool.h>

#include "text/quote.h"

struct moeflux_err;

/* The member `key` of an object, NULL where it is absent or null. */
const json_t *json_fields_get(const json_t *object, const char *key);

bool json_fields_is(const json_t *v, const char *text);

/* The member's text for an error line; "" where it is not a string. */
struct quote json_fields_quote(const json_t *object, const char *key);

/* A member that must not be true, because it asks for something this program does not do: ERR_UNSUPPORTED. An
 * absent one counts as `absent`. `where` starts the error's text. */
int json_fields_need_false(const json_t *object, const char *where, const char *key, bool absent,
                           struct moeflux_err *e);

/* A boolean that must be there: ERR_FORMAT. */
int json_fields_bool(const json_t *object, const char *where, const char *key, bool *value,
                     struct moeflux_err *e);

#endif
