/* host_experts.h - computes routed experts on this machine's cores while a device computes everything
 * else: all experts of some of a model's layers, or a part of them in each layer (arch_experts.part).
 *
 * The device provides a chunk's hidden states and the router's choice, and adds the experts' sum
 * (arch_add_experts). The shared expert stays on the device. Experts are found through a table of
 * addresses, as on a device; here these are pointers. */
#ifndef MOEFLUX_ARCH_HOST_EXPERTS_H
#define MOEFLUX_ARCH_HOST_EXPERTS_H

#include <stdint.h>

#include "arch/arch.h"
#include "arch/expert_kinds.h"
#include "exec/exec.h"
#include "ops/experts/experts.h"

struct config;
struct model_dir;
struct moeflux_err;

struct host_experts {
    struct exec *exec; /* a host backend; NULL: not open */
    const struct config *config;
    struct arch_span layers;
    struct expert_kinds kinds;
    struct experts *experts;         /* [kinds.n] */
    struct exec_buffer norms;        /* f32 [layers][hidden]: weights of the norm before the experts */
    struct exec_buffer biases;       /* f32: each layer's gate_up and down biases (struct experts_biases) */
    struct exec_buffer act, scratch; /* f32 [max_chunk][top_k][moe_inner]; the operation's scratch memory */
};

/* A chunk in host memory. */
struct host_chunk {
    const float *x, *weights; /* [n][hidden], [n][top_k] */
    const uint32_t *idx;      /* [n][top_k] */
    float *sum;               /* [n][hidden], zeroed by the caller before the first down */
    uint32_t n;
};

/* Returns the bytes of host memory that chunks of up to max_chunk tokens need. */
uint64_t host_experts_bytes(const struct config *c, uint32_t max_chunk);
/* ERR_IO, ERR_FORMAT, ERR_MEMORY. */
int host_experts_open(struct host_experts *h, struct exec *x, const struct model_dir *m,
                      struct arch_span layers, uint32_t max_chunk, struct moeflux_err *e);
void host_experts_close(struct host_experts *h); /* zeroed is legal */
/* Do the same as arch_takes_rounds, arch_experts_up and arch_experts_down; down adds to the sum. */
bool host_experts_takes_rounds(const struct host_experts *h, uint32_t n);
void host_experts_up(const struct host_experts *h, const struct host_chunk *c,
                     const struct arch_experts *part);
void host_experts_down(const struct host_experts *h, const struct host_chunk *c,
                       const struct arch_experts *part);

#endif
