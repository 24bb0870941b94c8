/* quant_groups.h - the groups of modules in a published quantization block: which forms they have, and which
 * modules they name. compressed-tensors and ModelOpt have the same keys:
 *
 *   config_groups  {name: {targets, weights: {type, num_bits, group_size, strategy, ...}, format}}
 *   ignore         modules that stay unquantised; ModelOpt also calls it exclude_modules
 *
 * A target is a name of a module, "re:" with a regular expression that matches its beginning, a pattern with
 * `*`, or "Linear", any matrix. A checkpoint's tensors themselves say their form. The names are for a
 * configuration without tensors. */
#ifndef MOEFLUX_MODEL_QUANT_GROUPS_H
#define MOEFLUX_MODEL_QUANT_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct json_t;
struct json_view;

struct quant_groups {
    const struct json_t *groups, *ignore; /* borrowed from the configuration; NULL: it has none */
    uint32_t all;                         /* FORMAT_* of all modules without groups; FORMAT_NONE: unknown */
};

/* Reads the lists. all: see the member. */
void quant_groups_find(struct quant_groups *g, struct json_view *block, uint32_t all);

/* Returns whether the lists say the form of each matrix. */
bool quant_groups_say(const struct quant_groups *g);

/* Checks that each group has a form that is read: NVFP4 in groups of 16 columns (nvfp4.h), 8-bit floats with
 * a scale for the tensor, each row or each block (fp8.h), or no weights. *fp8: receives the blocks, if there
 * are some. ERR_UNSUPPORTED names the group. */
int quant_groups_check(const struct quant_groups *g, struct json_view *block, struct fp8_blocks *fp8);

/* Returns the FORMAT_* of a matrix by the name of its module: FORMAT_NVFP4_FACTOR, FORMAT_FP8, or FORMAT_BF16
 * if it stays unquantised; FORMAT_NONE: the lists do not say. Regular expressions that have more than `.`,
 * `.*`, `\.`, `^` and `$` match nothing. */
uint32_t quant_groups_format(const struct quant_groups *g, const char *name);

#endif
