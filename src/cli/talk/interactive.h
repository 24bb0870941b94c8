/* interactive.h - a conversation in a terminal, with commands; the sequence is kept between turns. */
#ifndef MOEFLUX_CLI_TALK_INTERACTIVE_H
#define MOEFLUX_CLI_TALK_INTERACTIVE_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Talks until /quit or Ctrl-D. After a failed question or command the conversation goes on. */
int interactive_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* Asks one question more in a saved conversation: --resume NAME with a prompt, as in a script.
 * ERR_INTERRUPTED after Ctrl-C; the answer so far is printed and saved. */
int interactive_continue(const struct options *o, const struct term *t, struct output *out,
                         struct moeflux_err *e);

#endif
