/* loader.h - named tensors of a model directory become weights on the device. */
#ifndef MOEFLUX_ARCH_LOADER_H
#define MOEFLUX_ARCH_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "base/progress.h"
#include "exec/exec.h"
#include "ops/weights.h"

struct config;
struct moeflux_err;
struct linear;
struct model_dir;

struct loader {
    struct exec *exec;
    const struct model_dir *dir;
    const struct config *config; /* of dir */
    const struct moeflux_progress *progress;
    struct exec_buffer *chunks; /* all weights */
    size_t n_chunks, cap;
    size_t packing; /* the chunk that small tensors go to; n_chunks when there is none yet */
    uint64_t used;  /* its bytes */
    uint64_t loaded_bytes, device_bytes;
};

void loader_init(struct loader *l, struct exec *x, const struct model_dir *dir,
                 const struct moeflux_progress *p);
/* Frees the weights. */
void loader_free(struct loader *l);
/* Waits until everything loaded has arrived. */
int loader_finish(struct loader *l, struct moeflux_err *e);

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
int loader_layer_vector(struct loader *l, uint32_t layer, const char *what, uint64_t n, uint64_t *address,
                        struct moeflux_err *e);

#endif
