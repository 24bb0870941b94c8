/* check.h - whether the options fit together, after all of them are known. */
#ifndef MOEFLUX_CLI_OPTIONS_CHECK_H
#define MOEFLUX_CLI_OPTIONS_CHECK_H

#include <stdbool.h>

struct moeflux_err;
struct options;

/* Checks the options of o->verb and completes them: the verb of a run, defaults of --bench, keys of the
 * server. ERR_USAGE names the flags at fault. */
int check_options(struct options *o, struct moeflux_err *e);

/* Checks that no flag asks for what only an answer to a prompt has. ERR_USAGE. */
int check_conversation(const struct options *o, struct moeflux_err *e);

/* Checks the flags that a model is opened with, in a run or in one setting of --compare. */
int check_engine(const struct options *o, struct moeflux_err *e);

/* Returns whether the CPU is among the devices; all: whether it is the only one. */
bool check_names_cpu(const char *device, bool all);
/* Returns whether --device, or its default, is the CPU alone. */
bool check_takes_cpu(const char *device);

#endif
