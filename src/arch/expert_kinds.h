/* expert_kinds.h - groups layers by the formats of their routed experts and the clamps of their activations.
 * Layers of one kind share an operation. */
#ifndef MOEFLUX_ARCH_EXPERT_KINDS_H
#define MOEFLUX_ARCH_EXPERT_KINDS_H

#include <stdint.h>

struct config;
struct expert_layout;
struct moeflux_err;

struct expert_kinds {
    uint32_t n;
    uint32_t *of_layer;                  /* [n_layers]: the layer's kind; 0 for a layer without experts */
    uint32_t *layer;                     /* [n]: the first layer of each kind */
    const struct expert_layout *layouts; /* [n_layers], borrowed */
};

/* layouts: [n_layers], kept until close. */
int expert_kinds_open(struct expert_kinds *k, const struct config *c, const struct expert_layout *layouts,
                      struct moeflux_err *e);
void expert_kinds_close(struct expert_kinds *k); /* zeroed is legal */

#endif
