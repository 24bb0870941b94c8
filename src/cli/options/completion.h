/* completion.h - `moeflux completion SHELL`: scripts that complete command lines in bash, zsh and fish, made
 * from the tables of flags (options.h). */
#ifndef MOEFLUX_CLI_OPTIONS_COMPLETION_H
#define MOEFLUX_CLI_OPTIONS_COMPLETION_H

struct moeflux_err;
struct options;
struct output;

int completion_run(const struct options *o, struct output *out, struct moeflux_err *e);

#endif
