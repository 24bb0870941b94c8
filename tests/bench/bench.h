/* bench.h - what the measuring programs share. */
#ifndef MOEFLUX_TESTS_BENCH_H
#define MOEFLUX_TESTS_BENCH_H

#include <stdint.h>

#include "exec/exec.h"

struct moeflux_err;

/* A new buffer full of one word. */
int bench_fill(struct exec *x, struct exec_buffer *b, uint64_t bytes, uint32_t word, struct moeflux_err *e);

struct bench_time {
    struct exec_stats stats; /* each kernel's part of device_ns */
    uint64_t device_ns, processor_ns;
};
/* What is recorded between these two is measured; the device profiles (exec_open). */
void bench_begin(struct exec *x, struct bench_time *t);
int bench_end(struct exec *x, struct bench_time *t, struct moeflux_err *e);
/* Keeps the shorter of two: device_ns with its stats, processor_ns. best: zeros at first. */
void bench_keep(struct bench_time *best, const struct bench_time *t);
/* " kernel 1.2 ..." in microseconds. */
void bench_print_parts(const struct bench_time *t);

/* Sorts n > 0 numbers and returns their median. */
double bench_median(double *v, uint32_t n);

#endif
