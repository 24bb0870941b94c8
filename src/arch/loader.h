/* loader.h - named tensors of a model directory become weights on the device. Where operations read host
 * memory, matrices may stay where they lie in the mapped files. */
#ifndef MOEFLUX_ARCH_LOADER_H
#define MOEFLUX_ARCH_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "cpu/mapped.h"
#include "base/progress.h"
#include "exec/exec.h"
#include "ops/weights.h"

struct config;
struct moeflux_err;
struct linear;
struct model_dir;
struct pool;

struct loader {
    struct exec *exec;
    const struct model_dir *dir;
    const struct config *config; /* of dir */
    const struct moeflux_progress *progress;
    const struct node_shares *shares; /* the caps' */
    struct pool *pool;                /* threads that read; until loader_finish */
    struct exec_buffer *chunks;       /* all weights */
    size_t n_chunks, cap;
    size_t packing; /* the chunk that small tensors go to; n_chunks when there is none yet */
    uint64_t used;  /* its bytes */
    uint64_t loaded_bytes, device_bytes;
    /* loaded_bytes at the end: of all weights, or with several devices of those before this one and its own
     * */
    uint64_t end_bytes;
    struct mapped *maps; /* [dir->n_files] of those that hold matrices used in place; NULL: all are copied */
    uint64_t mapped_bytes; /* of device_bytes, what is used in place */
};

/* n_threads: that read at once. ERR_MEMORY. */
int loader_init(struct loader *l, struct exec *x, const struct model_dir *dir,
                const struct moeflux_progress *p, uint32_t n_threads, struct moeflux_err *e);
/* From here on matrices are used in place where they can be. For a native host backend. */
int loader_use_in_place(struct loader *l, struct moeflux_err *e);
/* Frees the weights. */
void loader_free(struct loader *l);
/* Waits until everything loaded has arrived. Nothing is loaded after it. */
int loader_finish(struct loader *l, struct moeflux_err *e);
/* To be called before each evaluation. ERR_IO: a mapped file became shorter. */
int loader_check(const struct loader *l, struct moeflux_err *e);

/* Loads the matrix `base` [rows][cols]. ERR_FORMAT names what is missing or wrong; ERR_INTERRUPTED. */
int loader_matrix(struct loader *l, const char *base, uint32_t rows, uint32_t cols, struct weights *out,
                  struct moeflux_err *e);
/* Loads a BF16 or F32 tensor of n elements as float32. */
int loader_vector(struct loader *l, const char *name, uint64_t n, uint64_t *address, struct moeflux_err *e);

/* Of layer `layer`: names below "model.layers.N.". */
struct loader_part {
    const char *name;
    uint32_t rows;
};
/* Loads matrices with equal columns. */
int loader_parts(struct loader *l, uint32_t layer, const struct loader_part *parts, uint32_t n, uint32_t cols,
                 struct weights *out, struct moeflux_err *e);
/* The same as one fused product. */
int loader_fused(struct loader *l, uint32_t layer, const struct loader_part *parts, uint32_t n, uint32_t cols,
                 struct linear *out, struct moeflux_err *e);
/* The biases of the same matrices as one vector of float32: NAME.bias each. */
int loader_biases(struct loader *l, uint32_t layer, const struct loader_part *parts, uint32_t n,
                  uint64_t *address, struct moeflux_err *e);
int loader_layer_vector(struct loader *l, uint32_t layer, const char *what, uint64_t n, uint64_t *address,
                        struct moeflux_err *e);

#endif
