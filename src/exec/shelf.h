/* shelf.h - Vulkan devices between two uses, with the kernels that were made for them. Whoever opens an exec
 * after an exec, as tests do, saves most of an opening. Used by one thread at a time. */
#ifndef MOEFLUX_EXEC_SHELF_H
#define MOEFLUX_EXEC_SHELF_H

#include <stdbool.h>

struct exec_shelf;
struct gpu;
struct moeflux_err;
struct pipeline_set;

struct exec_shelf *exec_shelf_new(struct moeflux_err *e);
/* Closes what is on it. All execs that were opened with it are closed. NULL is legal. */
void exec_shelf_free(struct exec_shelf *s);

/* Private to the Vulkan backend. Takes a device that was opened as `which`; false: there is none. */
bool exec_shelf_take(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p);
/* Gives it back; the shelf owns it, or closes it where it is lost or there is no place, and leaves *g and *p
 * empty. */
void exec_shelf_put(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p);

#endif
