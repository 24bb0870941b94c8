/* lex.h - cuts a template into tokens, with jinja2's treatment of white space. A part of jinja. */
#ifndef MOEFLUX_TEXT_JINJA_LEX_H
#define MOEFLUX_TEXT_JINJA_LEX_H

#include <stddef.h>

#include "text/jinja/value.h"

enum jinja_token_kind {
    JINJA_T_END,
    JINJA_T_DATA,  /* text between tags: value */
    JINJA_T_PRINT, /* {{ */
    JINJA_T_PRINT_END,
    JINJA_T_BLOCK, /* {% */
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,   /* text */
    JINJA_T_STRING, /* value, escapes resolved */
    JINJA_T_NUMBER, /* value */
    JINJA_T_SIGN    /* text: an operator, a bracket, a comma, ... */
};

struct jinja_token {
    enum jinja_token_kind kind;
    struct jinja_place at;
    struct jinja_text text; /* its source text */
    struct jinja_value value;
};

struct jinja_tokens {
    struct jinja_token *tokens; /* the last one is JINJA_T_END */
    size_t n, cap;
};

/* Cuts a source of valid UTF-8 into tokens. */
struct jinja_tokens jinja_lex(struct jinja_state *s, const char *source, size_t len);

#endif
