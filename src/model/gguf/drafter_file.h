/* drafter_file.h - a GGUF file that has a model's layer of multi-token prediction alone, as llama.cpp's
 * converter writes it with --mtp. */
#ifndef MOEFLUX_MODEL_GGUF_DRAFTER_FILE_H
#define MOEFLUX_MODEL_GGUF_DRAFTER_FILE_H

struct config;
struct gguf;
struct moeflux_err;

/* Adds the layer's tensors in `path` to an open model's, under the names that they have in a model's file.
 * c: the model's drafter. They replace what the model has of the layer. The file's copies of embedding,
 * norm and head are left out. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED; ERR_MEMORY. */
int drafter_file_add(struct gguf *g, const struct config *c, const char *path, struct moeflux_err *e);

#endif
