#include "experts/flights.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

int flights_open(struct flights *f, struct reader *r, struct cache *c, uint32_t n, uint32_t n_slots,
                 struct err *e)
{
    *f = (struct flights){.reader = r, .cache = c, .n = n, .n_free = n};
    f->all = mem_new(n, sizeof *f->all, e);
    f->free = mem_new(n, sizeof *f->free, e);
    f->of_slot = mem_new(n_slots, sizeof *f->of_slot, e);
    if (!f->all || !f->free || !f->of_slot) {
        flights_close(f);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        f->all[i].slot = CACHE_NO_SLOT;
        f->free[i] = n - 1 - i;
    }
    for (uint32_t i = 0; i < n_slots; i++)
        f->of_slot[i] = CACHE_NO_SLOT;
    return 0;
}

void flights_close(struct flights *f)
{
    free(f->all);
    free(f->free);
    free(f->of_slot);
    *f = (struct flights){0};
}

void flights_start(struct flights *f, struct expert_key key, uint32_t slot, uint8_t *dst, bool is_ahead)
{
    assert(f->n_free > 0);
    uint32_t i = f->free[--f->n_free];
    struct flight *x = &f->all[i];
    x->slot = slot;
    x->is_ahead = is_ahead;
    f->n_ahead += is_ahead;
    f->of_slot[slot] = i;
    x->request.layer = key.layer;
    x->request.expert = key.expert;
    x->request.dst = dst;
    x->request.speculative = is_ahead;
    reader_start(f->reader, &x->request);
}

void flights_claim(struct flights *f, uint32_t slot)
{
    struct flight *x = &f->all[f->of_slot[slot]];
    f->n_ahead -= x->is_ahead;
    x->is_ahead = false;
    reader_demand(f->reader, &x->request);
}

/* The read is over. */
static int land(struct flights *f, uint32_t i, struct err *e)
{
    struct flight *x = &f->all[i];
    int rc = reader_wait(f->reader, &x->request, e);
    f->of_slot[x->slot] = CACHE_NO_SLOT;
    f->n_ahead -= x->is_ahead;
    if (rc < 0) {
        cache_abandon(f->cache, x->slot);
    } else {
        cache_publish(f->cache, x->slot);
        if (x->is_ahead)
            cache_unpin_fresh(f->cache, x->slot);
        else
            cache_unpin(f->cache, x->slot);
    }
    x->slot = CACHE_NO_SLOT;
    f->free[f->n_free++] = i;
    return rc;
}

void flights_settle(struct flights *f)
{
    for (uint32_t i = 0; f->n_free < f->n && i < f->n; i++)
        if (f->all[i].slot != CACHE_NO_SLOT && f->all[i].is_ahead &&
            reader_is_done(f->reader, &f->all[i].request))
            land(f, i, NULL);
}

bool flights_is_done(struct flights *f, uint32_t slot)
{
    uint32_t i = f->of_slot[slot];
    return i == CACHE_NO_SLOT || reader_is_done(f->reader, &f->all[i].request);
}

int flights_await(struct flights *f, uint32_t slot, struct err *e)
{
    uint32_t i = f->of_slot[slot];
    return i == CACHE_NO_SLOT ? 0 : land(f, i, e);
}

uint32_t flights_call_back(struct flights *f, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; f->n_ahead > 0 && i < f->n; i++) {
        struct flight *x = &f->all[i];
        if (x->slot == CACHE_NO_SLOT || !x->is_ahead || x->request.layer != layer)
            continue;
        enum reader_cancelled how = reader_cancel(f->reader, &x->request);
        n += how == READER_CANCELLED;
        if (how == READER_CANCELLED) {
            f->of_slot[x->slot] = CACHE_NO_SLOT;
            f->n_ahead--;
            cache_abandon(f->cache, x->slot);
            x->slot = CACHE_NO_SLOT;
            f->free[f->n_free++] = i;
        }
    }
    return n;
}

void flights_await_ahead(struct flights *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->all[i].slot != CACHE_NO_SLOT && f->all[i].is_ahead) {
            land(f, i, NULL);
            return;
        }
}
