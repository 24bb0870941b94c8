/* ahead.h - records the next tokens on a stage while its device computes ("ahead").
 *
 * The commands of a token do not depend on its id, so they can be ready before the id is known. If groups of
 * sequences alternate on several devices, the next group is guessed: the one that came after this group the
 * last time. A wrong guess costs the recording. */
#ifndef MOEFLUX_ENGINE_RUN_AHEAD_H
#define MOEFLUX_ENGINE_RUN_AHEAD_H

#include "engine/run/stage_run.h"

/* Whether the work is what was recorded ahead, so that exec_submit_deferred computes it. */
bool ahead_is_recorded(const struct work *w, const struct stage *at);
/* Notes that the work has come to the stage, after which group, and what its next tokens are. Returns true,
 * with *next, if something should be recorded now: in a deferred batch of its own, followed by
 * ahead_recorded. each: room for what *next refers to. */
bool ahead_choose(const struct work *w, const struct pass *here,
                  struct arch_sequence each[MOEFLUX_MAX_BATCHED], struct pass *next);
/* Notes whether the recording succeeded; if not, no batch is deferred. */
void ahead_recorded(struct stage *at, bool done);

#endif
