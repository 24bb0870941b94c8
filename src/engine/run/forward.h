/* forward.h - the forward pass of tokens through all stages: embedding, layers, head. */
#ifndef MOEFLUX_ENGINE_RUN_FORWARD_H
#define MOEFLUX_ENGINE_RUN_FORWARD_H

#include "engine/run/work.h"

/* Evaluates one chunk of n <= max_chunk tokens at s->pos and advances it. last: outputs->logits are those of
 * this chunk. keep: the recurrent state after so many of its tokens goes to the stages' `kept`; 0: it is not
 * kept (arch_chunk). On failure the session's states are undefined; after ERR_INTERRUPTED with
 * s->progress_at.is_stopped, sequence_recover restores them. */
int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e);

/* Evaluates ids[i] at the position of list[i] for n <= MOEFLUX_MAX_BATCHED sequences and writes logits[i].
 * The sequences do not advance; their new recurrent states are in recurrent_next. */
int forward_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                    struct moeflux_err *e);

/* Single tokens that take longer than this can be stopped, like chunks. */
#define QUICK_NS ((uint64_t)250000000)

/* Checks the mapped files of weights and experts; every evaluation does it first. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e);
/* Records one token, from its id to its logits in view.logits, in a batch of its own. All experts must be
 * resident, and there must be one stage. */
int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e);

#endif
