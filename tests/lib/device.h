/* device.h - the device that a test program runs on: MOEFLUX_DEVICE, else the default one. */
#ifndef MOEFLUX_TESTS_DEVICE_H
#define MOEFLUX_TESTS_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "moeflux.h"

struct exec_shelf;

static inline const char *device_name(void)
{
    return getenv("MOEFLUX_DEVICE");
}

/* Whether a Vulkan device is asked for. On lavapipe a token takes a hundred times longer than on the native
 * CPU, so what no kernel takes part in runs on hosts alone; scripts/run-tests runs such a program a second
 * time, as NAME-cpu. */
static inline bool device_is_vulkan(void)
{
    const char *name = device_name();
    return name && strcmp(name, "cpu") != 0 && strcmp(name, "reference") != 0;
}

/* Whether a part of a test program runs: "first" or "rest". MOEFLUX_PART names one; unset: all do
 * (scripts/run-tests). */
static inline bool device_runs_part(const char *part)
{
    const char *wanted = getenv("MOEFLUX_PART");
    return !wanted || strcmp(wanted, part) == 0;
}

/* Whether it is lavapipe, whose compiler takes most of the time: a model has a hundred kernels of its own.
 * Programs run there what shows the way of each kernel through a model; test_ops has the kernels' shapes,
 * hosts have all models. */
bool device_is_software(void);
/* Runs the tests for all devices, then those for its kind. Three arrays; how many failed. */
#define device_run_tests(everywhere, on_vulkan, on_hosts)                                                    \
    (cmocka_run_group_tests(everywhere, NULL, NULL) + (device_is_vulkan()                                    \
                                                           ? cmocka_run_group_tests(on_vulkan, NULL, NULL)   \
                                                           : cmocka_run_group_tests(on_hosts, NULL, NULL)))

/* Vulkan devices and their kernels between two models of this program, until it ends: lavapipe takes a second
 * for each set of kernels. */
struct exec_shelf *device_shelf(void);
/* moeflux_model_open and moeflux_make_plan with it; staged: see engine/test_hooks.h. */
int device_open_staged(struct moeflux_model **out, const struct moeflux_options *o, bool staged,
                       struct moeflux_err *e);
/* Opens it as lab_open_traced does. */
int device_open_traced(struct moeflux_model **out, const struct moeflux_options *o, bool staged,
                       const char *trace, struct moeflux_err *e);
int device_plan_staged(const struct moeflux_options *o, bool staged, struct moeflux_plan *out,
                       struct moeflux_err *e);
int device_open_model(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e);
int device_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e);

#endif
