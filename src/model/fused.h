/* fused.h - matrices that a file holds as one: blocks of rows, each block with some rows of every matrix. */
#ifndef MOEFLUX_MODEL_FUSED_H
#define MOEFLUX_MODEL_FUSED_H

#include <stdint.h>

struct config;
struct moeflux_err;
struct tensor_list;

enum { FUSED_MAX_PARTS = 2, FUSED_MAX_RUNS = 3 };

/* A block's rows go in turn to the parts: the first `n_runs` runs to part 0, and so on. A part has all
 * blocks' rows of its first run, then those of its next. */
struct fused_matrix {
    const char *name; /* as names end, before ".weight" and so on: ".linear_attn.in_proj_qkvz" */
    struct {
        const char *name; /* in its place; NULL: there is no other part */
        uint32_t n_runs;
    } parts[FUSED_MAX_PARTS];
    uint32_t (*n_blocks)(const struct config *c);
    /* Rows of run i, counted through all parts. */
    uint32_t (*rows)(const struct config *c, uint32_t i);
};

/* Puts the parts in the place of all tensors of the list that are so fused: weights, scales and biases.
 * `fused`: the last has no name; NULL: there are none. fp8_rows: of the weight under one scale of 8-bit
 * floats; 0: there are none, and what is called as their scales stays. ERR_FORMAT names a tensor that has
 * other rows, ERR_UNSUPPORTED one with scales across two parts. */
int fused_split(struct tensor_list *l, const struct fused_matrix *fused, const struct config *c,
                uint32_t fp8_rows, const char *where, struct moeflux_err *e);

#endif
