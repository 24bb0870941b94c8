/* cache.h - slots for routed experts: which are resident, which are evicted.
 * Does no I/O and holds no bytes: slots are numbers. Not locked: one thread.
 *
 *   cache_pin -> CACHE_HIT   the slot has the expert's bytes             then cache_unpin
 *             -> CACHE_BUSY  an earlier read fills the slot, may fail    then cache_unpin
 *             -> CACHE_MISS  the caller fills the slot, cache_publish    then cache_unpin
 *                            (or cache_abandon, which also unpins)
 *
 * A pinned expert is never evicted. Among the others the least worthy (ranking.h) is evicted first. The bytes
 * of an evicted expert stay in its slot until the slot is filled again. */
#ifndef MOEFLUX_EXPERTS_CACHE_H
#define MOEFLUX_EXPERTS_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"

struct cache;

enum cache_state { CACHE_HIT, CACHE_BUSY, CACHE_MISS };
#define CACHE_NO_KEY  ((struct expert_key){UINT32_MAX, UINT32_MAX})
#define CACHE_NO_SLOT UINT32_MAX

/* NULL with `e` filled: no memory. The ranking must outlive the cache. */
struct cache *cache_new(uint32_t n_slots, uint32_t n_layers, const struct ranking *r, struct moeflux_err *e);
/* Makes one that uses only its first n_first slots; cache_grow adds the next n. */
struct cache *cache_new_growing(uint32_t n_slots, uint32_t n_first, uint32_t n_layers,
                                const struct ranking *r, struct moeflux_err *e);
void cache_grow(struct cache *c, uint32_t n);
void cache_free(struct cache *c);

/* Pins `key` and gives its slot in *slot. On a miss *evicted is the expert that was evicted for it
 * (CACHE_NO_KEY: none). Returns a cache_state, or ERR_NO_FIT if every slot is pinned (nothing changes).
 * Allocates nothing. */
int cache_pin(struct cache *c, struct expert_key key, uint32_t *slot, struct expert_key *evicted,
              struct moeflux_err *e);
/* Marks the slot as filled with its expert's bytes. */
void cache_publish(struct cache *c, uint32_t slot);
/* Gives up a slot that could not be filled: its expert is not resident. The slot is free once all have
 * unpinned it. */
void cache_abandon(struct cache *c, uint32_t slot);
void cache_unpin(struct cache *c, uint32_t slot);
/* Unpins an expert that was prefetched and not chosen yet: it gets the worth of one that is chosen now. */
void cache_unpin_prefetched(struct cache *c, uint32_t slot);
/* Unpins a spare copy: it is evicted before all others. */
void cache_unpin_spare(struct cache *c, uint32_t slot);

/* Takes over the changed worths of a layer's experts from the ranking. */
void cache_rerank(struct cache *c, uint32_t layer);

/* Returns whether the expert has a slot, filled or being filled. Pins nothing. */
bool cache_has(const struct cache *c, struct expert_key key);
/* Returns whether the expert has a filled slot. */
bool cache_is_full(const struct cache *c, struct expert_key key);
/* Returns the expert's slot, or CACHE_NO_SLOT. */
uint32_t cache_slot(const struct cache *c, struct expert_key key);
/* Returns the worth of the next expert to be evicted; -infinity: a slot is empty; infinity: all are
 * pinned. */
double cache_least_worth(const struct cache *c);
uint32_t cache_n_empty(const struct cache *c);
/* Returns the number of filled slots. */
uint32_t cache_n_full(const struct cache *c);
/* Evicts the least worthy expert, *key, and leaves its slot, *slot, empty. Returns false if all are
 * pinned. */
bool cache_evict(struct cache *c, struct expert_key *key, uint32_t *slot);

#endif
