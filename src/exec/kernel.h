/* kernel.h - kernels on a Vulkan device: made ready at open, dispatched into the open batch. For the Vulkan
 * implementations of operations alone. */
#ifndef MOEFLUX_EXEC_KERNEL_H
#define MOEFLUX_EXEC_KERNEL_H

#include <stdint.h>

#include "exec/exec.h"

/* A kernel specialised for a device and a shape. */
struct kernel {
    int pipeline; /* private */
    uint32_t label;
    uint32_t args_bytes;
};

/* `name`: kernels/<name>.comp; spec: its specialisation constants. Another thread compiles: call it at open
 * (exec_await_kernels). */
int exec_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e);
/* exec_kernel, but the first dispatch compiles: for kernels that decoding does not use, and that many prompts
 * do not. */
int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e);
/* Runs k over gx * gy * gz workgroups. More of them than the device takes in a dimension fail the batch. */
void exec_dispatch(struct exec *x, const struct kernel *k, const void *args, uint32_t gx, uint32_t gy,
                   uint32_t gz);

#endif
