/* memory_speed.h - how fast this machine's cores read memory together: no computation over weights in memory
 * is faster. */
#ifndef MOEFLUX_CPU_MEMORY_SPEED_H
#define MOEFLUX_CPU_MEMORY_SPEED_H

#include <stdint.h>

struct moeflux_err;

/* Bytes a second of a plain read by n_threads, the fastest of several passes. Takes at most `bytes` of memory
 * (enough to be larger than the caches), and some tenths of a second. ERR_MEMORY. */
int memory_speed_measure(uint32_t n_threads, uint64_t bytes, double *bytes_s, struct moeflux_err *e);

#endif
