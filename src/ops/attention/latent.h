/* latent.h - attention over latents on a device's matrix units, in two passes and a merge: see
 * kernels/attention/latent.glsl. Queries and weights are rounded to float16, sums are float32. Part of
 * attention's Vulkan implementation. */
#ifndef MOEFLUX_OPS_ATTENTION_LATENT_H
#define MOEFLUX_OPS_ATTENTION_LATENT_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/attention/attention.h"

/* The device and the shape's dims allow it; the cache is in float16. */
bool attention_latent_is_possible(const struct attention_shape *s, const struct exec_caps *caps);
int attention_latent_open(struct attention *op, struct exec *x, struct moeflux_err *e);
/* It is worth it for n tokens that see n_pos positions; false where it was not opened. */
bool attention_latent_takes(const struct attention *op, uint32_t n, uint32_t n_pos);
/* Bytes of scratch for chunks of up to n tokens that see up to n_pos positions. */
uint64_t attention_latent_bytes(const struct attention_shape *s, uint32_t n, uint32_t n_pos);
/* Of one token that sees n_pos positions. */
struct attention_parts attention_latent_parts(const struct attention *op, uint32_t n_pos);
void attention_latent_run(const struct attention *op, struct exec *x, const struct attention_call *call);

/* The splits' parts, at call->partial for `rows` rows, into call->dst. */
void attention_merge_run(const struct attention *op, struct exec *x, const struct attention_call *call,
                         uint32_t rows, uint32_t splits);

#endif
