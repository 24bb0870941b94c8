/* completion.h - `moeflux completion SHELL`: prints a script that completes command lines in bash, zsh or
 * fish. It is made from the tables of flags (options.h). */
#ifndef MOEFLUX_CLI_OPTIONS_COMPLETION_H
#define MOEFLUX_CLI_OPTIONS_COMPLETION_H

struct moeflux_err;
struct options;
struct output;

/* ERR_USAGE: another shell. */
int completion_run(const struct options *o, struct output *out, struct moeflux_err *e);

#endif
