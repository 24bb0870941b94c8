/* device_list.h - converts exec's description of a device to moeflux_list_devices' one. */
#ifndef MOEFLUX_ENGINE_PLAN_DEVICE_LIST_H
#define MOEFLUX_ENGINE_PLAN_DEVICE_LIST_H

struct exec_device;
struct moeflux_device;

void device_list_convert(struct moeflux_device *to, const struct exec_device *from);

#endif
