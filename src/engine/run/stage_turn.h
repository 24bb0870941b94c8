/* stage_turn.h - whose turn it is on a stage.
 *
 * Evaluations of several threads go through the stages one behind the other: each takes the next stage before
 * it gives the one that it has. So none overtakes another, and while one is computed on a stage, the next is
 * computed on the stage before. Who touches a stage's device, stores or counts has its turn. Several stages
 * are taken in their order. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_TURN_H
#define MOEFLUX_ENGINE_RUN_STAGE_TURN_H

#include "engine/engine.h"

/* Waits for the turn, in the order of calls. Another thread may give it back. */
void stage_take(struct stage *at);
void stage_give(struct stage *at);
/* With the turn: waits until nothing that was begun and given up is under way on the device. Asks the
 * progress callback meanwhile. ERR_INTERRUPTED. */
int stage_wait_idle(struct moeflux_model *m, struct stage *at, struct moeflux_err *e);
/* Both. On failure the caller does not have the turn. */
int stage_enter(struct moeflux_model *m, struct stage *at, struct moeflux_err *e);
/* The same for a thread that the callback does not know, or that has more to tell it: asks w instead. */
int stage_enter_watched(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                        struct moeflux_err *e);
/* That of all stages. */
int stage_enter_all(struct moeflux_model *m, struct moeflux_err *e);
void stage_give_all(struct moeflux_model *m);
/* With the turn: waits a moment; whether nothing is under way. */
bool stage_is_idle(struct moeflux_model *m, struct stage *at);

#endif
