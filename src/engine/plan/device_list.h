/* device_list.h - a Vulkan device as moeflux_list_devices shows it. */
#ifndef MOEFLUX_ENGINE_PLAN_DEVICE_LIST_H
#define MOEFLUX_ENGINE_PLAN_DEVICE_LIST_H

#include <stdint.h>

struct gpu_info;
struct moeflux_device;

/* The device that stands at `idx` of gpu_list. root: before /sys, "" or a test's directory. */
void device_list_describe(struct moeflux_device *d, const struct gpu_info *from, uint32_t idx,
                          const char *root);

#endif
