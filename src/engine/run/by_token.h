/* by_token.h - prefetches the experts that a token's id names (model/config.h, routed_config), before the
 * token's first layer computes. */
#ifndef MOEFLUX_ENGINE_RUN_BY_TOKEN_H
#define MOEFLUX_ENGINE_RUN_BY_TOKEN_H

#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct pass;

/* The layers' tables, in host memory. */
struct by_token {
    /* [n_layers], each [vocab_size][own_top_k]; NULL: a layer without one, or no layer has one */
    uint32_t **tables;
};

/* Reads the tables into m->by_token. ERR_FORMAT, ERR_MEMORY. */
int by_token_open(struct moeflux_model *m, struct moeflux_err *e);
void by_token_close(struct moeflux_model *m); /* zeroed is legal */

/* Prefetches the experts of single tokens in all layers of the pass's stage. ids: [p->chunk.n]. */
void by_token_prefetch(const struct pass *p, const int32_t *ids);

#endif
