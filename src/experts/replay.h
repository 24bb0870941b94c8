/* replay.h - a trace through the cache's own code (cache.h, ranking.h), without experts: what another size or
 * policy would read.
 *
 * The cache starts empty and fills by the choices alone: nothing is prefetched or pinned, and all tiers count
 * as one. An evaluation of several tokens asks for each of a layer's experts once, as the store does. */
#ifndef MOEFLUX_EXPERTS_REPLAY_H
#define MOEFLUX_EXPERTS_REPLAY_H

#include <stdint.h>

#include "experts/trace.h"

struct moeflux_err;

enum replay_policy {
    REPLAY_FREQUENCY, /* the expert with the fewest uses leaves, recent ones counting more */
    REPLAY_CONTEXT,   /* the one that is expected to be used least (context.h) does */
    REPLAY_LRU,       /* the least recently used expert leaves */
    REPLAY_LFU,       /* the one with the fewest uses does */
    /* the one that is chosen again last (Belady, 1966): no policy has more hits in all, and none can know it
     * */
    REPLAY_BEST,
    REPLAY_POLICIES
};

struct replay_result {
    uint64_t n_hits, n_misses;               /* of all evaluations */
    uint64_t n_single_hits, n_single_misses; /* of those, of evaluations of one token */
};

/* n_slots: at least top_k. layers (may be NULL): [n_layers], those of each. ERR_MEMORY. */
int replay_run(const struct trace *t, enum replay_policy policy, uint32_t n_slots, struct replay_result *out,
               struct replay_result *layers, struct moeflux_err *e);

/* As REPLAY_FREQUENCY, but the choices of the next n_tokens evaluations of all layers, 1 or more, are known:
 * these experts stay, those that come first longest. What a predictor that never errs would have. */
int replay_ahead(const struct trace *t, uint32_t n_tokens, uint32_t n_slots, struct replay_result *out,
                 struct moeflux_err *e);

/* Shares of a layer's uses, in percent. */
enum { REPLAY_SHARES = 3 };
extern const uint32_t replay_shares[REPLAY_SHARES];

/* How the experts of a layer were used. */
struct replay_layer {
    uint64_t n_uses;
    uint32_t n_used;               /* experts that were used at all */
    uint32_t cover[REPLAY_SHARES]; /* the fewest experts that have such a share of the uses */
    /* From a use to the next one of the same expert, in evaluations of the layer: median and 90 %. 0: none
     * was used twice. */
    uint64_t reuse_median, reuse_90;
};

/* From counts [n_layers][n_experts]: all but the reuse. layers: [n_layers]. ERR_MEMORY. */
int replay_cover(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct replay_layer *layers,
                 struct moeflux_err *e);
/* All, from a trace. ERR_MEMORY. */
int replay_layers(const struct trace *t, struct replay_layer *layers, struct moeflux_err *e);

#endif
