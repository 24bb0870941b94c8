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
    unsigned n_rules, depth;
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

/* Numbers from lo to hi, if has_lo and has_hi. schema_range.c */
struct schema_range {
    bool has_lo, has_hi;
    bool without_lo, without_hi; /* the bound itself is excluded */
    int64_t lo, hi;
};
enum { SCHEMA_MAX_DIGITS = 16 };
/* fractions: numbers with fractions too, not only whole ones. */
void schema_add_range(struct schema_writer *w, const struct schema_range *r, bool fractions,
                      struct str *body);

/* Strings and values. schema_text.c */

/* Appends a literal of the grammar for these bytes, with its quotes. */
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
/* Returns the expression of a "format", without quotes; NULL: it is not known. */
const char *schema_format(const char *name);
/* Appends a string that matches a regular expression. schema_pattern.c */
void schema_add_pattern(struct schema_writer *w, const char *pattern, size_t len, struct str *body);
/* Appends a JSON string that is none of the names and has no escapes. */
void schema_add_other_name(struct schema_writer *w, const char *const *names, size_t n, struct str *body);

/* Returns a schema for the values that fit both. Borrowed from w->merged, or NULL
 * with rc set. schema_merge.c */
const struct json_t *schema_merge(struct schema_writer *w, const struct json_t *a, const struct json_t *b);
/* Returns whether it is certain that no value fits both. */
bool schema_are_disjoint(struct schema_writer *w, const struct json_t *a, const struct json_t *b);
/* Returns the schema that a $ref names; NULL with rc set. */
const struct json_t *schema_resolve(struct schema_writer *w, const struct json_t *ref);
/* Returns the value in `root` that a text such as "#/a/b" names; NULL: there is none, or out of memory. */
const struct json_t *schema_find(const struct json_t *root, const char *text);
/* Returns whether "required" names the member. */
bool schema_requires(const struct json_t *schema, const char *name);
/* Returns whether a keyword does not restrict values. */
bool schema_is_annotation(const char *key);

#endif
