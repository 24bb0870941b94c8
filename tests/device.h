/* device.h - the device that a test program runs on: MOEFLUX_DEVICE, else the default one. */
#ifndef MOEFLUX_TESTS_DEVICE_H
#define MOEFLUX_TESTS_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline const char *device_name(void)
{
    return getenv("MOEFLUX_DEVICE");
}

/* Whether a Vulkan device is asked for. On lavapipe a token takes a hundred times longer than on the native CPU, so what
 * no kernel takes part in runs on hosts alone; scripts/run-tests runs such a program a second time, as NAME-cpu. */
static inline bool device_is_vulkan(void)
{
    const char *name = device_name();
    return name && strcmp(name, "cpu") != 0 && strcmp(name, "reference") != 0;
}

#endif
