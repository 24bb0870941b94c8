/* checkpoint.h - the safetensors of a directory under canonical names, quantised or not. */
#ifndef MOEFLUX_MODEL_CHECKPOINT_H
#define MOEFLUX_MODEL_CHECKPOINT_H

#include "model/model.h"

struct moeflux_err;
struct quant_config;

/* Opens the safetensors in m->path (m->config is read already) and fills m->files and m->tensors: canonical
 * names, what is not text left out, declared bits from `q`. Checks the files, not yet the tensors against the
 * config. */
int checkpoint_open(struct model_dir *m, const struct quant_config *q, struct moeflux_err *e);

/* Whether the weights are as Hugging Face stores them: the convolution is [C, 1, taps], and then the norms
 * lie around 0 and not around 1. */
bool checkpoint_is_hugging_face(const struct model_dir *m);

#endif
