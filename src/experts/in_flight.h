/* in_flight.h - reads on their way into the slots of a tier.
 *
 * A read holds one pin of its slot from in_flight_start until it is finished. Then the slot is full, or, if
 * the read failed, the expert is not resident. Whoever needs the bytes pins the slot too and calls
 * in_flight_await. Not locked: one thread. */
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
    bool is_fill;     /* a prefetch that nothing cancels, and that is not counted */
    bool is_cut;      /* a prefetch that was cancelled half way: it brings no expert */
};

/* A piece of a read, of reader_split. */
struct in_flight_piece {
    uint32_t read, i;
};

struct in_flight {
    /* Reads of what was chosen begin with in_flight_begin, which copies on the threads of `exec` what the
     * page cache holds. NULL: all begin at once. */
    struct exec *exec;
    uint32_t *waiting; /* [n_waiting] for in_flight_begin */
    uint32_t n_waiting;
    struct in_flight_piece *pieces; /* room for those of n reads */
    struct reader *reader;
    struct cache *cache;        /* of the tier that reads land in */
    struct in_flight_read *all; /* [n] */
    uint32_t *free;             /* [n_free] */
    uint32_t n, n_free;
    uint32_t n_prefetching; /* reads with is_prefetch, but for those with is_fill */
    uint32_t *of_slot;      /* [n_slots]: the read into the slot, or CACHE_NO_SLOT */
};

/* All outlive it. exec: see above. */
int in_flight_open(struct in_flight *f, struct exec *exec, struct reader *r, struct cache *c, uint32_t n,
                   uint32_t n_slots, struct moeflux_err *e);
/* Nothing may be in flight (reader_close waits for that). */
void in_flight_close(struct in_flight *f);

/* Reads `key` to `dst`, the bytes of `slot`. The caller has pinned the slot (CACHE_MISS), and the read takes
 * over its pin. There must be a free entry (n_free). */
void in_flight_start(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst,
                     bool is_prefetch);
/* The same as a prefetch that nobody predicted: no use is known. */
void in_flight_fill(struct in_flight *f, struct expert_key key, uint32_t slot, uint8_t *dst);
/* Begins the reads that were started since the last time. Before anything waits for one of them. */
void in_flight_begin(struct in_flight *f);
/* The expert whose slot is CACHE_BUSY was chosen: its read is no prefetch any more. One that was cancelled
 * half way starts again, behind its parts in flight. */
void in_flight_claim(struct in_flight *f, uint32_t slot);
/* Finishes prefetches that have arrived. */
void in_flight_finish_arrived(struct in_flight *f);
/* Whether in_flight_await would not wait. */
bool in_flight_is_done(struct in_flight *f, uint32_t slot);
/* Waits for the read into the slot, if there is one: 0, or why the expert could not be read. */
int in_flight_await(struct in_flight *f, uint32_t slot, struct moeflux_err *e);
/* Cancels prefetches for the layer but those of the experts kept [n_kept]. Those that have begun end after
 * their parts in flight. Returns how many had not begun. */
uint32_t in_flight_cancel_prefetches(struct in_flight *f, uint32_t layer, const uint32_t *kept,
                                     uint32_t n_kept);
/* Waits for one prefetch and finishes it, if there is one. */
void in_flight_await_prefetch(struct in_flight *f);

#endif
