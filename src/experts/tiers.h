/* tiers.h - moves experts between the three places where they can be: device slots, host slots, files on
 * disk. Host slots exist only if the host cannot map device memory; else reads fill device slots.
 *
 * An expert is in one tier. After its promotion to the device its host slot is a spare copy, the first to be
 * overwritten. An expert that is evicted from the device is demoted to a host slot if it is worth more than
 * the one it would replace. If the host has a slot for each expert (holds_all) it keeps all that were read,
 * and nothing is demoted.
 *
 * Single token: experts on the host are computed in place, because kernels read host slots over the bus as
 * fast as a copy would. Afterwards they are promoted if they are worth more than the experts they evict.
 * Prompt's chunk: experts pass through, since each is used once per chunk. In a full device they take the
 * slots of those that passed before them, the others stay, and the host keeps them.
 *
 * All slots of a copy are pinned until it is finished. Private to the store, which decides when to move. */
#ifndef MOEFLUX_EXPERTS_TIERS_H
#define MOEFLUX_EXPERTS_TIERS_H

#include "experts/cache.h"
#include "experts/growing.h"
#include "experts/in_flight.h"
#include "experts/slots.h"
#include "model/expert_part.h"

struct tier {
    struct slots slots;
    struct cache *cache;
};

/* A copy between host and device that may be in flight. */
struct slot_copy {
    uint64_t ticket;
    uint32_t slot;        /* host slot */
    uint32_t device_slot; /* promotion: device slot; demotion: CACHE_NO_SLOT */
    struct expert_key key;
    bool is_spare;   /* the host slot is a spare copy afterwards */
    bool is_ahead;   /* the device slot is pinned until the copy is submitted */
    bool sets_entry; /* the expert's entry in the table is set when the copy is done */
};
enum { MAX_COPIES = 1024 };

struct tiers {
    struct exec *exec;
    struct tier device, host; /* host: no slots if device memory is mapped */
    struct tier *landing;     /* the tier whose slots reads fill */
    struct growing *growing;  /* allocates host slots; NULL: all have memory */
    bool keeps;               /* the host tier is a cache, not only a place for reads */
    bool holds_all;           /* the host tier has a slot for each expert */
    bool is_complete;         /* and all were read: the table's entries may lead there */
    struct in_flight in_flight;
    bool *is_prefetched;      /* [landing slots]: prefetched and not chosen yet */
    bool *passes;             /* [device slots]: the expert passes through (see above) */
    uint64_t *arrives;        /* [device slots]: ticket of the copy that fills it */
    struct exec_buffer table; /* u64 [n_layers][n_experts], written by the host */
    uint32_t n_layers, n_experts;
    struct expert_part part; /* the experts that are moved; others are in no tier */
    struct ranking ranking;
    struct slot_copy copies[MAX_COPIES]; /* a ring: first, n; the last n_recorded have no ticket yet */
    uint32_t first_copy, n_copies, n_recorded;
    bool moved_down;          /* a demotion was recorded after the last barrier between moves */
    struct moeflux_err fault; /* why moves could not be submitted; from then on nothing is moved */
    uint64_t n_prefetched, n_prefetched_used, n_promoted, n_demoted;
};

/* One wanted expert. */
struct want {
    struct expert_key key;
    uint32_t slot;      /* device slot, pinned; CACHE_NO_SLOT: the expert is used in its host slot */
    uint32_t host_slot; /* host slot, pinned, used or copied to the device; CACHE_NO_SLOT: none */
    bool landed;        /* its bytes are where they are used */
    enum expert_use use;
    uint32_t place; /* index among the requested experts */
};
/* A slot in use by batches that are not released yet. */
struct held {
    struct expert_key key;
    uint32_t slot;
    bool on_host;
};
/* Where a want was found; READ: on disk; LATER: no slot is free until other wants have landed. */
enum want_state { WANT_DEVICE, WANT_HOST, WANT_READ, WANT_LATER };

/* Pins slots for the want and starts its read if no tier has it. Returns a want_state (WANT_LATER: nothing
 * changes), or an error. */
int tiers_bring(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Returns whether tiers_land would return at once. */
bool tiers_has_arrived(struct tiers *t, const struct want *w);
/* Counts a choice of the layer, n different experts, in their worths. */
void tiers_use(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n);
/* Waits for the want's bytes and copies them to the device. After a failure its slots are no longer
 * pinned. */
int tiers_land(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Returns whether the expert is in a slot, or being read into one. */
bool tiers_have(const struct tiers *t, struct expert_key key);
/* Returns whether a slot has the expert's bytes. */
bool tiers_hold(const struct tiers *t, struct expert_key key);
/* Returns the device address of an expert that has landed and is pinned. */
uint64_t tiers_address(const struct tiers *t, struct expert_key key);
/* Waits for a prefetch or a copy, which frees a slot. Returns 1; 0 if there is none; or the device's
 * error. */
int tiers_make_progress(struct tiers *t, struct moeflux_err *e);
/* Submits the recorded copies. After one failure every call fails, also of tiers_bring: slots count as filled
 * that never got their bytes. */
int tiers_submit_moves(struct tiers *t, struct moeflux_err *e);
/* Submits copies to the device of a layer's experts that only the host has, for a prompt's chunk: at most
 * `most`. Does not wait for them. Returns 0 or the device's error. */
int tiers_promote_for_chunk(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n,
                            uint32_t most, struct moeflux_err *e);
/* Return the slot that a landed want holds; release it. */
struct held tiers_held(const struct want *w);
void tiers_release(struct tiers *t, const struct held *h);
/* Records the copy of a host expert to the device if it is worth enough more than the expert it evicts. Its
 * entry in the table changes when the copy is done. tiers_submit_moves must follow. */
void tiers_promote_if_better(struct tiers *t, struct expert_key key);
/* Returns whether every expert is on the device or on the host, so that all entries of the table are set. */
bool tiers_are_complete(struct tiers *t);
/* Demotes experts until n device slots are free for the next wants, while the device computes. */
void tiers_make_room(struct tiers *t, uint32_t n);
/* Starts prefetches of the part's experts (expert_store_prefetch) while fewer than `most` are in flight. */
void tiers_prefetch(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t most);
/* Waits until n host slots are empty or no more get memory. Returns how many are empty, at most n. */
uint32_t tiers_make_host_room(struct tiers *t, uint32_t n);
/* Starts to read an expert into an empty host slot, although nothing predicts its use. */
void tiers_fill_ahead(struct tiers *t, struct expert_key key);
/* Returns whether tiers_fill_ahead may be called: host slots for all experts, one empty, few reads in
 * flight. */
bool tiers_can_fill_ahead(const struct tiers *t);
/* Waits for the submitted copies. Must precede freeing the slots. */
void tiers_await_copies(struct tiers *t);
/* Finishes prefetches that have arrived and copies that are done. */
void tiers_finish_arrived(struct tiers *t);
/* Cancels the prefetches of a layer, except those of the experts kept [n_kept]. */
void tiers_cancel_prefetches(struct tiers *t, uint32_t layer, const uint32_t *kept, uint32_t n_kept);

#endif
