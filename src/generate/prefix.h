/* prefix.h - prompts with a common prefix: what the KV cache and the states hold of it is not computed again.
 *
 * Where the model has recurrent layers, the sequence can go back to checkpoints only, so that a prompt is
 * evaluated in pieces which end where a later one may part from it. */
#ifndef MOEFLUX_GENERATE_PREFIX_H
#define MOEFLUX_GENERATE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct generator;

enum { PREFIX_MAX_STOPS = 16 };
struct prefix_stops { /* zeroed at first */
    uint32_t n;
    uint32_t at[PREFIX_MAX_STOPS]; /* positions, ascending */
};

/* Adds a position. One that is closer than `gap` tokens to another, or more than there is room for, is left
 * out: each costs an evaluation of its own. */
void prefix_stop_at(struct prefix_stops *st, uint32_t pos, uint32_t gap);

/* How many tokens two texts begin with alike. */
uint32_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* A sequence, in memory or in a file. */
struct prefix_held {
    const int32_t *ids; /* [n] */
    uint32_t n;
    const uint32_t *checkpoints; /* [n_checkpoints], ascending */
    uint32_t n_checkpoints;
    bool recurrent; /* its end and its checkpoints alone can be gone on from */
};
/* How many tokens of the prompt ids [n], n >= 1, need no evaluation there (moeflux_session_reuse). */
uint32_t prefix_usable(const struct prefix_held *h, const int32_t *ids, uint32_t n);

/* Evaluates ids from the sequence's position up to `to`, which it must be a beginning of, without logits, and
 * checkpoints at the stops on the way. Does nothing when the position is `to`. */
int prefix_feed(struct generator *s, const int32_t *ids, uint32_t to, const struct prefix_stops *st,
                struct moeflux_err *e);

#endif
