/* batch.h - --batch: answers many requests, a line of JSON each, with one loaded model. */
#ifndef MOEFLUX_CLI_BATCH_BATCH_H
#define MOEFLUX_CLI_BATCH_BATCH_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Runs --batch. A result is written as soon as it is computed; with --ordered, after those of the lines
 * before it. Up to 256 requests are held at a time. Those with a common prefix are computed consecutively,
 * and the prefix is computed once. ERR_FORMAT at the end if a request failed (its result says why).
 * ERR_INTERRUPTED after Ctrl-C, SIGTERM or SIGHUP, when the current request is done. */
int batch_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
