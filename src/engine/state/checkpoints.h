/* checkpoints.h - copies of a sequence's recurrent state and windows in host memory, by position. It does
 * not use devices.
 *
 * They are in ascending order. If there are more than the cap, the least recently used one is dropped, but
 * never the last one. */
#ifndef MOEFLUX_ENGINE_STATE_CHECKPOINTS_H
#define MOEFLUX_ENGINE_STATE_CHECKPOINTS_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

struct checkpoint {
    uint32_t pos, parity;
    uint64_t last_use;
    uint8_t *state; /* [moeflux_model.checkpoint_bytes], owned; NULL for 0 bytes */
};

struct checkpoints {
    struct checkpoint *items; /* [n], ascending by pos, all different */
    size_t n, room;
    uint32_t cap; /* >= 1 */
    uint64_t clock;
};

/* Returns the checkpoint at `pos`, or NULL. */
struct checkpoint *checkpoints_find(struct checkpoints *c, uint32_t pos);
/* Returns the last checkpoint at or before `pos`, or NULL. */
struct checkpoint *checkpoints_before(const struct checkpoints *c, uint32_t pos);
/* Marks a checkpoint as just used. */
void checkpoints_touch(struct checkpoints *c, struct checkpoint *used);
/* Adds a checkpoint at a position that has none, marks it as just used and takes ownership of its bytes.
 * ERR_MEMORY: nothing has changed. */
int checkpoints_add(struct checkpoints *c, const struct checkpoint *one, struct moeflux_err *e);
/* Drops checkpoints until there are no more than the cap. */
void checkpoints_trim(struct checkpoints *c);
void checkpoints_drop(struct checkpoints *c, struct checkpoint *which);
/* Drops the checkpoints after `pos`. */
void checkpoints_drop_after(struct checkpoints *c, uint32_t pos);
void checkpoints_free(struct checkpoints *c);

#endif
