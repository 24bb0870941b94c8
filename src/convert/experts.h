/* experts.h - writes packed_experts/layer_NN.bin, in every part. */
#ifndef MOEFLUX_CONVERT_EXPERTS_H
#define MOEFLUX_CONVERT_EXPERTS_H

#include "convert/parts.h"
#include "convert/plan.h"
#include "convert/work.h"

/* Writes "packed_experts/layer_07.bin". */
void convert_experts_name(uint32_t layer, char out[CONVERT_NAME]);

/* Makes one expert from the source: plan->experts[layer].bytes bytes at the start of `slot`, which has room
 * for plan->expert_room; `block` has room for CONVERT_BLOCK weights of 4 bytes. Adds the errors to `sum`
 * (NULL: not measured). ERR_FORMAT: a value is not finite. */
int convert_experts_make(const struct convert_plan *p, uint32_t layer, uint32_t expert, uint8_t *slot,
                         uint8_t *block, struct convert_error *sum, struct moeflux_err *e);

/* Writes one layer, or keeps it (*kept) if an earlier run finished it. Source bytes count as progress either
 * way. */
int convert_experts_write(const struct convert_plan *p, uint32_t layer, struct convert_parts *parts,
                          struct convert_work *w, bool *kept, struct moeflux_err *e);

#endif
