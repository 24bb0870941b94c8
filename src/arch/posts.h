/* posts.h - norms after the parts of layers (model/config.h, struct config_block). Parts write their outputs
 * to a buffer of their own (part_output.h):
 *   x = (x + outer(kept + post(out))) * factor, or kept = post(out) */
#ifndef MOEFLUX_ARCH_POSTS_H
#define MOEFLUX_ARCH_POSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"
#include "ops/normed_add.h"

struct config;
struct config_block;
struct loader;
struct moeflux_err;
struct scratch;

/* The weights that follow a block's part. */
struct posts_block {
    uint64_t norm, outer, factor; /* f32 [hidden], [hidden], [1]; 0: none */
    bool keeps;
};

struct posts {
    struct exec *exec;
    struct normed_add op;
    struct exec_buffer kept; /* f32 [n][hidden] */
    uint64_t out;            /* f32 [n][hidden]: the parts' outputs */
};

/* Opens the operation. */
int posts_open(struct posts *p, struct exec *x, const struct config *c, struct moeflux_err *e);
void posts_allocate(struct posts *p, const struct config *c, uint32_t n, struct scratch *to);
void posts_close(struct posts *p, struct exec *x); /* zeroed is legal */
int posts_load_block(struct posts_block *w, struct loader *l, uint32_t layer, const struct config_block *b,
                     struct moeflux_err *e);

/* Adds p->out to x, f32 [n][hidden], for tokens from .. from + n - 1, or keeps it. */
void posts_add(const struct posts *p, const struct posts_block *w, uint64_t x, uint32_t from, uint32_t n);
#endif
