/* names.h - translates names of a GGUF file's tensors to those of the model's own checkpoint. */
#ifndef MOEFLUX_MODEL_GGUF_NAMES_H
#define MOEFLUX_MODEL_GGUF_NAMES_H

#include <stddef.h>

struct config;

enum { GGUF_NAMES_LENGTH = 128 };

enum gguf_names_kind {
    GGUF_NAMES_UNKNOWN,
    GGUF_NAMES_OURS,
    GGUF_NAMES_UNUSED,    /* follows from the configuration: rotary tables */
    GGUF_NAMES_OTHER_PART /* vision, multi-token prediction */
};

/* Puts the canonical name of a tensor of the text model into `out`. UNKNOWN: the family has no such
 * tensor. */
enum gguf_names_kind gguf_names_find(const struct config *c, const char *name, char out[GGUF_NAMES_LENGTH]);
/* Returns the name of the norm before the head of multi-token prediction, or of its mix of streams, after
 * "blk.N." and without ".weight". c: the model or its drafter. */
const char *gguf_names_drafter_norm(const struct config *c);
/* Returns the name that a file has for a canonical one, in `out`; the usual one, if files have several.
 * `name` itself if no file has the tensor. */
const char *gguf_names_of(const struct config *c, const char *name, char out[GGUF_NAMES_LENGTH]);

#endif
