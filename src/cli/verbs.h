/* verbs.h - the short verbs: help, convert, selftest. */
#ifndef MOEFLUX_CLI_VERBS_H
#define MOEFLUX_CLI_VERBS_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* --help: prints the help text of the given verb. */
int verbs_help(const struct options *o, struct output *out, struct moeflux_err *e);

/* `moeflux convert`: prints a table of errors on `out`, the summary on stderr. */
int verbs_convert(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* --selftest: prints a row for each case as it ends. ERR_DEVICE: cases failed, with their number. */
int verbs_selftest(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
