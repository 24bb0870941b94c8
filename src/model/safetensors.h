/* safetensors.h - lists the tensors of a checkpoint directory from the headers of its *.safetensors files.
 *
 * A file is a u64 header length n, n bytes of JSON, then data. The files are those of the weight_map in
 * model.safetensors.index.json; without it, all *.safetensors of the directory. */
#ifndef MOEFLUX_MODEL_SAFETENSORS_H
#define MOEFLUX_MODEL_SAFETENSORS_H

#include "model/tensor.h"

struct safetensors {
    struct open_file *files; /* open for reading */
    uint32_t n_files;
    struct tensor_list tensors; /* names as in the files, sorted; off counts from the file's start */
};

/* Adds the tensors of one open file, whose index is `file`, to `out`. Checks the header's length, its JSON,
 * each tensor's dtype, shape and offsets, and that no two share bytes. ERR_FORMAT names file and tensor. */
int safetensors_read_header(const struct open_file *f, uint32_t file, struct tensor_list *out,
                            struct moeflux_err *e);

/* Opens the checkpoint in `dir`. Nothing stays open on failure. */
int safetensors_open(struct safetensors *s, const char *dir, struct moeflux_err *e);

/* Zeroed and half-opened ones are legal. */
void safetensors_close(struct safetensors *s);

#endif
