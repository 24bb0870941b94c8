/* host_memory.h - finds how much host memory this process can still use. */
#ifndef MOEFLUX_ENGINE_PLAN_HOST_MEMORY_H
#define MOEFLUX_ENGINE_PLAN_HOST_MEMORY_H

#include <stdint.h>

/* Returns the bytes that can be used without swapping: the smaller of MemAvailable and what the memory
 * cgroups of this process and their parents leave (versions 2 and 1). Page cache counts as free. root: prefix
 * of /proc and /sys; "", or a test's directory. UINT64_MAX: not known. */
uint64_t host_memory_free(const char *root);

#endif
