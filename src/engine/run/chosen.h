/* chosen.h - loads and computes the experts that the router chose, and prefetches those of the next layer. */
#ifndef MOEFLUX_ENGINE_RUN_CHOSEN_H
#define MOEFLUX_ENGINE_RUN_CHOSEN_H

#include "engine/run/pass.h"

/* Returns the experts of tokens from .. from + n - 1, with the side's table. */
struct arch_experts chosen_part(const struct expert_side *side, uint32_t layer, uint32_t from, uint32_t n);
/* Runs up and down, on the side that has the layer's experts. */
void chosen_compute(const struct pass *p, const struct arch_experts *x);
/* Predicts a layer's experts again, if the host sees predictions at once. This prediction, made before the
 * layer's mixer, replaces the first one, made before the last layer's experts. With a random router it names
 * 0.78 of the chosen experts instead of 0.67; the likeliest four are right with 0.9. The first layer has only
 * this one, from the embedding: 0.44, the likeliest two 0.7. Useless reads take the disk's time, so both name
 * only the likelier half, for the first layer a quarter. */
void chosen_predict_again(const struct pass *p, uint32_t layer);
/* Returns the number of chosen experts, summed over the tokens of the chunk. */
uint64_t chosen_n_all(const struct pass *p);
/* Adds the chunk's choices to the statistics. */
void chosen_count(const struct pass *p);
/* Notes the token's choices in the layers that it passed without the host. Its last batch must be
 * finished. */
int chosen_see(const struct pass *p, struct moeflux_err *e);
/* Loads and computes the experts of a layer whose choice the host knows now. */
int chosen_run(const struct pass *p, uint32_t layer, struct moeflux_err *e);

#endif
