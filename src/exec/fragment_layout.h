/* fragment_layout.h - finds the fragment layout of a Vulkan device: which lane holds which numbers of a
 * matrix in registers.
 *
 * Vulkan leaves the layout open. Kernels that combine matrix fragments with other registers know one layout
 * (kernels/lib/fragment_layout.glsl) and run only on devices where kernels/matrices/probe.comp finds it. */
#ifndef MOEFLUX_EXEC_FRAGMENT_LAYOUT_H
#define MOEFLUX_EXEC_FRAGMENT_LAYOUT_H

struct exec;
struct moeflux_err;

/* Returns 1 if the device has that layout, 0 if not (or no matrix units, or float16 is forbidden), or an
 * error. The first call runs one small kernel. */
int fragment_layout_probe(struct exec *x, struct moeflux_err *e);

#endif
