/* layers.h - computes the layers of a pass, one after the other.
 *
 * If every expert is resident and no trace is written, the router's choice stays on the device and decode
 * is one submission. Otherwise each layer's list up to the router is submitted, the host reads the choice
 * and loads the experts, and the list of the experts begins the next submission. If a chunk chose more
 * experts than there are slots, they are computed in rounds.
 *
 * The CPU may compute the routed experts of the first layers (SIDE_HOST). Then the host gets the hidden
 * states and weights with the choice. It computes the experts while the device computes the shared one,
 * and the next submission adds their sum. That submission is recorded before the host computes, so that it
 * is ready when the sum is. In large chunks the device computes these experts too, with copies
 * (SIDE_PROMPT). The layer and the chunk's size decide who computes, so results do not depend on what is
 * in memory.
 *
 * The exception is moeflux_options.prefer_resident: then the host changes the choice of a single token
 * (prefer.h). */
#ifndef MOEFLUX_ENGINE_RUN_LAYERS_H
#define MOEFLUX_ENGINE_RUN_LAYERS_H

#include "engine/run/pass.h"

/* Records the layers into the open batch, which stays open after the last layer. */
int layers_run(const struct pass *p, struct moeflux_err *e);

#endif
