/* streams.h - a residual of several streams. For each token, with S streams s of H channels c:
 *   begin:  x_s = src
 * A mix makes one vector `dst` of the streams, the input of a sublayer, whose output is `add`.
 *
 * The low-rank mix (Qwen3.8):
 *   norm:   x_s += 2 sigmoid(by_s / S) add                    only if there is `add`
 *           normed_s = x_s / sqrt(mean_c(x_s^2) + eps) * norm_s
 *   low:    low = silu(low / S)                               low: a product with normed (linear.h)
 *   mix:    dst = 1 / S sum_s sigmoid(up_s) * normed_s        up: a product with low (linear.h)
 * The logits `by` are a product with `normed`, like `low`; one call of linear.h makes both.
 *
 * The doubly stochastic mix (manifold-constrained hyper-connections, arXiv 2512.24880; transformers'
 * DeepseekV4HyperConnection and Glm5NextTextHyperConnection):
 *   join:      x_k = post_k add + sum_j comb_jk x_j            only if there is `add`; all k at once
 *   collapse:  low = [a (S); p (S); m (S x S)]: a product with x (linear.h), times 1 / sqrt(mean(x^2) + eps)
 *              pre_s  = sigmoid(scale_0 a_s + base_s) + floor
 *              post_s = 2 sigmoid(scale_1 p_s + base_(S + s))
 *              comb   = softmax of each row j of scale_2 m_jk + base_(2 S + j S + k), + floor; then
 *                       `iterations` times its columns and, between them, its rows are divided by their sums
 *                       + floor (Sinkhorn and Knopp)
 *              dst = sum_s pre_s x_s
 *   The mean is over all S H numbers. Without a join after it (before the head) `low` is a alone; without
 *   `low` every stream weighs 1 / S.
 *   Lagged (DeepSeek-V4.1): the weights of dst are `pre` of the collapse before, in the first one 1 for the
 *   first stream and 0 for the others; its own `pre` is kept for the next one. Before the head there is no
 *   `low`.
 *
 * Attention over blocks of layers (Kimi-K3's attention residuals). The first stream is the sum of the current
 * block, the others are the sums of blocks before it:
 *   attend:  x_0 += add, or with `sets` x_0 = add                            only if there is `add`
 *            l_s = sum_c(x_s norm score) / sqrt(mean_c(x_s^2) + eps)         s = 0 .. n_kept
 *            dst = sum_s x_s exp(l_s) / sum_s exp(l_s)                       only if there is `dst`
 *            x_keep = x_0                                                    only if there is `keep`, too */
#ifndef MOEFLUX_OPS_STREAMS_STREAMS_H
#define MOEFLUX_OPS_STREAMS_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

/* Most streams of a doubly stochastic mix: one lane has its matrix. Most streams of attention over blocks:
 * their sums are in shared memory. */
enum { STREAMS_MOST_JOINED = 8, STREAMS_MOST_ATTENDED = 32 };

struct streams_shape {
    uint32_t n_streams, hidden; /* hidden is a multiple of 4 */
    uint32_t iterations;        /* Sinkhorn's, at least 1; 0: the mix is another one */
    float eps;
    float floor;  /* unused in other mixes than the doubly stochastic one */
    bool attends; /* attention over blocks, else without iterations low-rank */
};

struct streams {
    struct streams_shape shape;
    struct { /* vulkan */
        struct kernel begin;
        struct kernel norm, low, mix; /* low rank */
        struct kernel join, collapse; /* doubly stochastic */
        struct kernel attend;         /* attention over blocks */
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

struct streams_join_call {
    uint64_t x;       /* f32 [n][n_streams][hidden], in place */
    uint64_t add;     /* f32 [n][hidden]; 0: none */
    uint64_t by;      /* f32 [n][by_stride]: post, then comb; unused without `add` */
    uint64_t squares; /* f32 [n][streams_n_squares]: sums of squares, for a collapse; 0: not computed */
    uint32_t n, by_stride;
};

struct streams_collapse_call {
    uint64_t x;       /* f32 [n][n_streams][hidden] */
    uint64_t squares; /* those of a join of the same x */
    uint64_t low;     /* f32 [n][stride]: the product; post and comb are written over p and m. 0: none */
    uint64_t scale;   /* f32 [3]; [1] without a join */
    uint64_t base;    /* f32 [streams_n_low] */
    uint64_t dst;     /* f32 [n][hidden] */
    uint32_t n, stride;
    bool joins; /* a join follows */
    bool lagged;
    uint64_t weights; /* lagged: f32 [n][n_streams], pre of the collapse before; 0: it is the first */
    uint64_t kept;    /* lagged: f32 [n][n_streams], its own pre; with `low` only; not `weights` */
};

struct streams_attend_call {
    uint64_t x;         /* f32 [n][n_streams][hidden], in place */
    uint64_t add;       /* f32 [n][hidden]; 0: none */
    uint64_t norm;      /* f32 [hidden]; 0: all 1 */
    uint64_t score;     /* f32 [hidden] */
    uint64_t dst;       /* f32 [n][hidden]; 0: only `add` is added, and norm and score are unused */
    uint32_t n, n_kept; /* n_kept: streams that are mixed with the first one, below n_streams */
    uint32_t keep;      /* the stream that the first one is copied to, more than n_kept; 0: none */
    bool sets;          /* `add` replaces the first stream; there is `dst` */
};

/* ERR_UNSUPPORTED: no streams, hidden is not a multiple of 4, or more than STREAMS_MOST_JOINED or
 * STREAMS_MOST_ATTENDED. */
int streams_open(struct streams *op, struct exec *x, const struct streams_shape *shape,
                 struct moeflux_err *e);
/* Returns a token's sums of squares, and the numbers of its product `low`. */
uint32_t streams_n_squares(uint32_t hidden);
static inline uint32_t streams_n_low(uint32_t n_streams, bool joins)
{
    return joins ? n_streams * (2 + n_streams) : n_streams;
}
void streams_begin_run(const struct streams *op, struct exec *x, const struct streams_begin_call *call);
void streams_norm_run(const struct streams *op, struct exec *x, const struct streams_norm_call *call);
void streams_low_run(const struct streams *op, struct exec *x, const struct streams_low_call *call);
void streams_mix_run(const struct streams *op, struct exec *x, const struct streams_mix_call *call);
void streams_join_run(const struct streams *op, struct exec *x, const struct streams_join_call *call);
void streams_collapse_run(const struct streams *op, struct exec *x, const struct streams_collapse_call *call);
void streams_attend_run(const struct streams *op, struct exec *x, const struct streams_attend_call *call);

/* The implementations. */
int streams_vulkan_open(struct streams *op, struct exec *x, struct moeflux_err *e);
void streams_begin_vulkan(const void *self, const void *what, struct exec *x);
void streams_norm_vulkan(const void *self, const void *what, struct exec *x);
void streams_low_vulkan(const void *self, const void *what, struct exec *x);
void streams_mix_vulkan(const void *self, const void *what, struct exec *x);
void streams_join_vulkan(const void *self, const void *what, struct exec *x);
void streams_collapse_vulkan(const void *self, const void *what, struct exec *x);
void streams_attend_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn streams_begin_host, streams_norm_cpu, streams_norm_ref, streams_low_cpu, streams_low_ref,
    streams_mix_cpu, streams_mix_ref, streams_join_cpu, streams_join_ref, streams_collapse_cpu,
    streams_collapse_ref, streams_attend_cpu, streams_attend_ref;

#endif
