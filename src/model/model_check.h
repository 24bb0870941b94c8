/* model_check.h - what must hold between an opened directory's tensors, and between them and the config. */
#ifndef MOEFLUX_MODEL_MODEL_CHECK_H
#define MOEFLUX_MODEL_MODEL_CHECK_H

#include "model/model.h"

struct moeflux_err;

/* Every U32 tensor is a .weight with the .scales, and .biases where it is affine, of fitting type and shape,
 * and its bits are those that were declared; where none were (0), they are filled in from the shapes, which
 * leave no choice. Gives the three their format. No projection has a bias vector. m->tensors must be sorted.
 * */
int model_check_quantised(struct model_dir *m, struct moeflux_err *e);

/* Every tensor that the config needs is there with its shape. Sets m->config.has_kv_b. */
int model_check_complete(struct model_dir *m, struct moeflux_err *e);

#endif
