/* budget.h - divides memory among weights, states, checkpoints and experts. Arithmetic only: the caller says
 * what is free. */
#ifndef MOEFLUX_ENGINE_PLAN_BUDGET_H
#define MOEFLUX_ENGINE_PLAN_BUDGET_H

#include <stdint.h>

#include "experts/store.h"

struct moeflux_err;
struct exec_caps;
struct model_dir;

struct budget_request {                      /* bytes */
    struct expert_layers layers;             /* of the device: all, or with several devices a share */
    uint64_t weights_bytes;                  /* dense ones of these layers */
    uint64_t memory_bytes, gpu_memory_bytes; /* --memory, --gpu-memory; 0: not given */
    uint64_t scratch_bytes;                  /* activations, states and what the driver takes */
    uint64_t host_free_bytes;                /* host_memory_free; UINT64_MAX: not known */
    uint64_t checkpoint_bytes;               /* host memory of one; 0: they take none */
    /* The first n_cpu_layers have their routed experts computed by the CPU, beside the device. */
    uint32_t n_cpu_layers;
    uint64_t cpu_scratch_bytes; /* host memory for it */
};

/* Checkpoints of a sequence: as many as fit in BUDGET_CHECKPOINT_BYTES, within these bounds, where there is
 * room. */
#define BUDGET_CHECKPOINT_BYTES ((uint64_t)1 << 30)
enum { BUDGET_LEAST_CHECKPOINTS = 6, BUDGET_MOST_CHECKPOINTS = 32 };

struct budget { /* bytes */
    /* Device slots for experts: at least expert_store_floor_bytes, at most expert_store_full_bytes of the
     * layers that the device computes; 0 where it computes none. */
    uint64_t slot_bytes;
    /* Host memory for the experts that the CPU computes: likewise. */
    uint64_t cpu_slot_bytes;
    /* Host slots (page-locked memory) that reads land in: at least expert_store_floor_bytes, at most what the
     * device slots do not hold. 0 where device memory is host memory, and where the device holds every
     * expert. */
    uint64_t host_bytes;
    /* The most checkpoints of a sequence: at least 1. */
    uint32_t n_checkpoints;
    /* Host memory left for mapped files. */
    uint64_t map_bytes;
    /* What the device may hold in all: weights, states and slots; checkpoints too where it is host memory. */
    uint64_t device_bytes;
};

/* Divides the memory.
 *   device memory is host memory: --gpu-memory bounds weights, states, checkpoints and slots, --memory the
 *   last two; a device of its own: --gpu-memory bounds weights, states and slots, --memory the host tier and
 *   checkpoints. Where all experts fit, checkpoints get what is left. Else they get an eighth of the memory
 *   beyond the smallest cache. Where the CPU computes the experts of some layers, their slots are host
 *   memory: --memory bounds them too. What there is of it is shared out in proportion to what each side
 *   lacks. One checkpoint is always allowed, even above the bounds, so that no model is refused for it.
 *   Defaults: 9/10 of the free device memory (and of the free host memory, where that is the same). Host
 *   slots: for every expert without a device slot, in at most 3/4 of the free host memory. A request above
 *   what is free is cut to what is free. ERR_NO_FIT with the numbers: weights, states and the smallest cache
 *   do not fit. */
int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps,
                       const struct budget_request *w, struct budget *out, struct moeflux_err *e);

#endif
