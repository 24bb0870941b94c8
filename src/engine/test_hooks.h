/* test_hooks.h - settings of a device that only tests change.
 *
 * Each function does what its namesake of moeflux.h or lab.h does, with hooks; NULL: none. */
#ifndef MOEFLUX_ENGINE_TEST_HOOKS_H
#define MOEFLUX_ENGINE_TEST_HOOKS_H

#include <stdbool.h>

#include "moeflux.h"

struct exec_shelf;
struct lab_speeds;

struct test_hooks {
    bool staged;               /* device memory is treated as not mapped, even if it is host memory */
    uint64_t host_chunk_bytes; /* step by which the experts' host memory grows; 0: the default */
    const char *system_root;   /* prefix of /sys when memory nodes are looked up; NULL: none */
    bool batches_as_prompts;   /* many sequences take the kernels of prompts even without matrix units */
    struct exec_shelf *shelf;  /* keeps Vulkan devices open between two uses; NULL: each use opens one */
};

int test_hooks_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
                    struct moeflux_err *e);
int test_hooks_make_plan(const struct moeflux_options *o, const struct test_hooks *h,
                         struct moeflux_plan *out, struct moeflux_err *e);
int test_hooks_measure(const struct moeflux_options *o, const struct test_hooks *h, struct lab_speeds *out,
                       struct moeflux_err *e);

#endif
