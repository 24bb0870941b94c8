/* moe.h - the mixture of experts of a layer:
 *   [router logits, shared gate] = W norm2(x);  up, with the choice and the shared expert;  down
 *
 * These are the 3 dispatches of a token whose choice only the device needs. If the host needs it too, the
 * choice is a dispatch of its own. For a chunk, and where up cannot do it, the first product also computes
 * the shared expert's gate and up rows. A model may have no shared expert, or one without a gate. */
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
struct arch_tokens;
struct arch_view;
struct config;
struct expert_layout;
struct moeflux_err;
struct loader;
struct part_tensor;
struct scratch;

/* f32 [n][config_expert_hidden]: the experts' input, and what their output is added to; the same with a plain
 * residual. */
struct moe_states {
    uint64_t in, out;
};

struct moe_layer {
    uint64_t norm;        /* f32 [hidden]: weights of the norm before the experts; 0: none */
    uint64_t router_norm; /* f32 [hidden]: weights of the norm before the router; 0: that of the experts */
    uint64_t factors;     /* f32 [n_experts]: factors of the experts' weights; 0: none */
    uint64_t bias;        /* f32 [n_experts]: the router's bias; 0: none */
    uint64_t table;       /* u32 [vocab_size][own_top_k]: experts by token; 0: none */
    struct experts_biases biases;
    uint32_t kind;           /* index of its experts' kind in moe.experts */
    struct linear router_in; /* outputs: router logits, shared gate logit, shared gate and up rows */
    /* outputs: router logits; for predictions, and if the other outputs are computed in float16 */
    struct linear router_only;
    struct linear router_gate; /* outputs: router logits, shared gate logit; up computes the other rows */
    /* The rest belongs to the shared expert. */
    struct linear shared_in; /* the outputs of router_in except the router logits */
    struct experts_shared shared_up;
    struct weights shared_down;
    struct linear shared_out; /* shared_down for chunks */
};

/* The layers whose routed experts have the same formats. */
struct moe_kind {
    struct experts experts;
    uint64_t shared_formats; /* formats of the layers' shared_down, a format_set */
    uint64_t up_formats;     /* formats of the shared expert's gate and up rows, a format_set */
    bool has_mixed_up;       /* some layer's shared gate and up rows differ in format */
};

struct moe {
    struct exec *exec;
    const struct config *config;
    struct router router;
    struct expert_kinds kinds;
    struct moe_kind *experts; /* [kinds.n] */
    struct add add; /* adds the host's experts (arch_request.has_host_experts) and the routers' biases */
    bool shared_gate;
    /* f16 [n][the larger of hidden and shared_inner]: inputs of prompts' products in float16; 0: they are
     * float32 */
    uint64_t f16_scratch;
    uint32_t router_rows; /* outputs of router_in */
    struct exec_buffer routed, idx, weights, act, grouped;
    struct exec_buffer predicted_logits, predicted, predicted_weights; /* one token of each sequence */
};

/* Prepares for loading layers. */
int moe_begin(struct moe *m, const struct arch_request *r, struct moeflux_err *e);
/* Loads the tensors t (model/part_tensors.h) of a layer; not its norm. moe_allocate must have been called. */
int moe_load_layer(struct moe *m, struct loader *l, uint32_t layer, const struct part_tensor *t,
                   struct moe_layer *out, struct moeflux_err *e);
void moe_close_layer(struct moe_layer *y, struct exec *x);

/* Returns the shape of the routed experts. */
struct experts_shape moe_experts_shape(const struct config *c, const struct expert_kinds *kinds,
                                       uint32_t kind);
/* Opens the operations. All layers must be loaded and m->f16_scratch set. */
int moe_open(struct moe *m, const struct arch_request *r, struct moeflux_err *e);
/* Whether experts_takes_rounds holds for the experts of every layer. plan_n: arch_plan_n. */
bool moe_takes_rounds(const struct moe *m, uint32_t plan_n);
/* Allocates its buffers for chunks of up to n tokens. */
void moe_allocate(struct moe *m, const struct config *c, const struct exec_caps *caps, uint32_t n,
                  struct scratch *to);
void moe_close(struct moe *m);
/* Fills its part of the view. */
void moe_show(const struct moe *m, struct arch_view *view);

/* Computes the router's logits for the hidden states x, f32 [n][hidden], and the other outputs of
 * router_in. */
void moe_score(const struct moe *m, const struct moe_layer *y, uint64_t x, const struct arch_tokens *all);
/* Makes the router's choice, if the host needs it before the experts are computed. Otherwise moe_up makes it
 * (arch_experts.chooses). ids: i32 [n], the tokens. */
void moe_choose(const struct moe *m, const struct moe_layer *y, uint64_t ids, uint32_t n);
void moe_predict(const struct moe *m, const struct moe_layer *y, uint64_t x, uint64_t ids, uint32_t n);
/* Compute the two halves of the experts: the first reads x, the second adds to `out`; both f32
 * [n][config_expert_hidden], those of the whole chunk. ids: i32 [n]. */
void moe_up(const struct moe *m, const struct moe_layer *y, uint64_t x, uint64_t ids, uint32_t plan_n,
            const struct arch_experts *part);
void moe_down(const struct moe *m, const struct moe_layer *y, uint64_t out, uint32_t plan_n,
              const struct arch_experts *part);
/* Adds the shared expert, without the routed experts. table: any table that operations can read. */
void moe_shared(const struct moe *m, const struct moe_layer *y, const struct moe_states *x, uint32_t layer,
                uint64_t table, const struct arch_tokens *all);
/* Computes x += sum, f32 [n][config_expert_hidden]. */
void moe_add(const struct moe *m, uint64_t x, uint64_t sum, uint32_t n);

#endif
