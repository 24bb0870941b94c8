/* context.h - how soon experts will be used again, learnt from what was used before them.
 *
 * The worth of an expert is its expected number of uses by the next tokens, where a use k tokens ahead counts
 * DISCOUNT^k. It is what the expert's share of the recent uses lets expect, plus what the layer's last
 * choices tell: a matrix for each layer, from the experts that were chosen to those that will be. The matrix
 * is learnt in the run by temporal differences (Sutton, 1988): the worth before a choice should have been
 * what the choice brought, plus the worth after it. */
#ifndef MOEFLUX_EXPERTS_CONTEXT_H
#define MOEFLUX_EXPERTS_CONTEXT_H

#include <stdint.h>

struct context;
struct moeflux_err;

/* top_k: the most experts that a token chooses in a layer. NULL with `e` filled: no memory. */
uint64_t context_bytes(uint32_t n_layers, uint32_t n_experts); /* of memory, nearly */
struct context *context_new(uint32_t n_layers, uint32_t n_experts, uint32_t top_k, struct moeflux_err *e);
void context_free(struct context *c); /* NULL is legal */

/* The layer's choice, n different experts in the router's order; shares: [n_experts], the uses that any token
 * is expected to make of each. Revises the worths of the layer. More than top_k experts are several tokens':
 * nothing is learnt from them, and what comes next depends on no choice before. */
void context_use(struct context *c, uint32_t layer, const uint32_t *experts, uint32_t n, const float *shares);

/* 0 before the layer's first use. */
double context_worth(const struct context *c, uint32_t layer, uint32_t expert);

#endif
