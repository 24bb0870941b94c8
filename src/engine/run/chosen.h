/* chosen.h - the experts that the router chose: brought into memory, computed, those of the next layer read
 * ahead. */
#ifndef MOEFLUX_ENGINE_RUN_CHOSEN_H
#define MOEFLUX_ENGINE_RUN_CHOSEN_H

#include "engine/run/pass.h"

/* Those of tokens from .. from + n - 1, by the side's table. */
struct arch_experts chosen_part(const struct expert_side *side, uint32_t layer, uint32_t from, uint32_t n);
/* Up and down, on the side that the layer's experts are on. */
void chosen_compute(const struct pass *p, const struct arch_experts *x);
/* Where a prediction can be seen at once, a second one before the layer's mixer replaces the first, which was
 * made before the last layer's experts. With a random router 0.78 of the chosen experts are named instead of
 * 0.67, the likeliest four by 0.9. For the first layer there is only this one, for the embedding: 0.44, the
 * likeliest two by 0.7. What is read in vain takes the disk's time, so both name the likelier half, of the
 * first layer a quarter. */
void chosen_predict_again(const struct pass *p, uint32_t layer);
/* Experts of all tokens of the chunk together. */
uint64_t chosen_n_all(const struct pass *p);
/* Into the statistics. */
void chosen_count(const struct pass *p);
/* What the token chose in the layers that it passed without the host; its last batch is over. */
int chosen_see(const struct pass *p, struct moeflux_err *e);
/* The experts that the router chose, which the host knows now. */
int chosen_run(const struct pass *p, uint32_t layer, struct moeflux_err *e);

#endif
