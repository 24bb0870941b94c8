/* ssd.h - Mamba-2's state space (arXiv 2405.21060) between its projections. Per token and head h, whose group
 * is h / (n_heads / n_groups):
 *   [x, B, C] = silu(causal conv over conv_kernel taps + bias) of the channels
 *   dt = softplus(dt_h + dt_bias_h), bounded to low .. high
 *   S = exp(-exp(a_log_h) dt) S + dt x B^T;  o = S C + d_h x
 *   dst = o * silu(z)
 * and afterwards, another operation:
 *   dst = dst / rms(dst over the channels of a group) * norm
 * State S: f32 [n_heads][head_dim][state_dim]. Channels: x [n_heads][head_dim], B and C
 * [n_groups][state_dim]. Window: f32 [conv_kernel - 1][channels], oldest first, the values before the
 * convolution. The window is read from one buffer and written to another. The state may be, too; then the old
 * one stays as it was. */
#ifndef MOEFLUX_OPS_SSD_SSD_H
#define MOEFLUX_OPS_SSD_SSD_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct ssd_shape {
    uint32_t n_heads, n_groups, head_dim, state_dim, conv_kernel;
    float low, high; /* bounds of dt, 0 <= low < high; high may be infinite */
    float eps;
    uint32_t blocks; /* Vulkan: workgroups of a head, a divisor of head_dim; 0: chosen by the device */
};

/* Returns the channels of the convolution. */
static inline uint32_t ssd_channels(const struct ssd_shape *s)
{
    return s->n_heads * s->head_dim + 2 * s->n_groups * s->state_dim;
}

struct ssd {
    struct ssd_shape shape;
    struct { /* vulkan */
        struct kernel scan, scan_each, scan_chain, norm;
        uint32_t blocks;
    } gpu;
};

struct ssd_call {
    /* f32 [n][stride]: from z_at, x_at and dt_at on z [n_heads * head_dim], the channels, dt [n_heads] */
    uint64_t proj;
    /* f32 [channels][conv_kernel]; [channels], 0: none; [n_heads] each */
    uint64_t conv, conv_bias, a_log, dt_bias, d;
    uint64_t window_in, window_out;
    uint64_t state, state_out; /* before and after; equal addresses: in place */
    uint64_t dst;              /* f32 [n][n_heads * head_dim], before the norm */
    uint64_t scratch;          /* f32 [ssd_scratch]; 0: the CPU allocates it */
    uint32_t n, stride, z_at, x_at, dt_at;
};

struct ssd_norm_call {
    uint64_t x;    /* f32 [n][n_heads * head_dim], in place */
    uint64_t norm; /* f32 [n_heads * head_dim] */
    uint32_t n;
};

/* Opens the operation. ERR_UNSUPPORTED: n_heads is not a multiple of n_groups, conv_kernel < 2, the bounds of
 * dt are no range, or a head does not fit the device's shared memory. */
int ssd_open(struct ssd *op, struct exec *x, const struct ssd_shape *shape, struct moeflux_err *e);
/* Returns the number of floats of scratch for up to n tokens. */
uint64_t ssd_scratch(const struct ssd_shape *s, const struct exec_caps *caps, uint32_t n);
void ssd_run(const struct ssd *op, struct exec *x, const struct ssd_call *call);
/* Runs n <= SSD_CONCURRENT calls of one token each, from different sequences. They may run concurrently. */
enum { SSD_CONCURRENT = 128 };
void ssd_run_concurrent(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n);
/* Runs n <= SSD_CONCURRENT calls of one token each, the consecutive tokens of one sequence: the rows of proj
 * and dst are contiguous, and each call begins with the window and the state that the one before it leaves.
 * The results are those of the calls one after the other, bit by bit. */
void ssd_run_chain(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n);
void ssd_norm_run(const struct ssd *op, struct exec *x, const struct ssd_norm_call *call);

/* The implementations. */
int ssd_vulkan_open(struct ssd *op, struct exec *x, struct moeflux_err *e);
void ssd_vulkan(const void *self, const void *what, struct exec *x);
void ssd_norm_vulkan(const void *self, const void *what, struct exec *x);
void ssd_vulkan_concurrent(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n);
void ssd_vulkan_chain(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n);
/* Copies the state to state_out, where the host implementations update it. */
void ssd_host_state(const struct ssd_shape *s, const struct ssd_call *call);
uint64_t ssd_cpu_scratch(const struct ssd_shape *s, uint32_t n);
op_host_fn ssd_cpu, ssd_ref, ssd_norm_cpu, ssd_norm_ref;

#endif
