/* schema_writer.h - writes the grammar of a JSON Schema. A part of json_schema.
 *
 * Functions append an expression to `body`. The first failure sticks in w->rc. */
#ifndef MOEFLUX_TEXT_GRAMMAR_SCHEMA_WRITER_H
#define MOEFLUX_TEXT_GRAMMAR_SCHEMA_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;
struct json_t;

struct schema_rule { /* a schema that has a rule, rN */
    const struct json_t *schema;
    unsigned rule;
};

struct schema_writer {
    const struct json_t *root;
    const char *name;
    struct str *out;
    struct str path;         /* JSON pointer to the current schema */
    struct schema_rule *met; /* the schemas seen so far */
    size_t n_met, cap_met;
    struct json_t *merged; /* array: owns schemas that were made from others */
    struct json_t *meets;  /* array: the results of schema_meet */
    unsigned n_rules, depth;
    bool has_one_base; /* no schema inside the root has an $id */
    /* only strings and null; strings without quotes and escapes, and without "<" */
    bool plain;
    const char *quote; /* the member of struct json_schema_part */
    int rc;
    struct moeflux_err *e;
};

/* Sets rc with the path: "NAME: #/PATH/KEY: WHAT". key may be NULL. Returns rc. */
int schema_fail(struct schema_writer *w, int code, const char *key, const char *what);
/* Appends a key to the path. Returns the length before, for schema_path_back. */
size_t schema_path_add(struct schema_writer *w, const char *key);
void schema_path_back(struct schema_writer *w, size_t len);

/* Returns the number N of a new rule. schema_write_rule writes it as "rN ::= BODY". */
unsigned schema_new_rule(struct schema_writer *w);
void schema_write_rule(struct schema_writer *w, unsigned rule, const struct str *body);

/* Appends the expression of a schema, as one item. */
void schema_add(struct schema_writer *w, const struct json_t *schema, struct str *body);

/* The expression that no text fits. */
#define SCHEMA_NEVER "never"

/* Checks the form of a keyword's value. Fails if the keyword is not known and no annotation. */
void schema_check_keyword(struct schema_writer *w, const char *key, const struct json_t *value);
/* Returns the count that a keyword gives; `otherwise` if the schema does not have it, or if it is a maximum
 * over SCHEMA_MAX_COUNT. */
uint32_t schema_count(struct schema_writer *w, const struct json_t *schema, const char *key,
                      uint32_t otherwise);
enum { SCHEMA_MAX_COUNT = 1 << 20, SCHEMA_MAX_DEPTH = 64 };

/* Appends a number that fits the bounds and multipleOf of a schema in canonical form. fractions: numbers with
 * fractions too, not only whole ones. schema_numbers.c */
void schema_add_number(struct schema_writer *w, const struct json_t *schema, bool fractions,
                       struct str *body);

/* Strings and values. schema_text.c */

/* Appends a literal of the grammar for these bytes, with its quotes. They are letters: characters with which
 * marks begin (grammar.h) are escaped. */
void schema_add_literal(const char *bytes, size_t len, struct str *body);
/* Appends the form of a value, with optional white space. */
void schema_add_value(struct schema_writer *w, const struct json_t *value, struct str *body);
/* Appends the name of a member. */
void schema_add_name(struct schema_writer *w, const char *name, struct str *body);
/* Returns whether strings have no escapes and no "<". */
bool schema_is_raw(const struct schema_writer *w);
/* The expression of one character in a JSON string. */
extern const char schema_char[];
/* The expressions of one character of a string and of the quote at its ends, for plain strings too. */
const char *schema_one_char(const struct schema_writer *w);
const char *schema_quote(const struct schema_writer *w);
/* Appends a string that fits the length, pattern and format of a schema in canonical form. */
void schema_add_string(struct schema_writer *w, const struct json_t *schema, struct str *body);
/* Returns the regular expression of a "format"; "": it does not restrict texts; NULL: it is not known.
 * schema_formats.c */
const char *schema_format(const char *name);
/* Appends a string of `least` to `most` characters that matches a regular expression. key: the keyword that
 * gives it, for errors. schema_pattern.c */
void schema_add_pattern(struct schema_writer *w, const char *key, const char *pattern, size_t len,
                        uint32_t least, uint32_t most, struct str *body);
/* Appends a JSON string that is none of the names and has no escapes. */
void schema_add_other_name(struct schema_writer *w, const char *const *names, size_t n, struct str *body);

/* Schemas in canonical form have no annotations, a list under "type", "enum" for "const", "prefixItems" for
 * a list under "items", and numbers under exclusiveMinimum and exclusiveMaximum. false is one, too. All are
 * borrowed from the writer; NULL with rc set. schema_merge.c */
const struct json_t *schema_canonical(struct schema_writer *w, const struct json_t *schema);
/* Returns a schema for the values that fit both; all three are canonical. */
const struct json_t *schema_merge(struct schema_writer *w, const struct json_t *a, const struct json_t *b);
/* Merges with a schema that is released. */
const struct json_t *schema_merge_new(struct schema_writer *w, const struct json_t *a, struct json_t *b);
/* Returns a copy without a keyword. */
const struct json_t *schema_without(struct schema_writer *w, const struct json_t *schema, const char *key);
/* Replaces $ref and allOf of a canonical schema, unless it has anyOf or oneOf, by what they say. */
const struct json_t *schema_flatten(struct schema_writer *w, const struct json_t *schema);
/* Returns a schema for the values that fit both of any two schemas; NULL stands for true. The same schemas
 * give the same result, so that recursive schemas come to an end. */
const struct json_t *schema_meet(struct schema_writer *w, const struct json_t *a, const struct json_t *b);

/* Returns whether it is certain that no value fits both, or none that has the member *member if that is not
 * NULL. schema_disjoint.c */
bool schema_are_disjoint(struct schema_writer *w, const struct json_t *a, const struct json_t *b,
                         const char **member);
/* Returns whether the values are equal in the sense of JSON Schema: 1 is 1.0. */
bool schema_values_equal(const struct json_t *a, const struct json_t *b);
/* Returns whether a value fits a canonical schema without $ref, allOf, anyOf and oneOf. Fails if that cannot
 * be said. schema_values.c */
bool schema_fits(struct schema_writer *w, const struct json_t *schema, const struct json_t *value);

/* Returns the schema that a $ref names; NULL with rc set. */
const struct json_t *schema_resolve(struct schema_writer *w, const struct json_t *ref);
/* Returns the value in `root` that a text such as "#/a/b" names; NULL: there is none, or out of memory. */
const struct json_t *schema_find(const struct json_t *root, const char *text);

#endif
