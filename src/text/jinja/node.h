/* node.h - a parsed template: its syntax tree, and what the parser's files share. A part of jinja. */
#ifndef MOEFLUX_TEXT_JINJA_NODE_H
#define MOEFLUX_TEXT_JINJA_NODE_H

#include "text/jinja/lex.h"
#include "text/jinja/value.h"

/* a, b, c, d, e are the node's children; a "list" is the first node of a chain of `next`. */
enum jinja_node_kind {
    /* statements */
    JINJA_N_DATA,         /* value */
    JINJA_N_PRINT,        /* a */
    JINJA_N_IF,           /* a condition, b list, c list: else; an elif is one JINJA_N_IF in c */
    JINJA_N_FOR,          /* a target, b what, c list, d list: else, e condition or NULL */
    JINJA_N_SET,          /* a target, b value */
    JINJA_N_SET_BLOCK,    /* a target, b value over JINJA_N_CAPTURED, c list */
    JINJA_N_MACRO,        /* symbol, a parameters, b list */
    JINJA_N_CALL_BLOCK,   /* a JINJA_N_CALL, b the caller: JINJA_N_MACRO */
    JINJA_N_FILTER_BLOCK, /* b value over JINJA_N_CAPTURED, c list */
    JINJA_N_WITH,         /* a list of JINJA_N_SET, b list */
    JINJA_N_GENERATION,   /* b list */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
    /* expressions */
    JINJA_N_CONST,    /* value */
    JINJA_N_NAME,     /* symbol */
    JINJA_N_MEMBER,   /* a, text: a.text */
    JINJA_N_ITEM,     /* a, b: a[b] */
    JINJA_N_SLICE,    /* a, b, c, d: a[b:c:d], each may be NULL */
    JINJA_N_CALL,     /* a, b list */
    JINJA_N_FILTER,   /* a, text, filter, b list */
    JINJA_N_TEST,     /* a, text, test, b list */
    JINJA_N_CAPTURED, /* the text of the enclosing block */
    JINJA_N_NOT,      /* a */
    JINJA_N_SIGNED,   /* sign, a */
    JINJA_N_BINARY,   /* a, sign, b */
    JINJA_N_CONCAT,   /* a, b */
    JINJA_N_COMPARE,  /* a, b list of JINJA_N_OPERAND */
    JINJA_N_OPERAND,  /* sign, a; "i": in, "n": not in */
    JINJA_N_AND,      /* a, b */
    JINJA_N_OR,       /* a, b */
    JINJA_N_CHOICE,   /* b if a else c (may be NULL) */
    JINJA_N_LIST,     /* a list */
    JINJA_N_TUPLE,    /* a list */
    JINJA_N_DICT,     /* a list of JINJA_N_ENTRY */
    JINJA_N_ENTRY,    /* a key, b value */
    /* arguments and parameters */
    JINJA_N_KEYWORD,     /* text, a */
    JINJA_N_SPREAD,      /* *a */
    JINJA_N_SPREAD_KEYS, /* **a */
    JINJA_N_PARAMETER    /* symbol, a default or NULL */
};

/* A name in the template; equal names share one symbol. */
struct jinja_symbol {
    struct jinja_text name;
    struct jinja_symbol *next;
};

struct jinja_run;
struct jinja_args;
typedef struct jinja_value jinja_filter(struct jinja_run *r, struct jinja_value v, struct jinja_args *args);
/* A test, which follows `is`: a function, or a set of kinds (bits by enum jinja_kind). */
struct jinja_test {
    const char *name;
    uint32_t kinds;
    bool (*holds)(struct jinja_run *r, struct jinja_value v, struct jinja_args *args);
};

struct jinja_node {
    enum jinja_node_kind kind;
    struct jinja_place at;
    char sign[2];
    bool is_elif;
    bool uses_varargs, uses_kwargs, uses_caller; /* JINJA_N_MACRO */
    struct jinja_node *next, *a, *b, *c, *d, *e;
    const struct jinja_symbol *symbol;
    struct jinja_text text;
    struct jinja_value value;
    jinja_filter *filter;          /* NULL: not known */
    const struct jinja_test *test; /* NULL: not known */
};

struct jinja {
    struct jinja_state state; /* owns the memory of the nodes and symbols */
    char *name;
    struct jinja_node *body;
    struct jinja_symbol *symbols;
    const struct jinja_symbol *loop, *caller, *varargs, *kwargs;
};

/* --- parsing (parse.c, expr.c) --- */

struct jinja_parser {
    struct jinja_state *s;
    struct jinja *template;
    const struct jinja_token *token; /* the next one */
    struct jinja_node *macro;        /* the macro whose body is parsed; NULL: none */
    uint32_t n_loops;                /* enclosing loops in this macro */
};

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind);
const struct jinja_symbol *jinja_intern(struct jinja_parser *p, struct jinja_text name);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
bool jinja_at_sign(const struct jinja_parser *p, const char *sign);
/* Take the next token if it is this one; return whether it was. */
bool jinja_skip_name(struct jinja_parser *p, const char *name);
bool jinja_skip_sign(struct jinja_parser *p, const char *sign);
struct jinja_text jinja_expect_name(struct jinja_parser *p, const char *what);
void jinja_expect_sign(struct jinja_parser *p, const char *sign);
void jinja_unexpected(struct jinja_parser *p, const char *wanted) __attribute__((noreturn));

struct jinja_node *jinja_expression(struct jinja_parser *p);
/* Parses expressions with commas between them. end: a name that ends them, or NULL. */
struct jinja_node *jinja_expressions(struct jinja_parser *p, bool with_choice, const char *end);
/* Parses the names that `for` and `set` assign to, with commas between them. */
struct jinja_node *jinja_target(struct jinja_parser *p, bool with_members);
/* Parses the filters that follow `input`. inline_first: the first one has no bar before it. */
struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *input, bool inline_first);

/* Return the filter or test of this name; NULL: it is not known. */
jinja_filter *jinja_filter_find(struct jinja_text name);
const struct jinja_test *jinja_test_find(struct jinja_text name);

#endif
