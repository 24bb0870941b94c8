/* candidates.h - the ids among which the sampler draws, and the rules that make them fewer. All of them
 * keep the order of the array, and none leaves it empty. Sums are whole numbers, so the result is the same
 * on every machine. */
#ifndef MOEFLUX_SAMPLE_CANDIDATES_H
#define MOEFLUX_SAMPLE_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

struct candidate {
    float logit;
    uint32_t weight; /* 0 to 2^31, the weight of the largest logit (sample/weight.h) */
    uint32_t id;
    uint32_t key; /* the larger ones come first */
};

/* Returns whether `a` comes before `b`: the larger logit, then the lower id. */
bool candidates_before(const struct candidate *a, const struct candidate *b);

/* Sets weights with this scale (struct sampler_rule), 2^31 for the largest logit, and keys by the logits. */
void candidates_weigh(struct candidate *c, uint32_t n, float scale);
uint64_t candidates_sum(const struct candidate *c, uint32_t n);

/* The functions below return how many are left. share, least, threshold: in units of 2^-32; keep: at least so
 * many are left, if there are. */

/* Keeps the smallest set of first ones whose weights reach `share` of all. */
uint32_t candidates_top_p(struct candidate *c, uint32_t n, uint32_t share, uint32_t keep);
/* Keeps those whose weight is at least `least`, in units of 2^-31. */
uint32_t candidates_min_p(struct candidate *c, uint32_t n, uint32_t least, uint32_t keep);
/* Keeps those whose surprise is nearest to the mean (the entropy), until their weights exceed `share` of all.
 * scale: that of the weights. */
uint32_t candidates_typical(struct candidate *c, uint32_t n, float scale, uint32_t share, uint32_t keep);
/* Drops those that have `threshold` of the sum or more, except the last of them. */
uint32_t candidates_xtc(struct candidate *c, uint32_t n, uint32_t threshold, uint32_t keep);

#endif
