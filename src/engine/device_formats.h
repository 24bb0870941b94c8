/* device_formats.h - whether a device computes with a model's numbers as they are stored. */
#ifndef MOEFLUX_ENGINE_DEVICE_FORMATS_H
#define MOEFLUX_ENGINE_DEVICE_FORMATS_H

struct exec_caps;
struct model_dir;
struct moeflux_err;

/* The host backends compute with all formats, Vulkan's kernels with the first of kernels/args.h's table, up to F32.
 * ERR_UNSUPPORTED names the first matrix that is stored otherwise. */
int device_formats_check(const struct model_dir *m, const struct exec_caps *caps, struct moeflux_err *e);

#endif
