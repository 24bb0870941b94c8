#include "experts/tiers.h"

#include <math.h>

#include "base/err.h"

/* Chunks of host memory that are requested before they are needed. */
enum { AHEAD = 4 };

static uint64_t *entry_of(const struct tiers *t, struct expert_key key)
{
    return (uint64_t *)(void *)t->table.host + (uint64_t)key.layer * t->n_experts + key.expert;
}

static void set_entry(struct tiers *t, struct expert_key key, uint64_t address)
{
    if (key.layer != UINT32_MAX)
        *entry_of(t, key) = address;
}

bool tiers_have(const struct tiers *t, struct expert_key key)
{
    return cache_has(t->device.cache, key) || cache_has(t->landing->cache, key);
}

bool tiers_hold(const struct tiers *t, struct expert_key key)
{
    return cache_is_full(t->device.cache, key) || cache_is_full(t->landing->cache, key);
}

uint64_t tiers_address(const struct tiers *t, struct expert_key key)
{
    return slots_address(&t->device.slots, cache_slot(t->device.cache, key));
}

/* --- copies between device and host --- */

static void add_copy(struct tiers *t, struct slot_copy c)
{
    t->copies[(t->first_copy + t->n_copies++) % MAX_COPIES] = c;
    t->n_recorded++;
}

static void end_copy(struct tiers *t)
{
    const struct slot_copy *d = &t->copies[t->first_copy];
    if (d->is_spare)
        cache_unpin_spare(t->host.cache, d->slot);
    else
        cache_unpin(t->host.cache, d->slot);
    if (d->sets_entry && cache_slot(t->device.cache, d->key) == d->device_slot)
        set_entry(t, d->key, slots_address(&t->device.slots, d->device_slot));
    t->first_copy = (t->first_copy + 1) % MAX_COPIES;
    t->n_copies--;
}

static void end_copies(struct tiers *t)
{
    while (t->n_copies > t->n_recorded && exec_move_is_done(t->exec, t->copies[t->first_copy].ticket))
        end_copy(t);
}

static int fail_again(const struct tiers *t, struct moeflux_err *e)
{
    return err_set(e, t->fault.code, "%s", t->fault.text);
}

int tiers_submit_moves(struct tiers *t, struct moeflux_err *e)
{
    uint64_t ticket = 0;
    /* After a failure the copies stay recorded and their slots pinned: no later submission includes them. */
    if (t->fault.code || exec_move_submit(t->exec, &ticket, &t->fault) < 0)
        return fail_again(t, e);
    if (ticket == 0)
        return 0;
    for (; t->n_recorded > 0; t->n_recorded--) {
        uint32_t back = t->n_copies - t->n_recorded;
        struct slot_copy *c = &t->copies[(t->first_copy + back) % MAX_COPIES];
        c->ticket = ticket;
        if (c->device_slot != CACHE_NO_SLOT)
            t->arrives[c->device_slot] = ticket;
        if (c->is_ahead)
            cache_unpin_prefetched(t->device.cache, c->device_slot);
    }
    t->moved_down = false; /* the next batch of moves begins after this one */
    return 0;
}

/* Returns the table's entry for an expert that is not on the device and not wanted. */
static uint64_t address_on_host(const struct tiers *t, struct expert_key key)
{
    bool is_there = t->is_complete && key.layer != UINT32_MAX;
    return is_there ? slots_address(&t->host.slots, cache_slot(t->host.cache, key)) : 0;
}

/* Records the copy of an expert to the host if it is worth a slot there. Its device slot will be
 * overwritten. */
static void demote(struct tiers *t, struct expert_key key, uint32_t device_slot)
{
    struct expert_key gone;
    uint32_t slot;
    set_entry(t, key, address_on_host(t, key));
    if (!t->keeps || t->holds_all || key.layer == UINT32_MAX || t->n_copies == MAX_COPIES)
        return;
    if (!cache_has(t->host.cache, key) && cache_least_worth(t->host.cache) >= ranking_worth(&t->ranking, key))
        return;
    int state = cache_pin(t->host.cache, key, &slot, &gone, NULL);
    if (state != CACHE_MISS) {
        /* The spare copy on the host is the only one now. */
        if (state >= 0)
            cache_unpin(t->host.cache, slot);
        return;
    }
    slots_move(&t->host.slots, slot, &t->device.slots, device_slot);
    cache_publish(t->host.cache, slot);
    t->is_prefetched[slot] = false;
    add_copy(t, (struct slot_copy){.slot = slot, .device_slot = CACHE_NO_SLOT});
    t->moved_down = true;
    t->n_demoted++;
}

/* Gives the device slot to another expert. An expert that takes an empty slot evicts none, so it may stay. */
static void take_slot(struct tiers *t, struct expert_key gone, uint32_t slot, bool passes)
{
    demote(t, gone, slot);
    t->passes[slot] = passes && gone.layer != UINT32_MAX;
}

