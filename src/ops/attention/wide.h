/* wide.h - attention over latents and over heads too wide for attention/prefill.comp, on a device's matrix
 * units, in two passes and a merge: see kernels/attention/wide.glsl. Queries and weights are rounded to
 * float16, sums are float32. Part of attention's Vulkan implementation. */
#ifndef MOEFLUX_OPS_ATTENTION_WIDE_H
#define MOEFLUX_OPS_ATTENTION_WIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/attention/attention.h"

/* Returns whether the device and the shape's dims allow it; the cache must not be float32. */
bool attention_wide_is_possible(const struct attention_shape *s, const struct exec_caps *caps);
int attention_wide_open(struct attention *op, struct exec *x, struct moeflux_err *e);
/* Returns whether it is the faster way for n tokens that see n_pos positions; false if it is not possible. */
bool attention_wide_takes(const struct attention *op, uint32_t n, uint32_t n_pos);
/* Returns the bytes of scratch for chunks of up to n tokens that see up to n_pos positions; 0 if none of them
 * takes this way. */
uint64_t attention_wide_bytes(const struct attention_shape *s, uint32_t n, uint32_t n_pos);
/* Returns the bytes of scratch that attention_wide_run writes. */
uint64_t attention_wide_call_bytes(const struct attention *op, const struct attention_call *call);
/* Returns what one token that sees n_pos positions leaves in `partial`. */
struct attention_parts attention_wide_parts(const struct attention *op, uint32_t n_pos);
void attention_wide_run(const struct attention *op, struct exec *x, const struct attention_call *call);

/* Joins the splits of `rows` rows at call->partial and writes call->dst. */
void attention_merge_run(const struct attention *op, struct exec *x, const struct attention_call *call,
                         uint32_t rows, uint32_t splits);

#endif
