/* swiglu.h - between the two products of a dense feed-forward part: dst[t] = silu(gate[t]) * up[t]. inner is a multiple
 * of 4. */
#ifndef MOEFLUX_OPS_SWIGLU_H
#define MOEFLUX_OPS_SWIGLU_H

#include <stdint.h>

#include "ops/exec.h"

struct moeflux_err;

struct swiglu {
    struct kernel kernel;
    uint32_t group; /* invocations of a workgroup */
};

int swiglu_open(struct swiglu *op, struct exec *x, struct moeflux_err *e);
/* src: f32 [n][2 * inner], gate then up; dst: f32 [n][inner]. Both are aligned to 16 bytes. */
void swiglu_run(const struct swiglu *op, struct exec *x, uint64_t src, uint64_t dst, uint32_t n,
                uint32_t inner);

#endif
