/* model_dir_find.h - finds tensors of an open model by name and checks their dtypes and shapes. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_FIND_H
#define MOEFLUX_MODEL_MODEL_DIR_FIND_H

#include "model/model.h"

struct moeflux_err;

/* Returns the tensor with this name, or NULL. */
const struct tensor *model_dir_find(const struct model_dir *m, const char *name);

/* Returns the tensor whose name is `name` with its last `cut` characters replaced by `tail`, or NULL. */
const struct tensor *model_dir_find_like(const struct model_dir *m, const char *name, size_t cut,
                                         const char *tail);

/* Finds a matrix by its base name ("model.layers.0.mlp.gate"): quantised (weight, scales, biases), or
 * plain BF16, F16 or F32 (weight), or blocks (FORMAT_F32: they are widened, tensor_is_widened). Checks
 * presence, dtypes, shapes [rows][cols] and bits: ERR_FORMAT, ERR_UNSUPPORTED. */
int model_dir_matrix(const struct model_dir *m, const char *base, uint32_t rows, uint32_t cols,
                     struct matrix *out, struct moeflux_err *e);

/* Finds a BF16, F16 or F32 tensor of exactly n elements; its dimensions may be any ("[C,4,1]").
 * ERR_FORMAT. */
int model_dir_vector(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                     struct moeflux_err *e);
/* Finds likewise a tensor of n whole numbers, I32 or I64. ERR_FORMAT. */
int model_dir_ids(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                  struct moeflux_err *e);

#endif
