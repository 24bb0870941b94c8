/* cpu.h - the gated delta net on the CPU: what does not depend on the state for all tokens at once, then each
 * value head's state from token to token. Private to delta. */
#ifndef MOEFLUX_OPS_DELTA_CPU_H
#define MOEFLUX_OPS_DELTA_CPU_H

#include <stdint.h>

/* A head's channels of some tokens: the convolution, silu, and for queries and keys the division by their
 * length. */
struct delta_unit {
    const float *const
        *rows;         /* token t's inputs are rows[t .. t + taps - 1], from the head's first channel on */
    const float *conv; /* [dim][taps] */
    float *turned;     /* room: [taps][dim] */
    uint32_t dim, taps, n;
    float divisor; /* y / |y| / divisor; 0: y */
    float *out;    /* [n] rows, zeros behind the channels up to a whole vector */
    uint64_t out_stride;
};

/* A value head over n tokens. */
struct delta_head {
    const float *q, *k, *v, *z;       /* of the first token; q and k with zeros up to a whole vector */
    const float *decay, *beta, *norm; /* likewise; norm [v_dim] */
    uint64_t stride, z_stride;        /* from token to token: q, k, v, decay, beta; z */
    float *state;                     /* [v_dim][k_dim] */
    float *out;
    uint64_t out_stride;
    uint32_t n, k_dim, v_dim;
    float eps;
};

/* exp(-exp(a_log) softplus(a + bias)), sigmoid(b) */
struct delta_gate {
    const float *a, *b, *a_log, *bias; /* [n] */
    uint32_t n;
    float *decay, *beta;
};

#endif
