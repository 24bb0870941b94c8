/* store.h - provides the routed experts of a layer; unites caches, reader and copies to the device.
 *
 * Kernels find experts through a table of addresses [layer][expert] in device memory, which the store keeps
 * correct: an entry is 0 unless kernels can read the expert there. If the host cannot map device memory,
 * reads fill host slots. Chosen experts are then copied to the device (a single token uses them in host
 * slots), and back to the host when they are evicted.
 *
 * The verbs of loading, all with the prefix expert_store_:
 *   prefetch           starts reads of experts that will probably be chosen
 *   want               pins chosen experts and starts reads of those that are not resident
 *   await, await_some  waits until all of them, or one more, can be used by kernels
 *   release            unpins them when the batches that use them are finished
 *   promote            copies a prompt chunk's experts from host to device while it computes
 *   record_use         notes a choice of resident experts, for which nothing was wanted
 *   submit_promotions  copies those of them to the device that are used often
 *
 * Not locked: only the thread that records the batches may call. */
#ifndef MOEFLUX_EXPERTS_STORE_H
#define MOEFLUX_EXPERTS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"
#include "model/expert_part.h"
#include "experts/reader.h"

struct moeflux_err;
struct exec;
struct exec_caps;
struct model_dir;
struct expert_store;

/* The layers [first, end) of a model. */
struct expert_layers {
    uint32_t first, end;
};

/* The experts that a store provides: of each of the layers all, or a part. */
struct expert_set {
    struct expert_layers layers;
    struct expert_part part;
};

struct expert_store_options {
    struct expert_set set;
    uint64_t budget_bytes; /* size of all device slots; at least expert_store_floor_bytes */
    /* size of all host slots, if device memory is not mapped; 0: as few as reads need, not used as a cache */
    uint64_t host_slots_bytes;
    uint64_t host_chunk_bytes; /* size of one allocation of host slots; 0: a default */
    uint32_t n_threads;        /* reading threads */
    enum reader_mode io;
    struct moeflux_warning warning; /* reader_options.warning */
    uint64_t host_bytes;            /* host memory available for mapped files */
    double half_life;               /* the caches' ranking, in uses */
    bool fills;              /* if the host has room for all experts, an idle disk reads all, chosen or not */
    bool learns;             /* eviction takes earlier choices into account (ranking_learn) */
    const char *usage, *pin; /* files of counts, or NULL; borrowed until store_fill_load */
    uint32_t n_pinned;       /* result of store_fill_count_pinned */
};

/* Returns the smallest budget: one token's experts of one layer. A set of fewer experts needs no more than
 * hold them all. */
uint64_t expert_store_floor_bytes(const struct model_dir *m);
/* Returns the budget that holds every expert of the set; 0: it has none. */
uint64_t expert_store_full_bytes(const struct model_dir *m, const struct expert_set *set);

/* Returns the size of the host slots that host_slots_bytes 0 gives a device whose memory is not mapped. */
uint64_t expert_store_landing_bytes(const struct model_dir *m, const struct expert_set *set);

/* Returns whether the mapped files can serve as slots, so that the budget is the size of their experts in the
 * set. Device memory must be host memory, the budget must hold every expert of the set, and each layer must
 * have a file of its contiguous experts. */
bool expert_store_may_map(const struct exec_caps *caps, const struct model_dir *m,
                          const struct expert_set *set, enum reader_mode io, uint64_t budget_bytes);

/* ERR_NO_FIT with the numbers: the budget is below the floor, or cannot be allocated. */
int expert_store_open(struct expert_store **out, struct exec *x, const struct model_dir *m,
                      const struct expert_store_options *o, struct moeflux_err *e);
void expert_store_close(struct expert_store *s); /* NULL is legal */

/* Returns whether the expert is in the store's set. expert_store_want and expert_store_record_use must not
 * get others; expert_store_prefetch and expert_store_promote ignore them. */
