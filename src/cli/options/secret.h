/* secret.h - the API keys of the command line and of the environment, which nothing prints. */
#ifndef MOEFLUX_CLI_OPTIONS_SECRET_H
#define MOEFLUX_CLI_OPTIONS_SECRET_H

struct moeflux_err;
struct options;

/* Moves --api-key out of the command line, where `ps` shows it to everybody, into o->secret_key.
 * Without --api-key and --api-key-file, MOEFLUX_API_KEY is taken. ERR_USAGE: it is set and empty, so
 * that a server would be open that should not be; ERR_MEMORY. */
int secret_take(struct options *o, struct moeflux_err *e);

#endif
