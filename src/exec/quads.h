/* quads.h - the fragment layout of a Vulkan device: which lane holds which numbers of a matrix in registers.
 * Vulkan leaves it open. Kernels that combine matrix fragments with other registers run only on devices with
 * the layout that kernels/matrices/probe.comp checks. */
#ifndef MOEFLUX_EXEC_QUADS_H
#define MOEFLUX_EXEC_QUADS_H

struct exec;
struct moeflux_err;

/* Returns 1 if the device has that layout, 0 if not (or no matrix units, or float16 is forbidden), or an
 * error. The first call runs one small kernel. */
int quads_probe(struct exec *x, struct moeflux_err *e);

#endif
