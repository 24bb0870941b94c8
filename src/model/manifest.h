/* manifest.h - reads model_weights.json, the list of the tensors in model_weights.bin. */
#ifndef MOEFLUX_MODEL_MANIFEST_H
#define MOEFLUX_MODEL_MANIFEST_H

#include "model/tensor.h"

struct json_t;

enum { MANIFEST_ALIGN = 64 }; /* every tensor starts at a multiple of this */

/* Adds the manifest's tensors to `out`. `file`: the index of model_weights.bin, whose length is bin_bytes.
 * *root: the parsed document, whose "config" the caller may need (json_decref). tensor.bits is the manifest's
 * value, 0 without one. ERR_FORMAT names the manifest and the tensor: bad offset, size, alignment, overlap or
 * dtype. */
int manifest_read(const char *path, uint32_t file, uint64_t bin_bytes, struct tensor_list *out,
                  struct json_t **root, struct moeflux_err *e);

#endif
