/* stores.h - where the rows of a sequence's stores lie (arch.h), and which of them are still there.
 *
 * Rows lie in blocks of 1 << KV_BLOCK_SHIFT positions. The blocks of windows form a ring: a table of
 * addresses has an entry for every block of the context, and entry i is block i % n. The ring has room for
 * the window, for the tokens that may be in flight after the sequence's position, and for a chunk that may
 * be undone. Rows that were overwritten cannot be restored: to go back further, a sequence needs a
 * checkpoint, as with a recurrence. */
#ifndef MOEFLUX_ENGINE_STATE_STORES_H
#define MOEFLUX_ENGINE_STATE_STORES_H

#include "engine/session.h"

/* Returns how many blocks a stage's ring has; 0 without a window. n_older: forward_n_older. */
uint32_t stores_ring_blocks(uint32_t window, uint32_t max_chunk, uint32_t n_older);

/* Returns whether a layer has rows, or a window. */
bool stores_has_rows(const struct arch_stores *s);
/* Return the first row that a sequence of n tokens needs, and the number of its rows, those not needed
 * included. */
uint32_t stores_first_row(const struct arch_store *t, uint32_t n);
uint32_t stores_n_rows(const struct arch_store *t, uint32_t n);

/* Consecutive rows in one block. */
struct stores_run {
    const struct exec_buffer *block;
    uint64_t off; /* bytes from the block's start */
    uint32_t n;
};
/* Returns the rows from `row` on that are in the same block, at most up to row `end`. */
struct stores_run stores_run_at(const struct stage_state *on, const struct arch_store *t, uint32_t row,
                                uint32_t end);

/* Clears the rows before `row` in its block. Attention reads whole tiles: rows that a window hides have a
 * weight of 0, but memory that nobody has written may be NaN. */
int stores_clear_before(const struct stage *at, const struct stage_state *on, const struct arch_store *t,
                        uint32_t row, struct moeflux_err *e);

/* Returns the first position that a token at `pos` sees in some window. */
uint32_t stores_first_in_windows(const struct moeflux_model *m, uint32_t pos);
/* Returns whether a token at `pos` finds all rows that it sees in the windows. */
bool stores_holds_windows(const struct moeflux_session *s, uint32_t pos);
/* Returns whether the sequence can be cut at `pos` without a checkpoint. */
bool stores_can_cut(const struct moeflux_session *s, uint32_t pos);
/* Returns the first position from which on the windows have all rows. */
uint32_t stores_window_from(const struct moeflux_session *s);

/* A stage's part of a checkpoint has its recurrent state, then the last `window` - 1 rows of each window. */
uint64_t stores_checkpoint_bytes(const struct stage *at);
/* Returns the offset of a window's rows in that part; k: index of the store in its layer. */
uint64_t stores_checkpoint_off(const struct stage *at, uint32_t layer, uint32_t k);
uint64_t stores_window_bytes(const struct arch_store *t);
/* Copy the windows' rows at `pos` to a stage's part of a checkpoint, or from it. */
int stores_read_windows(const struct moeflux_session *s, uint32_t stage, uint32_t pos, uint8_t *part,
                        struct moeflux_err *e);
int stores_write_windows(const struct moeflux_session *s, uint32_t stage, uint32_t pos, const uint8_t *part,
                         struct moeflux_err *e);

#endif
