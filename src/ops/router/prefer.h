/* prefer.h - cache-conditional routing: of experts with nearly the same scores those that are in memory.
 *
 * Skliar et al., "Mixture of Cache-Conditional Experts for Efficient Mobile Device Inference" (arXiv
 * 2412.00099, 2024), raise the scores of cached experts by a constant before the choice, keep the best J
 * whatever is cached, and weigh the experts taken by their own scores. So here:
 *   A score is what the router chooses by: the logit (softmax), or sigmoid(logit) + bias (sigmoid, router.h).
 *   The best expert of a token stays, of four or more the best two. Of the others the worst one that is
 *     absent gives way to
 *   the best one in memory that was not chosen, where that one's score is less than `margin` lower; and so
 *     on.
 *   The experts taken stand best first, of equals the lower index first, and weigh as if the router had
 *     chosen them.
 * That equals a choice by scores to which `margin` is added for experts in memory. With groups of experts,
 * only experts of the groups that the router kept are taken. Sums and exponentials are in double: the same
 * bits on every backend. */
#ifndef MOEFLUX_OPS_ROUTER_PREFER_H
#define MOEFLUX_OPS_ROUTER_PREFER_H

#include <stdbool.h>
#include <stdint.h>

struct router_shape;

/* One token. */
struct router_prefer_call {
    const float *logits;    /* [n_experts] */
    const float *bias;      /* [n_experts], sigmoid alone */
    const bool *is_present; /* [n_experts]: in memory */
    float margin;           /* 0: nothing changes */
    float *room;            /* [n_experts + n_groups] */
};

/* Changes what the router chose: n experts and their weights (with a share fewer than top_k). Returns how
 * many gave way. With a NaN among the weights, or where none gave way, idx and weights stay as they are, bit
 * for bit. */
uint32_t router_prefer(const struct router_shape *shape, const struct router_prefer_call *call, uint32_t n,
                       uint32_t *idx, float *weights);

#endif
