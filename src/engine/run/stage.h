/* stage.h - opens what a stage (engine.h) needs to compute its layers, and closes it. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_H
#define MOEFLUX_ENGINE_RUN_STAGE_H

#include "engine/engine.h"

struct load_plan;
struct test_hooks;

/* Loads the weights and opens the operations and buffers; `exec`, `layers` and `maps_weights` must be set.
 * before: bytes of weights that earlier stages have loaded. */
int stage_open(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
               const struct moeflux_options *o, uint64_t before, struct moeflux_err *e);
/* Opens the crossing to the next stage, if possible. Both stages must be open. */
void stage_open_crossing(struct stage *at);
/* Opens its experts, and the CPU that computes those of at->cpu_layers. threads_of: the CPU's
 * exec_options.shares_threads_with. */
int stage_open_experts(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
                       const struct moeflux_options *o, const struct test_hooks *h,
                       const struct exec *threads_of, struct moeflux_err *e);
/* Closes everything except the exec; the next stage's exec must be open too. The stage may be half open. */
void stage_close(struct stage *at);
/* Whether the CPU computes experts of some of its layers. */
bool stage_has_cpu_layers(const struct stage *at);
/* Whether each of its experts has a slot of its own. */
bool stage_holds_all(const struct stage *at);

#endif
