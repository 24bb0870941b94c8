/* supply.h - "these experts of this layer, please": the cache, the reader and the slots behind one door.
 *
 * Kernels find experts through a table of addresses [layer][expert] in device memory; supply keeps it true: an entry
 * is 0 unless the expert lies in a slot. Not locked: the thread that records the batches. */
#ifndef MOEFLUX_EXPERTS_SUPPLY_H
#define MOEFLUX_EXPERTS_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "experts/reader.h"

struct err;
struct exec;
struct model_dir;
struct supply;

struct supply_options {
    uint64_t budget_bytes; /* for slots; at least supply_floor_bytes */
    uint32_t n_threads;    /* readers */
    enum reader_mode io;
    uint64_t host_bytes; /* host memory there is for mapped files */
};

/* The least budget: one token's experts of one layer. */
uint64_t supply_floor_bytes(const struct model_dir *m);
/* The budget that holds every expert of the model. */
uint64_t supply_full_bytes(const struct model_dir *m);

/* ERR_NO_FIT with the numbers when the budget is under the floor or cannot be allocated. */
int supply_open(struct supply **out, struct exec *x, const struct model_dir *m,
                const struct supply_options *o, struct err *e);
void supply_close(struct supply *s); /* NULL is legal */

/* Device address of the layer's table: u64 [n_experts]. */
uint64_t supply_table(const struct supply *s, uint32_t layer);
uint32_t supply_n_slots(const struct supply *s);
/* Whether every expert has a slot of its own. */
bool supply_holds_all(const struct supply *s);
/* How experts are read and why (reader_describe). */
const char *supply_describe_reader(const struct supply *s);
/* Reads every expert; for supply_holds_all. ERR_INTERRUPTED when `p` says stop. */
int supply_load_all(struct supply *s, const struct progress *p, struct err *e);

/* Brings n different experts of a layer into slots and keeps them there until supply_release. Called while a batch is
 * being recorded: what follows in the batch sees them. n is at most supply_n_slots. On failure the caller abandons the
 * batch and calls supply_release. */
int supply_fetch(struct supply *s, uint32_t layer, const uint32_t *experts, uint32_t n, struct err *e);
/* The batches that used the fetched experts are finished. */
void supply_release(struct supply *s);

struct supply_stats {
    uint64_t n_hits, n_misses, wait_ns;
    struct reader_stats reader;
    uint64_t n_slots, slot_bytes;
};
struct supply_stats supply_get_stats(const struct supply *s);
void supply_reset_stats(struct supply *s);

#endif
