/* cache.h - slots for routed experts: who is resident and who must leave.
 * Does no I/O and holds no bytes: slots are numbers. Not locked: one thread.
 *
 *   cache_pin -> CACHE_HIT   the slot's bytes are those of the expert                   then cache_unpin
 *             -> CACHE_BUSY  somebody is still filling the slot, who may fail           then cache_unpin
 *             -> CACHE_MISS  the caller fills the slot, then cache_publish              then cache_unpin
 *                            (or cache_abandon, which also unpins)
 * An expert that is pinned never leaves. Who leaves is the unpinned expert of the least worth; `ranking` says what
 * each is worth. The bytes of an expert that left stay in its slot until the slot is filled again. */
#ifndef MOEFLUX_EXPERTS_CACHE_H
#define MOEFLUX_EXPERTS_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"

struct cache;

enum cache_state { CACHE_HIT, CACHE_BUSY, CACHE_MISS };
#define CACHE_NO_KEY  ((struct expert_key){UINT32_MAX, UINT32_MAX})
#define CACHE_NO_SLOT UINT32_MAX

/* The ranking outlives the cache. */
struct cache *cache_new(uint32_t n_slots, uint32_t n_layers, const struct ranking *r, struct moeflux_err *e);
void cache_free(struct cache *c);

/* Pins `key` and gives its slot in *slot; on a miss *evicted gets the expert that had to leave (CACHE_NO_KEY: none).
 * Returns a cache_state, or ERR_NO_FIT when every slot is pinned (nothing changes). Allocates nothing. */
int cache_pin(struct cache *c, struct expert_key key, uint32_t *slot, struct expert_key *evicted,
              struct moeflux_err *e);
/* The slot holds the expert's bytes now. */
void cache_publish(struct cache *c, uint32_t slot);
/* The slot could not be filled: the expert is not there; the slot is free when all have unpinned it. */
void cache_abandon(struct cache *c, uint32_t slot);
void cache_unpin(struct cache *c, uint32_t slot);
/* As cache_unpin, for an expert that was not chosen yet: it is kept as if it was chosen now. */
void cache_unpin_prefetched(struct cache *c, uint32_t slot);
/* As cache_unpin, for a copy that can be spared: it leaves before all others. */
void cache_unpin_spare(struct cache *c, uint32_t slot);

/* Whether the expert has a slot, full or being filled. Pins nothing. */
bool cache_has(const struct cache *c, struct expert_key key);
/* Its slot, or CACHE_NO_SLOT. */
uint32_t cache_slot(const struct cache *c, struct expert_key key);
/* The worth of what would leave next: -infinity when a slot is empty, infinity when all are pinned. */
double cache_least_worth(const struct cache *c);
uint32_t cache_n_empty(const struct cache *c);
/* The expert of the least worth leaves now: *key and the slot it had, which is empty. False: all are pinned. */
bool cache_evict(struct cache *c, struct expert_key *key, uint32_t *slot);

#endif
