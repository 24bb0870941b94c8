/* layers.h - the layers of a pass, one after the other.
 *
 * If every expert is resident and no trace is written, the router's choice stays on the device and decode is
 * one submission. Else the list of each layer that ends with the router is submitted, the host reads the
 * choice and has the experts loaded, and the list of the experts begins the next submission. If a chunk chose
 * more experts than there are slots, they are computed in waves.
 *
 * The routed experts of the first layers may be the CPU's (SIDE_HOST). Then the choice comes with the hidden
 * states and weights, the host computes the experts while the device computes the shared one, and the next
 * submission adds their sum. That one is recorded before the host computes, so that it is ready when the sum
 * is. In a large chunk the device computes them too, with copies (SIDE_PROMPT). The layer and the chunk's
 * size say whose it is, so results do not depend on what is in memory.
 *
 * They do with moeflux_options.prefer_resident: then the host changes the choice of a single token
 * (prefer.h). */
#ifndef MOEFLUX_ENGINE_RUN_LAYERS_H
#define MOEFLUX_ENGINE_RUN_LAYERS_H

#include "engine/run/pass.h"

/* Into the open batch, which goes on behind the last layer. */
int layers_run(const struct pass *p, struct moeflux_err *e);

#endif
