/* rewind.h - goes back in a sequence: truncation, checkpoints, reuse of a prefix.
 *
 * The KV cache of earlier positions stays valid, so only the recurrent state has to be restored. */
#ifndef MOEFLUX_ENGINE_STATE_REWIND_H
#define MOEFLUX_ENGINE_STATE_REWIND_H

#include "base/err.h"
#include "engine/session.h"

/* Returns the last position up to `pos`, which the sequence has, to which it can go back without an
 * evaluation: `pos` itself if it is the end or nothing is missing there, else that of a checkpoint; 0: there
 * is none. It is the rule of what a prompt can reuse; places_reach is that for a state in a file. */
uint32_t rewind_reach(const struct moeflux_session *s, uint32_t pos);

/* Makes a checkpoint at `pos` of the recurrent state, or of the stages' `kept`. One that exists already is
 * marked as used. ERR_MEMORY, ERR_NO_FIT (the device has no memory to read it through), ERR_DEVICE. */
int rewind_checkpoint(struct moeflux_session *s, bool kept, uint32_t pos, uint32_t parity,
                      struct moeflux_err *e);
/* Returns whether a checkpoint failed for lack of memory, the host's or the device's. For one that nobody
 * asked for that is no failure: going back is slower then. */
static inline bool rewind_lacks_memory(int rc)
{
    return rc == ERR_MEMORY || rc == ERR_NO_FIT;
}

/* Writes a checkpoint's recurrent states and windows, of this sequence or of another one of the model,
 * into the sequence; its position stays. ERR_DEVICE, ERR_INTERRUPTED. */
int rewind_put_back(struct moeflux_session *s, const struct checkpoint *c, struct moeflux_err *e);

/* Restores the states of s->pos after a chunk there failed, if possible; else goes to the newest
 * checkpoint. */
void rewind_after_failure(struct moeflux_session *s);

#endif
