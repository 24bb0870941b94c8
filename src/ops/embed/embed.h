/* embed.h - rows of the embedding matrix: out[t] = factor * W[ids[t]], dequantised exactly. W [vocab][cols]
 * has any storage format; cols is a multiple of PRODUCT_COLS. The caller checks that each id < vocab. */
#ifndef MOEFLUX_OPS_EMBED_EMBED_H
#define MOEFLUX_OPS_EMBED_EMBED_H

#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/weights.h"

struct embed {
    struct weights weights;
    float factor; /* 1: none */
    struct {      /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct embed_call {
    uint64_t ids; /* i32 [n] */
    uint64_t dst; /* f32 [n][cols] */
    uint32_t n;
};

/* ERR_UNSUPPORTED: cols is not a multiple of PRODUCT_COLS. */
int embed_open(struct embed *op, struct exec *x, const struct weights *w, float factor,
               struct moeflux_err *e);
void embed_run(const struct embed *op, struct exec *x, const struct embed_call *call);

/* The implementations. */
int embed_vulkan_open(struct embed *op, struct exec *x, struct moeflux_err *e);
void embed_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn embed_cpu, embed_ref;

#endif
