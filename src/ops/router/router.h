/* router.h - chooses the experts of each token from the router's logits, best first, the lower index on a
 * tie.
 *   softmax: the top_k largest; weights renormalised over the chosen (norm) or left as probabilities over all
 *            n_experts
 *   sigmoid: s = sigmoid(logit), t = s + bias. The experts form n_groups contiguous groups of equal size. A
 *            group's score is the sum of its two largest t. The keep_groups best groups stay, and the top_k
 *            largest t among their experts are chosen. Weights are s * scale, with norm s / (sum of the
 *            chosen s + 1e-20) * scale. (The bias-corrected choice of DeepSeek-V3, arXiv 2412.19437, section
 *            2.1.2.) With softplus s = sqrt(log(1 + exp(logit))), as in DeepSeek-V4.
 * With a table by token, which a call may have, only the table's `row` experts of the token can be chosen, by
 * their scores without a bias; the weights are as always.
 * With a share only the chosen experts with the greatest weights stay: the fewest whose weights sum to at
 * least `share` of all the chosen ones', the first on a tie. They stand first, in the order of the choice,
 * and are weighted as if they alone had been chosen. After them idx is NO_EXPERT and weights are 0.
 * With factors each weight of a softmax router is then multiplied by its expert's.
 * A NaN among a token's logits makes all its weights NaN, so that it reaches the model's logits; its experts
 * are valid all the same. */
#ifndef MOEFLUX_OPS_ROUTER_ROUTER_H
#define MOEFLUX_OPS_ROUTER_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct router_shape {
    uint32_t n_experts, top_k;
    bool norm;
    bool sigmoid;                   /* the next four are for sigmoid only */
    bool softplus;                  /* its scores are sqrt(log(1 + exp(logit))) */
    uint32_t n_groups, keep_groups; /* n_groups 1: no choice of groups */
    float scale;
    float share; /* softmax and sigmoid; below 1; 0: all chosen experts stay */
    /* sigmoid with one group only: columns of tables by token, at least top_k; 0: no call has one */
    uint32_t row;
};

struct router {
    struct router_shape shape;
    struct kernel kernel, by_token; /* vulkan; by_token: calls with a table */
};

struct router_call {
    uint64_t logits;       /* f32 [n][stride]; each row begins with n_experts logits */
    uint64_t bias;         /* sigmoid: f32 [n_experts]; unused with a table */
    uint64_t factors;      /* softmax: f32 [n_experts]; 0: none */
    uint64_t idx, weights; /* out: u32 [n][top_k], f32 [n][top_k] */
    uint64_t table, ids;   /* u32 [vocab_size][row], different experts in a row; i32 [n]; 0: no table */
    uint32_t n, stride;
};

/* Returns the score of a logit, of a router whose experts have scores of their own. */
double router_score(const struct router_shape *s, double logit);

/* Opens the operation. ERR_UNSUPPORTED unless 1 <= top_k <= n_experts and 0 <= share < 1. For the sigmoid
 * n_groups divides n_experts, keep_groups is 1 to n_groups, and keep_groups groups hold at least top_k
 * experts; a row has top_k to n_experts experts. */
int router_open(struct router *op, struct exec *x, const struct router_shape *shape, struct moeflux_err *e);
void router_run(const struct router *op, struct exec *x, const struct router_call *call);

/* Returns a group's score: the sum of its two largest t, or its only one. */
float router_group_score(const float *t, uint32_t size);

/* Returns the row of a call's table for token i, u32 [row], on a host. */
const uint32_t *router_row(const struct router_shape *s, const struct router_call *call, uint32_t i);

/* The implementations. */
int router_vulkan_open(struct router *op, struct exec *x, struct moeflux_err *e);
void router_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn router_cpu, router_ref;

#endif
