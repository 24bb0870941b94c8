/* cpu.h - Mamba-2's state space on the CPU: first what does not depend on the state, for all tokens at once;
 * then each head's state, token by token. Private to ssd. */
#ifndef MOEFLUX_OPS_SSD_CPU_H
#define MOEFLUX_OPS_SSD_CPU_H

#include <stdint.h>

/* Some channels of some tokens: convolution and silu. */
struct ssd_unit {
    /* token t's inputs are rows[t .. t + taps - 1], from the first channel on */
    const float *const *rows;
    const float *conv; /* [dim][taps] */
    const float *bias; /* [dim]; NULL: none */
    float *turned;     /* scratch: [taps][dim] */
    uint32_t dim, taps, n;
    float *out; /* [n] rows of dim */
    uint64_t out_stride;
};

/* dt = softplus(dt + bias) in low .. high; decay = exp(-exp(a_log) dt) */
struct ssd_steps {
    const float *dt, *bias, *a_log; /* [n] */
    uint32_t n;
    float low, high;
    float *out_dt, *decay;
};

/* A head over n tokens. */
struct ssd_head {
    const float *x, *b, *c, *z; /* the first token's */
    const float *dt, *decay;    /* the first token's */
    uint64_t stride, z_stride;  /* distance between tokens: of x, b, c, dt, decay; of z */
    float *state;               /* [head_dim][state_dim] */
    float *out;
    uint64_t out_stride;
    uint32_t n, head_dim, state_dim;
    float d;
};

#endif
