/* streams.h - a residual of several streams with a low-rank mix. For each token, with S streams s of H
 * channels c:
 *   begin:  x_s = src
 *   norm:   x_s += 2 sigmoid(by_s / S) add                    only if there is `add`
 *           normed_s = x_s / sqrt(mean_c(x_s^2) + eps) * norm_s
 *   low:    low = silu(low / S)                               low: a product with normed (linear.h)
 *   mix:    dst = 1 / S sum_s sigmoid(up_s) * normed_s        up: a product with low (linear.h)
 * `dst` is the input of a sublayer, and the sublayer's output is the next norm's `add`. The logits `by` are a
 * product with `normed`, like `low`; one call of linear.h makes both. */
#ifndef MOEFLUX_OPS_STREAMS_STREAMS_H
#define MOEFLUX_OPS_STREAMS_STREAMS_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct streams_shape {
    uint32_t n_streams, hidden; /* hidden is a multiple of 4 */
    float eps;
};

struct streams {
    struct streams_shape shape;
    struct { /* vulkan */
        struct kernel begin, norm, low, mix;
        uint32_t workgroup;
    } gpu;
};

/* Addresses of rows of channels are aligned to 16 bytes. */
struct streams_begin_call {
    uint64_t src; /* f32 [n][hidden] */
    uint64_t x;   /* f32 [n][n_streams][hidden] */
    uint32_t n;
};

struct streams_norm_call {
    uint64_t x;    /* f32 [n][n_streams][hidden], in place */
    uint64_t add;  /* f32 [n][hidden]; 0: none */
    uint64_t by;   /* f32 [n][by_stride], n_streams logits at the beginning of a row; unused without `add` */
    uint64_t norm; /* f32 [n_streams][hidden] */
    uint64_t dst;  /* f32 [n][n_streams][hidden]; 0: only `add` is added */
    uint32_t n, by_stride;
};

struct streams_low_call {
    uint64_t low;             /* f32 [n][stride], the first `rank` numbers of each row, in place */
    uint32_t n, rank, stride; /* rank is the model's, not a multiple of anything */
};

struct streams_mix_call {
    uint64_t up, normed; /* f32 [n][n_streams][hidden] */
    uint64_t dst;        /* f32 [n][hidden] */
    uint32_t n;
};

/* ERR_UNSUPPORTED: no streams, or hidden is not a multiple of 4. */
int streams_open(struct streams *op, struct exec *x, const struct streams_shape *shape,
                 struct moeflux_err *e);
void streams_begin_run(const struct streams *op, struct exec *x, const struct streams_begin_call *call);
void streams_norm_run(const struct streams *op, struct exec *x, const struct streams_norm_call *call);
void streams_low_run(const struct streams *op, struct exec *x, const struct streams_low_call *call);
void streams_mix_run(const struct streams *op, struct exec *x, const struct streams_mix_call *call);

/* The implementations. */
int streams_vulkan_open(struct streams *op, struct exec *x, struct moeflux_err *e);
void streams_begin_vulkan(const void *self, const void *what, struct exec *x);
void streams_norm_vulkan(const void *self, const void *what, struct exec *x);
void streams_low_vulkan(const void *self, const void *what, struct exec *x);
void streams_mix_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn streams_begin_host, streams_norm_cpu, streams_norm_ref, streams_low_cpu, streams_low_ref,
    streams_mix_cpu, streams_mix_ref;

#endif
