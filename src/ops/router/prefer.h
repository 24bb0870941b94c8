/* prefer.h - cache-conditional routing: prefers resident experts to others with nearly the same score.
 *
 * The method is that of Skliar et al., "Mixture of Cache-Conditional Experts for Efficient Mobile Device
 * Inference" (arXiv 2412.00099, 2024). They raise the scores of cached experts by a constant before the
 * choice, keep the best J whether cached or not, and weight the chosen experts by their own scores. Here:
 *   A score is what the router chooses by: the logit (softmax), or sigmoid(logit) + bias (sigmoid, router.h).
 *   A token's best expert always stays; its best two if it has four or more.
 *   The worst of the others that is not resident is replaced by the best resident one that was not chosen, if
 *     that one's score is less than `margin` lower; and so on with the next.
 *   The resulting experts stand best first, the lower index first on a tie, and are weighted as if the router
 *     had chosen them.
 * That equals a choice by scores to which `margin` is added for resident experts. With groups of experts,
 * replacements come only from the groups that the router kept. Sums and exponentials are in double: the same
 * bits on every backend. */
#ifndef MOEFLUX_OPS_ROUTER_PREFER_H
#define MOEFLUX_OPS_ROUTER_PREFER_H

#include <stdbool.h>
#include <stdint.h>

struct router_shape;

/* One token's call. */
struct router_prefer_call {
    const float *logits;    /* [n_experts] */
    const float *bias;      /* [n_experts]; sigmoid only */
    const float *factors;   /* [n_experts]: of the weights, softmax only; NULL: none */
    const bool *is_present; /* [n_experts]: resident */
    float margin;           /* 0: nothing changes */
    float *room;            /* scratch: [n_experts + n_groups] */
};

/* Changes the router's choice: n experts (fewer than top_k with a share) and their weights. Returns how many
 * were replaced. If none was, or a weight is NaN, idx and weights stay as they are, bit for bit. */
uint32_t router_prefer(const struct router_shape *shape, const struct router_prefer_call *call, uint32_t n,
                       uint32_t *idx, float *weights);

#endif
