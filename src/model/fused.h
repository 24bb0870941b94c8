/* fused.h - splits matrices that a file stores as one: blocks of rows, each with some rows of every
 * matrix. */
#ifndef MOEFLUX_MODEL_FUSED_H
#define MOEFLUX_MODEL_FUSED_H

#include <stdint.h>

struct config;
struct moeflux_err;
struct tensor_list;

enum { FUSED_MAX_PARTS = 3, FUSED_MAX_RUNS = 3 };

/* A block is a list of runs of rows. Its first parts[0].n_runs runs belong to part 0, the next to part 1. A
 * part is the rows of its first run in all blocks, then those of its second run, and so on. */
struct fused_matrix {
    const char *name; /* end of the name before ".weight" and so on: ".linear_attn.in_proj_qkvz" */
    struct {
        const char *name; /* what replaces it; NULL: there are no more parts */
        uint32_t n_runs;
    } parts[FUSED_MAX_PARTS];
    uint32_t (*n_blocks)(const struct config *c);
    /* Returns the rows of run i; runs are counted through all parts. */
    uint32_t (*rows)(const struct config *c, uint32_t i);
};

/* Replaces every fused tensor of the list, weights, scales and biases, by its parts. `fused`: ends with an
 * entry without a name; NULL: none. fp8_rows: rows of the weight that share a scale of 8-bit floats; 0: there
 * are no such scales, and tensors with their names stay. ERR_FORMAT names a tensor with an unexpected number
 * of rows, ERR_UNSUPPORTED one with a scale that two parts share. */
int fused_split(struct tensor_list *l, const struct fused_matrix *fused, const struct config *c,
                uint32_t fp8_rows, const char *where, struct moeflux_err *e);

#endif
