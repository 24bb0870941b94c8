/* config.h - makes a config.json, as the model's own would be, from a GGUF file's metadata. */
#ifndef MOEFLUX_CONVERT_GGUF_CONFIG_H
#define MOEFLUX_CONVERT_GGUF_CONFIG_H

struct gguf;
struct json_t;
struct moeflux_err;

/* Makes the configuration in *out; the caller frees it with json_decref. ERR_FORMAT: a key is missing or no
 * number. ERR_UNSUPPORTED: an unknown architecture; the message lists the known ones. */
int gguf_config_make(const struct gguf *g, struct json_t **out, struct moeflux_err *e);

#endif
