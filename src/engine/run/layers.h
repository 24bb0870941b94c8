/* layers.h - records a pass: what enters the stage, its layers one after the other, and the head.
 *
 * If every expert is resident and no trace is written, the router's choice stays on the device and decode
 * is one submission. Otherwise each layer's list up to the router is submitted, the host reads the choice
 * and loads the experts, and the list of the experts begins the next submission. If a chunk chose more
 * experts than there are slots, they are computed in rounds.
 *
 * The CPU may compute the routed experts of the first layers, or a part of each layer's (SIDE_HOST). Then the
 * host gets the hidden states and weights with the choice. It computes the experts while the device computes
 * its own part and the shared one, and the next submission adds their sum. That submission is recorded before
 * the host computes, so that it is ready when the sum is. If the device can read its whole part, it need not
 * wait for the host: its part is submitted with the choice. In large chunks the device computes the CPU's
 * experts too, with copies (SIDE_PROMPT). The layer, the experts' numbers and the chunk's size decide who
 * computes, so results do not depend on what is in memory.
 *
 * The exception is moeflux_options.prefer_resident: then the host changes the choice of a single token
 * (prefer.h). */
#ifndef MOEFLUX_ENGINE_RUN_LAYERS_H
#define MOEFLUX_ENGINE_RUN_LAYERS_H

#include "engine/run/pass.h"

/* Whether a token's batch goes through all layers of the stage without the host. */
bool layers_are_at_once(const struct pass *p);
/* Begins a batch and records the layers from the ids, or the hidden states that enter the stage, to those
 * that leave it. The batch stays open. */
int layers_run(const struct pass *p, struct moeflux_err *e);
/* Records the head for tokens from .. from + n - 1, and the copy of their logits to the host. */
void layers_head(const struct pass *p, uint32_t from, uint32_t n);
/* Runs layers_run and, on the last stage, layers_head for all tokens that have logits. */
int layers_run_tokens(const struct pass *p, struct moeflux_err *e);
/* Notes the token's choices in the layers that it passed without the host. Its last batch must be
 * finished. */
int layers_see(const struct pass *p, struct moeflux_err *e);

#endif
