/* config_read.h - reads a config.json, with the reader of its family (family.h). */
#ifndef MOEFLUX_MODEL_CONFIG_READ_H
#define MOEFLUX_MODEL_CONFIG_READ_H

#include "model/config.h"

/* Reads a configuration object (nested text_config or flat) into *c. `where` names the file in messages.
 * ERR_FORMAT names a key that is missing, of the wrong type or out of range. ERR_UNSUPPORTED: an unknown
 * model_type (the message lists the known ones), or a rope type, activation, bias or other option that
 * moeflux does not compute. */
int config_read(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e);

#endif
