/* chosen.h - loads and computes the experts that the router chose, and prefetches those of the next layer. */
#ifndef MOEFLUX_ENGINE_RUN_CHOSEN_H
#define MOEFLUX_ENGINE_RUN_CHOSEN_H

#include "engine/run/pass.h"

/* Reads the tables of experts that a token's id names (model/config.h, routed_config) into m->named.
 * ERR_FORMAT, ERR_MEMORY. */
int chosen_open(struct moeflux_model *m, struct moeflux_err *e);
void chosen_close(struct moeflux_model *m); /* zeroed is legal */

/* Selects the predictor's places for the work's sequences and notes their positions after the work. What the
 * predictor has seen of a sequence counts only if the sequence goes on from there. */
void chosen_track(const struct work *w, struct stage *at);
/* Prefetches the experts that the ids name in all layers of the pass's stage, before the first one computes;
 * of single tokens only. ids: [p->chunk.n]. */
void chosen_prefetch_named(const struct pass *p, const int32_t *ids);
/* Applies the router of the next layer with experts early, to predict its experts; only for single tokens, if
 * experts may have to be read there. Returns whether it does. */
bool chosen_predict_next(const struct pass *p, uint32_t layer);
/* Predicts a layer's experts again, on a stage that computes at once: the host sees predictions there. This
 * prediction, made before the layer's mixer, replaces the first one, made before the last layer's experts.
 * With a random router it names 0.78 of the chosen experts instead of 0.67; the likeliest four are right with
 * 0.9. The first layer has only this one, from the embedding: 0.44, the likeliest two 0.7. Useless reads take
 * the disk's time, so both name only the likelier half, for the first layer a quarter. */
void chosen_predict_again(const struct pass *p, uint32_t layer);
/* Returns the number of chosen experts of a part, summed over the tokens of the chunk. */
uint64_t chosen_n_all(const struct pass *p, const struct expert_part *part);
/* Adds the chunk's choices to the statistics. */
void chosen_count(const struct pass *p);
/* Must be called once when the host knows a layer's choice: notes it, and changes it if resident experts are
 * preferred. */
void chosen_see(const struct pass *p, uint32_t layer);
/* Loads and computes those of the chosen experts that the device computes, or that the CPU does (on_cpu). */
int chosen_run(const struct pass *p, uint32_t layer, bool on_cpu, struct moeflux_err *e);

#endif
