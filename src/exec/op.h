/* op.h - the interface between operations and backends: an operation is a call and one implementation for
 * each backend.
 *
 * Every operation X has a struct X (made ready by X_open) and a struct X_call that says what to compute in
 * shapes and addresses, not how. X_run passes both to exec_op, which calls the backend's implementation:
 *   vulkan     records dispatches (exec/kernel.h)
 *   cpu        runs native SIMD code, whose work a team of threads shares in blocks
 *   reference  runs plain loops with double sums: the oracle that the others are tested against */
#ifndef MOEFLUX_EXEC_OP_H
#define MOEFLUX_EXEC_OP_H

#include <stdint.h>

struct exec;
struct host;

/* Computes a call at once. Returns 0, or an error that host_error made. */
typedef int op_host_fn(const void *op, const void *call, struct host *h);

struct op {
    const char *name; /* label in exec_stats.times of host backends */
    void (*vulkan)(const void *op, const void *call, struct exec *x);
    op_host_fn *cpu, *reference;
};

/* Runs a call: records it, or computes it at once. Errors stick until the batch ends. */
void exec_op(struct exec *x, const struct op *what, const void *op, const void *call);

#endif
