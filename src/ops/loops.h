/* loops.h - the inner loops of the native implementations (X_cpu.c), compiled once for each instruction set.
 *
 * All sets give the same bits (cpu/vec.h): sums run in 8 lanes by index and end in one tree, multiply-adds
 * are fused where they are written, and exp and its kin are those of cpu/math.h. Nothing here allocates,
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
struct delta_gate;
struct delta_head;
struct delta_unit;

struct loops {
    /* out[c] = x[c] / sqrt(mean(x^2) + eps) * norm[c]; norm NULL: out = x. */
    void (*norm)(const float *x, const float *norm, uint32_t n, float eps, float *out);
    /* out[c] = silu(gate[c]) * up[c] */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *out);
    /* out[c] = g sigmoid(alpha g) (u + 1), g = min(gate[c], limit), u = up[c] within -limit .. limit */
    void (*swiglu_limited)(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                           float *out);
    /* out[c] = sigmoid(x[c]) */
    void (*sigmoid)(const float *x, uint32_t n, float *out);
    /* out[c] = exp(x[c] - top) */
    void (*exp_below)(const float *x, uint32_t n, float top, float *out);
    /* sum[c] += by * x[c] */
    void (*add_scaled)(float *sum, const float *x, float by, uint32_t n);
    /* Numbers of a KV cache or a product's input; what does not fit float16 becomes its largest number. */
    void (*store_f16)(const float *x, uint32_t n, void *out);
    void (*load_f16)(const void *x, uint32_t n, float *out);
    /* y[c] = y[c] + sum_r x[r] * rows[r][c] in the order of the rows, c < n; from 0 when `first`. rows:
     * [n_rows][LOOPS_COLS]. */
    void (*add_rows)(float *y, const float *x, const float *rows, uint32_t n_rows, uint32_t n, bool first);
    /* Turns pairs of channels, n of them, by (cos, sin): (x[i], x[i + apart]) where apart > 0, else (x[2 i],
     * x[2 i + 1]). In place. */
    void (*turn)(float *x, const float *angles, uint32_t n, uint32_t apart);

    /* ops/attention/cpu.h, ops/delta/cpu.h */
    void (*attention_tile)(struct attention_tile *t);
    void (*delta_prepare)(const struct delta_unit *u);
    void (*delta_gates)(const struct delta_gate *g);
    void (*delta_walk)(const struct delta_head *h);
};

/* The loops of the host's instruction set. */
const struct loops *loops_of(const struct host *h);

/* Writes a row of n channels into a KV cache. */
void loops_put_row(const struct loops *l, enum kv_type type, const float *from, uint32_t n, void *row);

/* A matrix as the products of cpu/product.h take it. */
struct cpu_matrix loops_matrix(const struct weights *w);

/* Rows of a matrix that make a block of work: enough to be worth handing out, few enough that all threads get
 * some. */
uint32_t loops_block_rows(const struct weights *w);
enum { LOOPS_MAX_BLOCK_ROWS = 256, LOOPS_COLS = 64 };

/* So many tokens and fewer are computed as if each were alone. At least as many as the head takes at once, so
 * that a token's logits do not depend on those that are asked for with them. */
enum { LOOPS_FEW = CPU_FEW_TOKENS };

#endif
