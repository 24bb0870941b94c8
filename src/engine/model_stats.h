/* model_stats.h - counts a model's evaluations. */
#ifndef MOEFLUX_ENGINE_MODEL_STATS_H
#define MOEFLUX_ENGINE_MODEL_STATS_H

#include <stdint.h>

struct moeflux_model;

/* Tokens evaluated, and the time during which at least one evaluation was in flight. */
struct work_count {
    uint64_t n_tokens, ns;
    uint64_t since, n_since; /* the time since which one is in flight, and n_tokens at that time */
    uint32_t n_in_flight;
};
enum work_kind { WORK_PREFILL, WORK_DECODE, WORK_ANY, WORK_KINDS };

/* Count the begin of an evaluation (not WORK_ANY), and its end with the number of its tokens; 0: it
 * failed. */
void model_stats_begin(struct moeflux_model *m, enum work_kind kind);
void model_stats_end(struct moeflux_model *m, enum work_kind kind, uint32_t n_tokens);

#endif
