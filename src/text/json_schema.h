/* json_schema.h - a JSON Schema as a grammar (grammar.h) of the JSON texts that fit it.
 *
 * Every text of the grammar fits the schema; not every text that fits is in the grammar: members stand in the schema's order,
 * white space is at most one space or a line break with indentation, numbers have at most 16 digits, and where the schema
 * leaves more open than its author thinks of (members that it does not name) the grammar may be narrower; moeflux-grammar(7)
 * has the list. What the grammar cannot hold to is refused with the keyword and its path, never ignored. */
#ifndef MOEFLUX_TEXT_JSON_SCHEMA_H
#define MOEFLUX_TEXT_JSON_SCHEMA_H

#include <stddef.h>

struct moeflux_err;
struct json_t;
struct str;

enum { JSON_SCHEMA_MAX_BYTES = 1 << 18, JSON_SCHEMA_MAX_VALUES = 1 << 15 };

/* Appends the grammar. `name` begins the errors: a file or a flag. ERR_FORMAT: something that no schema has;
 * ERR_UNSUPPORTED: a keyword that is not supported; ERR_MEMORY. */
int json_schema_to_grammar(const struct json_t *schema, const char *name, struct str *out,
                           struct moeflux_err *e);

/* The same for a text that is not parsed yet. */
int json_schema_text_to_grammar(const char *text, size_t len, const char *name, struct str *out,
                                struct moeflux_err *e);

#endif
