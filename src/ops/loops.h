/* loops.h - the inner loops of the native implementations (cpu.c of each operation), compiled once for each
 * instruction set.
 *
 * All sets give the same bits (cpu/vec.h): sums run in 8 lanes by index and end in one tree, multiply-adds
 * are fused exactly as written, and exp and its relatives are those of cpu/math.h. Nothing here allocates,
 * checks or fails. */
#ifndef MOEFLUX_OPS_LOOPS_H
#define MOEFLUX_OPS_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/product.h"
#include "exec/host.h"
#include "ops/attention/kv_cache.h"
#include "ops/weights.h"

struct attention_tile;
struct delta_channels;
struct delta_gate;
struct delta_head;
struct delta_unit;
struct indexer_tile;
struct ssd_head;
struct ssd_steps;
struct ssd_unit;

struct loops {
    /* out[c] = x[c] / sqrt(mean(x^2) + eps) * norm[c]; norm NULL: out = x. */
    void (*norm)(const float *x, const float *norm, uint32_t n, float eps, float *out);
    /* The same without weights. */
    void (*unit)(const float *x, uint32_t n, float eps, float *out);
    /* Returns the sum of x[c]^2. */
    float (*squares)(const float *x, uint32_t n);
    /* Returns the sum of x[c] * w[c]. */
    float (*dot)(const float *x, const float *w, uint32_t n);
    /* out[c] = silu(gate[c]) * up[c] */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *out);
    /* out[c] = gelu(gate[c]) * up[c], in the approximation by tanh */
    void (*geglu)(const float *gate, const float *up, uint32_t n, float *out);
    /* out[c] = max(gate[c], 0) * up[c] */
    void (*reglu)(const float *gate, const float *up, uint32_t n, float *out);
    /* x[c] = cap * tanh(x[c] / cap) */
    void (*softcap)(float *x, uint32_t n, float cap);
    /* out[c] = g sigmoid(alpha g) (u + 1), g = min(gate[c], limit), u = up[c] clamped to -limit .. limit */
    void (*swiglu_limited)(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                           float *out);
    /* out[c] = min(silu(min(gate[c], top)), clamp) u, u = up[c] clamped to -clamp .. clamp */
    void (*swiglu_clamped)(const float *gate, const float *up, uint32_t n, float top, float clamp,
                           float *out);
    /* out[c] = beta tanh(gate[c] / beta) sigmoid(gate[c]) u, u = linear tanh(up[c] / linear), or up[c] if
     * linear is 0 */
    void (*situ)(const float *gate, const float *up, uint32_t n, float beta, float linear, float *out);
    /* out[c] = sigmoid(x[c]) */
    void (*sigmoid)(const float *x, uint32_t n, float *out);
    /* out[c] = sqrt(log(1 + exp(x[c]))) */
    void (*root_softplus)(const float *x, uint32_t n, float *out);
    /* out[c] = exp(x[c] - top) */
    void (*exp_below)(const float *x, uint32_t n, float top, float *out);
    /* sum[c] += by * x[c] */
    void (*add_scaled)(float *sum, const float *x, float by, uint32_t n);
    /* Convert numbers of a KV cache or of a product's input. Values beyond float16's range become its largest
     * number. */
    void (*store_f16)(const float *x, uint32_t n, void *out);
    void (*load_f16)(const void *x, uint32_t n, float *out);
    /* Widens a q8_0 row of n numbers (kv_cache.h). */
    void (*load_q8)(const void *row, uint32_t n, float *out);
    /* y[c] = y[c] + sum_r x[r] * rows[r][c] in the order of the rows, c < n; from 0 when `first`. rows:
     * [n_rows][LOOPS_COLS]. */
    void (*add_rows)(float *y, const float *x, const float *rows, uint32_t n_rows, uint32_t n, bool first);
    /* Turns n pairs of channels by (cos, sin), in place: (x[i], x[i + apart]) if apart > 0, else (x[2 i], x[2
     * i + 1]). */
    void (*turn)(float *x, const float *angles, uint32_t n, uint32_t apart);

    /* see ops/attention/cpu.h, ops/delta/cpu.h, ops/indexer/cpu.h and ops/ssd/cpu.h */
    void (*attention_tile)(struct attention_tile *t);
    void (*delta_prepare)(const struct delta_unit *u);
    void (*delta_gates)(const struct delta_gate *g);
    void (*delta_channels)(const struct delta_channels *c);
    void (*delta_walk)(const struct delta_head *h);
    void (*indexer_scores)(const struct indexer_tile *t);
    void (*ssd_prepare)(const struct ssd_unit *u);
    void (*ssd_times)(const struct ssd_steps *s);
    void (*ssd_walk)(const struct ssd_head *h);
};

/* Returns the loops of the host's instruction set. */
const struct loops *loops_of(const struct host *h);

/* Write a row of n channels into a KV cache, and read it. All sets write the same bits. */
void loops_put_row(const struct loops *l, enum kv_type type, const float *from, uint32_t n, void *row);
void loops_get_row(const struct loops *l, enum kv_type type, const void *row, uint32_t n, float *out);

/* Returns the sum of 8 lanes, in the order in which all sets end a sum. */
static inline float loops_sum_lanes(const float *x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Returns the matrix in the form that cpu/product.h takes. */
struct cpu_matrix loops_matrix(const struct weights *w);

/* Returns the rows of a block of work: enough to be worth handing out, few enough that every thread gets
 * some. */
uint32_t loops_block_rows(const struct weights *w);
enum { LOOPS_MAX_BLOCK_ROWS = 256, LOOPS_COLS = 64 };

/* Most tokens that are computed one by one, which makes them batch-invariant. At least as many as the head
 * takes at once, so that a token's logits do not depend on the other tokens whose logits are wanted. */
enum { LOOPS_FEW = CPU_FEW_TOKENS };

#endif
