/* config_read.h - reads a config.json, with the reader of its family (family.h). */
#ifndef MOEFLUX_MODEL_CONFIG_READ_H
#define MOEFLUX_MODEL_CONFIG_READ_H

#include "model/config.h"

/* Reads a configuration object (nested text_config or flat). `where` names the file in messages. ERR_FORMAT:
 * a key is missing, of the wrong type or out of range (the key is named); ERR_UNSUPPORTED: what this program
 * does not compute: an unknown model_type (those known are listed), a rope type, an activation, biases and
 * more. */
int config_read(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

#endif
