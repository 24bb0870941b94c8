/* layer_costs.h - decides how many tokens the layer of multi-token prediction proposes: as many as save time
 * by what was measured, and none while they do not.
 *
 * At first nothing is known, and a few chains are tried. All that is lost with chains stays below a hundredth
 * of the time of all evaluations; earlier gains do not count. Where chains do not pay, the layer rests. It is
 * tried again after many tokens: another text may suit it. */
#ifndef MOEFLUX_GENERATE_LAYER_COSTS_H
#define MOEFLUX_GENERATE_LAYER_COSTS_H

#include <stdbool.h>
#include <stdint.h>

enum { LAYER_MOST = 7 }; /* tokens of a proposal */

struct layer_costs {             /* zeroed: nothing is known */
    uint32_t n_chains;           /* tried in a row; those before a new trial do not count */
    uint32_t n_singles;          /* tokens evaluated by themselves since the last chain */
    uint32_t n_seen[LAYER_MOST]; /* proposed tokens whose predecessors were right, by their place */
    float rates[LAYER_MOST];     /* shares of them that were right */
    uint64_t first_ns, next_ns;  /* times of a proposal's first token, of each further one */
    /* a token by itself while the layer rests, and while hidden states are kept for it: then a device does
     * not begin the next token before the host knows it */
    uint64_t rest_ns, wait_ns;
    uint64_t spent_ns; /* the current chain: proposal, evaluation, sampling */
    uint64_t total_ns; /* all evaluations */
    uint64_t loss_ns;  /* more than the same tokens by themselves would have taken; a gain reduces it */
};

/* What evaluations cost (draft.h). */
struct layer_prices {
    uint64_t single_ns, pick_ns;
    float slope;
    /* rows that the next proposal computes before its own, as a share of a token's layers: rows / layers */
    float more_rows;
};

/* Returns how many tokens to propose, at most `most`; 0: none. */
uint32_t layer_costs_wanted(struct layer_costs *l, const struct layer_prices *p, uint32_t most);
/* Returns whether chains are known to pay; whether the layer rests, so that nothing need be kept for it: no
 * trial is due soon. */
bool layer_costs_pays(const struct layer_costs *l, const struct layer_prices *p);
bool layer_costs_rests(const struct layer_costs *l, const struct layer_prices *p);

/* Counts a token that was evaluated by itself. rests: no hidden states were kept. Returns the time that it
 * takes while the layer rests. */
uint64_t layer_costs_single(struct layer_costs *l, uint64_t ns, bool rests);
/* Counts a proposal of n tokens, which begins a chain. */
void layer_costs_begin(struct layer_costs *l, const struct layer_prices *p, uint32_t n, uint64_t ns);
/* Counts a finished chain: n_right of n proposed tokens were right. */
void layer_costs_end(struct layer_costs *l, const struct layer_prices *p, uint32_t n, uint32_t n_right);

#endif
