/* answer_grammar.h - the grammar that an answer must fit: --json-schema, --json-object, --grammar. */
#ifndef MOEFLUX_CLI_OPTIONS_ANSWER_GRAMMAR_H
#define MOEFLUX_CLI_OPTIONS_ANSWER_GRAMMAR_H

struct moeflux_err;
struct options;

/* Makes the rules of the grammar that the flags ask for, checked; *out is NULL without such a flag and
 * after a failure, else the caller frees it. ERR_USAGE names the flag or the file and what is wrong with
 * it; ERR_MEMORY. */
int answer_grammar_read(const struct options *o, char **out, struct moeflux_err *e);

#endif
