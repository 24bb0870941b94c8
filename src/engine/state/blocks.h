/* blocks.h - the blocks of rows of sequences, on one stage.
 *
 * Sequences that begin with the same tokens have the blocks of these tokens in common
 * (moeflux_session_fork). Such a block is not written: a sequence that goes on inside one copies it first.
 *
 * A stage keeps a few blocks that no sequence has any more: an allocation may take a GPU's driver a
 * millisecond, in which nobody else has the stage. */
#ifndef MOEFLUX_ENGINE_STATE_BLOCKS_H
#define MOEFLUX_ENGINE_STATE_BLOCKS_H

#include "engine/session.h"

/* Makes a table of `entries` for n blocks; does nothing for n = 0. ERR_MEMORY, ERR_NO_FIT. */
int blocks_make_table(struct block_table *t, uint32_t n, uint32_t entries, struct stage *at,
                      struct moeflux_err *e);
/* Frees the table, and the blocks that no other sequence has. A zeroed one is legal. */
void blocks_free_table(struct block_table *t, struct stage *at);

/* Frees the spare blocks, before memory for something else is needed. */
void blocks_trim(struct stage *at);

/* Fills the next entry of a table. Its block, of `bytes`, is allocated unless it exists. Does nothing without
 * a table. ERR_MEMORY, ERR_NO_FIT. */
int blocks_add(struct block_table *t, uint32_t entry, uint64_t bytes, struct stage *at,
               struct moeflux_err *e);
/* Makes the first n blocks of `from` those of `to`, which gives its own up. Both tables hold a block for each
 * entry: they are no rings. */
void blocks_share(struct block_table *to, const struct block_table *from, uint32_t n, struct stage *at);

/* Makes the blocks that have rows of `pos` and later positions the sequence's own: copies the one that has
 * earlier rows too, and gives up the later ones, if others may have them. ERR_MEMORY, ERR_NO_FIT, ERR_DEVICE,
 * ERR_INTERRUPTED: the sequence does not change. */
int blocks_own_from(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);

#endif
