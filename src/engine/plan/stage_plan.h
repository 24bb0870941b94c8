/* stage_plan.h - the plans of all devices of a model (load_plan.h): the layers of each, and its part of this
 * machine's memory. moeflux_model_open and moeflux_make_plan use the same function. */
#ifndef MOEFLUX_ENGINE_PLAN_STAGE_PLAN_H
#define MOEFLUX_ENGINE_PLAN_STAGE_PLAN_H

#include "engine/plan/load_plan.h"

struct devices;

struct stage_plan {
    uint32_t n;
    struct load_plan of[MOEFLUX_MAX_DEVICES];
    uint64_t host_free_bytes; /* host_memory_free, before it was divided */
    uint32_t n_checkpoints;   /* the most that a session may have */
};

/* Makes the plans. Errors: those of load_plan_make and devices_share_layers. The text names the device that
 * has too little memory. */
int stage_plan_make(struct stage_plan *out, const struct model_dir *m, const struct devices *d,
                    const struct moeflux_options *o, struct moeflux_err *e);

#endif
