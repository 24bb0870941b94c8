/* quads.h - where a Vulkan device's lanes have the numbers of matrices. Vulkan leaves that open; kernels that
 * exchange them with other numbers in registers are for devices where kernels/matrices/probe.comp finds them
 * "in quads". */
#ifndef MOEFLUX_EXEC_QUADS_H
#define MOEFLUX_EXEC_QUADS_H

struct exec;
struct moeflux_err;

/* 1, 0 or an error; 0 where the device has no matrices or float16 is forbidden. The first call runs one small
 * kernel. */
int quads_probe(struct exec *x, struct moeflux_err *e);

#endif
