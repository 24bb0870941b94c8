/* kernel.h - kernels on a Vulkan device: compiled at open, dispatched into the open batch. Only the Vulkan
 * implementations of operations use it. */
#ifndef MOEFLUX_EXEC_KERNEL_H
#define MOEFLUX_EXEC_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"

/* A kernel specialised for a device and a shape. */
struct kernel {
    int pipeline; /* private */
    uint32_t label;
    uint32_t args_bytes;
    /* its workgroups depend on each other: a dispatch is never cut, so a stop leaves it whole or undone */
    bool is_one_piece;
};

/* Returns whether `bytes` of scratch memory, which kernels of the operation `what` write, are at most the
 * `room` that the caller has; if not, fails the batch. */
bool exec_has_scratch(struct exec *x, const char *what, uint64_t bytes, uint64_t room);

/* Starts to compile kernels/<name>.comp on another thread (exec_await_kernels waits for it); to be called at
 * open. spec: its specialisation constants. */
int exec_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e);
/* Like exec_kernel, except that the first dispatch compiles: for kernels that decoding and many prompts do
 * not use. */
int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e);
/* Runs k over gx * gy * gz workgroups. More than the device allows in a dimension fail the batch. */
void exec_dispatch(struct exec *x, const struct kernel *k, const void *args, uint32_t gx, uint32_t gy,
                   uint32_t gz);
/* Runs k, of a variant with struct each_args, over gx * gy * gz workgroups that read n records of arguments.
 * Too little memory for the records (exec_reserve_records) fails the batch. */
void exec_dispatch_records(struct exec *x, const struct kernel *k, const void *records, uint32_t record_bytes,
                           uint32_t n, uint32_t gx, uint32_t gy, uint32_t gz);
/* Does so with the variant `each`, for n calls at once: record i is that of the gx * gy workgroups with
 * z = i. */
void exec_dispatch_each(struct exec *x, const struct kernel *k, const void *records, uint32_t record_bytes,
                        uint32_t n, uint32_t gx, uint32_t gy);

#endif
