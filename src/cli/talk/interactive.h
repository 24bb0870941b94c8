/* interactive.h - a conversation in a terminal: turns with the sequence kept, commands, Ctrl-C. */
#ifndef MOEFLUX_CLI_TALK_INTERACTIVE_H
#define MOEFLUX_CLI_TALK_INTERACTIVE_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Runs until /quit or Ctrl-D. */
int interactive_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* The same conversation in a script: --resume NAME with a prompt is one question more. ERR_INTERRUPTED after
 * Ctrl-C; what was said is printed and kept. */
int interactive_continue(const struct options *o, const struct term *t, struct output *out,
                         struct moeflux_err *e);

#endif
