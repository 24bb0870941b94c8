/* store_state.h - what an expert store consists of. Private to store.c and store_fill.c. */
#ifndef MOEFLUX_EXPERTS_STORE_STATE_H
#define MOEFLUX_EXPERTS_STORE_STATE_H

#include "experts/store.h"
#include "experts/tiers.h"
#include "model/model.h"

/* The most reads in flight. */
enum { MAX_IN_FLIGHT = 64 };

struct expert_store {
    struct exec *exec;
    const struct model_dir *model;
    struct expert_set set; /* others have no entries in its tables */
    uint32_t n_layers, n_experts;
    struct tiers tiers;
    struct reader *reader;
    struct want *wants; /* [n_wants], those before n_brought have their slots */
    uint32_t n_wants, n_brought, n_landed, max_wants;
    struct held *held; /* [n_held] */
    uint32_t n_held;
    bool fills;                    /* the option of this name */
    uint64_t fill_at;              /* the next expert for fill_ahead: layer * n_experts + number */
    uint32_t max_pinned, n_pinned; /* device slots of --pin: planned; loaded so far */
    uint32_t *counts;              /* [n_layers][n_experts]: choices, including those of earlier runs */
    uint64_t *layer_wait_ns;
    uint32_t max_prefetching; /* prefetches in flight at once */
    bool in_place;            /* device slots are the mapped files */
    const char *usage, *pin;  /* borrowed until store_fill_load */
    struct expert_store_stats stats;
};

/* Returns the number of experts in the set. */
static inline uint64_t store_n_experts(const struct model_dir *m, const struct expert_set *set)
{
    uint64_t n = 0;
    for (uint32_t i = set->layers.first; i < set->layers.end; i++)
        n += config_has_experts(&m->config, i) ? expert_part_count(&set->part, m->config.n_experts) : 0;
    return n;
}

/* Returns whether the set has an expert. */
static inline bool store_has(const struct model_dir *m, const struct expert_set *set, uint32_t layer,
                             uint32_t expert)
{
    return layer >= set->layers.first && layer < set->layers.end && config_has_experts(&m->config, layer) &&
           expert_part_has(&set->part, m->config.n_experts, expert);
}

#endif
