/* json_schema.h - translates a JSON Schema to a grammar (grammar.h) of the JSON texts that fit it.
 *
 * Every text of the grammar fits the schema, but the grammar may be narrower: members are in the schema's
 * order, white space is at most one space or a line break with indentation, and numbers have at most 16
 * digits. What a schema allows without naming it (such as other members) may be left out; moeflux-grammar(7)
 * has the list. A keyword that the grammar cannot enforce is refused with its path, never ignored. */
#ifndef MOEFLUX_TEXT_GRAMMAR_JSON_SCHEMA_H
#define MOEFLUX_TEXT_GRAMMAR_JSON_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct json_t;
struct str;

enum { JSON_SCHEMA_MAX_BYTES = 1 << 18, JSON_SCHEMA_MAX_VALUES = 1 << 15 };

/* Appends the grammar. name: a file or a flag, which begins the errors. ERR_FORMAT: the schema is not valid;
 * ERR_UNSUPPORTED: a keyword is not supported; ERR_MEMORY. */
int json_schema_to_grammar(const struct json_t *schema, const char *name, struct str *out,
                           struct moeflux_err *e);

/* One of several schemas in a grammar. json_schema_add_json appends the rules that they share: ws, sp,
 * string, integer, number, boolean, object, member, array, value. */
struct json_schema_part {
    const struct json_t *root; /* what a $ref refers to */
    const char *name;          /* begins the errors */
    /* the schema's place in the root, for errors: "/properties/a"; NULL: the root */
    const char *path;
    struct str *out;  /* where the rules are appended */
    unsigned n_rules; /* rules so far; they are called r0, r1, ... */
    /* expression of what is around strings, which then have no escapes and no "<", as `plain` ones; members
     * have bare names, and are those that the schema names. NULL: JSON's quotes */
    const char *quote;
};
/* quote: as in json_schema_part; then the caller defines the rule `plain`. */
void json_schema_add_json(const char *quote, struct str *out);
/* Appends the schema's expression to `expression`. plain: only the strings and the null that fit, without
 * quotes and escapes; a string then has no "<", and the caller defines the rule `plain` for a string without
 * restrictions. Errors as json_schema_to_grammar. */
int json_schema_add(struct json_schema_part *p, const struct json_t *schema, bool plain,
                    struct str *expression, struct moeflux_err *e);

/* Returns the kinds of the values that fit, as bits. A schema that says nothing of them (or NULL) means
 * strings. */
enum {
    JSON_SCHEMA_TEXT = 1,
    JSON_SCHEMA_NULL = 2,
    JSON_SCHEMA_INTEGER = 4,
    JSON_SCHEMA_FRACTION = 8, /* other numbers */
    JSON_SCHEMA_BOOLEAN = 16,
    JSON_SCHEMA_OBJECT = 32,
    JSON_SCHEMA_LIST = 64,
    JSON_SCHEMA_PLAIN = JSON_SCHEMA_TEXT | JSON_SCHEMA_NULL,
    JSON_SCHEMA_OTHER = 124, /* none of the plain ones */
};
unsigned json_schema_kinds(const struct json_t *root, const struct json_t *schema);

/* Returns whether a keyword does not restrict values. */
bool json_schema_is_annotation(const char *key);

/* Appends the grammar of a schema that is not parsed yet. Errors as json_schema_to_grammar. */
int json_schema_text_to_grammar(const char *text, size_t len, const char *name, struct str *out,
                                struct moeflux_err *e);

#endif
