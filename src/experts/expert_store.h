/* expert_store.h - "these experts of this layer, please": caches, reader and copies behind one door.
 *
 * Kernels find experts through a table of addresses [layer][expert] in device memory; the store keeps it true: an entry
 * is 0 unless the expert lies in a device slot. Where device memory is not mapped there is a tier of host slots below:
 * reads land there, experts go up by the copy engines when they are chosen and come down when they must leave.
 *
 *   expert_store_want -> which are there already; reads of the others are under way
 *   expert_store_await -> all are there                      expert_store_release when the batches that used them are finished
 * Not locked: the thread that records the batches. */
#ifndef MOEFLUX_EXPERTS_EXPERT_STORE_H
#define MOEFLUX_EXPERTS_EXPERT_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "experts/reader.h"

struct moeflux_err;
struct exec;
struct exec_caps;
struct model_dir;
struct expert_store;

struct expert_store_options {
    uint64_t budget_bytes; /* for device slots; at least expert_store_floor_bytes */
    /* for host slots, where device memory is not mapped; 0: as few as reads need */
    uint64_t host_slots_bytes;
    uint32_t n_threads; /* readers */
    enum reader_mode io;
    uint64_t host_bytes;     /* host memory there is for mapped files */
    double half_life;        /* of the caches' ranking */
    const char *usage, *pin; /* files of counts, or NULL; borrowed until expert_store_load */
    uint32_t n_pinned;       /* of expert_store_count_pinned */
};

/* The least budget: one token's experts of one layer. */
uint64_t expert_store_floor_bytes(const struct model_dir *m);
/* The budget that holds every expert of the model. */
uint64_t expert_store_full_bytes(const struct model_dir *m);

/* How many experts the file `pin` pins: all that it names, but at most half of the slots that the budget pays for, and no
 * more than leave slots for two tokens' experts of one layer. 0 where every expert has a slot. ERR_IO: there is no such
 * file; ERR_FORMAT; ERR_NO_FIT: no slot can be pinned. */
int expert_store_count_pinned(const struct model_dir *m, const char *pin, uint64_t budget_bytes,
                              uint32_t *n_pinned, struct moeflux_err *e);

/* Whether experts can be used where they are mapped, without slots: device memory is host memory, every expert may
 * stay, and each layer's lie one after the other in a file. Then the budget's memory is there for the mapping. */
bool expert_store_may_map(const struct exec_caps *caps, const struct model_dir *m, enum reader_mode io,
                          uint64_t budget_bytes);

/* ERR_NO_FIT with the numbers when the budget is under the floor or cannot be allocated. */
int expert_store_open(struct expert_store **out, struct exec *x, const struct model_dir *m,
                      const struct expert_store_options *o, struct moeflux_err *e);
void expert_store_close(struct expert_store *s); /* NULL is legal */

/* Device address of the layer's table: u64 [n_experts]. */
uint64_t expert_store_table(const struct expert_store *s, uint32_t layer);
/* Device slots that any expert may take: all but those of pinned experts. At least one token's experts of one layer. */
uint32_t expert_store_n_free_slots(const struct expert_store *s);
/* Whether every expert has a device slot of its own. */
bool expert_store_holds_all(const struct expert_store *s);
/* How experts are read and why (reader_describe). */
const char *expert_store_describe_reader(const struct expert_store *s);
/* Fills the cache: with every expert where all have a slot, else with those that the files of counts name, the most
 * used first; those of the pin file stay. ERR_INTERRUPTED when `p` says stop. */
int expert_store_load(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e);

/* Before each evaluation: whether mapped files still have all their bytes. ERR_IO. */
int expert_store_check(const struct expert_store *s, struct moeflux_err *e);
/* Whether the expert lies in a device slot or the host's, or is on its way there. */
bool expert_store_has(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Device address of an expert that was wanted and awaited. */
uint64_t expert_store_address(const struct expert_store *s, uint32_t layer, uint32_t expert);
/* Wants n different experts of a layer in device slots, at most as many as expert_store_n_free_slots
 * less those still held from before, until expert_store_release. present: bit i
 * when experts[i] is there for the batch being recorded, for the first 64; NULL: not asked. After a failure, as after
 * one of expert_store_await, the caller abandons the batch and calls expert_store_release. */
int expert_store_want(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      uint64_t *present, struct moeflux_err *e);
/* Waits until all that was wanted is on its way to its slot; the batch being recorded runs after it has arrived. */
int expert_store_await(struct expert_store *s, struct moeflux_err *e);
/* The batches that used the wanted experts are finished. */
void expert_store_release(struct expert_store *s);
/* Starts to read those of the experts that lie nowhere, as far as there is room and the disk is idle. many: nearly all of
 * them will be wanted, so that as many are read as there is room for. */
void expert_store_prefetch(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                           bool many);

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
/* usage_write of all counts, those read at open included. */
int expert_store_save_usage(const struct expert_store *s, const char *path, struct moeflux_err *e);

#endif
