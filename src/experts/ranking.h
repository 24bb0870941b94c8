/* ranking.h - how much each expert is worth keeping: the policy of the caches.
 *
 * Every use of an expert adds a weight that halves every half_life uses of any expert (LRFU: Lee et al.,
 * 2001). All weights decay alike, so their order changes only by a use, and a cache can keep its slots in a
 * heap. They are stored as logarithms, which do not overflow. half_life 0 counts the last use alone: LRU.
 * With ranking_learn what was chosen before counts too (context.h); then the worths of a layer change with
 * each of its choices, and the caches have to be told (cache_rerank). */
#ifndef MOEFLUX_EXPERTS_RANKING_H
#define MOEFLUX_EXPERTS_RANKING_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct moeflux_err;

struct expert_key {
    uint32_t layer, expert;
};

/* What experts are wanted for: decides where they may lie and which are evicted for them. */
enum expert_use {
    USE_TOKEN,  /* by one token, which reads each once: host slots do as well as the device's */
    USE_TOKENS, /* by a few */
    USE_CHUNK,  /* by a prompt's chunk, which uses nearly all: they do not drive out those that stay */
};

struct ranking {
    uint32_t n_experts;
    double half_life;        /* uses */
    double now;              /* uses so far */
    double *worth;           /* [n_layers][n_experts]; -infinity: never used */
    struct context *context; /* NULL: there is none */
    float *shares;           /* [n_experts], for the context */
    uint32_t top_k;
};

/* The half-life that serves best, for a model whose tokens make `uses` choices each. */
double ranking_half_life(uint32_t uses);

int ranking_open(struct ranking *r, uint32_t n_layers, uint32_t n_experts, double half_life,
                 struct moeflux_err *e);
/* From now on the worths are those of a context. half_life is above 0. ERR_MEMORY. */
int ranking_learn(struct ranking *r, uint32_t n_layers, uint32_t top_k, struct moeflux_err *e);
void ranking_close(struct ranking *r);

/* The layer chose n different experts. */
void ranking_use(struct ranking *r, uint32_t layer, const uint32_t *experts, uint32_t n);
/* The expert was chosen `count` times in earlier runs: before all uses of this one. */
void ranking_seed(struct ranking *r, struct expert_key key, uint32_t count);
/* The worth of the expert. Only the order of worths has a meaning. */
double ranking_worth(const struct ranking *r, struct expert_key key);
/* Whether worth a is so much more than b that a copy over the bus pays. */
bool ranking_pays(const struct ranking *r, double a, double b);
/* Its worth if it were chosen now: for prefetched experts. */
double ranking_worth_if_used(const struct ranking *r, struct expert_key key);

#endif
