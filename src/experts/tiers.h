/* tiers.h - the tiers of experts: device slots, host slots (where device memory is not mapped), files. Moves
 * experts between them.
 *
 * An expert is in one tier. After its promotion to the device, its host slot is a spare copy, the first to be
 * overwritten. An expert that is evicted from the device is demoted to a host slot, if it is worth more than
 * what it would replace. Where the host has a slot for each expert (holds_all) it keeps all that were read,
 * and nothing is demoted. What a single token wants is not moved before it is used: kernels read host slots
 * over the bus as fast as a copy would take, so experts on the host are computed in place, and move up
 * afterwards if they are worth more than what leaves. Experts of a prompt's chunk pass through: each is used
 * once a chunk, so in a full device they take the slots of those before them, the others stay, and the host
 * keeps them. All slots of a copy are pinned until it is finished. Private to store.c, which says when. */
#ifndef MOEFLUX_EXPERTS_TIERS_H
#define MOEFLUX_EXPERTS_TIERS_H

#include "experts/cache.h"
#include "experts/growing.h"
#include "experts/in_flight.h"
#include "experts/slots.h"

struct tier {
    struct slots slots;
    struct cache *cache;
};

struct slot_copy { /* a copy between host and device that may be in flight */
    uint64_t ticket;
    uint32_t slot;        /* of the host */
    uint32_t device_slot; /* of a promotion; else CACHE_NO_SLOT */
    struct expert_key key;
    bool is_spare;   /* the expert is on the device now */
    bool is_ahead;   /* the device slot is pinned until the copy is submitted */
    bool sets_entry; /* the expert's entry in the table is set when the copy is done */
};
enum { MAX_COPIES = 1024 };

struct tiers {
    struct exec *exec;
    struct tier device, host; /* host: no slots where device memory is mapped */
    struct tier *landing;     /* where reads land */
    struct growing *growing;  /* of the host's slots; NULL: all have their memory */
    bool keeps;               /* the host tier is a cache, not only a place to land */
    bool holds_all;           /* it has a slot for each expert */
    bool is_complete;         /* and all were read: entries of the table lead there */
    struct in_flight in_flight;
    bool *is_prefetched;      /* [landing slots]: prefetched and not chosen yet */
    bool *passes;             /* [device slots]: its expert passes through */
    uint64_t *arrives;        /* [device slots]: ticket of the copy that fills it */
    struct exec_buffer table; /* u64 [n_layers][n_experts], written by the host */
    uint32_t n_layers, n_experts;
    struct ranking ranking;
    struct slot_copy copies[MAX_COPIES]; /* a ring: first, n; the last n_recorded have no ticket yet */
    uint32_t first_copy, n_copies, n_recorded;
    bool moved_down;          /* since the last order of moves */
    struct moeflux_err fault; /* why moves could not be submitted; from then on nothing is moved */
    uint64_t n_prefetched, n_prefetched_used, n_promoted, n_demoted;
};

/* One wanted expert. */
struct want {
    struct expert_key key;
    uint32_t slot;      /* on the device, pinned; CACHE_NO_SLOT: it is used where it lies on the host */
    uint32_t host_slot; /* pinned, to be used or copied to the device; CACHE_NO_SLOT: neither */
    bool landed;
    enum expert_use use;
    uint32_t place; /* in what was asked for */
};
/* A slot in use by batches that were not released yet. */
struct held {
    struct expert_key key;
    uint32_t slot;
    bool on_host;
};
enum want_state { WANT_DEVICE, WANT_HOST, WANT_READ, WANT_LATER };

/* Pins slots for the want and starts its read if no tier has it. Returns where it was found, WANT_LATER if
 * there is no slot until other wants have landed (nothing changes), or an error. */
int tiers_bring(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Whether tiers_land would not wait. */
bool tiers_has_arrived(struct tiers *t, const struct want *w);
/* The layer chose n different experts: their worths change. */
void tiers_use(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n);
/* Waits for the bytes and copies them to the device. On failure the want's slots are not pinned any more. */
int tiers_land(struct tiers *t, struct want *w, struct moeflux_err *e);
/* Whether the expert is in a slot, or being read into one. */
bool tiers_have(const struct tiers *t, struct expert_key key);
/* Whether a slot has the expert's bytes. */
bool tiers_hold(const struct tiers *t, struct expert_key key);
/* The device address of an expert that has landed and is pinned. */
uint64_t tiers_address(const struct tiers *t, struct expert_key key);
/* Waits for a prefetch or a copy, which frees a slot. Returns 1, 0 if there is none, or the device's error.
 * */
int tiers_make_progress(struct tiers *t, struct moeflux_err *e);
/* Submits the copies that were recorded. Once that has failed every call fails, and tiers_bring too: slots
 * count as full that never got their bytes. */
int tiers_submit_moves(struct tiers *t, struct moeflux_err *e);
/* Copies those of a layer's experts to the device, for a prompt's chunk, that are on the host alone: at most
 * `most`. They may be on their way when the function returns. Returns 0 or the device's error. */
int tiers_promote_for_chunk(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n,
                            uint32_t most, struct moeflux_err *e);
/* What a want that has landed holds, and its end. */
struct held tiers_held(const struct want *w);
void tiers_release(struct tiers *t, const struct held *h);
/* Has an expert of the host's copied to the device, if it is worth more there than what leaves. Its entry
 * changes when the copy is done. tiers_submit_moves has to follow. */
void tiers_promote_if_better(struct tiers *t, struct expert_key key);
/* Whether every expert is on the device or on the host: all entries of the table are set. */
bool tiers_are_complete(struct tiers *t);
/* Demotes experts until n device slots are free for the next wants, while the device computes. */
void tiers_make_room(struct tiers *t, uint32_t n);
/* See expert_store_prefetch. most: prefetches in flight. */
void tiers_prefetch(struct tiers *t, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t most);
/* Waits for the memory of up to n host slots that hold nothing. Returns how many there are, at most n. */
uint32_t tiers_make_host_room(struct tiers *t, uint32_t n);
/* Reads an expert to the host before any use of it is known, when there is nothing else to read. */
void tiers_fill_ahead(struct tiers *t, struct expert_key key);
/* Whether that may be done now: the host has a slot for each expert, and an empty one. */
bool tiers_can_fill_ahead(const struct tiers *t);
/* Waits for the copies that were submitted: before slots are freed. */
void tiers_await_copies(struct tiers *t);
/* Finishes prefetches that have arrived and copies that are done. */
void tiers_finish_arrived(struct tiers *t);
/* Cancels the prefetches of a layer but those of the experts kept [n_kept]. */
void tiers_cancel_prefetches(struct tiers *t, uint32_t layer, const uint32_t *kept, uint32_t n_kept);

#endif
