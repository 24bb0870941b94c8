/* ahead.h - what is recorded on a stage while its device computes: the next tokens of the sequences that come
 * next.
 *
 * The commands of a token do not depend on its id, so they are there when it comes. Where groups of sequences
 * take turns on several devices, the group that comes next is the one that came behind this one the last
 * time. A guess that is wrong costs the recording. */
#ifndef MOEFLUX_ENGINE_RUN_AHEAD_H
#define MOEFLUX_ENGINE_RUN_AHEAD_H

#include "engine/run/stage_run.h"

/* Whether the work is what was recorded ahead: exec_submit_deferred computes it. */
bool ahead_is_recorded(const struct work *w, const struct stage *at);
/* The work has come to the stage: notes its next tokens, and behind whom they come. `each` has room for what
 * the pass refers to. True, with *next: what to record now, in a batch of its own that is parked, and then to
 * tell ahead_recorded of. */
bool ahead_choose(const struct work *w, const struct pass *here,
                  struct arch_sequence each[MOEFLUX_MOST_TOGETHER], struct pass *next);
/* done: it is parked; else nothing is. */
void ahead_recorded(struct stage *at, bool done);

#endif
