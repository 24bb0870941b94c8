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
 * number. ERR_UNSUPPORTED: a dense model, or an unknown architecture; the message says what runs it. */
int gguf_config_make(const struct gguf *g, struct json_t **out, struct moeflux_err *e);
/* Returns the number of layers in the file, with those of multi-token prediction; 0: the key is missing. */
uint64_t gguf_config_block_count(const struct gguf *g);
/* Returns whether the file has a tokenizer. */
bool gguf_config_has_tokenizer(const struct gguf *g);
/* Returns whether llama.cpp's converter changes the order of this model's value heads
 * (delta_config.tiled). */
bool gguf_config_tiles_heads(const struct config *c);

#endif
