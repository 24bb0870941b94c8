/* in_flight.h - reads of experts that have started and not finished, and the cache slots they fill.
 *
 * A read pins its slot from in_flight_start until it is finished. Then the slot is filled, or, if the read
 * failed, the expert is not resident. Who needs the bytes pins the slot too and calls in_flight_await. Not
 * locked: one thread. */
#ifndef MOEFLUX_EXPERTS_IN_FLIGHT_H
#define MOEFLUX_EXPERTS_IN_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/cache.h"
#include "experts/reader.h"

struct exec;

struct in_flight_read {
    struct read_request request;
    uint32_t slot;    /* CACHE_NO_SLOT: this entry is free */
    bool is_prefetch; /* the expert is not chosen yet */
    bool is_fill;     /* a prefetch that is never cancelled and not counted */
    bool is_cut;      /* a prefetch that was cancelled half way: it will not fill the slot */
};

/* Piece i of a read, made by reader_split. */
struct in_flight_piece {
    uint32_t read, i;
};

struct in_flight {
    /* Reads of chosen experts begin with in_flight_begin, which copies what the page cache holds on the
     * threads of `exec`. NULL: every read begins at once. */
    struct exec *exec;
    uint32_t *waiting; /* [n_waiting] reads that in_flight_begin will begin */
    uint32_t n_waiting;
    struct in_flight_piece *pieces; /* room for those of n reads */
    struct reader *reader;
    struct cache *cache;        /* the cache whose slots reads fill */
    struct in_flight_read *all; /* [n] */
    uint32_t *free;             /* [n_free] */
    uint32_t n, n_free;
    uint32_t n_prefetching; /* reads with is_prefetch and without is_fill */
    uint32_t *of_slot;      /* [n_slots]: the read into the slot, or CACHE_NO_SLOT */
};

/* exec, reader and cache must outlive it. n: the most reads in flight. ERR_MEMORY. */
int in_flight_open(struct in_flight *f, struct exec *exec, struct reader *r, struct cache *c, uint32_t n,
                   uint32_t n_slots, struct moeflux_err *e);
/* No read may be in flight (reader_close waits for that). */
void in_flight_close(struct in_flight *f);

/* Starts to read `key` to `dst`, the bytes of `slot`. The caller has pinned the slot (CACHE_MISS); the read
 * takes over that pin. There must be a free entry (n_free > 0). */
void in_flight_start(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst,
                     bool is_prefetch);
/* Starts a prefetch of an expert that nothing predicts: it fills empty memory. */
void in_flight_fill(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst);
/* Begins the reads that were started since the last call. Must precede waiting for one of them. */
void in_flight_begin(struct in_flight *f);
/* Makes the prefetch into a CACHE_BUSY slot an ordinary read: its expert was chosen. A prefetch that was
 * cancelled half way starts again when its parts in flight have ended. */
void in_flight_claim(struct in_flight *f, uint32_t slot);
/* Finishes prefetches that have arrived. */
void in_flight_finish_arrived(struct in_flight *f);
/* Returns whether in_flight_await would return at once. */
bool in_flight_is_done(struct in_flight *f, uint32_t slot);
/* Waits for the read into the slot, if there is one. Returns 0, or why the expert could not be read. */
int in_flight_await(struct in_flight *f, uint32_t slot, struct moeflux_err *e);
/* Cancels the layer's prefetches, except those of the experts kept [n_kept]. Those that have begun end after
 * their parts in flight. Returns how many had not begun. */
uint32_t in_flight_cancel_prefetches(struct in_flight *f, uint32_t layer, const uint32_t *kept,
                                     uint32_t n_kept);
/* Waits for one prefetch and finishes it, if there is one. */
void in_flight_await_prefetch(struct in_flight *f);

#endif
