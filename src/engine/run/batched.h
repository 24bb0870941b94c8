/* batched.h - moeflux_eval_batched for those who keep all devices busy. */
#ifndef MOEFLUX_ENGINE_RUN_BATCHED_H
#define MOEFLUX_ENGINE_RUN_BATCHED_H

#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

/* moeflux_eval_batched of n >= 1. left: called once, on this thread, when the first of the model's devices
 * has nothing more to do with it: from then on other sequences are computed there, while these are on the
 * devices behind. */
int batched_eval(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                 void (*left)(void *ctx), void *ctx, struct moeflux_err *e);
/* Devices that evaluations pass one after the other. */
uint32_t batched_n_stages(const struct moeflux_model *m);
/* The most tokens of a prompt that are evaluated at once: the results depend on where it is cut. */
uint32_t batched_chunk(const struct moeflux_model *m);

#endif
