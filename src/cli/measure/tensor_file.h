/* tensor_file.h - writes a safetensors file in pieces; it appears whole or not at all.
 * The bytes go to a temporary file in the same directory (base/side_file.h), which is renamed at the end. */
#ifndef MOEFLUX_CLI_MEASURE_TENSOR_FILE_H
#define MOEFLUX_CLI_MEASURE_TENSOR_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/side_file.h"

struct moeflux_err;

enum { TENSOR_FILE_MAX = 4 };

struct tensor_spec {
    const char *name;
    const char *dtype; /* "F32" or "I32": 4 bytes an element */
    uint32_t n_dims;
    uint64_t shape[3];
};

struct tensor_file {
    struct side_file file;
    uint64_t offsets[TENSOR_FILE_MAX]; /* place of each tensor's first byte in the file */
    uint64_t bytes[TENSOR_FILE_MAX];   /* size of each tensor */
};

/* Creates the temporary file, so that a directory that cannot be written is reported before long work.
 * ERR_IO, also for a path that is there and is no regular file. */
int tensor_file_create(struct tensor_file *f, const char *path, struct moeflux_err *e);

/* Writes the header. n <= TENSOR_FILE_MAX. */
int tensor_file_begin(struct tensor_file *f, const struct tensor_spec *specs, size_t n,
                      struct moeflux_err *e);

/* Writes `n` elements of tensor `idx` from element `at` on. */
int tensor_file_write(struct tensor_file *f, size_t idx, uint64_t at, const void *elements, uint64_t n,
                      struct moeflux_err *e);

/* Gives the file its name. On failure the temporary file is removed. */
int tensor_file_commit(struct tensor_file *f, struct moeflux_err *e);

/* Removes the temporary file unless it was committed; frees. A zeroed struct is legal. */
void tensor_file_free(struct tensor_file *f);

#endif
