/* names.h - translates names of a GGUF file's tensors to those of the model's own checkpoint. */
#ifndef MOEFLUX_CONVERT_GGUF_NAMES_H
#define MOEFLUX_CONVERT_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>

struct config;

enum { GGUF_NAMES_LENGTH = 128 };

/* Puts the canonical name into `out`. *skipped: the tensor is not part of the text model (rotary tables,
 * multi-token-prediction layers). Returns false if no family has such a tensor. */
bool gguf_names_find(const struct config *c, const char *name, char out[GGUF_NAMES_LENGTH], bool *skipped);

#endif
