/* device.h - `moeflux --list-devices`. */
#ifndef MOEFLUX_CLI_REPORT_DEVICE_H
#define MOEFLUX_CLI_REPORT_DEVICE_H

#include <stdint.h>

struct moeflux_device;
struct moeflux_err;
struct options;
struct output;

/* Prints the devices as a table, CSV or JSON. */
int device_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

/* Prints a line for each NUMA node of the machine with the devices attached to it, if the node of two or more
 * devices is known. Data between devices of one node stays in that node's memory. */
void device_report_nodes(const struct moeflux_device *all, uint32_t n, struct output *out);

#endif
