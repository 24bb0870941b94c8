/* inspect.h - `moeflux inspect`: reports what a model is, what it needs, and how fast it can be here. */
#ifndef MOEFLUX_CLI_REPORT_INSPECT_H
#define MOEFLUX_CLI_REPORT_INSPECT_H

struct moeflux_err;
struct options;
struct output;

/* Prints the report as text or JSON. Fails for wrong options and unreadable files; a model that cannot run
 * here is no failure. With --trace or --usage it is use_report_run. */
int inspect_run(const struct options *o, struct output *out, struct moeflux_err *e);

#endif
