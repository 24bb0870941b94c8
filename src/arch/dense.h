/* dense.h - the feed-forward part of a layer without experts:
 *   [gate, up] = W norm(x);  silu(gate) * up;  x += down   (3 dispatches) */
#ifndef MOEFLUX_ARCH_DENSE_H
#define MOEFLUX_ARCH_DENSE_H

#include <stdint.h>

#include "exec/exec.h"
#include "ops/linear/linear.h"
#include "ops/swiglu.h"

struct config;
struct moeflux_err;
struct loader;
struct scratch;

struct dense_layer {
    struct linear gate_up, down;
};

struct dense {
    struct exec *exec;
    const struct config *config;
    struct swiglu swiglu;
    struct exec_buffer gate_up, act;
    /* f16 [n][the larger of hidden and dense_inner]: inputs of prompts' products in float16; 0: they are
     * float32 */
    uint64_t f16_scratch;
};

/* Allocates its buffers for chunks of up to n tokens; none for a model without dense layers. */
void dense_allocate(struct dense *d, const struct config *c, uint32_t n, struct scratch *to);
int dense_open(struct dense *d, struct exec *x, const struct config *c, struct moeflux_err *e);
void dense_close(struct dense *d);

int dense_load_layer(struct loader *l, uint32_t layer, struct dense_layer *out, struct moeflux_err *e);
void dense_close_layer(struct dense_layer *y, struct exec *x);

/* x: f32 [n][hidden]; norm: f32 [hidden]. */
void dense_run(const struct dense *d, const struct dense_layer *y, uint64_t x, uint64_t norm, uint32_t n);

#endif
