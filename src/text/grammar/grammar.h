/* grammar.h - a grammar in GBNF (the part of llama.cpp's that moeflux-grammar(7) describes), compiled to
 * states over bytes. A compiled grammar is read-only: any number of constraints may share it.
 *
 * Bounds, so that a grammar from anywhere is safe: its text, its rules, the nesting of its parentheses, its
 * states. A rule that begins with itself is refused. What cannot lead to a whole text is left out, so every
 * prefix that the states accept can be gone on with to a whole text. */
#ifndef MOEFLUX_TEXT_GRAMMAR_GRAMMAR_H
#define MOEFLUX_TEXT_GRAMMAR_GRAMMAR_H

#include <stddef.h>

struct moeflux_err;
struct grammar;

enum {
    GRAMMAR_MAX_BYTES = 1 << 19,
    GRAMMAR_MAX_RULES = 1 << 13,
    GRAMMAR_MAX_NESTING = 64,
    GRAMMAR_MAX_REPEAT = 1 << 20,
    GRAMMAR_MAX_STATES = 1 << 18,
};

/* `name` begins the errors: a file or a flag. ERR_FORMAT names the line, the column and what was expected, or
 * the rule that begins with itself; ERR_UNSUPPORTED what is over a bound; ERR_MEMORY. */
int grammar_compile(struct grammar **out, const char *text, size_t len, const char *name,
                    struct moeflux_err *e);
void grammar_free(struct grammar *g);

#endif
