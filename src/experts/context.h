/* context.h - learns from the choices before an expert's use how soon the expert will be used again.
 *
 * The worth of an expert is its expected number of uses by the next tokens, where a use k tokens ahead counts
 * DISCOUNT^k. It is the sum of two estimates: one from the expert's share of the recent uses, one from the
 * layer's last choices. For the second each layer has a matrix, from chosen experts to experts that follow.
 * It is learnt during the run by temporal differences (Sutton, 1988): the worth before a choice should have
 * been what the choice brought, plus the worth after it. */
#ifndef MOEFLUX_EXPERTS_CONTEXT_H
#define MOEFLUX_EXPERTS_CONTEXT_H

#include <stdint.h>

struct context;
struct moeflux_err;

/* Returns the size in memory, approximately. */
uint64_t context_bytes(uint32_t n_layers, uint32_t n_experts);
/* top_k: the most experts that a token chooses in a layer. NULL with `e` filled: no memory. */
struct context *context_new(uint32_t n_layers, uint32_t n_experts, uint32_t top_k, struct moeflux_err *e);
void context_free(struct context *c); /* NULL is legal */

/* Revises the worths of a layer after its choice: n different experts in the router's order. shares:
 * [n_experts], the expected uses of each by any token. More than top_k experts are the choice of several
 * tokens: nothing is learnt from it, and earlier choices no longer count. */
void context_use(struct context *c, uint32_t layer, const uint32_t *experts, uint32_t n, const float *shares);

/* Returns the worth; 0 before the layer's first use. */
double context_worth(const struct context *c, uint32_t layer, uint32_t expert);

#endif
