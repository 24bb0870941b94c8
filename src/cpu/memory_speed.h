/* memory_speed.h - how fast all of this machine's cores read memory, the upper limit of any computation over
 * weights in memory. */
#ifndef MOEFLUX_CPU_MEMORY_SPEED_H
#define MOEFLUX_CPU_MEMORY_SPEED_H

#include <stdint.h>

struct moeflux_err;

/* Measures the bytes a second of a plain read by n_threads, the fastest of several passes. Takes at most
 * `bytes` of memory (enough to exceed the caches), and some tenths of a second. ERR_MEMORY. */
int memory_speed_measure(uint32_t n_threads, uint64_t bytes, double *bytes_s, struct moeflux_err *e);

#endif
