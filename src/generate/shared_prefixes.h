/* shared_prefixes.h - beginnings of prompts that several sequences have: system texts, examples. One worker
 * computes a beginning, and the sequences of all others share its memory (moeflux_session_fork).
 *
 *   take: HELD   the sequence has it now
 *         OURS   nobody has it: the caller computes it in its own sequence, then calls give or give_up
 *         NONE   the caller computes it without this
 *
 * Any thread may call. */
#ifndef MOEFLUX_GENERATE_SHARED_PREFIXES_H
#define MOEFLUX_GENERATE_SHARED_PREFIXES_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;
struct shared_prefixes;

enum shared_prefix { SHARED_PREFIX_NONE, SHARED_PREFIX_HELD, SHARED_PREFIX_OURS };

/* Makes an empty set. The model must outlive it. ERR_MEMORY. */
int shared_prefixes_new(struct shared_prefixes **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e);
/* No thread may use it any more. NULL is legal. */
void shared_prefixes_free(struct shared_prefixes *q);

/* Looks for the first n tokens of a prompt; waits while another caller computes them. may_hold: they may
 * become OURS, and are held in memory after that. HELD: `s` is a sequence of these tokens; what it had is
 * dropped. Errors: those of moeflux_session_fork. */
int shared_prefixes_take(struct shared_prefixes *q, struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         bool may_hold, enum shared_prefix *found, struct moeflux_err *e);
/* The n tokens that were OURS: `s` has exactly them. Too little memory to hold them is no failure. */
void shared_prefixes_give(struct shared_prefixes *q, struct moeflux_session *s, const int32_t *ids,
                          uint32_t n);
/* They could not be computed. Another caller that waits computes them. */
void shared_prefixes_give_up(struct shared_prefixes *q, const int32_t *ids, uint32_t n);

/* Frees the beginning that was used least recently. False: none can be freed. */
bool shared_prefixes_shrink(struct shared_prefixes *q);

#endif
