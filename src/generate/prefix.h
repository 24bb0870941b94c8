/* prefix.h - prompts with a common prefix: the part that is in the KV cache is not evaluated again.
 *
 * With recurrent layers a sequence can return only to a checkpoint. A prompt is then evaluated in pieces that
 * end at stops: positions where a later prompt may differ. */
#ifndef MOEFLUX_GENERATE_PREFIX_H
#define MOEFLUX_GENERATE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PREFIX_MAX_STOPS = 16 };
struct prefix_stops { /* zeroed at first */
    uint32_t n;
    uint32_t at[PREFIX_MAX_STOPS]; /* positions, ascending */
    /* Tokens that other conversations begin with, too: system text and tools; all, if it is not known. */
    uint32_t n_shared;
};

/* Where a prompt is cut into evaluations for the sake of other prompts with the same beginning, whether or
 * not there are any: the request alone gives the positions. So a result that depends on where a prompt is
 * cut does not depend on other requests. */
enum { PREFIX_MAX_CUTS = 2 };
struct prefix_cuts { /* zeroed at first */
    uint32_t n;
    uint32_t at[PREFIX_MAX_CUTS]; /* positions, ascending */
};

/* Adds a position after the others to the cuts of a prompt of n tokens. Leaves it out if it ends a piece
 * of less than PREFIX_LEAST_CUT tokens, because each piece costs an evaluation, or not before the prompt's
 * end. */
enum { PREFIX_LEAST_CUT = 128 };
void prefix_cut_at(struct prefix_cuts *cuts, uint32_t pos, uint32_t n);

/* What is known of a sequence: its first n tokens were evaluated as a prompt with these cuts. */
struct prefix_evaluated {
    uint32_t n;
    struct prefix_cuts cuts;
};

/* Returns the last position up to `pos` where an evaluation of the prompt ends: a cut, or whole chunks after
 * one or after the beginning. chunk 0: `pos`. */
uint32_t prefix_place(const struct prefix_cuts *cuts, uint32_t chunk, uint32_t pos);
/* Returns how many of the first n tokens, which two prompts have in common, are cut in the same way in
 * both. */
uint32_t prefix_cut_alike(const struct prefix_cuts *a, const struct prefix_cuts *b, uint32_t n);

/* Adds a position. Leaves it out if another one is closer than `gap` tokens, because each costs an evaluation
 * of its own, or if the list is full. */
void prefix_stop_at(struct prefix_stops *st, uint32_t pos, uint32_t gap);

/* Returns the length of the common prefix. */
uint32_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
