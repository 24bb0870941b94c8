/* model_check.h - checks an opened directory's tensors against each other and against the config. */
#ifndef MOEFLUX_MODEL_MODEL_CHECK_H
#define MOEFLUX_MODEL_MODEL_CHECK_H

#include "model/model.h"

struct moeflux_err;

/* Checks that every U32 tensor is a .weight with .scales, and with .biases if it is affine, of fitting dtypes
 * and shapes. Its bits must be those declared. No projection may have a bias vector. Fills in bits that are
 * not declared (0) from the shapes, which allow one value only. Gives weight, scales and biases their format.
 * Checks that every tensor that the config needs is present with its shape, and that all tensors of a GGUF
 * file are read. Sets what the tensors decide in m->config. m->tensors must be sorted. ERR_FORMAT,
 * ERR_UNSUPPORTED. */
int model_check_tensors(struct model_dir *m, struct moeflux_err *e);

#endif
