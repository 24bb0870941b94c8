/* stage.h - opens what a stage (engine.h) needs to compute its layers, and closes it. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_H
#define MOEFLUX_ENGINE_RUN_STAGE_H

#include "engine/engine.h"

struct load_plan;
struct test_hooks;

/* With `exec`, `layers` and `maps_weights` set: loads the weights and makes what is computed with. before:
 * the bytes of weights that earlier stages have loaded. */
int stage_open(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
               const struct moeflux_options *o, uint64_t before, struct moeflux_err *e);
/* What crosses from it to the next stage without the host, where that is possible. Both are open. */
void stage_open_crossing(struct stage *at);
/* Its experts, and the CPU that computes those of at->cpu_layers. beside: exec_options.beside of that one. */
int stage_open_experts(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
                       const struct moeflux_options *o, const struct test_hooks *h, const struct exec *beside,
                       struct moeflux_err *e);
/* All but the exec; that of the next stage is open too. Half-opened ones are legal. */
void stage_close(struct stage *at);
/* Whether the CPU computes experts of some of its layers. */
bool stage_has_cpu_layers(const struct stage *at);
/* Whether each of its experts has a slot of its own. */
bool stage_holds_all(const struct stage *at);

#endif
