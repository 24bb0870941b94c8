/* cache.h - slots for routed experts: which are resident, which are evicted.
 * Does no I/O and holds no bytes: slots are numbers. Not locked: one thread.
 *
 *   cache_pin -> CACHE_HIT the slot's bytes are those of the expert then cache_unpin -> CACHE_BUSY an earlier
 *             read is still filling the slot, and may fail then cache_unpin -> CACHE_MISS the caller fills
 *             the slot, then cache_publish then cache_unpin (or cache_abandon, which also unpins) A pinned
 *             expert is never evicted. Among the others, the one of the least worth (ranking.h) is. The bytes
 *             of an evicted expert stay in its slot until the slot is filled again. */
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
/* The same with only the first n_first slots; cache_grow adds the next n. */
struct cache *cache_new_growing(uint32_t n_slots, uint32_t n_first, uint32_t n_layers,
                                const struct ranking *r, struct moeflux_err *e);
void cache_grow(struct cache *c, uint32_t n);
void cache_free(struct cache *c);

/* Pins `key` and gives its slot in *slot; on a miss *evicted gets the expert that was evicted (CACHE_NO_KEY:
 * none). Returns a cache_state, or ERR_NO_FIT when every slot is pinned (nothing changes). Allocates nothing.
 * */
int cache_pin(struct cache *c, struct expert_key key, uint32_t *slot, struct expert_key *evicted,
              struct moeflux_err *e);
/* The slot has the expert's bytes now. */
void cache_publish(struct cache *c, uint32_t slot);
/* The slot could not be filled: the expert is not resident. The slot is free once all have unpinned it. */
void cache_abandon(struct cache *c, uint32_t slot);
void cache_unpin(struct cache *c, uint32_t slot);
/* As cache_unpin, for an expert that was prefetched and not chosen yet: its worth is that of one chosen now.
 * */
void cache_unpin_prefetched(struct cache *c, uint32_t slot);
/* As cache_unpin, for a spare copy: it is evicted before all others. */
void cache_unpin_spare(struct cache *c, uint32_t slot);

/* The worths of the layer's experts have changed. */
void cache_rerank(struct cache *c, uint32_t layer);

/* Whether the expert has a slot, full or being filled. Pins nothing. */
bool cache_has(const struct cache *c, struct expert_key key);
/* Whether it has one with its bytes in it. */
bool cache_is_full(const struct cache *c, struct expert_key key);
/* Its slot, or CACHE_NO_SLOT. */
uint32_t cache_slot(const struct cache *c, struct expert_key key);
/* The worth of the next expert to be evicted; -infinity: a slot is empty; infinity: all are pinned. */
double cache_least_worth(const struct cache *c);
uint32_t cache_n_empty(const struct cache *c);
/* Slots with an expert's bytes. */
uint32_t cache_n_full(const struct cache *c);
/* Evicts the expert of the least worth: *key and its *slot, which is empty now. False: all are pinned. */
bool cache_evict(struct cache *c, struct expert_key *key, uint32_t *slot);

#endif
