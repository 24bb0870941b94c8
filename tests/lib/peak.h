/* peak.h - the memory that a piece of work takes at most. */
#ifndef MOEFLUX_TESTS_PEAK_H
#define MOEFLUX_TESTS_PEAK_H

#include <stdint.h>

/* Runs work(ctx) in a child process and returns by how many bytes its memory grew at most. Asserts that the
 * work came to its end. What it changes is lost, so it has to check its results itself. */
uint64_t peak_of(void (*work)(void *ctx), void *ctx);

#endif
