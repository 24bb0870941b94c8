/* inspect.h - `moeflux inspect DIR`: what a model is and what it needs, from its files alone. */
#ifndef MOEFLUX_CLI_REPORT_INSPECT_H
#define MOEFLUX_CLI_REPORT_INSPECT_H

struct moeflux_err;
struct options;
struct output;

int inspect_run(const struct options *o, struct output *out, struct moeflux_err *e);

#endif
