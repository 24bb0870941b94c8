/* experts_few.h - how a Vulkan device runs kernels/lib/few.glsl: the routed experts of a chunk in which an expert has a few
 * tokens, whose vectors then fit into shared memory whole. In float32; the usual formats alone. */
#ifndef MOEFLUX_OPS_EXPERTS_FEW_H
#define MOEFLUX_OPS_EXPERTS_FEW_H

struct exec;
struct experts_shape;
struct experts_tiles;
struct moeflux_err;

/* Fills in the kernels and the sizes of `t`. tokens: 2 or 4; 0, and nothing is opened, where device or shape do not allow it. */
int experts_few_open(struct experts_tiles *t, struct exec *x, const struct experts_shape *s,
                     struct moeflux_err *e);

#endif
