/* model_dir_find.h - finds tensors of an open model by name and checks their dtypes and shapes. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_FIND_H
#define MOEFLUX_MODEL_MODEL_DIR_FIND_H

#include "model/model.h"

struct moeflux_err;

/* NULL when there is no such tensor. */
const struct tensor *model_dir_find(const struct model_dir *m, const char *name);

/* A matrix by its base name ("model.layers.0.mlp.gate"): quantised (weight, scales, biases) or plain
 * BF16/F16/F32 (weight). Checks presence, dtypes, shapes [rows][cols] and bits. */
int model_dir_matrix(const struct model_dir *m, const char *base, uint32_t rows, uint32_t cols,
                     struct matrix *out, struct moeflux_err *e);

/* A BF16, F16 or F32 tensor with exactly n elements, whatever its dimensions ("[C,4,1]"). */
int model_dir_vector(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                     struct moeflux_err *e);

#endif
