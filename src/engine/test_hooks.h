/* test_hooks.h - what tests may change about a device, and users need not.
 *
 * Each function is its namesake of moeflux.h with hooks; NULL: none. */
#ifndef MOEFLUX_ENGINE_TEST_HOOKS_H
#define MOEFLUX_ENGINE_TEST_HOOKS_H

#include <stdbool.h>

#include "moeflux.h"

struct exec_shelf;

struct test_hooks {
    bool staged;               /* device memory counts as apart from host memory, even where it is the same */
    uint64_t host_chunk_bytes; /* experts' memory on the host grows by so many; 0: by the default */
    const char *system_root; /* stands before /sys where the CPU looks for memory nodes; NULL: the system's */
    struct exec_shelf *shelf; /* where Vulkan devices are between two uses; NULL: each is opened anew */
};

int test_hooks_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
                    struct moeflux_err *e);
int test_hooks_make_plan(const struct moeflux_options *o, const struct test_hooks *h,
                         struct moeflux_plan *out, struct moeflux_err *e);
int test_hooks_measure(const struct moeflux_options *o, const struct test_hooks *h,
                       struct moeflux_speeds *out, struct moeflux_err *e);

#endif
