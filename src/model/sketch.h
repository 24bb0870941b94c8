/* sketch.h - makes a model_dir from a config.json alone: sizes and formats of tensors and experts, no files.
 * A sketch can be planned for, but not loaded.
 *
 * Formats are those of the quantization table. Without one they are those of `moeflux convert`: 4 bits in
 * groups of 64, and for the router's gates the family's own. */
#ifndef MOEFLUX_MODEL_SKETCH_H
#define MOEFLUX_MODEL_SKETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model_dir.h"

/* Reads the configuration `path`. The sketch has everything except files, places of experts and contents of
 * tensors; is_sketch is true. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, as for model_dir_open. On failure nothing
 * stays open. */
int sketch_open(struct model_dir *m, const char *path, struct moeflux_err *e);

/* Gives the sketch a file to measure the disk with: experts [0, *n) of layer *layer, at most `bytes` bytes of
 * them, but at least one. It lies in the configuration's directory, has no name, and disappears with
 * model_dir_close. Its contents are no model's. ERR_IO: it cannot be written. */
int sketch_make_file(struct model_dir *m, uint64_t bytes, uint32_t *layer, uint32_t *n,
                     struct moeflux_err *e);

#endif
