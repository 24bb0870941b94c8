/* moe.h - the mixture of experts of a layer:
 *   [router logits, shared gate] = W norm2(x); up, with the choice and the shared expert; down 3 dispatches
 * of a token whose choice nobody else has to see. Else the choice is a dispatch of its own. Of a chunk, and
 * where up cannot, the first product makes the shared expert's gate and up rows too. The shared expert, or
 * its gate alone, is left out where a model has none. */
#ifndef MOEFLUX_ARCH_MOE_H
#define MOEFLUX_ARCH_MOE_H

#include <stdbool.h>
#include <stdint.h>

#include "arch/expert_kinds.h"
#include "exec/exec.h"
#include "ops/add.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

struct arch_experts;
struct arch_request;
struct arch_view;
struct config;
struct expert_layout;
struct moeflux_err;
struct loader;
struct scratch;

struct moe_layer {
    uint64_t norm; /* f32 [hidden], before the experts */
    uint64_t bias; /* f32 [n_experts], of the router; 0: none */
    struct experts_biases biases;
    uint32_t kind;           /* of its experts: index into moe.experts */
    struct linear router_in; /* router logits, shared gate logit, shared gate and up rows */
    /* router logits alone: for predictions, and where the others are computed in float16 */
    struct linear router_only;
    struct linear router_gate; /* and the shared gate logit: where up computes the other rows */
    /* The rest is of the shared expert. */
    struct linear shared_in; /* ... and the others */
    struct experts_shared shared_up;
    struct weights shared_down;
    struct linear shared_out; /* shared_down for chunks */
};

/* The layers whose routed experts are stored alike. */
struct moe_kind {
    struct experts experts;
    uint32_t shared_formats; /* format_set of the layers' shared_down */
    uint32_t up_formats;     /* likewise of its gate and up rows */
    bool has_mixed_up;       /* in some layer these two are stored differently */
};

struct moe {
    struct exec *exec;
    const struct config *config;
    struct router router;
    struct expert_kinds kinds;
    struct moe_kind *experts; /* [kinds.n] */
    struct add add;           /* with arch_request.has_host_experts, and of routers' biases */
    bool shared_gate;
    uint64_t f16_scratch;
    /* f16 [n][the larger of hidden and shared_inner]: prompts may go through float16; 0: not */
    uint32_t router_rows; /* outputs of router_in */
    struct exec_buffer routed, idx, weights, act, grouped;
    struct exec_buffer predicted_logits, predicted, predicted_weights; /* of a token of each sequence */
};

/* Before any layer is loaded. */
int moe_begin(struct moe *m, const struct arch_request *r, struct moeflux_err *e);
/* Loads layer `layer`, whose norm is there already. */
int moe_load_layer(struct moe *m, struct loader *l, uint32_t layer, struct moe_layer *out,
                   struct moeflux_err *e);
void moe_close_layer(struct moe_layer *y, struct exec *x);

/* Of the routed experts. */
struct experts_shape moe_experts_shape(const struct config *c, const struct expert_layout *at);
/* After all layers are loaded and m->f16_scratch is set. */
int moe_open(struct moe *m, const struct arch_request *r, struct moeflux_err *e);
/* As experts_takes_waves, of the experts of any layer. */
bool moe_takes_waves(const struct moe *m, uint32_t n);
/* Its buffers for chunks of up to n tokens. */
void moe_allocate(struct moe *m, const struct config *c, const struct exec_caps *caps, uint32_t n,
                  struct scratch *to);
void moe_close(struct moe *m);
/* Its part of the view. */
void moe_show(const struct moe *m, struct arch_view *view);

/* The router's logits for the hidden states x, f32 [n][hidden], and what else is computed beside them. */
void moe_score(const struct moe *m, const struct moe_layer *y, uint64_t x, uint32_t n);
/* The choice, for those who have to see it before the experts are computed. Else moe_up makes it
 * (arch_experts.chooses). */
void moe_choose(const struct moe *m, const struct moe_layer *y, uint32_t n);
void moe_predict(const struct moe *m, const struct moe_layer *y, uint64_t x, uint32_t n);
/* x: of the whole chunk, `chunk` tokens. */
void moe_up(const struct moe *m, const struct moe_layer *y, uint64_t x, uint32_t chunk,
            const struct arch_experts *part);
void moe_down(const struct moe *m, const struct moe_layer *y, uint64_t x, uint32_t chunk,
              const struct arch_experts *part);
/* Without the routed experts: x += the shared one. table: any that operations can read. */
void moe_shared(const struct moe *m, const struct moe_layer *y, uint64_t x, uint32_t layer, uint64_t table,
                uint32_t n);
/* x += sum, f32 [n][hidden]. */
void moe_add(const struct moe *m, uint64_t x, uint64_t sum, uint32_t n);

#endif
