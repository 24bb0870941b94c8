/* cores.h - how many processors this process may use. */
#ifndef MOEFLUX_BASE_CORES_H
#define MOEFLUX_BASE_CORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Returns the number of processors in the affinity mask; at least 1. */
uint32_t cores_allowed(void);

/* Returns their numbers, ascending: *n of them, at least 1. Freed with free(). NULL with `e` filled: no
 * memory. */
uint32_t *cores_list(uint32_t *n, struct moeflux_err *e);

/* Reads the next range of numbers (both ends included) of a list as Linux writes it, "0-3,8\n". False: there
 * is none. */
bool cores_next_range(const char **list, uint32_t *first, uint32_t *last);

/* Returns how many threads a computation gains from: the processors of the affinity mask, where those that
 * share a core count once. The CPU quotas of the process's cgroups and their parents (version 1 and 2),
 * rounded up, limit the number. root: prefix of /proc and /sys; "", or a test's directory. At least 1. */
uint32_t cores_useful(const char *root);

/* Writes the processor's name from /proc/cpuinfo; without one, the machine's architecture ("aarch64"). */
void cores_name(const char *root, char *name, size_t cap);

#endif
