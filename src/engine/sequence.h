/* sequence.h - evaluates the tokens of a sequence, a prompt in chunks or a token with the choice of the next
 * one, and keeps its memory. */
#ifndef MOEFLUX_ENGINE_SEQUENCE_H
#define MOEFLUX_ENGINE_SEQUENCE_H

#include "engine/session.h"

/* Checks whether n tokens can be appended. ERR_USAGE. */
int sequence_check(const struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_err *e);
/* Allocates the KV cache for the positions below `end`; those from the sequence's position on may be written
 * then. ERR_NO_FIT: the sequence does not change. */
int sequence_reserve(struct moeflux_session *s, uint32_t end, struct moeflux_err *e);

/* Returns whether the sequence has memory for the positions below `end`, if none of it is shared. */
bool sequence_has_room(const struct moeflux_session *s, uint32_t end);

/* Recovers a sequence that was stopped, and clears one with needs_clear. Must be called before any use of the
 * states. */
int sequence_make_ready(struct moeflux_session *s, struct moeflux_err *e);

/* Makes recurrent_next the current recurrent state and appends the n tokens whose evaluation wrote it. */
void sequence_accept(struct moeflux_session *s, const int32_t *ids, uint32_t n);

/* Sets the number of tokens to `pos`. Drops later checkpoints, and what was recorded or predicted for the
 * sequence. */
void sequence_set_position(struct moeflux_session *s, uint32_t pos, uint32_t parity);

/* Appends n tokens in chunks, as moeflux_session_eval does. The caller has reserved memory for them. what:
 * name in progress reports. ids may point into s->history, where these ids belong. */
int sequence_run(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                 const struct moeflux_outputs *outputs, const char *what, struct moeflux_err *e);
/* Does the work of moeflux_session_step for callers inside the project, which pass the sampler itself. The
 * last device samples if it can follow the sampler, else the host does. */
int sequence_step(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
                  struct moeflux_err *e);
/* Accepts the sequence's last token, `id`, and chooses the next one: samples from the logits after it, or if
 * they are NULL takes what a device has sampled (device_choice.result). */
int sequence_choose(const struct moeflux_session *s, struct sampler *sampler, int32_t id, const float *logits,
                    const uint32_t result[2], int32_t *next, struct moeflux_err *e);
/* Reports progress to the model's callback and, while several tokens are evaluated, to the sequence's
 * watcher. Returns whether to continue. */
bool sequence_report(const struct moeflux_session *s, uint64_t done, uint64_t total);
/* Sets or removes (NULL) the watcher of a sequence. */
void sequence_watch(struct moeflux_session *s, const struct moeflux_progress *p);
/* Waits for the devices after a stopped evaluation and restores the recurrent state from its backup. Calls
 * the progress callback meanwhile. ERR_INTERRUPTED. */
int sequence_recover(struct moeflux_session *s, struct moeflux_err *e);
/* Frees the sessions that were closed while a device was busy, unless one still is. Waits a moment for that
 * if there are any. */
void sequence_free_closed(struct moeflux_model *m);

#endif
