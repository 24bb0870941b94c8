/* model_dir.h - a model directory as it lies on disk: its config, its named tensors, its experts' extents.
 *
 * Two layouts open alike:
 *   packed: model_weights.json (manifest) + model_weights.bin + packed_experts/layer_NN.bin; with spread.json
 *           the experts lie in other directories too (spread.h) plain: config.json + *.safetensors in MLX
 *           names (sharded or not); an expert is up to nine extents in the shards Everything is checked
 *           against the files at open: offsets, sizes, dtypes, shapes, bits, layer files' lengths. Tensor
 *           contents are read on request. Names are canonical: model.X and lm_head.X. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_H
#define MOEFLUX_MODEL_MODEL_DIR_H

#include "model/model.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"

/* Opens and checks `path`. On failure nothing stays open.
 * The error names the file, the tensor, what was expected and what was found. */
int model_dir_open(struct model_dir *m, const char *path, struct moeflux_err *e);
void model_dir_close(struct model_dir *m);

#endif
