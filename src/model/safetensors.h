/* safetensors.h - the tensors of a checkpoint directory: one or many *.safetensors files, headers only.
 *
 * A file is a u64 header length n, n bytes of JSON, then data. With model.safetensors.index.json the files
 * are those of its weight_map, else every *.safetensors of the directory. */
#ifndef MOEFLUX_MODEL_SAFETENSORS_H
#define MOEFLUX_MODEL_SAFETENSORS_H

#include "model/tensor.h"

struct safetensors {
    struct model_file *files; /* open for reading */
    uint32_t n_files;
    struct tensor_list tensors; /* names as in the files, sorted; off counts from the file's start */
};

/* Adds the tensors of one open file to `out` (file index `file`). Checks the header's length, its JSON, each
 * tensor's dtype, shape and offsets, and that no two share bytes. ERR_FORMAT names file and tensor. */
int safetensors_read_header(const struct model_file *f, uint32_t file, struct tensor_list *out,
                            struct moeflux_err *e);

/* Opens the checkpoint in `dir`. Nothing stays open on failure. */
int safetensors_open(struct safetensors *s, const char *dir, struct moeflux_err *e);

/* Half-opened and zeroed ones are legal. */
void safetensors_close(struct safetensors *s);

#endif
