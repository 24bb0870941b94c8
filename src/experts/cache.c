#include "experts/cache.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define NO_SLOT UINT32_MAX

/* Unpinned slots form a list, least recently used first; pinned ones are in no list. */
struct slot {
    struct cache_key key;
    uint32_t n_users;
    uint32_t before, after;
    bool full; /* holds the key's bytes */
};

struct cache {
    uint32_t n_slots, n_layers, n_experts;
    struct slot *slots;
    uint32_t *where; /* [n_layers][n_experts]: slot or NO_SLOT */
    uint32_t oldest, newest;
};

static void append(struct cache *c, uint32_t i)
{
    c->slots[i].before = c->newest;
    c->slots[i].after = NO_SLOT;
    if (c->newest != NO_SLOT)
        c->slots[c->newest].after = i;
    else
        c->oldest = i;
    c->newest = i;
}

static void prepend(struct cache *c, uint32_t i)
{
    c->slots[i].before = NO_SLOT;
    c->slots[i].after = c->oldest;
    if (c->oldest != NO_SLOT)
        c->slots[c->oldest].before = i;
    else
        c->newest = i;
    c->oldest = i;
}

static void take_out(struct cache *c, uint32_t i)
{
    struct slot *s = &c->slots[i];
    if (s->before != NO_SLOT)
        c->slots[s->before].after = s->after;
    else
        c->oldest = s->after;
    if (s->after != NO_SLOT)
        c->slots[s->after].before = s->before;
    else
        c->newest = s->before;
}

struct cache *cache_new(uint32_t n_slots, uint32_t n_layers, uint32_t n_experts, struct err *e)
{
    struct cache *c = mem_new(1, sizeof *c, e);
    if (!c)
        return NULL;
    *c = (struct cache){.n_slots = n_slots,
                        .n_layers = n_layers,
                        .n_experts = n_experts,
                        .oldest = NO_SLOT,
                        .newest = NO_SLOT};
    uint64_t n_keys = (uint64_t)n_layers * n_experts;
    c->slots = mem_new(n_slots, sizeof *c->slots, e);
    c->where = mem_new(n_keys, sizeof *c->where, e);
    if (!c->slots || !c->where) {
        cache_free(c);
        return NULL;
    }
    for (uint64_t i = 0; i < n_keys; i++)
        c->where[i] = NO_SLOT;
    for (uint32_t i = 0; i < n_slots; i++) {
        c->slots[i].key = CACHE_NO_KEY;
        append(c, i);
    }
    return c;
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    free(c->slots);
    free(c->where);
    free(c);
}

static uint32_t *place(struct cache *c, struct cache_key key)
{
    assert(key.layer < c->n_layers && key.expert < c->n_experts);
    return &c->where[(uint64_t)key.layer * c->n_experts + key.expert];
}

static void forget(struct cache *c, uint32_t i)
{
    if (c->slots[i].key.layer != UINT32_MAX)
        *place(c, c->slots[i].key) = NO_SLOT;
    c->slots[i].key = CACHE_NO_KEY;
    c->slots[i].full = false;
}

int cache_pin(struct cache *c, struct cache_key key, uint32_t *slot, struct cache_key *evicted, struct err *e)
{
    uint32_t i = *place(c, key);
    *evicted = CACHE_NO_KEY;
    if (i != NO_SLOT) {
        assert(c->slots[i].full);
        if (c->slots[i].n_users++ == 0)
            take_out(c, i);
        *slot = i;
        return CACHE_HIT;
    }
    i = c->oldest;
    if (i == NO_SLOT)
        return err_set(e, ERR_NO_FIT, "layer %u expert %u: all %u expert slots are in use", key.layer,
                       key.expert, c->n_slots);
    take_out(c, i);
    *evicted = c->slots[i].key;
    forget(c, i);
    c->slots[i].key = key;
    c->slots[i].n_users = 1;
    *place(c, key) = i;
    *slot = i;
    return CACHE_MISS;
}

void cache_publish(struct cache *c, uint32_t slot)
{
    assert(c->slots[slot].n_users > 0 && !c->slots[slot].full);
    c->slots[slot].full = true;
}

void cache_abandon(struct cache *c, uint32_t slot)
{
    forget(c, slot);
    c->slots[slot].n_users = 0;
    prepend(c, slot);
}

void cache_unpin(struct cache *c, uint32_t slot)
{
    assert(c->slots[slot].n_users > 0);
    if (--c->slots[slot].n_users == 0)
        append(c, slot);
}
