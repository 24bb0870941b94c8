/* run.h - answers one prompt. */
#ifndef MOEFLUX_CLI_RUN_H
#define MOEFLUX_CLI_RUN_H

#include <stdbool.h>

struct moeflux_answer_info;
struct moeflux_err;
struct options;
struct loaded;
struct output;
struct term;

/* Reads the prompt, opens the model and answers on `out`. ERR_INTERRUPTED after Ctrl-C: the answer so far is
 * printed. */
int run_once(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* Says on stderr that n_replaced places of the prompt were not UTF-8; 0: says nothing. */
void run_tell_replaced(const struct options *o, unsigned long n_replaced);

/* Says on stderr, if an answer has thinking but no text, why that is. talks: the user can type commands. */
void run_tell_thinking(const struct moeflux_answer_info *a, bool talks);

/* Says on stderr that a full context has cut the answer, if it has. */
void run_tell_context(const struct options *o, const struct loaded *l, const struct moeflux_answer_info *a);

#endif
