/* config.h - makes a config.json, as the model's own would be, from a GGUF file's metadata. */
#ifndef MOEFLUX_MODEL_GGUF_CONFIG_H
#define MOEFLUX_MODEL_GGUF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

struct config;
struct gguf;
struct json_t;
struct moeflux_err;

/* Makes the configuration in *out; the caller frees it with json_decref. ERR_FORMAT: a key is missing or no
 * finite number, a tensor is of a layer past the last one, or there are more tokens than rows of the
 * embedding. ERR_UNSUPPORTED: a dense model, or an unknown architecture; the message says what runs it. */
int gguf_config_make(const struct gguf *g, struct json_t **out, struct moeflux_err *e);
/* Returns whether files with this general.architecture can be models. */
bool gguf_config_knows(const char *architecture);
/* Returns whether the file has a tokenizer. */
bool gguf_config_has_tokenizer(const struct gguf *g);
/* Returns whether llama.cpp's converter changes the order of this model's value heads
 * (delta_config.tiled). */
bool gguf_config_tiles_heads(const struct config *c);

#endif
