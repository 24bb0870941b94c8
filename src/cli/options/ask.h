/* ask.h - the request that the flags describe. */
#ifndef MOEFLUX_CLI_OPTIONS_ASK_H
#define MOEFLUX_CLI_OPTIONS_ASK_H

struct moeflux_err;
struct moeflux_request;
struct options;

/* Creates a request with the fields that flags set, without a prompt. The caller owns *out; NULL after a
 * failure. ERR_MEMORY. */
int ask_new(struct moeflux_request **out, const struct options *o, struct moeflux_err *e);
/* Does the same with the system text, for requests of others, which override the fields. */
int ask_defaults(struct moeflux_request **out, const struct options *o, struct moeflux_err *e);
/* Sets a field to a whole number. ERR_MEMORY. */
int ask_whole(struct moeflux_request *r, const char *field, long long value, struct moeflux_err *e);

#endif
