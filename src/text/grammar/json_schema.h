/* json_schema.h - a JSON Schema as a grammar (grammar.h) of the JSON texts that fit it.
 *
 * Every text of the grammar fits the schema; not every text that fits is in the grammar: members stand in the
 * schema's order, white space is at most one space or a line break with indentation, numbers have at most 16
 * digits, and where the schema leaves more open than its author thinks of (members that it does not name) the
 * grammar may be narrower; moeflux-grammar(7) has the list. What the grammar cannot hold to is refused with
 * the keyword and its path, never ignored. */
#ifndef MOEFLUX_TEXT_GRAMMAR_JSON_SCHEMA_H
#define MOEFLUX_TEXT_GRAMMAR_JSON_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct json_t;
struct str;

enum { JSON_SCHEMA_MAX_BYTES = 1 << 18, JSON_SCHEMA_MAX_VALUES = 1 << 15 };

/* Appends the grammar. `name` begins the errors: a file or a flag. ERR_FORMAT: something that no schema has;
 * ERR_UNSUPPORTED: a keyword that is not supported; ERR_MEMORY. */
int json_schema_to_grammar(const struct json_t *schema, const char *name, struct str *out,
                           struct moeflux_err *e);

/* A grammar with several schemas in it. json_schema_add_json appends the rules that they have in common: ws,
 * sp, string, integer, number, boolean, object, member, array, value. */
struct json_schema_part {
    const struct json_t *root; /* what a $ref refers to */
    const char *name,
        *path; /* errors begin with the name and, NULL: of the root, the schema's place: "/properties/a" */
    struct str *out;  /* gets the rules, */
    unsigned n_rules; /* which are called r0, r1 ...: so many are there already */
};
void json_schema_add_json(struct str *out);
/* Appends to `expression` what stands for the schema. plain: for the texts and the null that fit, not for
 * other values: a text is written as it is, and has no "<"; the caller defines a rule `plain` for a text of
 * which nothing is said. Errors as json_schema_to_grammar. */
int json_schema_add(struct json_schema_part *p, const struct json_t *schema, bool plain,
                    struct str *expression, struct moeflux_err *e);

/* Of what kinds the values that fit are, as far as it is said; a schema that says nothing stands for texts.
 * NULL is legal. */
enum { JSON_SCHEMA_TEXT = 1, JSON_SCHEMA_NULL = 2, JSON_SCHEMA_OTHER = 4, JSON_SCHEMA_PLAIN = 3 };
unsigned json_schema_kinds(const struct json_t *root, const struct json_t *schema);

/* The same for a text that is not parsed yet. */
int json_schema_text_to_grammar(const char *text, size_t len, const char *name, struct str *out,
                                struct moeflux_err *e);

#endif
