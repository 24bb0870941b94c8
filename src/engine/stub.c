/* Stands in until the engine counts: delete this file when moeflux_save_usage and moeflux_layer_wait_ns exist. */
#include <stdlib.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "experts/usage.h"

uint64_t moeflux_layer_wait_ns(const struct moeflux *m, uint32_t layer)
{
    (void)m;
    (void)layer;
    return 0;
}

int moeflux_save_usage(const struct moeflux *m, const char *path, struct err *e)
{
    const struct config *c = &m->dir.config;
    uint32_t *counts = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *counts, e);
    int rc = counts ? usage_read(path, c->n_layers, c->n_experts, counts, e) : ERR_MEMORY;
    if (rc >= 0)
        rc = usage_write(path, c->n_layers, c->n_experts, counts, e);
    free(counts);
    return rc;
}
