/* sketch.h - a model that is known by its config.json alone: the sizes and formats of its tensors and
 * experts, as a model_dir without files. It can be planned for, and not be loaded.
 *
 * Formats are those of the quantization table. Without one they are what `moeflux convert` makes of such a
 * checkpoint: 4 bits in groups of 64, the router's gates as their family has them. */
#ifndef MOEFLUX_MODEL_SKETCH_H
#define MOEFLUX_MODEL_SKETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model_dir.h"

/* path: a configuration. Everything but files, places of experts and contents of tensors is there; is_sketch
 * is true. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED: as model_dir_open. On failure nothing stays open. */
int sketch_open(struct model_dir *m, const char *path, struct moeflux_err *e);

/* Gives the sketch a file to measure the disk with: experts [0, *n) of layer *layer, up to `bytes` bytes of
 * them, but one at least. It lies in the configuration's directory, has no name, and is gone with
 * model_dir_close. What it holds is no model's. ERR_IO: it cannot be written. */
int sketch_make_file(struct model_dir *m, uint64_t bytes, uint32_t *layer, uint32_t *n,
                     struct moeflux_err *e);

#endif
