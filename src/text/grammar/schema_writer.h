/* schema_writer.h - the grammar of a JSON Schema while it is written. A part of json_schema. */
#ifndef MOEFLUX_TEXT_GRAMMAR_SCHEMA_WRITER_H
#define MOEFLUX_TEXT_GRAMMAR_SCHEMA_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;
struct json_t;

struct schema_rule { /* of a schema that was met before */
    const struct json_t *schema;
    unsigned rule;
};

/* The first failure sticks in `rc`. */
struct schema_writer {
    const struct json_t *root;
    const char *name;
    struct str *out;
    struct str path; /* of the value at hand: a JSON pointer */
    struct schema_rule *met;
    size_t n_met, cap_met;
    struct json_t *merged; /* array: keeps schemas that were made of others */
    unsigned n_rules, depth;
    /* texts and null alone, texts as they are: without quotation marks and escapes, and without "<" */
    bool plain;
    int rc;
    struct moeflux_err *e;
};

/* Sets rc with the path: "NAME: #/PATH/KEY: WHAT". key may be NULL. Returns rc. */
int schema_fail(struct schema_writer *w, int code, const char *key, const char *what);
/* The path goes on with this; returns its length before, for schema_path_back. */
size_t schema_path_add(struct schema_writer *w, const char *key);
void schema_path_back(struct schema_writer *w, size_t len);

/* The number of a new rule, which is written as "rN ::= BODY". */
unsigned schema_new_rule(struct schema_writer *w);
void schema_write_rule(struct schema_writer *w, unsigned rule, const struct str *body);

/* Appends what a schema stands for, an expression of one item. */
void schema_add(struct schema_writer *w, const struct json_t *schema, struct str *body);

/* Whole numbers from lo to hi (has_lo, has_hi), for `number` with fractions. schema_range.c */
struct schema_range {
    bool has_lo, has_hi;
    bool without_lo, without_hi; /* the bound itself is none of them */
    int64_t lo, hi;
};
enum { SCHEMA_MAX_DIGITS = 16 };
void schema_add_range(struct schema_writer *w, const struct schema_range *r, bool fractions,
                      struct str *body);

/* Texts. schema_text.c */

/* A text of these bytes in the grammar, with quotation marks around it. */
void schema_add_literal(const char *bytes, size_t len, struct str *body);
/* The JSON form of a value, with white space where it may stand. */
void schema_add_value(const struct json_t *value, struct str *body);
/* A character within a JSON text. */
extern const char schema_char[];
/* What a character of a text is, and what stands at both ends of one. */
const char *schema_one_char(const struct schema_writer *w);
const char *schema_quote(const struct schema_writer *w);
/* The text of a format, without quotation marks; NULL: not known. */
const char *schema_format(const char *name);
/* A JSON text that fits a regular expression. schema_pattern.c */
void schema_add_pattern(struct schema_writer *w, const char *pattern, size_t len, struct str *body);
/* A JSON text that is none of the names; without escapes. */
void schema_add_other_name(struct schema_writer *w, const char *const *names, size_t n, struct str *body);

/* One schema that says what both say. schema_merge.c. Borrowed from w->merged, or NULL with rc set. */
const struct json_t *schema_merge(struct schema_writer *w, const struct json_t *a, const struct json_t *b);
/* Whether it is certain that no value fits both. */
bool schema_are_disjoint(struct schema_writer *w, const struct json_t *a, const struct json_t *b);
/* What a $ref names; NULL with rc set. */
const struct json_t *schema_resolve(struct schema_writer *w, const struct json_t *ref);
/* The place in `root` that a text names as "#/a/b"; NULL: none, or out of memory. */
const struct json_t *schema_find(const struct json_t *root, const char *text);
/* Whether "required" names the member. */
bool schema_requires(const struct json_t *schema, const char *name);
/* Whether a keyword says nothing of what fits. */
bool schema_is_annotation(const char *key);

#endif
