/* flights.h - reads on their way into the slots of a tier.
 *
 * A flight holds one pin of its slot from flights_start until it has landed: then the slot is full (or, when the read
 * failed, the expert is not there) and the pin is gone. Whoever needs the bytes pins the slot too and calls
 * flights_await. Not locked: one thread. */
#ifndef MOEFLUX_EXPERTS_FLIGHTS_H
#define MOEFLUX_EXPERTS_FLIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/cache.h"
#include "experts/reader.h"

struct flight {
    struct read_request request;
    uint32_t slot; /* CACHE_NO_SLOT: the flight is free */
    bool is_ahead; /* nobody has chosen the expert yet */
};

struct flights {
    struct reader *reader;
    struct cache *cache; /* of the tier that reads land in */
    struct flight *all;  /* [n] */
    uint32_t *free;      /* [n_free] */
    uint32_t n, n_free;
    uint32_t n_ahead;  /* flights that nobody has chosen yet */
    uint32_t *of_slot; /* [n_slots]: the flight to the slot, or CACHE_NO_SLOT */
};

/* The reader and the cache outlive it. */
int flights_open(struct flights *f, struct reader *r, struct cache *c, uint32_t n, uint32_t n_slots,
                 struct err *e);
/* Nothing may be under way (reader_close waits for that). */
void flights_close(struct flights *f);

/* Reads `key` to `dst`, the bytes of `slot`, which the caller has got as CACHE_MISS and whose pin the flight takes
 * over. There must be a free flight (n_free). */
void flights_start(struct flights *f, struct expert_key key, uint32_t slot, uint8_t *dst, bool is_ahead);
/* The expert whose slot is CACHE_BUSY was chosen: its read is ahead of nothing any more. */
void flights_claim(struct flights *f, uint32_t slot);
/* Lands what has arrived. */
void flights_settle(struct flights *f);
/* Whether flights_await would not wait. */
bool flights_is_done(struct flights *f, uint32_t slot);
/* Waits for the flight to the slot, if there is one: 0, or why the expert could not be read. */
int flights_await(struct flights *f, uint32_t slot, struct err *e);
/* Takes back reads ahead for the layer, where still possible; those begun end after their parts in flight. Returns how
 * many had not begun. */
uint32_t flights_call_back(struct flights *f, uint32_t layer);
/* Lands one read ahead, waiting for it; nothing when there is none. */
void flights_await_ahead(struct flights *f);

#endif
