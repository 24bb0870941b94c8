/* schema_regex.h - a regular expression as a tree, written as a grammar of the texts that have a length in
 * given limits. A part of schema_pattern.
 *
 * Lengths are characters. Node 0 stands for no node. Failures stick in w->rc; the results are then 0. */
#ifndef MOEFLUX_TEXT_GRAMMAR_SCHEMA_REGEX_H
#define MOEFLUX_TEXT_GRAMMAR_SCHEMA_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct schema_writer;

#define REGEX_ENDLESS UINT32_MAX

enum regex_kind { REGEX_CHAR, REGEX_SEQUENCE, REGEX_ANY_OF, REGEX_REPEAT };

struct regex_node {
    enum regex_kind kind;
    uint32_t first, last, next;    /* children, the next sibling */
    uint32_t min_times, max_times; /* REGEX_REPEAT */
    uint32_t lo, hi;               /* lengths of the texts that fit; REGEX_ENDLESS: no limit */
    size_t text, n_text;           /* REGEX_CHAR: its expression, in regex.texts */
};

struct regex { /* zeroed at first */
    struct regex_node *nodes;
    size_t n, cap;
    struct str texts;
};

/* Adds one character that fits an expression of the grammar. */
uint32_t regex_add_char(struct regex *r, const char *expression, struct schema_writer *w);
/* Adds an empty list: a sequence, or alternatives. */
uint32_t regex_add_list(struct regex *r, enum regex_kind kind, struct schema_writer *w);
/* Adds min to max times a node. */
uint32_t regex_add_repeat(struct regex *r, uint32_t node, uint32_t min, uint32_t max,
                          struct schema_writer *w);
/* Appends a node to a list; the node's own list must be complete. */
void regex_append(struct regex *r, uint32_t list, uint32_t node);

/* Appends an expression of texts of lo to hi characters. It may have fewer texts than fit, for example if
 * two repetitions share what the others leave. Returns false if it has found none although there may be
 * some. */
bool regex_write(const struct regex *r, uint32_t node, uint32_t lo, uint32_t hi, struct str *body);
void regex_free(struct regex *r);

#endif
