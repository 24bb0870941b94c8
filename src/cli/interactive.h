/* interactive.h - a conversation in a terminal: turns with the sequence kept, commands, Ctrl-C. */
#ifndef MOEFLUX_CLI_INTERACTIVE_H
#define MOEFLUX_CLI_INTERACTIVE_H

struct err;
struct options;
struct output;
struct term;

/* Runs until /quit or Ctrl-D. */
int interactive_run(const struct options *o, const struct term *t, struct output *out, struct err *e);

#endif
