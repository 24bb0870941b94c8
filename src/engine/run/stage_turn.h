/* stage_turn.h - the turn of a stage: a lock that threads get in the order in which they ask (base/turns.h).
 *
 * A thread must have a stage's turn to touch its device, stores or counters. Evaluations of several threads
 * pass the stages in order: each takes the next stage before it gives the one that it has. So none overtakes
 * another, and while one is computed on a stage, the next is computed on the stage before. Several stages are
 * taken in ascending order. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_TURN_H
#define MOEFLUX_ENGINE_RUN_STAGE_TURN_H

#include "engine/engine.h"

/* Take and give back the turn. Another thread may give it back. */
void stage_take(struct stage *at);
void stage_give(struct stage *at);
/* Waits until no stopped or dropped work is in flight on the device; the caller has the turn. Calls the
 * progress callback meanwhile. ERR_INTERRUPTED. */
int stage_wait_idle(struct moeflux_model *m, struct stage *at, struct moeflux_err *e);
/* Runs stage_take and stage_wait_idle. On failure the caller does not have the turn. */
int stage_enter(struct moeflux_model *m, struct stage *at, struct moeflux_err *e);
/* Does the same with w instead of the progress callback: for threads that must not call it, or that report
 * more. */
int stage_enter_watched(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                        struct moeflux_err *e);
/* Enters all stages. */
int stage_enter_all(struct moeflux_model *m, struct moeflux_err *e);
void stage_give_all(struct moeflux_model *m);
/* Waits a moment; returns whether nothing is in flight. The caller has the turn. */
bool stage_is_idle(struct moeflux_model *m, struct stage *at);

#endif
