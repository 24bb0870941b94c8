/* budget.h - how the memory there is is shared out among weights, states, checkpoints and experts. Arithmetic only: what is free
 * comes in, numbers come out. */
#ifndef MOEFLUX_ENGINE_BUDGET_H
#define MOEFLUX_ENGINE_BUDGET_H

#include <stdint.h>

struct moeflux_err;
struct exec_caps;
struct model_dir;

struct budget_request {                      /* bytes */
    uint64_t memory_bytes, gpu_memory_bytes; /* --memory, --gpu-memory; 0: not said */
    uint64_t scratch_bytes;    /* activations, states and the driver's own, beside the weights */
    uint64_t host_free_bytes;  /* host_memory_free; UINT64_MAX: not known */
    uint64_t checkpoint_bytes; /* host memory of one; 0: they take none */
};

/* Checkpoints of a sequence: as many as a GiB holds, but so many at least and at most, where there is room. */
#define BUDGET_CHECKPOINT_BYTES ((uint64_t)1 << 30)
enum { BUDGET_LEAST_CHECKPOINTS = 6, BUDGET_MOST_CHECKPOINTS = 32 };

struct budget { /* bytes */
    /* Device slots for experts: at least expert_store_floor_bytes, at most expert_store_full_bytes. */
    uint64_t slot_bytes;
    /* The pinned host tier below them, where reads land: at least expert_store_floor_bytes, at most what the slots do not
     * hold. 0 where device memory is host memory, and where the device holds every expert. */
    uint64_t host_bytes;
    /* The most checkpoints of a sequence: at least 1. */
    uint32_t n_checkpoints;
    /* Host memory that is left for mapped files. */
    uint64_t map_bytes;
    /* What the device may hold in all: weights, states and slots; checkpoints too where it is host memory. */
    uint64_t device_bytes;
};

/* Shares the memory out.
 *   device memory is host memory: --gpu-memory bounds weights, states, checkpoints and slots, --memory the last two;
 *   a device of its own: --gpu-memory bounds weights, states and slots, --memory the host tier and checkpoints.
 * Checkpoints get what the experts leave where all of them have a place; else an eighth of what is there beyond the least
 * cache. One there always is, if need be beside the bounds: a model is not refused for it.
 * Without them: 9/10 of the free device memory (and of the free host memory, where that is the same), and for the host
 * tier what every expert needs that has no slot, at most 3/4 of the free host memory. What is asked for beyond what is
 * free is not given. ERR_NO_FIT with the numbers when weights, states and the least cache do not fit. */
int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps,
                       const struct budget_request *w, struct budget *out, struct moeflux_err *e);

#endif