/* Records a copy to the device. c: all fields except is_spare. */
static void record_promotion(struct tiers *t, struct slot_copy c)
{
    /* A demotion must read its device slot before a promotion overwrites it. */
    if (t->moved_down)
        exec_move_order(t->exec);
    t->moved_down = false;
    slots_move(&t->device.slots, c.device_slot, &t->host.slots, c.slot);
    cache_publish(t->device.cache, c.device_slot);
    c.is_spare = !t->holds_all && !t->passes[c.device_slot];
    add_copy(t, c);
    t->n_promoted++;
}

void tiers_make_room(struct tiers *t, uint32_t n)
{
    struct expert_key key;
    uint32_t slot;
    if (t->host.slots.n == 0 || t->holds_all || t->device.slots.n < 4 * n)
        return;
    while (cache_n_empty(t->device.cache) < n && cache_evict(t->device.cache, &key, &slot))
        demote(t, key, slot);
}

void tiers_use(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    ranking_use(&t->ranking, layer, experts, n);
    if (!t->ranking.context)
        return;
    cache_rerank(t->device.cache, layer);
    if (t->host.cache)
        cache_rerank(t->host.cache, layer);
}

/* --- landing --- */

static uint32_t take_prefetched(struct tiers *t, uint32_t slot)
{
    bool was_prefetched = t->is_prefetched[slot];
    t->is_prefetched[slot] = false;
    return was_prefetched;
}

/* Pins `key` in the landing tier and starts its read if it is not there. */
static int pin_landing(struct tiers *t, struct expert_key key, bool is_prefetch, uint32_t *slot,
                       struct moeflux_err *e)
{
    struct expert_key gone;
    int state = cache_pin(t->landing->cache, key, slot, &gone, e);
    if (state != CACHE_MISS) {
        if (state == CACHE_BUSY)
            in_flight_claim(&t->in_flight, *slot);
        return state;
    }
    if (t->landing == &t->device)
        set_entry(t, gone, 0);
    t->is_prefetched[*slot] = is_prefetch;
    in_flight_start(&t->in_flight, key, *slot, slots_host(&t->landing->slots, *slot), is_prefetch);
    /* The read has the pin; this one is the caller's. */
    if (!is_prefetch)
        (void)cache_pin(t->landing->cache, key, slot, &gone, e);
    return state;
}

static bool has_room(const struct cache *c)
{
    return cache_least_worth(c) < (double)INFINITY;
}

/* Returns whether kernels use the wanted expert in its host slot, unless the device has it too. */
static bool is_in_place(const struct tiers *t, const struct want *w)
{
    return w->use == USE_TOKEN && t->landing == &t->host;
}

/* Returns whether the want can start now: unpinned slots, and a free entry of in_flight if it must be
 * read. */
static bool can_bring(const struct tiers *t, const struct want *w)
{
    const struct expert_key key = w->key;
    if (cache_has(t->device.cache, key))
        return true;
    if (!is_in_place(t, w) && (!has_room(t->device.cache) || t->n_copies + 2 > MAX_COPIES))
        return false;
    return cache_has(t->landing->cache, key) || (has_room(t->landing->cache) && t->in_flight.n_free > 0);
}

static int bring_to_mapped(struct tiers *t, struct want *w, struct moeflux_err *e)
{
    int state = pin_landing(t, w->key, false, &w->slot, e);
    if (state < 0)
        return state;
    t->n_prefetched_used += take_prefetched(t, w->slot);
    return state == CACHE_HIT ? WANT_DEVICE : WANT_READ;
}

static int bring_through_host(struct tiers *t, struct want *w, struct moeflux_err *e)
{
    struct expert_key gone;
    if (cache_has(t->device.cache, w->key)) {
        int state = cache_pin(t->device.cache, w->key, &w->slot, &gone, e);
        t->passes[w->slot] &= w->use == USE_CHUNK;
        return state < 0 ? state : WANT_DEVICE;
    }
    /* The host slot is pinned first, because a demotion may take the last free one. */
    int host = pin_landing(t, w->key, false, &w->host_slot, e);
    int state = host < 0 || is_in_place(t, w) ? host : cache_pin(t->device.cache, w->key, &w->slot, &gone, e);
    if (state < 0)
        return state;
    if (!is_in_place(t, w))
        take_slot(t, gone, w->slot, w->use == USE_CHUNK);
    t->n_prefetched_used += take_prefetched(t, w->host_slot);
    return host == CACHE_HIT ? WANT_HOST : WANT_READ;
}

static uint64_t address_of(const struct tiers *t, const struct want *w)
{
    return w->slot == CACHE_NO_SLOT ? slots_address(&t->host.slots, w->host_slot)
                                    : slots_address(&t->device.slots, w->slot);
}

