/* model_dir.h - opens a model directory or file: config, named tensors, places of the experts on disk.
 *
 * Three layouts:
 *   packed: model_weights.json (manifest) + model_weights.bin + packed_experts/layer_NN.bin;
 *           with spread.json experts lie in several directories (spread.h)
 *   plain:  config.json + *.safetensors with the names of MLX or of the model's publisher, sharded or not
 *   GGUF:   a file, or the first of a split set
 *
 * An expert is at most EXPERT_MAX_EXTENTS extents of these files (expert_places.h).
 *
 * Opening checks everything against the files: offsets, sizes, dtypes, shapes, bits, lengths of layer files.
 * It reads no tensor's contents. Tensor names are canonical: model.X and lm_head.X. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_H
#define MOEFLUX_MODEL_MODEL_DIR_H

#include "model/model.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"

/* Opens and checks `path`. On failure nothing stays open.
 * The error names the file, the tensor, what was expected and what was found. */
int model_dir_open(struct model_dir *m, const char *path, struct moeflux_err *e);
/* Opens the drafter of the model `path` (drafter.h). file: a GGUF file that has it alone, for a model that
 * is a GGUF file; NULL: the model has it. ERR_UNSUPPORTED: it has none, or none that is known. */
int model_dir_open_drafter(struct model_dir *m, const char *path, const char *file, struct moeflux_err *e);
/* Zeroed and half-opened ones are legal. */
void model_dir_close(struct model_dir *m);

#endif
