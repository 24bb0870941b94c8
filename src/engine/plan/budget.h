/* budget.h - divides memory among weights, states, checkpoints and experts. Arithmetic only: the caller
 * passes what is free. */
#ifndef MOEFLUX_ENGINE_PLAN_BUDGET_H
#define MOEFLUX_ENGINE_PLAN_BUDGET_H

#include <stdint.h>

#include "experts/store.h"

struct moeflux_err;
struct exec_caps;
struct model_dir;

struct budget_request {         /* bytes */
    struct expert_set gpu, cpu; /* experts that the device computes; that the CPU computes for it */
    uint64_t weights_bytes;     /* dense weights of the device's layers */
    uint64_t memory_bytes, gpu_memory_bytes; /* --memory, --gpu-memory; 0: not given */
    uint64_t scratch_bytes;                  /* activations, states and the driver's memory */
    uint64_t host_free_bytes;                /* host_memory_free; UINT64_MAX: not known */
    uint64_t checkpoint_bytes;               /* host memory of one checkpoint; 0: none */
    /* host memory for the CPU's experts, and for n-gram rows on their way to the device */
    uint64_t cpu_scratch_bytes;
};

/* A sequence has as many checkpoints as fit in BUDGET_CHECKPOINT_BYTES, within these bounds, if there is
 * room. */
#define BUDGET_CHECKPOINT_BYTES ((uint64_t)1 << 30)
enum { BUDGET_LEAST_CHECKPOINTS = 6, BUDGET_MOST_CHECKPOINTS = 32 };

struct budget { /* bytes */
    /* device slots for experts: at least expert_store_floor_bytes, at most expert_store_full_bytes of those
     * that the device computes; 0: it computes none */
    uint64_t slot_bytes;
    /* host memory for the experts that the CPU computes, with the same bounds */
    uint64_t cpu_slot_bytes;
    /* host slots (page-locked memory) that reads land in: at least expert_store_floor_bytes, at most the
     * experts that the device slots do not hold. 0: device memory is host memory, or the device holds every
     * expert */
    uint64_t host_bytes;
    /* the most checkpoints of a sequence; at least 1 */
    uint32_t n_checkpoints;
    /* host memory left for mapped files */
    uint64_t map_bytes;
    /* the most that the device may hold: weights, states and slots; checkpoints too if it is host memory */
    uint64_t device_bytes;
};

/* Divides the memory.
 * - Device memory is host memory: --gpu-memory bounds weights, states, checkpoints and slots; --memory
 *   bounds checkpoints and slots.
 * - The device has its own memory: --gpu-memory bounds weights, states and slots; --memory bounds host slots
 *   and checkpoints.
 * - Checkpoints get what is left if all experts fit. Otherwise they get an eighth of the memory beyond the
 *   smallest cache. One checkpoint is always allowed, even above the bounds: no model is refused for it.
 * - If the CPU computes experts, their slots are host memory, which --memory bounds too.
 *   Both sides share it in proportion to what each lacks.
 * - Defaults: 9/10 of the free device memory (and of the free host memory if that is the same). Host slots
 *   for every expert without a device slot, in at most 3/4 of the free host memory. A request above what is
 *   free is reduced to what is free.
 * ERR_NO_FIT with the numbers: weights, states and the smallest cache do not fit. */
int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps,
                       const struct budget_request *w, struct budget *out, struct moeflux_err *e);

#endif
