/* check.h - what must hold of a grammar's states before they run. A part of the grammar compiler. */
#ifndef MOEFLUX_TEXT_GRAMMAR_CHECK_H
#define MOEFLUX_TEXT_GRAMMAR_CHECK_H

#include <stdbool.h>

struct moeflux_err;
struct grammar;
struct grammar_tree;

/* Fills `live` of all states. nullable: which rules may be empty. ERR_FORMAT: a rule that begins with itself
 * (it is named), a grammar that no text fits; ERR_MEMORY. */
int grammar_check(struct grammar *g, const struct grammar_tree *t, const bool *nullable, const char *name,
                  struct moeflux_err *e);

#endif
