#include "experts/cache.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define NO_PLACE UINT32_MAX
/* Far below every worth: spare copies are evicted before all others, the oldest first. */
#define SPARE (-1e15)

/* Full slots without pins form a heap with the least worth on top; empty slots form a stack. */
struct slot {
    struct expert_key key;
    uint32_t n_users;
    bool full;      /* holds the key's bytes */
    uint32_t place; /* index in the heap, or NO_PLACE */
    double worth;   /* valid while in the heap */
};

struct cache {
    uint32_t n_slots, n_layers;
    const struct ranking *ranking;
    struct slot *slots;
    uint32_t *where; /* [n_layers][n_experts]: slot or CACHE_NO_SLOT */
    uint32_t *heap;  /* [n_heap] slots */
    uint32_t *empty; /* [n_empty] slots */
    uint32_t n_heap, n_empty;
    uint32_t n_added; /* slots in use */
    uint32_t n_full;
};

/* --- the heap --- */

static void put(struct cache *c, uint32_t place, uint32_t slot)
{
    c->heap[place] = slot;
    c->slots[slot].place = place;
}

static double worth_at(const struct cache *c, uint32_t place)
{
    return c->slots[c->heap[place]].worth;
}

static void sift_up(struct cache *c, uint32_t place, uint32_t slot)
{
    while (place > 0 && worth_at(c, (place - 1) / 2) > c->slots[slot].worth) {
        put(c, place, c->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(c, place, slot);
}

static void sift_down(struct cache *c, uint32_t place, uint32_t slot)
{
    for (uint32_t child; (child = 2 * place + 1) < c->n_heap; place = child) {
        if (child + 1 < c->n_heap && worth_at(c, child + 1) < worth_at(c, child))
            child++;
        if (worth_at(c, child) >= c->slots[slot].worth)
            break;
        put(c, place, c->heap[child]);
    }
    put(c, place, slot);
}

static void push(struct cache *c, uint32_t slot, double worth)
{
    c->slots[slot].worth = worth;
    sift_up(c, c->n_heap++, slot);
}

static void take_out(struct cache *c, uint32_t slot)
{
    uint32_t place = c->slots[slot].place, last = c->heap[--c->n_heap];
    c->slots[slot].place = NO_PLACE;
    if (last == slot)
        return;
    if (place > 0 && worth_at(c, (place - 1) / 2) > c->slots[last].worth)
        sift_up(c, place, last);
    else
        sift_down(c, place, last);
}

/* --- slots --- */

void cache_grow(struct cache *c, uint32_t n)
{
    assert(n <= c->n_slots - c->n_added);
    /* Slots are taken in ascending order. */
    for (uint32_t i = n; i-- > 0;)
        c->empty[c->n_empty++] = c->n_added + i;
    c->n_added += n;
}

struct cache *cache_new(uint32_t n_slots, uint32_t n_layers, const struct ranking *r, struct moeflux_err *e)
{
    return cache_new_growing(n_slots, n_slots, n_layers, r, e);
}

struct cache *cache_new_growing(uint32_t n_slots, uint32_t n_first, uint32_t n_layers,
                                const struct ranking *r, struct moeflux_err *e)
{
    struct cache *c = mem_new(1, sizeof *c, e);
    if (!c)
        return NULL;
    *c = (struct cache){.n_slots = n_slots, .n_layers = n_layers, .ranking = r};
    uint64_t n_keys = (uint64_t)n_layers * r->n_experts;
    c->slots = mem_new(n_slots, sizeof *c->slots, e);
    c->heap = mem_new(n_slots, sizeof *c->heap, e);
    c->empty = mem_new(n_slots, sizeof *c->empty, e);
    c->where = mem_new(n_keys, sizeof *c->where, e);
    if (!c->slots || !c->heap || !c->empty || !c->where) {
        cache_free(c);
        return NULL;
    }
    for (uint64_t i = 0; i < n_keys; i++)
        c->where[i] = CACHE_NO_SLOT;
    for (uint32_t i = 0; i < n_slots; i++)
        c->slots[i].key = CACHE_NO_KEY;
    cache_grow(c, n_first);
    return c;
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    free(c->slots);
    free(c->heap);
    free(c->empty);
    free(c->where);
    free(c);
}

static uint32_t *place_of(const struct cache *c, struct expert_key key)
{
    assert(key.layer < c->n_layers && key.expert < c->ranking->n_experts);
    return &c->where[(uint64_t)key.layer * c->ranking->n_experts + key.expert];
}

static bool is_empty(const struct cache *c, uint32_t slot)
{
    return c->slots[slot].key.layer == UINT32_MAX;
}

static void forget(struct cache *c, uint32_t slot)
{
    if (!is_empty(c, slot))
        *place_of(c, c->slots[slot].key) = CACHE_NO_SLOT;
    c->slots[slot].key = CACHE_NO_KEY;
    c->n_full -= c->slots[slot].full;
    c->slots[slot].full = false;
}

bool cache_has(const struct cache *c, struct expert_key key)
{
    return *place_of(c, key) != CACHE_NO_SLOT;
}

bool cache_is_full(const struct cache *c, struct expert_key key)
{
    uint32_t slot = *place_of(c, key);
    return slot != CACHE_NO_SLOT && c->slots[slot].full;
}

uint32_t cache_slot(const struct cache *c, struct expert_key key)
{
    return *place_of(c, key);
}

double cache_least_worth(const struct cache *c)
{
    if (c->n_empty)
        return -INFINITY;
    return c->n_heap ? worth_at(c, 0) : INFINITY;
}

uint32_t cache_n_full(const struct cache *c)
{
    return c->n_full;
}

uint32_t cache_n_empty(const struct cache *c)
{
    return c->n_empty;
}

bool cache_evict(struct cache *c, struct expert_key *key, uint32_t *slot)
{
    if (c->n_heap == 0)
        return false;
    *slot = c->heap[0];
    *key = c->slots[*slot].key;
    take_out(c, *slot);
    forget(c, *slot);
    c->empty[c->n_empty++] = *slot;
    return true;
}

int cache_pin(struct cache *c, struct expert_key key, uint32_t *slot, struct expert_key *evicted,
              struct moeflux_err *e)
{
    uint32_t i = *place_of(c, key);
    *evicted = CACHE_NO_KEY;
    if (i != CACHE_NO_SLOT) {
        if (c->slots[i].n_users++ == 0)
            take_out(c, i);
        *slot = i;
        return c->slots[i].full ? CACHE_HIT : CACHE_BUSY;
    }
    if (c->n_heap == 0 && c->n_empty == 0)
        return err_set(e, ERR_NO_FIT, "layer %u expert %u: all %u expert slots are in use", key.layer,
                       key.expert, c->n_added);
    if (c->n_empty == 0)
        cache_evict(c, evicted, &i);
    i = c->empty[--c->n_empty];
    c->slots[i].key = key;
    c->slots[i].n_users = 1;
    *place_of(c, key) = i;
    *slot = i;
    return CACHE_MISS;
}

void cache_publish(struct cache *c, uint32_t slot)
{
    assert(c->slots[slot].n_users > 0 && !c->slots[slot].full);
    c->slots[slot].full = true;
    c->n_full++;
}

static void unpin(struct cache *c, uint32_t slot, double worth)
{
    assert(c->slots[slot].n_users > 0);
    if (--c->slots[slot].n_users > 0)
        return;
    if (is_empty(c, slot))
        c->empty[c->n_empty++] = slot;
    else
        push(c, slot, worth);
}

void cache_abandon(struct cache *c, uint32_t slot)
{
    forget(c, slot);
    unpin(c, slot, -INFINITY);
}

void cache_unpin(struct cache *c, uint32_t slot)
{
    unpin(c, slot, is_empty(c, slot) ? -INFINITY : ranking_worth(c->ranking, c->slots[slot].key));
}

void cache_unpin_prefetched(struct cache *c, uint32_t slot)
{
    unpin(c, slot, is_empty(c, slot) ? -INFINITY : ranking_worth_if_used(c->ranking, c->slots[slot].key));
}

void cache_unpin_spare(struct cache *c, uint32_t slot)
{
    unpin(c, slot, SPARE + c->ranking->now);
}

/* Moves an unpinned slot in the heap. A spare copy keeps its worth. */
static void rerank(struct cache *c, uint32_t slot, double worth)
{
    const struct slot *s = &c->slots[slot];
    if (s->n_users > 0 || s->worth <= SPARE / 2 || s->worth == worth)
        return;
    take_out(c, slot);
    push(c, slot, worth);
}

void cache_rerank(struct cache *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->ranking->n_experts; i++) {
        const struct expert_key key = {layer, i};
        uint32_t slot = *place_of(c, key);
        if (slot != CACHE_NO_SLOT)
            rerank(c, slot, ranking_worth(c->ranking, key));
    }
}
