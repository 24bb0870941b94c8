/* latent_experts.h - what surrounds routed experts of a latent (config.moe_latent columns):
 *   in = W1 norm(x),  x += shared(norm(x)),  out = experts(in),  x += W2 out, or x += W2 norm(out)
 *
 * The experts between are moe.h's, with `in` and `out.rows` for hidden states. The shared expert reads whole
 * hidden states, so that it is a dense part here. NVIDIA's Nemotron-3 Super and Ultra:
 * https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16. With the second norm: Kimi-K3. */
#ifndef MOEFLUX_ARCH_LATENT_EXPERTS_H
#define MOEFLUX_ARCH_LATENT_EXPERTS_H

#include "arch/part.h"
#include "arch/part_output.h"
#include "model/config.h"
#include "ops/linear/linear.h"

struct latent_layer {
    struct linear in, out; /* [moe_latent][hidden], [hidden][moe_latent] */
    uint64_t norm;         /* f32 [moe_latent], before `out`; 0: none */
};

struct latent_experts {
    const struct part_room *room;
    struct part_config shared; /* the shared expert's description */
    void *dense;               /* the shared expert; NULL: there is none */
    struct exec_buffer in;     /* f32 [n][moe_latent] */
    struct part_output out;    /* f32 [n][moe_latent] */
};

/* Returns what the shared expert needs as a dense part. */
struct part_needs latent_experts_needs(const struct config *c, const struct exec_caps *caps,
                                       const struct part_most *most);
void latent_experts_allocate(struct latent_experts *x, const struct config *c, uint32_t n,
                             struct scratch *to);
/* `room` is complete and outlives it. Close it on failure, too. */
int latent_experts_open(struct latent_experts *x, const struct part_room *room, struct loader *l,
                        struct moeflux_err *e);
void latent_experts_close(struct latent_experts *x, struct exec *exec); /* zeroed is legal */
/* Loads the tensors t (model/part_tensors.h) of a layer's experts. */
int latent_experts_load(const struct latent_experts *x, struct loader *l, uint32_t layer,
                        const struct part_tensor *t, struct latent_layer *out, struct moeflux_err *e);
void latent_experts_close_layer(struct latent_layer *y, struct exec *exec);

/* Computes `in`, clears `out`, and adds the shared expert. */
void latent_experts_begin(const struct latent_experts *x, const struct latent_layer *y,
                          const struct part_call *call);
/* Adds W2 out, or W2 norm(out), to the hidden states at `to`, f32 [n][hidden], of these tokens. plan_n:
 * arch_plan_n. */
void latent_experts_end(const struct latent_experts *x, const struct latent_layer *y, uint64_t to,
                        const struct arch_tokens *tokens);

#endif
