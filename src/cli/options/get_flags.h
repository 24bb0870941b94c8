/* get_flags.h - the flags of `moeflux get`. */
#ifndef MOEFLUX_CLI_OPTIONS_GET_FLAGS_H
#define MOEFLUX_CLI_OPTIONS_GET_FLAGS_H

#include "cli/options/flags.h"

struct moeflux_err;
struct options;

enum { GET_FLAGS = 10 };
extern const struct flag get_flags[GET_FLAGS];

/* Checks the name and the revision. ERR_USAGE. */
int get_flags_check(const struct options *o, struct moeflux_err *e);

#endif
