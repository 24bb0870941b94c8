/* shelf.h - keeps open Vulkan devices and their compiled kernels between two execs. A program that opens one
 * exec after another, as tests do, saves most of the time of an opening. Not locked: one thread at a time. */
#ifndef MOEFLUX_EXEC_SHELF_H
#define MOEFLUX_EXEC_SHELF_H

#include <stdbool.h>

struct exec_shelf;
struct gpu;
struct moeflux_err;
struct pipeline_set;

struct exec_shelf *exec_shelf_new(struct moeflux_err *e);
/* Closes the devices on it. All execs that were opened with it must be closed. NULL is legal. */
void exec_shelf_free(struct exec_shelf *s);

/* Private to the Vulkan backend. Takes the device that was opened under the name `which`; false: none is
 * there. */
bool exec_shelf_take(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p);
/* Gives a device back and leaves *g and *p empty. The shelf owns it then, or closes it if it is lost or there
 * is no place. */
void exec_shelf_put(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p);

#endif
