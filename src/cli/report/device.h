/* device.h - `moeflux --list-devices`. */
#ifndef MOEFLUX_CLI_REPORT_DEVICE_H
#define MOEFLUX_CLI_REPORT_DEVICE_H

#include <stdint.h>

struct moeflux_device;
struct moeflux_err;
struct options;
struct output;

/* As a table, CSV or JSON. */
int device_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

/* A line for each memory node of the machine with the devices that are attached to it, if two or more devices
 * have a known one: what crosses between those of one node stays in its memory. */
void device_report_nodes(const struct moeflux_device *all, uint32_t n, struct output *out);

#endif
