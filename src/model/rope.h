/* rope.h - computes the numbers of a model's rotary embedding: frequencies, factor of cos and sin, softmax
 * scale.
 *
 * Plain RoPE: theta^(-2i/D), divided by the factor if there is one; 0 from pair n_pairs on. YaRN:
 * https://arxiv.org/abs/2309.00071, section 3, with the rounding of the correction range and the two mscale
 * terms as DeepSeek's published code has them. */
#ifndef MOEFLUX_MODEL_ROPE_H
#define MOEFLUX_MODEL_ROPE_H

#include "model/config.h"

/* Returns the floats that a token has in the first n tables of a model: cos and sin of each pair. */
uint32_t rope_floats(const struct config *c, uint32_t n);

/* Fills out [dim / 2]: the angle of pair i at position p is p * out[i]. Computes in double and rounds
 * to float32, as the models were trained and run. */
void rope_frequencies(const struct rope_config *r, float *out);

/* Returns the factor of every cos and sin; 1 for plain RoPE. */
double rope_multiplier(const struct rope_config *r);

/* Returns the factor of the attention scores over keys of key_dim channels: 1/sqrt(key_dim). Latent attention
 * with YaRN also multiplies by the square of mscale_all_dim's term. */
double rope_softmax_scale(const struct rope_config *r, uint32_t key_dim);

#endif
