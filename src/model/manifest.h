/* manifest.h - model_weights.json: the tensors of model_weights.bin. */
#ifndef MOEFLUX_MODEL_MANIFEST_H
#define MOEFLUX_MODEL_MANIFEST_H

#include "model/tensor.h"

struct json_t;

enum { MANIFEST_ALIGN = 64 }; /* every tensor starts at a multiple of this */

/* Adds the manifest's tensors to `out` (file index `file`, whose length is bin_bytes) and keeps the parsed
 * document in *root (json_decref), whose "config" may be needed. tensor.bits is what the manifest says (0
 * when it does not). ERR_FORMAT names the manifest and the tensor: offsets, sizes, alignment, overlap, dtype.
 * */
int manifest_read(const char *path, uint32_t file, uint64_t bin_bytes, struct tensor_list *out,
                  struct json_t **root, struct moeflux_err *e);

#endif
