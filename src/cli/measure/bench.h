/* bench.h - --bench: measures tokens per second of prefill and decode, median and spread over repetitions. */
#ifndef MOEFLUX_CLI_MEASURE_BENCH_H
#define MOEFLUX_CLI_MEASURE_BENCH_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Measures and prints a table, CSV or JSON. build: the program's version in it. */
int bench_run(const struct options *o, const char *build, const struct term *t, struct output *out,
              struct moeflux_err *e);

#endif
