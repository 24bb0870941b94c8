/* config.h - the configuration that a GGUF file's metadata stands for, as the model's own config.json would
 * have it. */
#ifndef MOEFLUX_CONVERT_GGUF_CONFIG_H
#define MOEFLUX_CONVERT_GGUF_CONFIG_H

struct gguf;
struct json_t;
struct moeflux_err;

/* ERR_FORMAT: a key is missing or no number. ERR_UNSUPPORTED: an architecture that is not read; those that
 * are are listed. The caller gives *out back with json_decref. */
int gguf_config_make(const struct gguf *g, struct json_t **out, struct moeflux_err *e);

#endif
