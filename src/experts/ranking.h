/* ranking.h - how much each expert is worth keeping: the policy of the caches.
 *
 * Every use of an expert adds a weight that halves every half_life uses of any expert (LRFU: Lee et al., 2001). All weights
 * decay alike, so their order changes only by a use, and a cache can keep its slots in a heap. They are stored as logarithms,
 * which do not overflow. half_life 0 counts the last use alone: LRU. */
#ifndef MOEFLUX_EXPERTS_RANKING_H
#define MOEFLUX_EXPERTS_RANKING_H

#include <stdint.h>

struct moeflux_err;

struct expert_key {
    uint32_t layer, expert;
};

struct ranking {
    uint32_t n_experts;
    double half_life; /* uses */
    double now;       /* uses so far */
    double *worth;    /* [n_layers][n_experts]; -infinity: never used */
};

/* The half-life that serves best, for a model whose tokens make `uses` choices each. */
double ranking_half_life(uint32_t uses);

int ranking_open(struct ranking *r, uint32_t n_layers, uint32_t n_experts, double half_life,
                 struct moeflux_err *e);
void ranking_close(struct ranking *r);

/* The expert was chosen. */
void ranking_use(struct ranking *r, struct expert_key key);
/* The expert was chosen `count` times in earlier runs: before all uses of this one. */
void ranking_seed(struct ranking *r, struct expert_key key, uint32_t count);
/* The worth of the expert. Only the order of worths has a meaning. */
double ranking_worth(const struct ranking *r, struct expert_key key);
/* Its worth if it were chosen now: for prefetched experts. */
double ranking_worth_if_used(const struct ranking *r, struct expert_key key);

#endif
