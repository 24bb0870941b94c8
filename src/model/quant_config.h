/* quant_config.h - reads the quantization block of a config.json: mode, bits and group of each tensor. */
#ifndef MOEFLUX_MODEL_QUANT_CONFIG_H
#define MOEFLUX_MODEL_QUANT_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "model/quant_groups.h"

struct json_t;
struct moeflux_err;

/* Columns that share a scale in files that do not say how many; MLX's default. */
enum { QUANT_DEFAULT_GROUP = 64 };

/* The key of a converted model's manifest that says that experts' matrices have factors: "factor": true. */
#define QUANT_FACTOR_KEY "factor"

/* One line of the table. */
struct quant_entry {
    enum quant_mode mode;
    uint32_t bits, group;
};

struct quant_config {
    const struct json_t *block; /* borrowed from the configuration; NULL: the checkpoint is not quantised */
    const char *where;          /* the file's name, borrowed */
    struct quant_entry rest;    /* applies to tensors without an entry */
    struct fp8_blocks fp8;      /* block of one scale; zero: not a checkpoint with 8-bit floats */
    /* FORMAT_* of the experts if they alone are quantised, as in gpt-oss (mxfp4) and Kimi-K2.5 (4 bits) as
     * published, or if the tensors say what else is (nvfp4.h); else FORMAT_NONE */
    uint32_t expert_format;
    bool is_packed;             /* expert_format is in the form of packed.h */
    struct quant_groups groups; /* ModelOpt's, and compressed-tensors' of small floats */
};

/* Returns the FORMAT_* of a mode; FORMAT_NONE: affine, which has several. */
uint32_t quant_config_mode_format(enum quant_mode mode);
/* Returns the mode of a format. */
enum quant_mode quant_config_format_mode(uint32_t format);
/* Returns the name that configurations use: "mxfp4". */
const char *quant_config_mode_name(enum quant_mode mode);

/* Reads an object's mode, bits and group_size; `what` names it. Defaults are MLX's: mode affine; affine codes
 * have groups of 64 and `bits` (0: unknown), other modes their own. ERR_UNSUPPORTED: no format
 * (base/format.h) has these values. */
int quant_config_entry(const struct json_t *object, uint32_t bits, const char *where, const char *what,
                       struct quant_entry *out, struct moeflux_err *e);

/* Finds `quantization` or `quantization_config`. ERR_UNSUPPORTED: a scheme other than MLX's and block-wise
 * fp8, ModelOpt's, and those of expert_format. */
int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where,
                      struct moeflux_err *e);

enum quant_said {
    QUANT_SAID_NOTHING, /* the table has no entry for the matrix; *out: that of the rest */
    QUANT_SAID_ENTRY,   /* *out: its entry */
    QUANT_SAID_PLAIN,   /* its entry is `false`: not quantised */
};
/* Looks up a matrix by its base name as the checkpoint spells it. Returns a quant_said, or ERR_*. */
int quant_config_matrix(const struct quant_config *q, const char *base, struct quant_entry *out,
                        struct moeflux_err *e);

#endif
