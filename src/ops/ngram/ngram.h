/* ngram.h - what n-gram rows add to the residual's streams. The rows of a token are already a key for each
 * stream and one value for all (products, linear.h). For each token t, with S streams s of H channels c:
 *   gate_s = sum_c rms(x_s) * x_norm_s * rms(k_s) * k_norm_s / sqrt(H),  k and v times `scale`
 *   g_s    = sigmoid(sign(gate_s) sqrt(max(|gate_s|, 1e-6)))
 *   u_s    = rms(g_s v) * u_norm_s
 *   x_s   += g_s v + silu(sum_j conv_s[j] u_s[t - (taps - 1 - j) dilation])      depthwise, causal
 * Without taps (DeepSeek-V4.1) there is no convolution: x_s += g_s v, no u and no window.
 * rms(y) = y / sqrt(mean(y^2) + eps). Window: f32 [(taps - 1) dilation][S H], the last rows of u, oldest
 * first; zeros before the first token. It is read from one buffer and written to another. */
#ifndef MOEFLUX_OPS_NGRAM_NGRAM_H
#define MOEFLUX_OPS_NGRAM_NGRAM_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct ngram_shape {
    uint32_t n_streams, hidden; /* hidden is a multiple of 4 */
    uint32_t taps, dilation;    /* taps 0: no convolution */
    float scale;                /* factor of keys and values: a table's, if it has one scale; else 1 */
    float eps;
};

struct ngram {
    struct ngram_shape shape;
    struct { /* vulkan */
        struct kernel gate, conv;
        uint32_t workgroup;
    } gpu;
};

/* Addresses of rows of channels are aligned to 16 bytes. */
struct ngram_call {
    uint64_t proj;                   /* f32 [n][stride]: keys [S][H], then the value [H] */
    uint64_t x_norm, k_norm, u_norm; /* f32 [S][H]; u_norm, conv, window_in, window_out: with taps only */
    uint64_t conv;                   /* f32 [S H][taps] */
    uint64_t window_in, window_out;
    uint64_t x;         /* f32 [n][S][H], in place */
    uint64_t scratch;   /* ngram_scratch floats; a multiple of 16 */
    uint32_t n, stride; /* stride is a multiple of 4 */
};

/* ERR_UNSUPPORTED: hidden is not a multiple of 4, 1 tap, or no dilation. */
int ngram_open(struct ngram *op, struct exec *x, const struct ngram_shape *shape, struct moeflux_err *e);
/* Returns the number of floats of scratch for n tokens, n times that of one, and of the window. */
uint64_t ngram_scratch(const struct ngram_shape *s, uint32_t n);
uint64_t ngram_window(const struct ngram_shape *s);
/* Returns the rows of the window. */
static inline uint64_t ngram_held(const struct ngram_shape *s)
{
    return s->taps ? (uint64_t)(s->taps - 1) * s->dilation : 0;
}
void ngram_run(const struct ngram *op, struct exec *x, const struct ngram_call *call);

/* The implementations. */
int ngram_vulkan_open(struct ngram *op, struct exec *x, struct moeflux_err *e);
void ngram_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn ngram_cpu, ngram_ref;

#endif
