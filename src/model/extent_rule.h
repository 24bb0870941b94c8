/* extent_rule.h - puts an expert's bytes to their places in a slot, if a published checkpoint stores them in
 * another order or shape than operations read them. */
#ifndef MOEFLUX_MODEL_EXTENT_RULE_H
#define MOEFLUX_MODEL_EXTENT_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

/* Returns the rule of the block scales of 8-bit floats, for a matrix [rows][cols] whose scales begin `at`
 * bytes into the slot. scales: as fp8_scales accepts them. */
struct extent_rule extent_rule_blocks(const struct fp8_blocks *b, const struct tensor *scales, uint32_t rows,
                                      uint32_t cols, uint32_t group, uint64_t at);

/* Writes to `slot` what bytes [from, from + n) of a run become. Scales are whole ones, and EXTENT_NVFP4's
 * from and n are multiples of 4. Returns false if a scale is not finite. Does not read what others write to
 * the slot. factor: that of EXTENT_FACTOR and EXTENT_NVFP4; else NULL is legal. */
bool extent_rule_place(const struct extent_rule *r, const struct tensor_factor *factor, uint64_t from,
                       const uint8_t *bytes, uint64_t n, uint8_t *slot);

#endif
