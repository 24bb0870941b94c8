/* tiers.h - where experts lie: device slots, below them host slots where device memory is not mapped, below them the
 * files; and how an expert gets from one to the other.
 *
 * An expert is in one tier. One that went up leaves its host slot as a spare copy, the first to be overwritten; one
 * that must leave the device comes down if it is worth more than what it would replace. Everything that moves is
 * pinned until the copy is over. Private to expert_store.c, which says when. */
#ifndef MOEFLUX_EXPERTS_TIERS_H
#define MOEFLUX_EXPERTS_TIERS_H

#include "experts/cache.h"
#include "experts/in_flight.h"
#include "experts/slots.h"

struct tier {
    struct slots slots;
    struct cache *cache;
};

struct slot_copy { /* a host slot that a copy reads or writes */
    uint64_t ticket;
    uint32_t slot;
    bool is_spare; /* its expert lies on the device now */
};
enum { MAX_COPIES = 256 };

struct tiers {
    struct exec *exec;
    struct tier device, host; /* host: no slots where device memory is mapped */
    struct tier *landing;     /* where reads land */
    bool keeps;               /* the host tier is a cache, not only a place to land */
    struct in_flight in_flight;
    bool *is_prefetched;      /* [landing slots]: read ahead and not chosen yet */
    struct exec_buffer table; /* u64 [n_layers][n_experts], written by the host */
    uint32_t n_experts;
    struct ranking ranking;
    struct slot_copy copies[MAX_COPIES]; /* a ring: first, n; the last n_recorded have no ticket yet */
    uint32_t first_copy, n_copies, n_recorded;
    bool moved_down;      /* since the last order of moves */
    uint64_t move_ticket; /* of the last moves */
    uint64_t n_prefetched, n_prefetched_used, n_promoted, n_demoted;
};

/* What is wanted and where it stands. */
struct want {
    struct expert_key key;
    uint32_t slot;      /* on the device, pinned */
    uint32_t host_slot; /* pinned, to be copied up; CACHE_NO_SLOT: nothing is */
    bool landed;
};
enum want_state { WANT_DEVICE, WANT_HOST, WANT_READ, WANT_LATER };

/* Pins slots for the want and starts its read if it lies nowhere. Returns where it was found, WANT_LATER when there is
 * no room until other wants have landed (nothing changes), or an error. */
int tiers_bring(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Whether tiers_land would not wait. */
bool tiers_has_arrived(struct tiers *t, const struct want *w);
/* Waits for the bytes and sends them up. On failure the want's slots are not pinned any more. */
int tiers_land(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Whether the expert lies somewhere but on disk, or is on its way from there. */
bool tiers_have(const struct tiers *t, struct expert_key key);
/* The device address of an expert that has landed and is pinned. */
uint64_t tiers_address(const struct tiers *t, struct expert_key key);
/* Waits for something that makes room other than a want: reads ahead, copies. Returns 1, 0 when there is nothing, or
 * the device's error. */
int tiers_make_progress(struct tiers *t, struct moeflux_err *e);
/* Queues what was recorded to be moved. */
int tiers_submit_moves(struct tiers *t, struct moeflux_err *e);
/* Frees device slots for the next n wants, in the background of what computes now. */
void tiers_make_room(struct tiers *t, uint32_t n);
/* Starts reads ahead; see expert_store_prefetch. */
void tiers_prefetch(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t most);
/* Reads an expert into the landing tier; false: no room. Not counted as read ahead. */
bool tiers_fill(struct tiers *t, struct expert_key key);
/* Lands what was read ahead and has arrived; gives host slots free whose copies are over. */
void tiers_settle(struct tiers *t);
/* Takes back reads ahead of a layer. */
void tiers_cancel_prefetches(struct tiers *t, uint32_t layer);

#endif
