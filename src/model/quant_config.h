/* quant_config.h - the quantization block of a config.json: bits and groups per tensor. */
#ifndef MOEFLUX_MODEL_QUANT_CONFIG_H
#define MOEFLUX_MODEL_QUANT_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model_dir.h"

struct json_t;

/* Columns that share a scale where a file does not say it, as for mlx. */
enum { QUANT_DEFAULT_GROUP = 64 };

struct quant_config {
    const struct json_t *block; /* borrowed from the configuration; NULL: the checkpoint is not quantised */
    const char *where;          /* the file's name, borrowed */
    uint32_t bits, group;       /* of tensors without an entry of their own */
    struct fp8_blocks fp8;      /* of one scale; zero: no checkpoint with 8-bit floats */
};

/* Finds `quantization` or `quantization_config`. ERR_UNSUPPORTED: a scheme other than affine groups that some format has
 * (base/format.h) and block-wise fp8. */
int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where,
                      struct moeflux_err *e);

/* Bits and group of the matrix with this base name as the checkpoint spells it. */
int quant_config_matrix(const struct quant_config *q, const char *base, uint32_t *bits, uint32_t *group,
                        struct moeflux_err *e);

#endif
