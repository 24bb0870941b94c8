/* prefer.h - prefers resident experts to others with nearly the same scores (ops/router/prefer.h), for single
 * tokens in layers whose experts are streamed.
 *
 * The host waits for the choice of such a layer anyway. It gets the router's logits too and changes the
 * choice; the device computes with the result. Private to the forward pass, as struct moeflux_model is. */
#ifndef MOEFLUX_ENGINE_RUN_PREFER_H
#define MOEFLUX_ENGINE_RUN_PREFER_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"

struct moeflux_err;
struct moeflux_model;
struct pass;

struct prefer {
    float margin;         /* 0: off, the rest is unused */
    float *bias;          /* [n_layers][n_experts]: a sigmoid router's; NULL: none */
    float *factors;       /* [n_layers][n_experts]: of the weights; NULL: none */
    bool *is_present;     /* [n_experts] */
    float *room;          /* router_prefer_call.room */
    uint64_t n_preferred; /* statistics: experts taken instead of better ones */
};

/* Opens it; the layers must be open. margin 0: allocates nothing. */
int prefer_open(struct moeflux_model *m, float margin, struct moeflux_err *e);
void prefer_close(struct moeflux_model *m); /* zeroed is legal */
/* Records the copy of the logits to the host, in the batch that makes the choice. */
void prefer_show(const struct pass *p);
/* Changes the choice of one token: n experts and their weights, on the host. Returns whether it did. */
bool prefer_choose(const struct pass *p, uint32_t layer, uint32_t n, uint32_t *idx, float *weights);

#endif
