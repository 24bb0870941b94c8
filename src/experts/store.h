/* store.h - provides the routed experts of a layer: caches, reader and copies behind one interface.
 *
 * Kernels find experts through a table of addresses [layer][expert] in device memory; the store keeps it
 * true: an entry is 0 unless the expert is in a device slot. Where the host cannot map device memory, reads
 * land in host slots: experts are copied to the device when they are chosen, and back to the host when they
 * are evicted.
 *
 *   expert_store_want     which are resident; reads of the others are in flight
 *   expert_store_await    all are resident (expert_store_await_some: one more is)
 *   expert_store_release  when the batches that use them are finished
 * Not locked: for the thread that records the batches. */
#ifndef MOEFLUX_EXPERTS_STORE_H
#define MOEFLUX_EXPERTS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"
#include "experts/reader.h"

struct moeflux_err;
struct exec;
struct exec_caps;
struct model_dir;
struct expert_store;

/* The layers [first, end) of a model, of which a store provides the experts. */
struct expert_layers {
    uint32_t first, end;
};

struct expert_store_options {
    struct expert_layers layers;
    uint64_t budget_bytes; /* for device slots; at least expert_store_floor_bytes */
    /* for host slots, where device memory is not mapped; 0: as few as reads need, and no cache */
    uint64_t host_slots_bytes;
    uint64_t host_chunk_bytes; /* the host's memory grows by so many; 0: a default */
    uint32_t n_threads;        /* readers */
    enum reader_mode io;
    uint64_t host_bytes; /* host memory for mapped files */
    double half_life;    /* of the caches' ranking */
    bool fills;  /* a host with room for all experts gets all, chosen or not, while the disk is idle */
    bool learns; /* it counts what was chosen before (ranking_learn) */
    const char *usage, *pin; /* files of counts, or NULL; borrowed until store_fill_load */
    uint32_t n_pinned;       /* of store_fill_count_pinned */
};

/* The smallest budget: one token's experts of one layer. */
uint64_t expert_store_floor_bytes(const struct model_dir *m);
/* The budget that holds every expert of the layers; 0: they have none. */
uint64_t expert_store_full_bytes(const struct model_dir *m, struct expert_layers layers);

/* Host memory that reads land in on their way to a device of its own, with host_slots_bytes of 0. */
uint64_t expert_store_landing_bytes(const struct model_dir *m, struct expert_layers layers);

/* Whether the mapped files can serve as slots: device memory is host memory, the budget holds every expert of
 * the layers, and each has a file with its experts one after the other. The budget is then used for the
 * mapping. */
bool expert_store_may_map(const struct exec_caps *caps, const struct model_dir *m,
                          struct expert_layers layers, enum reader_mode io, uint64_t budget_bytes);

/* ERR_NO_FIT with the numbers: the budget is below the floor, or cannot be allocated. */
int expert_store_open(struct expert_store **out, struct exec *x, const struct model_dir *m,
                      const struct expert_store_options *o, struct moeflux_err *e);
void expert_store_close(struct expert_store *s); /* NULL is legal */

/* Device address of the layer's table: u64 [n_experts]. */
uint64_t expert_store_table(const struct expert_store *s, uint32_t layer);
/* Device slots that any expert may take: all but those of pinned experts. At least one token's experts of one
 * layer. */
uint32_t expert_store_n_free_slots(const struct expert_store *s);
/* Whether every expert of the store's layers has a device slot of its own. */
bool expert_store_holds_all(const struct expert_store *s);
/* Whether experts come from the page cache by copies that the device's own threads make: nothing is gained by
 * reading ahead. */
bool expert_store_copies_cached(const struct expert_store *s);
/* How experts are read and why (reader_describe). */
const char *expert_store_describe_reader(const struct expert_store *s);
/* To be called before each evaluation. ERR_IO: a mapped file became shorter. */
int expert_store_check(const struct expert_store *s, struct moeflux_err *e);
/* Whether the expert is in a slot of device or host, or being read into one. */
bool expert_store_has(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Which experts of the layer are in a slot of device or host, read to the end: present [n_experts]. */
void expert_store_list_present(struct expert_store *s, uint32_t layer, bool *present);
/* Device address of an expert that was wanted and awaited. */
uint64_t expert_store_address(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Requests n different experts of a layer and holds them until expert_store_release, in device slots but for
 * USE_TOKEN. No more than expert_store_n_free_slots may be held at once. present (may be NULL): bit i says
 * whether experts[i] is resident now, for the first 64. After a failure, and after one of expert_store_await,
 * the caller abandons the batch and calls expert_store_release. Once the device has refused to copy experts,
 * every call fails: nobody can tell what its slots hold. */
int expert_store_want(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      enum expert_use use, uint64_t *present, struct moeflux_err *e);
/* Waits until one more of what was wanted is read, or all are. present: as of expert_store_want.
 * expert_store_await has to follow.
 *  */
int expert_store_await_some(struct expert_store *s, uint64_t *present, struct moeflux_err *e);
/* Waits until all that was wanted is read. The batch being recorded will run after the copies to the device.
 * */
int expert_store_await(struct expert_store *s, struct moeflux_err *e);
/* The batches that used the wanted experts are finished. */
void expert_store_release(struct expert_store *s);
/* Prefetches those of the experts that are in no slot, as far as there is room and the disk is idle. Others
 * of the layer, which an earlier call named, are not prefetched any more. many: nearly all of them will be
 * wanted, so as many are read as there is room for. */
void expert_store_prefetch(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                           bool many);

/* For a prompt's chunk: those of the experts that host memory has cross to the device's while it computes.
 * What is held now stays. Where device memory is the host's: nothing. Returns 0 or the device's error. */
int expert_store_promote(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                         struct moeflux_err *e);

/* Whether all experts are on the device or in host memory that it reads, so that the table is complete: a
 * token needs no expert_store_want. */
bool expert_store_is_complete(struct expert_store *s);
/* A batch that used the complete table is over, and its token chose n experts of the layer. Those that are
 * chosen often move to the device with expert_store_submit_promotions, which follows the last layer. */
void expert_store_record_use(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n);
int expert_store_submit_promotions(struct expert_store *s, struct moeflux_err *e);

struct expert_store_stats {
    uint64_t n_hits, n_host_hits, n_misses;
    uint64_t n_prefetched, n_prefetched_used;
    uint64_t n_promoted, n_demoted;
    uint64_t wait_ns; /* for reads */
    struct reader_stats reader;
    uint64_t n_slots, n_host_slots, n_pinned, slot_bytes;
};
struct expert_store_stats expert_store_get_stats(const struct expert_store *s);
uint64_t expert_store_layer_wait_ns(const struct expert_store *s, uint32_t layer);
void expert_store_reset_stats(struct expert_store *s);
/* Adds the counts of the store's layers, including those read at open: counts is u32 [n_layers][n_experts] of
 * the whole model. */
void expert_store_add_counts(const struct expert_store *s, uint32_t *counts);

#endif
