/* host_memory.h - how much host memory this process can still take. */
#ifndef MOEFLUX_ENGINE_HOST_MEMORY_H
#define MOEFLUX_ENGINE_HOST_MEMORY_H

#include <stdint.h>

/* Bytes that can be used without swapping: the smaller of MemAvailable and what the memory cgroups of this process and
 * their parents leave (version 2 and version 1). Page cache counts as free: it goes when memory is wanted.
 * `root` stands before /proc and /sys: "", or a test's directory. UINT64_MAX when nothing is known. */
uint64_t host_memory_free(const char *root);

#endif
