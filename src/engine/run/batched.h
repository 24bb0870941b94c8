/* batched.h - moeflux_eval_batched for callers that keep all devices busy. */
#ifndef MOEFLUX_ENGINE_RUN_BATCHED_H
#define MOEFLUX_ENGINE_RUN_BATCHED_H

#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

/* Runs moeflux_eval_batched for n >= 1. left: called once, on this thread, when the first device has finished
 * its part: other sequences can be computed there while these are on the later devices. */
int batched_eval(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                 void (*left)(void *ctx), void *ctx, struct moeflux_err *e);
/* Returns the number of devices that an evaluation passes one after the other. */
uint32_t batched_n_stages(const struct moeflux_model *m);
/* Returns the most tokens of a prompt that are evaluated at once. Results depend on where a prompt is cut. */
uint32_t batched_chunk(const struct moeflux_model *m);

#endif