bool expert_store_provides(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Returns the device address of the layer's table: u64 [n_experts]. */
uint64_t expert_store_table(const struct expert_store *s, uint32_t layer);
/* Returns the number of device slots without those of pinned experts. At least one token's experts of one
 * layer. */
uint32_t expert_store_n_free_slots(const struct expert_store *s);
/* Returns whether every expert of the store has a device slot of its own. */
bool expert_store_holds_all(const struct expert_store *s);
/* Returns whether the device's own threads copy experts from the page cache. Then prefetching gains
 * nothing. */
bool expert_store_copies_cached(const struct expert_store *s);
/* Describes how experts are read and why (reader_describe). */
const char *expert_store_describe_reader(const struct expert_store *s);
/* Checks the files that experts still come from; must precede each evaluation. ERR_IO: one was written. */
int expert_store_check(const struct expert_store *s, struct moeflux_err *e);
/* Returns whether the expert is in a slot of device or host, or being read into one. */
bool expert_store_has(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Sets present [n_experts] for the experts of the layer that are in a slot of device or host, completely
 * read. */
void expert_store_add_present(struct expert_store *s, uint32_t layer, bool *present);
/* Returns the device address of an expert that was wanted and awaited. */
uint64_t expert_store_address(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Requests n different experts of a layer and holds them until expert_store_release. They get device slots;
 * with USE_TOKEN those on the host stay there. No more than expert_store_n_free_slots may be held at once.
 * present (may be NULL): bit i says whether experts[i], i < 64, is resident now. After a failure here or in
 * expert_store_await the caller abandons the batch and calls expert_store_release. After the device has once
 * refused to copy experts every call fails, since the slots' contents are unknown. */
int expert_store_want(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      enum expert_use use, uint64_t *present, struct moeflux_err *e);
/* Waits until one more wanted expert is resident, or all are. present: as for expert_store_want.
 * expert_store_await must follow. */
int expert_store_await_some(struct expert_store *s, uint64_t *present, struct moeflux_err *e);
/* Waits until all wanted experts are read. The batch being recorded will run after their copies to the
 * device. */
int expert_store_await(struct expert_store *s, struct moeflux_err *e);
/* Releases all held experts. The batches that used them must be finished. */
void expert_store_release(struct expert_store *s);
/* Prefetches those of the experts that are in no slot, while there is room and the disk is idle. Cancels
 * prefetches of the layer's other experts. many: nearly all of them will be wanted, so as many are prefetched
 * as there is room for. */
void expert_store_prefetch(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                           bool many);

/* Copies those of the experts that only host memory has to the device, while a prompt's chunk computes. What
 * is held stays. Does nothing if device memory is host memory. Returns 0 or the device's error. */
int expert_store_promote(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                         struct moeflux_err *e);

/* Returns whether all experts are on the device or in host memory that it reads. Then the table is complete,
 * and a token needs no expert_store_want. */
bool expert_store_is_complete(struct expert_store *s);
/* Notes that the token of a finished batch, which used the complete table, chose n experts of the layer.
 * Those used often enough are promoted to the device by expert_store_submit_promotions, to be called after
 * the last layer. */
void expert_store_record_use(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n);
int expert_store_submit_promotions(struct expert_store *s, struct moeflux_err *e);

struct expert_store_stats {
    uint64_t n_hits, n_host_hits, n_misses;
    uint64_t n_prefetched, n_prefetched_used;
    uint64_t n_promoted, n_demoted;
    uint64_t wait_ns; /* time spent waiting for reads */
    struct reader_stats reader;
    uint64_t n_slots, n_host_slots, n_pinned, slot_bytes;
};
struct expert_store_stats expert_store_get_stats(const struct expert_store *s);
uint64_t expert_store_layer_wait_ns(const struct expert_store *s, uint32_t layer);
void expert_store_reset_stats(struct expert_store *s);
/* Adds the choices of the store's experts, including those read by store_fill_load, to counts
 * [n_layers][n_experts] of the whole model. */
void expert_store_add_counts(const struct expert_store *s, uint32_t *counts);

#endif
