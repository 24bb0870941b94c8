/* router.h - chooses the experts: softmax over the router's logits, the top_k largest (best first, lower index on a
 * tie), weights renormalised over the chosen (norm) or left as probabilities over all n_experts. */
#ifndef MOEFLUX_OPS_ROUTER_H
#define MOEFLUX_OPS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/exec.h"

struct router {
    struct kernel kernel;
    uint32_t n_experts, top_k;
    bool norm;
};

struct router_call {
    uint64_t logits;       /* f32 [n][stride], the first n_experts of a row */
    uint64_t idx, weights; /* out: u32 [n][top_k], f32 [n][top_k] */
    uint32_t n, stride;
};

/* ERR_UNSUPPORTED unless 1 <= top_k <= n_experts. */
int router_open(struct router *op, struct exec *x, uint32_t n_experts, uint32_t top_k, bool norm,
                struct err *e);
void router_run(const struct router *op, struct exec *x, const struct router_call *call);

#endif
