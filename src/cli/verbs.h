/* verbs.h - the short verbs: each does one thing and prints it. */
#ifndef MOEFLUX_CLI_VERBS_H
#define MOEFLUX_CLI_VERBS_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* --help: the help text of the verb that is given. */
int verbs_help(const struct options *o, struct output *out, struct moeflux_err *e);

/* `moeflux convert SRC DST`: the summary goes to stderr. */
int verbs_convert(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* --selftest: one row a case as it comes. ERR_DEVICE when a case fails, with the count. */
int verbs_selftest(const struct options *o, struct output *out, struct moeflux_err *e);

#endif
