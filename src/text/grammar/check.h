/* check.h - checks a compiled grammar's states. A part of the grammar compiler. */
#ifndef MOEFLUX_TEXT_GRAMMAR_CHECK_H
#define MOEFLUX_TEXT_GRAMMAR_CHECK_H

#include <stdbool.h>

struct moeflux_err;
struct grammar;
struct grammar_tree;

/* Fills `live` of all states. nullable: [rules] which rules may be empty. name: begins the errors.
 * ERR_FORMAT: a rule begins with itself (it is named), or no text fits the grammar; ERR_MEMORY. */
int grammar_check(struct grammar *g, const struct grammar_tree *t, const bool *nullable, const char *name,
                  struct moeflux_err *e);

#endif
