/* candidates.h - the ids among which the sampler draws, and the rules that remove some of them. Each rule
 * keeps the order of the array and leaves at least one candidate. Weights and all sums of them are integers,
 * so the result is the same on every machine and does not depend on the order of the additions. */
#ifndef MOEFLUX_SAMPLE_CANDIDATES_H
#define MOEFLUX_SAMPLE_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

struct candidate {
    float logit;
    uint32_t weight; /* 0 to 2^31, the weight of the largest logit (sample/weight.h) */
    uint32_t id;
    uint32_t key; /* rank: a larger key is kept first, then a lower place in the array */
};

/* Returns whether `a` comes before `b`: the larger logit, then the lower id. */
bool candidates_before(const struct candidate *a, const struct candidate *b);

/* Sets weights with this scale (struct sampler_rule), 2^31 for the largest logit, and keys by the logits. */
void candidates_weigh(struct candidate *c, uint32_t n, float scale);
uint64_t candidates_sum(const struct candidate *c, uint32_t n);

/* The functions below return the number of candidates that are left.
 *   share, threshold   fractions of the sum of the weights, in units of 2^-32
 *   keep               min_keep: at least min(keep, n) candidates are left */

/* Keeps the candidates with the largest keys, as few as have `share` of the sum. */
uint32_t candidates_top_p(struct candidate *c, uint32_t n, uint32_t share, uint32_t keep);
/* Keeps the candidates with a weight of at least `least`. If they are fewer than `keep`, keeps the `keep`
 * largest. */
uint32_t candidates_min_p(struct candidate *c, uint32_t n, uint32_t least, uint32_t keep);
/* Keeps the candidates whose surprise is nearest to the entropy, as few as have more than `share` of the sum.
 * scale: the one that the weights were made with. Replaces the keys. */
uint32_t candidates_typical(struct candidate *c, uint32_t n, float scale, uint32_t share, uint32_t keep);
/* XTC: of the candidates with at least `threshold` of the sum, drops all except the least likely. Drops none
 * if fewer than `keep` would be left. */
uint32_t candidates_xtc(struct candidate *c, uint32_t n, uint32_t threshold, uint32_t keep);

#endif
