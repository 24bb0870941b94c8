/* budget.h - how much memory there is and how it is shared out. */
#ifndef MOEFLUX_ENGINE_BUDGET_H
#define MOEFLUX_ENGINE_BUDGET_H

#include <stdint.h>

struct err;
struct exec_caps;
struct model_dir;

/* Host memory that can be used without swapping: the smaller of MemAvailable and what the cgroups leave. */
uint64_t budget_host_free(void);

struct budget_wish {
    uint64_t memory_bytes, gpu_memory_bytes; /* 0: not said */
    uint64_t scratch_bytes;                  /* activations and states besides the weights */
};

/* Bytes for expert slots, at most what holds all of them. ERR_NO_FIT with the numbers when weights, states and the
 * least cache do not fit. */
int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps, const struct budget_wish *w,
                       uint64_t *bytes, struct err *e);

#endif
