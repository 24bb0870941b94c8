/* explain.h - adds to a failure's message which option it is about and where that option was set. */
#ifndef MOEFLUX_CLI_OPTIONS_EXPLAIN_H
#define MOEFLUX_CLI_OPTIONS_EXPLAIN_H

struct moeflux_err;
struct options;

/* Puts flags in place of fields (exit.h). A message that begins with the path of an option gets its flag. Of
 * the flags that the message names, adds those that the environment or the configuration file has set, with
 * the place. A message that names the model without -m counts as one about it. */
void explain_failure(const struct options *o, struct moeflux_err *e);

#endif
