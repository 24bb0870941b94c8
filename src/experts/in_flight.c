#include "experts/in_flight.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "exec/exec.h"

int in_flight_open(struct in_flight *f, struct exec *exec, struct reader *r, struct cache *c, uint32_t n,
                   uint32_t n_slots, struct moeflux_err *e)
{
    *f = (struct in_flight){.exec = exec, .reader = r, .cache = c, .n = n, .n_free = n};
    f->waiting = mem_new(n, sizeof *f->waiting, e);
    f->pieces = mem_new((uint64_t)n * READER_MAX_PARTS, sizeof *f->pieces, e);
    f->all = mem_new(n, sizeof *f->all, e);
    f->free = mem_new(n, sizeof *f->free, e);
    f->of_slot = mem_new(n_slots, sizeof *f->of_slot, e);
    if (!f->all || !f->free || !f->of_slot || !f->waiting || !f->pieces) {
        in_flight_close(f);
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

void in_flight_close(struct in_flight *f)
{
    free(f->all);
    free(f->free);
    free(f->of_slot);
    free(f->waiting);
    free(f->pieces);
    *f = (struct in_flight){0};
}

void in_flight_start(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst,
                     bool is_prefetch)
{
    assert(f->n_free > 0);
    uint32_t i = f->free[--f->n_free];
    struct in_flight_read *x = &f->all[i];
    x->slot = slot;
    x->is_prefetch = is_prefetch;
    x->is_cut = x->is_fill = false;
    f->n_prefetching += is_prefetch;
    f->of_slot[slot] = i;
    x->request.layer = key.layer;
    x->request.expert = key.expert;
    x->request.dst = dst;
    x->request.speculative = is_prefetch;
    if (f->exec && !is_prefetch)
        f->waiting[f->n_waiting++] = i;
    else
        reader_start(f->reader, &x->request);
}

void in_flight_fill(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst)
{
    in_flight_start(f, key, slot, dst, true);
    f->all[f->of_slot[slot]].is_fill = true;
    f->n_prefetching--;
}

static void copy_piece(void *ctx, uint32_t i, uint32_t thread)
{
    const struct in_flight *f = ctx;
    const struct in_flight_piece *p = &f->pieces[i];
    (void)thread;
    reader_copy(f->reader, &f->all[p->read].request, p->i);
}

void in_flight_begin(struct in_flight *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_waiting; i++) {
        uint32_t read = f->waiting[i], n_pieces = reader_split(f->reader, &f->all[read].request);
        for (uint32_t k = 0; k < n_pieces; k++)
            f->pieces[n++] = (struct in_flight_piece){read, k};
    }
    if (n > 0)
        exec_for(f->exec, n, copy_piece, f);
    for (uint32_t i = 0; i < f->n_waiting; i++) {
        struct read_request *q = &f->all[f->waiting[i]].request;
        if (n == 0 || !reader_is_done(f->reader, q))
            reader_start(f->reader, q);
    }
    f->n_waiting = 0;
}

void in_flight_claim(struct in_flight *f, uint32_t slot)
{
    struct in_flight_read *x = &f->all[f->of_slot[slot]];
    f->n_prefetching -= x->is_prefetch && !x->is_fill;
    x->is_prefetch = x->is_fill = false;
    if (!x->is_cut) {
        reader_demand(f->reader, &x->request);
        return;
    }
    reader_wait(f->reader, &x->request, NULL);
    x->is_cut = false;
    x->request.speculative = false;
    reader_start(f->reader, &x->request);
}

/* Waits for read i and ends it: publishes or abandons its slot, unpins it and frees the entry. */
static int land(struct in_flight *f, uint32_t i, struct moeflux_err *e)
{
    struct in_flight_read *x = &f->all[i];
    int rc = reader_wait(f->reader, &x->request, e);
    f->of_slot[x->slot] = CACHE_NO_SLOT;
    f->n_prefetching -= x->is_prefetch && !x->is_fill;
    if (rc < 0) {
        cache_abandon(f->cache, x->slot);
    } else {
        cache_publish(f->cache, x->slot);
        if (x->is_prefetch && !x->is_fill)
            cache_unpin_prefetched(f->cache, x->slot);
        else
            cache_unpin(f->cache, x->slot);
    }
    x->slot = CACHE_NO_SLOT;
    f->free[f->n_free++] = i;
    return rc;
}

void in_flight_finish_arrived(struct in_flight *f)
{
    for (uint32_t i = 0; f->n_free < f->n && i < f->n; i++)
        if (f->all[i].slot != CACHE_NO_SLOT && f->all[i].is_prefetch &&
            reader_is_done(f->reader, &f->all[i].request))
            land(f, i, NULL);
}

bool in_flight_is_done(struct in_flight *f, uint32_t slot)
{
    uint32_t i = f->of_slot[slot];
    return i == CACHE_NO_SLOT || reader_is_done(f->reader, &f->all[i].request);
}

int in_flight_await(struct in_flight *f, uint32_t slot, struct moeflux_err *e)
{
    uint32_t i = f->of_slot[slot];
    return i == CACHE_NO_SLOT ? 0 : land(f, i, e);
}

static bool is_among(uint32_t expert, const uint32_t *experts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

uint32_t in_flight_cancel_prefetches(struct in_flight *f, uint32_t layer, const uint32_t *kept,
                                     uint32_t n_kept)
{
    uint32_t n = 0;
    for (uint32_t i = 0; f->n_prefetching > 0 && i < f->n; i++) {
        struct in_flight_read *x = &f->all[i];
        if (x->slot == CACHE_NO_SLOT || !x->is_prefetch || x->is_fill || x->request.layer != layer ||
            is_among(x->request.expert, kept, n_kept))
            continue;
        enum reader_cancelled how = reader_cancel(f->reader, &x->request);
        n += how == READER_CANCELLED;
        x->is_cut |= how == READER_CUT_SHORT;
        if (how == READER_CANCELLED) {
            f->of_slot[x->slot] = CACHE_NO_SLOT;
            f->n_prefetching--;
            cache_abandon(f->cache, x->slot);
            x->slot = CACHE_NO_SLOT;
            f->free[f->n_free++] = i;
        }
    }
    return n;
}

void in_flight_await_prefetch(struct in_flight *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->all[i].slot != CACHE_NO_SLOT && f->all[i].is_prefetch) {
            land(f, i, NULL);
            return;
        }
}
