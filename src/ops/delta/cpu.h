/* cpu.h - the gated delta net on the CPU: first what does not depend on the state, for all tokens at once;
 * then each value head's state, token by token. Private to delta. */
#ifndef MOEFLUX_OPS_DELTA_CPU_H
#define MOEFLUX_OPS_DELTA_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* A head's channels of some tokens: convolution and silu; queries and keys are then divided by their
 * length. */
struct delta_unit {
    /* token t's inputs are rows[t .. t + taps - 1], from the head's first channel on */
    const float *const *rows;
    const float *conv; /* [dim][taps] */
    float *turned;     /* scratch: [taps][dim] */
    uint32_t dim, taps, n;
    float divisor; /* y / |y| / divisor; 0: y */
    float *out;    /* [n] rows; zeros fill up the channels to a whole vector */
    uint64_t out_stride;
};

/* A value head over n tokens. */
struct delta_head {
    const float *q, *k, *v, *z;       /* the first token's; zeros fill up q and k to a whole vector */
    const float *decay, *beta, *norm; /* the first token's decay and beta; norm [v_dim] */
    /* decay has k_dim numbers, filled up with zeros to a whole vector, instead of one */
    bool by_channel;
    uint64_t stride, z_stride; /* distance between tokens: of q, k, v, decay, beta; of z */
    float *state;              /* [v_dim][k_dim] */
    float *out;
    uint64_t out_stride;
    uint32_t n, k_dim, v_dim;
    float eps;
    bool sigmoid; /* delta_shape's */
};

/* exp(-exp(a_log) softplus(a + bias)), sigmoid(b) */
struct delta_gate {
    const float *a, *b, *a_log, *bias; /* [n] */
    uint32_t n;
    float *decay, *beta;
};

/* A head's decays of some key channels (delta.h). */
struct delta_channels {
    const float *a, *bias; /* [n] */
    uint32_t n;
    float a_log, lower; /* lower 0: no bound */
    float *decay;       /* zeros fill up the channels to a whole vector */
};

#endif