int tiers_bring(struct tiers *t, struct want *w, struct moeflux_err *e)
{
    w->slot = w->host_slot = CACHE_NO_SLOT;
    w->landed = false;
    if (t->fault.code)
        return fail_again(t, e);
    if (!can_bring(t, w))
        return WANT_LATER;
    int found = t->landing == &t->device ? bring_to_mapped(t, w, e) : bring_through_host(t, w, e);
    w->landed = found == WANT_DEVICE || (found == WANT_HOST && w->slot == CACHE_NO_SLOT);
    if (w->landed) /* the table has no entry yet for an expert that was prefetched */
        set_entry(t, w->key, address_of(t, w));
    return found;
}

bool tiers_has_arrived(struct tiers *t, const struct want *w)
{
    return in_flight_is_done(&t->in_flight, w->host_slot == CACHE_NO_SLOT ? w->slot : w->host_slot);
}

/* Unpins the slots of a want that could not be read. */
static void drop(struct tiers *t, const struct want *w)
{
    if (w->host_slot != CACHE_NO_SLOT)
        cache_unpin(t->host.cache, w->host_slot);
    if (w->host_slot != CACHE_NO_SLOT && w->slot != CACHE_NO_SLOT)
        cache_abandon(t->device.cache, w->slot);
    else if (w->slot != CACHE_NO_SLOT)
        cache_unpin(t->device.cache, w->slot);
}

int tiers_land(struct tiers *t, struct want *w, struct moeflux_err *e)
{
    bool has_host = w->host_slot != CACHE_NO_SLOT, has_device = w->slot != CACHE_NO_SLOT;
    int rc = in_flight_await(&t->in_flight, has_host ? w->host_slot : w->slot, e);
    w->landed = true;
    if (rc < 0) {
        drop(t, w);
        return rc;
    }
    if (has_host && has_device)
        record_promotion(t, (struct slot_copy){.slot = w->host_slot, .device_slot = w->slot, .key = w->key});
    set_entry(t, w->key, address_of(t, w));
    return 0;
}

struct held tiers_held(const struct want *w)
{
    bool on_host = w->slot == CACHE_NO_SLOT;
    return (struct held){.key = w->key, .slot = on_host ? w->host_slot : w->slot, .on_host = on_host};
}

static void release_on_host(struct tiers *t, const struct held *h)
{
    bool is_on_device = cache_has(t->device.cache, h->key);
    /* The entry of an expert that was promoted meanwhile leads to the device and stays. */
    if (*entry_of(t, h->key) == slots_address(&t->host.slots, h->slot))
        set_entry(t, h->key, address_on_host(t, h->key));
    if (is_on_device && !t->holds_all)
        cache_unpin_spare(t->host.cache, h->slot);
    else
        cache_unpin(t->host.cache, h->slot);
}

void tiers_release(struct tiers *t, const struct held *h)
{
    if (h->on_host)
        release_on_host(t, h);
    else if (t->passes[h->slot])
        cache_unpin_spare(t->device.cache, h->slot);
    else
        cache_unpin(t->device.cache, h->slot);
}

/* Records the copy of an expert that only the host has to the device. Its device slot is pinned until the
 * copy is submitted. */
static void promote_from_host(struct tiers *t, struct expert_key key, bool passes)
{
    struct slot_copy c = {.key = key, .is_ahead = true, .sets_entry = true};
    struct expert_key gone;
    (void)cache_pin(t->host.cache, key, &c.slot, &gone, NULL);
    (void)cache_pin(t->device.cache, key, &c.device_slot, &gone, NULL);
    take_slot(t, gone, c.device_slot, passes);
    record_promotion(t, c);
}

static bool can_promote(const struct tiers *t, struct expert_key key)
{
    return !t->fault.code && !cache_has(t->device.cache, key) && cache_is_full(t->host.cache, key) &&
           has_room(t->device.cache) && t->n_copies + 2 <= MAX_COPIES;
}

void tiers_promote_if_better(struct tiers *t, struct expert_key key)
{
    /* More copies would delay on the bus what is wanted now. */
    enum { MOST = 32 };
    if (t->n_copies < MOST && can_promote(t, key) &&
        ranking_pays(&t->ranking, ranking_worth(&t->ranking, key), cache_least_worth(t->device.cache)))
        promote_from_host(t, key, false);
}

int tiers_promote_for_chunk(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n,
                            uint32_t most, struct moeflux_err *e)
{
    uint32_t n_raised = 0;
    for (uint32_t i = 0; i < n && n_raised < most; i++) {
        const struct expert_key key = {layer, experts[i]};
        if (can_promote(t, key)) {
            promote_from_host(t, key, true);
            n_raised++;
        }
    }
    return n_raised ? tiers_submit_moves(t, e) : 0;
}

