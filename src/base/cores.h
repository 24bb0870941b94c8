/* cores.h - how many processors this process may use. */
#ifndef MOEFLUX_BASE_CORES_H
#define MOEFLUX_BASE_CORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* The processors of the affinity mask. At least 1. */
uint32_t cores_allowed(void);

/* Their numbers, ascending: *n of them, at least 1. Freed with free(). NULL with `e` filled: no memory. */
uint32_t *cores_list(uint32_t *n, struct moeflux_err *e);

/* Walks a list of the system's, as "0-3,8\n": the next range of numbers, its ends included. False: there is
 * none. */
bool cores_next_range(const char **list, uint32_t *first, uint32_t *last);

/* How many threads a computation gains from: the processors of the affinity mask, those that share a core
 * counted once, and no more than the CPU quota of the process's cgroups and their parents (version 2 and
 * version 1), rounded up. `root` stands before /proc and /sys: "", or a test's directory. At least 1. */
uint32_t cores_useful(const char *root);

/* What the processor is called, from /proc/cpuinfo; the machine's kind ("aarch64") where it has no name
 * there. */
void cores_name(const char *root, char *name, size_t cap);

#endif
