/* quant_config.h - the quantization block of a config.json: mode, bits and group per tensor. */
#ifndef MOEFLUX_MODEL_QUANT_CONFIG_H
#define MOEFLUX_MODEL_QUANT_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct json_t;
struct moeflux_err;

/* Columns that share a scale where a file does not say it, as for mlx. */
enum { QUANT_DEFAULT_GROUP = 64 };

/* One line of the table. */
struct quant_entry {
    enum quant_mode mode;
    uint32_t bits, group;
};

struct quant_config {
    const struct json_t *block; /* borrowed from the configuration; NULL: the checkpoint is not quantised */
    const char *where;          /* the file's name, borrowed */
    struct quant_entry rest;    /* of tensors without an entry of their own */
    struct fp8_blocks fp8;      /* of one scale; zero: no checkpoint with 8-bit floats */
    bool mxfp4_experts;         /* the experts are mxfp4 as gpt-oss was published, the rest is plain */
};

/* FORMAT_* of a mode; FORMAT_NONE: affine, which has many. */
uint32_t quant_config_mode_format(enum quant_mode mode);
/* The mode of a format. */
enum quant_mode quant_config_format_mode(uint32_t format);
/* As configurations spell it: "mxfp4". */
const char *quant_config_mode_name(enum quant_mode mode);

/* An object's mode, bits and group_size. What it leaves out is as MLX has it: affine; 64 columns and `bits`
 * (0: not known) for affine codes, else those of the mode. `what` names the object. ERR_UNSUPPORTED: no
 * format (base/format.h) is it. */
int quant_config_entry(const struct json_t *object, uint32_t bits, const char *where, const char *what,
                       struct quant_entry *out, struct moeflux_err *e);

/* Finds `quantization` or `quantization_config`. ERR_UNSUPPORTED: a scheme other than MLX's and block-wise
 * fp8. */
int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where,
                      struct moeflux_err *e);

/* What the table says of the matrix with this base name as the checkpoint spells it. */
enum quant_said {
    QUANT_SAID_NOTHING, /* of this one: *out is that of the rest */
    QUANT_SAID_ENTRY,   /* *out is its own */
    QUANT_SAID_PLAIN,   /* not quantised (`false`) */
};
int quant_config_matrix(const struct quant_config *q, const char *base, struct quant_entry *out,
                        struct moeflux_err *e);

#endif