/* Sets the entry of every expert that only the host has, or whose promotion is in flight. */
static void set_entries(struct tiers *t)
{
    for (uint32_t layer = 0; layer < t->n_layers; layer++)
        for (uint32_t i = 0; i < t->n_experts; i++) {
            const struct expert_key key = {layer, i};
            if (*entry_of(t, key) == 0 && cache_has(t->host.cache, key))
                set_entry(t, key, address_on_host(t, key));
        }
}

/* Returns whether an entry may lead to a slot that is not filled yet: a want's entry is set before its copy
 * is done. */
static bool is_ahead_of_copies(const struct tiers *t)
{
    for (uint32_t i = 0; i < t->n_copies; i++) {
        const struct slot_copy *c = &t->copies[(t->first_copy + i) % MAX_COPIES];
        if (c->device_slot != CACHE_NO_SLOT && !c->sets_entry)
            return true;
    }
    return false;
}

bool tiers_are_complete(struct tiers *t)
{
    if (t->fault.code) /* expert_store_want then returns the fault */
        return false;
    if (!t->is_complete && (!t->holds_all || cache_n_full(t->host.cache) < t->host.slots.n))
        return false;
    end_copies(t);
    if (!t->is_complete) {
        t->is_complete = true;
        set_entries(t);
    }
    return !is_ahead_of_copies(t);
}

/* Takes new host slots into use, and asks for more before these are full. */
static void grow(struct tiers *t)
{
    uint32_t n = growing_take(t->growing);
    if (n > 0)
        cache_grow(t->host.cache, n);
    if (cache_n_empty(t->host.cache) < AHEAD * t->host.slots.n_per_chunk && growing_has_more(t->growing))
        growing_request(t->growing, AHEAD);
}

void tiers_finish_arrived(struct tiers *t)
{
    in_flight_finish_arrived(&t->in_flight);
    end_copies(t);
    if (t->growing)
        grow(t);
}

void tiers_await_copies(struct tiers *t)
{
    uint32_t n = t->n_copies - t->n_recorded;
    if (n > 0)
        (void)exec_move_wait(t->exec, t->copies[(t->first_copy + n - 1) % MAX_COPIES].ticket, NULL);
}

int tiers_make_progress(struct tiers *t, struct moeflux_err *e)
{
    uint32_t before = t->n_copies;
    end_copies(t);
    if (t->n_copies < before)
        return 1;
    if (t->in_flight.n_prefetching > 0) {
        in_flight_await_prefetch(&t->in_flight);
        return 1;
    }
    if (t->n_copies == 0)
        return 0;
    int rc = tiers_submit_moves(t, e);
    if (rc == 0)
        rc = exec_move_wait(t->exec, t->copies[t->first_copy].ticket, e);
    if (rc < 0)
        return rc;
    end_copies(t);
    return 1;
}

/* --- reading ahead --- */

void tiers_prefetch(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t most)
{
    for (uint32_t i = 0; i < n && t->in_flight.n_prefetching < most && t->in_flight.n_free > most; i++) {
        const struct expert_key key = {layer, experts[i]};
        uint32_t slot;
        if (!expert_part_has(&t->part, t->n_experts, key.expert) || tiers_have(t, key))
            continue;
        if (!has_room(t->landing->cache) || pin_landing(t, key, true, &slot, NULL) < 0)
            return;
        t->n_prefetched++;
    }
}

/* Waits for more host slots. Returns false if no more will come. */
static bool grow_now(struct tiers *t)
{
    if (!t->growing)
        return false;
    growing_request(t->growing, AHEAD);
    uint32_t n = growing_await(t->growing);
    cache_grow(t->host.cache, n);
    return n > 0;
}

uint32_t tiers_make_host_room(struct tiers *t, uint32_t n)
{
    uint32_t n_empty;
    while ((n_empty = cache_n_empty(t->host.cache)) < n && grow_now(t))
        ;
    return n_empty < n ? n_empty : n;
}

void tiers_fill_ahead(struct tiers *t, struct expert_key key)
{
    struct expert_key gone;
    uint32_t slot;
    if (cache_has(t->host.cache, key))
        return;
    (void)cache_pin(t->host.cache, key, &slot, &gone, NULL);
    t->is_prefetched[slot] = false;
    in_flight_fill(&t->in_flight, key, slot, slots_host(&t->host.slots, slot));
}

bool tiers_can_fill_ahead(const struct tiers *t)
{
    return t->holds_all && t->in_flight.n_free > t->in_flight.n / 2 && cache_n_empty(t->host.cache) > 0;
}

void tiers_cancel_prefetches(struct tiers *t, uint32_t layer, const uint32_t *kept, uint32_t n_kept)
{
    t->n_prefetched -= in_flight_cancel_prefetches(&t->in_flight, layer, kept, n_kept);
}
