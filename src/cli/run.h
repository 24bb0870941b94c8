/* run.h - one prompt, one answer. */
#ifndef MOEFLUX_CLI_RUN_H
#define MOEFLUX_CLI_RUN_H

struct answer;
struct moeflux_err;
struct options;
struct output;
struct generator;
struct str;
struct term;
struct token_list;

/* Reads the prompt, opens the model, answers on `out`. ERR_INTERRUPTED after Ctrl-C: what there was is
 * printed. */
int run_once(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* Says once on stderr that a prompt held bytes that are not UTF-8 (nothing for 0). */
void run_tell_replaced(const struct options *o, unsigned long n_replaced);

/* Says on stderr that an answer has no text, only thinking, and why; nothing of any other. */
void run_tell_thinking(const struct answer *a);

#endif
