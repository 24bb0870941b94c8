/* cache.h - slots for routed experts: who is resident and who must leave.
 * Does no I/O and holds no bytes: slots are numbers. Not locked: one thread.
 *
 *   cache_pin -> CACHE_HIT   the slot's bytes are those of the expert                   then cache_unpin
 *             -> CACHE_MISS  the caller fills the slot, then cache_publish (or cache_abandon, which also unpins)
 * An expert that is pinned is never evicted. The victim is the unpinned slot that was used longest ago. */
#ifndef MOEFLUX_EXPERTS_CACHE_H
#define MOEFLUX_EXPERTS_CACHE_H

#include <stdint.h>

struct err;
struct cache;

enum cache_state { CACHE_HIT, CACHE_MISS };
struct cache_key {
    uint32_t layer, expert;
};
#define CACHE_NO_KEY ((struct cache_key){UINT32_MAX, UINT32_MAX})

struct cache *cache_new(uint32_t n_slots, uint32_t n_layers, uint32_t n_experts, struct err *e);
void cache_free(struct cache *c);

/* Pins `key` and gives its slot in *slot; on a miss *evicted gets the expert that had to leave (CACHE_NO_KEY: none).
 * Returns a cache_state, or ERR_NO_FIT when every slot is pinned (nothing changes). Constant time, no allocation. */
int cache_pin(struct cache *c, struct cache_key key, uint32_t *slot, struct cache_key *evicted,
              struct err *e);
/* The slot holds the expert's bytes now. */
void cache_publish(struct cache *c, uint32_t slot);
/* The slot could not be filled: it is empty and unpinned. */
void cache_abandon(struct cache *c, uint32_t slot);
void cache_unpin(struct cache *c, uint32_t slot);

#endif
