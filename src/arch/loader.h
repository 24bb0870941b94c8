/* loader.h - loads named tensors of a model directory as weights on the device. If operations read host
 * memory, matrices may be used in place in the mapped files. */
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
struct part_tensor;
struct pool;

struct loader {
    struct exec *exec;
    const struct model_dir *dir;
    const struct config *config; /* &dir->config */
    const struct moeflux_progress *progress;
    const struct node_shares *shares; /* exec_caps.shares */
    struct pool *pool;                /* threads that read; until loader_finish */
    struct exec_buffer *chunks;       /* memory of all weights */
    size_t n_chunks, cap;
    size_t packing; /* index of the chunk that small tensors are packed into; unused while `used` is 0 */
    uint64_t used;  /* used bytes of that chunk */
    uint64_t loaded_bytes, device_bytes;
    /* loaded_bytes at the end: the weights of this device and, if there are several, of those before it */
    uint64_t end_bytes;
    struct weights embedding, head; /* zero: they were not loaded */
    const struct loader *model;     /* a drafter's: that of its model, which has these two; else NULL */
    struct mapped *maps;   /* [dir->n_files]: files that hold matrices used in place; NULL: all are copied */
    uint64_t mapped_bytes; /* the part of device_bytes that is used in place */
};

/* n_threads: threads that read. ERR_MEMORY. */
int loader_init(struct loader *l, struct exec *x, const struct model_dir *dir,
                const struct moeflux_progress *p, uint32_t n_threads, struct moeflux_err *e);
/* Makes later calls use matrices in place where possible. Only for a native host backend. */
int loader_use_in_place(struct loader *l, struct moeflux_err *e);
/* Frees the weights. */
void loader_free(struct loader *l);
/* Waits until everything loaded has arrived. Nothing is loaded after it. */
int loader_finish(struct loader *l, struct moeflux_err *e);
/* Checks the mapped files; must be called before each evaluation. ERR_IO: one became shorter. */
int loader_check(const struct loader *l, struct moeflux_err *e);

/* Loads the matrix `base` [rows][cols]. ERR_FORMAT names what is missing or wrong; ERR_INTERRUPTED. */
int loader_matrix(struct loader *l, const char *base, uint32_t rows, uint32_t cols, struct weights *out,
                  struct moeflux_err *e);
/* Loads a BF16 or F32 tensor of n elements as float32. */
int loader_vector(struct loader *l, const char *name, uint64_t n, uint64_t *address, struct moeflux_err *e);

/* Loads n numbers. */
int loader_put(struct loader *l, const float *values, uint64_t n, uint64_t *address, struct moeflux_err *e);

/* Loads a layer's table of experts by token (model/part_tensors.h), u32, rows of `row`. *address stays if it
 * is absent. */
int loader_ids(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t row, uint64_t *address,
               struct moeflux_err *e);

/* The following load the tensors t [n] of a layer (model/part_tensors.h), or with LOADER_NO_LAYER tensors
 * below "model."; those that are absent are left out. */
#define LOADER_NO_LAYER UINT32_MAX

/* Loads matrices. A matrix with the same name as the previous one is not loaded again. */
int loader_parts(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                 struct weights *out, struct moeflux_err *e);
/* Loads matrices with equal columns as one product. */
int loader_fused(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                 struct linear *out, struct moeflux_err *e);
/* Loads vectors as one float32 vector; each is multiplied by its factor. *address stays if all are
 * absent. */
int loader_vectors(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                   uint64_t *address, struct moeflux_err *e);

#endif
