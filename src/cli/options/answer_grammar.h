/* answer_grammar.h - the grammar that an answer must fit: --json-schema, --json-object, --grammar. */
#ifndef MOEFLUX_CLI_OPTIONS_ANSWER_GRAMMAR_H
#define MOEFLUX_CLI_OPTIONS_ANSWER_GRAMMAR_H

struct moeflux_err;
struct options;
struct str;

/* Appends the grammar that the flags ask for, checked; nothing without such a flag. ERR_USAGE names the flag
 * or the file and what is wrong with it; ERR_MEMORY. */
int answer_grammar_read(const struct options *o, struct str *out, struct moeflux_err *e);

#endif
