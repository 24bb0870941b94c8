/* checkpoint.h - opens the safetensors of a directory under canonical names, quantised or not. */
#ifndef MOEFLUX_MODEL_CHECKPOINT_H
#define MOEFLUX_MODEL_CHECKPOINT_H

#include "model/model.h"

struct moeflux_err;
struct quant_config;

/* Opens the safetensors in m->path and fills m->files, m->tensors and m->norms_less_one. m->config must be
 * read. Names become canonical, tensors that are not text are left out, bits are those that `q` declares.
 * Checks the files, not yet the tensors against the config. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED,
 * ERR_MEMORY. */
int checkpoint_open(struct model_dir *m, const struct quant_config *q, struct moeflux_err *e);

/* Returns whether the weights are as Hugging Face stores them: the convolution is [C, 1, taps]. Then the
 * norms' weights of some families lie around 0 and not around 1 (family.h). */
bool checkpoint_is_hugging_face(const struct model_dir *m);

/* Returns whether a vector holds the weights of a norm minus 1. */
bool checkpoint_is_less_one(const struct model_dir *m, const char *name);

#endif
