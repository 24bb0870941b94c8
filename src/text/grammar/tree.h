/* tree.h - a parsed grammar: rules whose bodies are trees. A part of the grammar compiler. */
#ifndef MOEFLUX_TEXT_GRAMMAR_TREE_H
#define MOEFLUX_TEXT_GRAMMAR_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grammar_marks;
struct moeflux_err;

enum { TREE_NONE = -1, TREE_NO_MAX = -1 };

enum tree_kind {
    TREE_EMPTY,  /* the empty text */
    TREE_CHARS,  /* one character of n_ranges ranges, from ranges[first] on */
    TREE_SEQ,    /* the children in sequence */
    TREE_ALT,    /* one of the children */
    TREE_REPEAT, /* the child min to max times; max may be TREE_NO_MAX */
    TREE_RULE,   /* the text of a rule */
};

struct tree_node {
    enum tree_kind kind;
    int32_t child, sibling; /* node indices, or TREE_NONE; the list begins with the last child */
    uint32_t first, n_ranges;
    int32_t min, max;
    uint32_t rule;
};

/* The code point of the first mark (grammar.h): past those of texts. */
enum { TREE_FIRST_MARK = 0x110000 };

struct tree_range { /* code points, inclusive */
    uint32_t lo, hi;
};

struct tree_rule {
    const char *name; /* borrowed from the grammar's text, [len] */
    size_t len;
    int32_t body;  /* node; TREE_NONE: not defined */
    size_t at;     /* offset of its first mention */
    uint32_t next; /* the next rule + 1 with the same hash; 0: none */
};

struct grammar_tree { /* zeroed at first; freed with grammar_tree_free; borrows the text */
    struct tree_node *nodes;
    size_t n_nodes, cap_nodes;
    struct tree_range *ranges;
    size_t n_ranges, cap_ranges;
    struct tree_rule *rules;
    size_t n_rules, cap_rules;
    uint32_t buckets[1 << 10]; /* indexed by the hash of the name: rule + 1, or 0 */
    uint32_t root;
};

/* Parses a grammar. Checks that every rule is defined and that one is called root. Arguments and errors as
 * grammar_compile_marked. */
int grammar_tree_parse(struct grammar_tree *t, const char *text, size_t len, const char *name,
                       const struct grammar_marks *marks, struct moeflux_err *e);
void grammar_tree_free(struct grammar_tree *t);

#endif
