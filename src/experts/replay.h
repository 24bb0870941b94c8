/* replay.h - replays a trace through the cache's code (cache.h, ranking.h) without experts.
 * So it finds what a cache of another size or policy would read.
 *
 * The cache starts empty, and only choices fill it: nothing is prefetched or pinned, and all tiers count as
 * one. An evaluation of several tokens requests each of a layer's experts once, as the store does. */
#ifndef MOEFLUX_EXPERTS_REPLAY_H
#define MOEFLUX_EXPERTS_REPLAY_H

#include <stdint.h>

#include "experts/trace.h"

struct moeflux_err;

enum replay_policy {
    REPLAY_FREQUENCY, /* evicts the expert with the fewest uses, where recent uses count more */
    REPLAY_CONTEXT,   /* evicts the expert that is expected to be used least (context.h) */
    REPLAY_LRU,       /* evicts the least recently used expert */
    REPLAY_LFU,       /* evicts the expert with the fewest uses */
    /* evicts the expert whose next use is last (Belady, 1966): the most hits of all, but needs the future */
    REPLAY_BEST,
    REPLAY_POLICIES
};

struct replay_result {
    uint64_t n_hits, n_misses;               /* all evaluations */
    uint64_t n_single_hits, n_single_misses; /* evaluations of one token */
};

/* Replays the trace. n_slots: at least top_k. layers: [n_layers] the result for each layer, or NULL.
 * ERR_MEMORY. */
int replay_run(const struct trace *t, enum replay_policy policy, uint32_t n_slots, struct replay_result *out,
               struct replay_result *layers, struct moeflux_err *e);

/* Replays with REPLAY_FREQUENCY and a perfect predictor: the choices of the next n_tokens >= 1 evaluations of
 * all layers are known. Their experts stay, the soonest used the longest. ERR_MEMORY. */
int replay_ahead(const struct trace *t, uint32_t n_tokens, uint32_t n_slots, struct replay_result *out,
                 struct moeflux_err *e);

/* Shares of a layer's uses, in percent. */
enum { REPLAY_SHARES = 3 };
extern const uint32_t replay_shares[REPLAY_SHARES];

/* How the experts of a layer were used. */
struct replay_layer {
    uint64_t n_uses;
    uint32_t n_used;               /* experts that were used at all */
    uint32_t cover[REPLAY_SHARES]; /* the fewest experts that have this share of the uses */
    /* distance between uses of the same expert, in evaluations of the layer: median, 90 %; 0: none used
     * twice */
    uint64_t reuse_median, reuse_90;
};

/* Fills all fields except the reuse from counts [n_layers][n_experts]. layers: [n_layers]. ERR_MEMORY. */
int replay_cover(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct replay_layer *layers,
                 struct moeflux_err *e);
/* Fills all fields from a trace. ERR_MEMORY. */
int replay_layers(const struct trace *t, struct replay_layer *layers, struct moeflux_err *e);

#endif
