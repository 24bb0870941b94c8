/* usage.h - the help texts. */
#ifndef MOEFLUX_CLI_OPTIONS_USAGE_H
#define MOEFLUX_CLI_OPTIONS_USAGE_H

struct options;
struct str;

/* Appends the help text of the command that was parsed. */
void usage_add(const struct options *o, struct str *out);

#endif
