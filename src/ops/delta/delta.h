/* delta.h - the gated delta net between its projections. Per token and value head j (its key head:
 * delta_key_head):
 *   y = silu(causal conv over conv_kernel taps) of the q, k, v channels
 *   q = y_q / |y_q| / sqrt(k_dim), k = y_k / |y_k| (eps 1e-6 inside the root, on the sum of squares)
 *   decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b)
 *   S = decay S;  m = S k;  S = S + beta (y_v - m) k^T;  o = S q
 *   dst_j = rms(o) * norm * silu(z_j), or * sigmoid(z_j)
 * Kimi Delta Attention (arXiv 2510.26692) has a decay for each key channel: a and dt_bias have k_dim numbers
 * a head, and column c of S is multiplied by decay[c]. A lower bound l < 0 of its logarithm changes it to
 *   decay = exp(l sigmoid(exp(a_log) (a + dt_bias)))
 * State S: f32 [n_v][v_dim][k_dim]. Window: f32 [conv_kernel - 1][channels], oldest first, the values before
 * the convolution, channels = 2 n_k k_dim + n_v v_dim. The window is read from one buffer and written to
 * another. The state may be, too; then the old one stays as it was.
 * The recurrence goes token by token or in blocks of four tokens, solved for their updates u. This is the
 * chunked form of Gated DeltaNet (arXiv 2412.06464) with blocks so short that the state stays in
 * registers. */
#ifndef MOEFLUX_OPS_DELTA_DELTA_H
#define MOEFLUX_OPS_DELTA_DELTA_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

/* How a Vulkan device computes the recurrence. */
enum delta_form {
    DELTA_FASTER, /* chosen by the device and the number of tokens */
    DELTA_SINGLE, /* one dispatch */
    DELTA_TOKENS, /* several dispatches if possible, token by token */
    DELTA_BLOCKS, /* several dispatches if possible, in blocks of four tokens */
    /* one dispatch on any device, with several workgroups a head if the call has `squares` */
    DELTA_SHARED,
};

/* How delta_prefill_walk divides its work: `parts` lanes, a power of two from 8 to the subgroup's size, share
 * `each` rows of the state. `stage` tokens, a multiple of 4, lie in shared memory. */
struct delta_tile {
    uint32_t workgroup, parts, each, stage;
};

struct delta_shape {
    uint32_t n_k, n_v, k_dim, v_dim, conv_kernel;
    float eps;
    enum delta_form form;
    struct delta_tile tile; /* zeros: chosen by the device and the dims */
    bool sigmoid;           /* the output gate is sigmoid(z) */
    bool tiled;             /* order of the value heads */
    bool by_channel;        /* a decay for each key channel */
    float lower;            /* by_channel: lower bound of the decay's logarithm; 0: none */
};

/* Returns the decays of a token. */
static inline uint32_t delta_decays(const struct delta_shape *s)
{
    return s->n_v * (s->by_channel ? s->k_dim : 1);
}

/* Returns the key head of a value head: those of key head k are contiguous, or k, k + n_k, k + 2 n_k, ... */
static inline uint32_t delta_key_head(const struct delta_shape *s, uint32_t head)
{
    return s->tiled ? head % s->n_k : head / (s->n_v / s->n_k);
}

/* Output forms of the last kernel for many tokens; kernels/delta/prefill_out.comp uses these numbers. */
enum { DELTA_OUT_F16, DELTA_OUT_BLOCKED, DELTA_OUT_F32, DELTA_OUT_FORMS };

struct delta {
    struct delta_shape shape;
    /* Vulkan: one dispatch, or several for many tokens: what does not depend on the state, for all tokens at
     * once; the recurrence; the norms. */
    struct {
        struct kernel single;
        struct kernel shared;                     /* HEAD_SQUARES workgroups a head */
        struct kernel single_each, shared_each;   /* the same for several sequences */
        struct kernel single_chain, shared_chain; /* and for several positions of one */
        bool has_shared;
        /* order of dispatches: prep; scan, or blocks and walk; out */
        struct kernel prep, scan, blocks, walk, out[DELTA_OUT_FORMS];
        uint32_t scan_from, walk_from; /* fewest tokens for scan, for walk; UINT32_MAX: never used */
        uint32_t scan_rows, walk_rows; /* rows of a workgroup */
    } gpu;
};

struct delta_call {
    /* f32 [n][stride]: channels; from z_at, b_at and a_at on z [n_v * v_dim], b [n_v], a [delta_decays] */
    uint64_t proj;
    uint64_t conv, a_log, dt_bias, norm; /* f32 [channels][conv_kernel], [n_v], [delta_decays], [v_dim] */
    uint64_t window_in, window_out;
    uint64_t state, state_out; /* before and after; equal addresses: in place */
    uint64_t dst;              /* f32 [n][n_v * v_dim] */
    /* f32 [n_v][HEAD_SQUARES], 16-byte aligned: sums of squares of HEAD_SQUARES equal parts of o. dst then
     * lacks the factor of rms(), 1 / sqrt(mean of o's squares + eps). Only if delta_gives_squares. 0: dst is
     * complete */
    uint64_t squares;
    uint64_t scratch; /* f32 [delta_scratch], 16-byte aligned; 0: none, which is slower */
    /* f16 [n][n_v * v_dim]: receives the results, rounded as in cast_f16.h; dst is scratch then. Only if
     * delta_gives_f16. 0: dst receives them */
    uint64_t f16;
    bool is_blocked; /* layout of f16 (cast_f16_call); needs n_v * v_dim % 128 == 0 */
    uint32_t n, stride, z_at, b_at, a_at;
};

/* Opens the operation. ERR_UNSUPPORTED: n_v is not a multiple of n_k, conv_kernel < 2, or a head does not fit
 * the device's shared memory. */
int delta_open(struct delta *op, struct exec *x, const struct delta_shape *shape, struct moeflux_err *e);
/* Returns the number of floats of scratch for up to n tokens. */
uint64_t delta_scratch(const struct delta_shape *s, const struct exec_caps *caps, uint32_t n);
/* Returns whether calls of n tokens may leave the norm to the product that follows. */
bool delta_gives_squares(const struct delta *op, const struct exec *x, uint32_t n);
/* Returns whether calls of n tokens with scratch may ask for float16. */
bool delta_gives_f16(const struct delta *op, const struct exec *x, uint32_t n);
void delta_run(const struct delta *op, struct exec *x, const struct delta_call *call);
/* Runs n <= DELTA_CONCURRENT calls of one token each, from different sequences; all have `squares` or
 * none. They may run concurrently. */
enum { DELTA_CONCURRENT = 128 };
void delta_run_concurrent(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n);
/* Runs n <= DELTA_CONCURRENT calls of one token each, the consecutive tokens of one sequence: the rows of
 * proj, dst and squares are contiguous, and each call begins with the window and the state that the one
 * before it leaves. All have `squares` or none. The results are those of the calls one after the other,
 * bit by bit. */
void delta_run_chain(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n);

/* The implementations. */
int delta_vulkan_open(struct delta *op, struct exec *x, struct moeflux_err *e);
void delta_vulkan(const void *self, const void *what, struct exec *x);
void delta_vulkan_concurrent(const struct delta *op, struct exec *x, const struct delta_call *calls,
                             uint32_t n);
void delta_vulkan_chain(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n);
/* Copies the state to state_out, where the host implementations update it. */
void delta_host_state(const struct delta_shape *s, const struct delta_call *call);
uint64_t delta_cpu_scratch(const struct delta_shape *s, uint32_t n);
op_host_fn delta_cpu, delta_ref;

#endif
