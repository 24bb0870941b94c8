/* ranking.h - how much each expert is worth keeping in memory: the caches' eviction policy.
 *
 * Every use of an expert adds a weight that halves every half_life uses of any expert (LRFU: Lee et al.,
 * 2001). All weights decay at the same rate, so only a use changes their order, and a cache can keep its
 * slots in a heap. They are stored as logarithms, which do not overflow. With half_life 0 the last use alone
 * counts: LRU. After ranking_learn earlier choices count too (context.h). Then each choice changes the worths
 * of its layer, and the caches must follow (cache_rerank). */
#ifndef MOEFLUX_EXPERTS_RANKING_H
#define MOEFLUX_EXPERTS_RANKING_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct moeflux_err;

struct expert_key {
    uint32_t layer, expert;
};

/* What experts are wanted for: decides where they may lie and what is evicted for them. */
enum expert_use {
    USE_TOKEN,  /* one token, which reads each once: host slots are as good as the device's */
    USE_TOKENS, /* a few tokens */
    USE_CHUNK,  /* a prompt's chunk, which uses nearly all experts: they do not evict those that stay */
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

/* Returns the half-life that serves best if each token of the model makes `uses` choices. */
double ranking_half_life(uint32_t uses);

int ranking_open(struct ranking *r, uint32_t n_layers, uint32_t n_experts, double half_life,
                 struct moeflux_err *e);
/* Makes the worths those of a context. half_life must be above 0. ERR_MEMORY. */
int ranking_learn(struct ranking *r, uint32_t n_layers, uint32_t top_k, struct moeflux_err *e);
void ranking_close(struct ranking *r);

/* Counts a choice of the layer: n different experts. */
void ranking_use(struct ranking *r, uint32_t layer, const uint32_t *experts, uint32_t n);
/* Counts `count` choices of the expert in earlier runs. Must precede all uses in this one. */
void ranking_seed(struct ranking *r, struct expert_key key, uint32_t count);
/* Returns the worth of the expert. Only the order of worths has a meaning. */
double ranking_worth(const struct ranking *r, struct expert_key key);
/* Returns whether worth a exceeds b by so much that a copy over the bus pays. */
bool ranking_pays(const struct ranking *r, double a, double b);
/* Returns the worth that the expert would have if it were chosen now: for prefetched experts. */
double ranking_worth_if_used(const struct ranking *r, struct expert_key key);

#endif
