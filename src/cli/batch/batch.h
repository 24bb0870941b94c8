/* batch.h - --batch: many requests, one line of JSON each, answered with one loaded model. */
#ifndef MOEFLUX_CLI_BATCH_BATCH_H
#define MOEFLUX_CLI_BATCH_BATCH_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* A result is written as soon as it is computed; with --ordered, when those of the lines before it are. Up to
 * 256 requests are held at a time, those with a common prefix are computed one after the other, and the
 * prefix once. ERR_FORMAT at the end when a request failed (its result says why); ERR_INTERRUPTED after
 * Ctrl-C, SIGTERM or SIGHUP, when the request at hand is done. */
int batch_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
