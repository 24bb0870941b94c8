/* little_memory.h - the memory of a run whose experts do not fit, on either side of a split. */
#ifndef MOEFLUX_TESTS_LITTLE_MEMORY_H
#define MOEFLUX_TESTS_LITTLE_MEMORY_H

#include <stdbool.h>

#include "moeflux.h"

/* Sets memory_bytes, and gpu_memory_bytes where the device has memory of its own, so that the experts of the
 * device and those of the CPU get slots for little more than a token of one layer. staged: as in test_hooks.
 * Asserts. */
void little_memory(struct moeflux_options *o, bool staged);

#endif
