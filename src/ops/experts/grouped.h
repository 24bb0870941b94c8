/* grouped.h - the routed experts of a chunk of tokens on Vulkan; experts.h takes it for chunks of many
 * tokens. The device sorts the (token, slot) pairs by expert, and each expert's matrices meet all of its
 * tokens at once:
 *   sort:  rows = pairs by expert, tiles of equal expert
 *   up:    act[t][k] = silu(gate_e p) * (up_e p); float16 tiles round p first. With shared_up the shared
 *          expert is one more expert of each token
 *   down:  parts[t][k] = down_e act[t][k]
 *   mix:   x[t] += sum_k weights[t][k] parts[t][k], in the router's order, then the shared expert's part, or
 *          its product
 * Experts may come in rounds: sort, up and down for those in the table, and one mix after the last
 * (call.more).
 * Every pair is computed by itself, so results do not depend on which pairs share a tile. */
#ifndef MOEFLUX_OPS_EXPERTS_GROUPED_H
#define MOEFLUX_OPS_EXPERTS_GROUPED_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "ops/cast_f16.h"

struct moeflux_err;
struct exec_caps;
struct experts_call;
struct experts_shape;

enum { EXPERTS_MAX_TILES = 4 };

/* Tiles of one size. */
struct experts_tiles {
    bool is_blocked; /* x and act are in the order that kernels/lib/gemm_frag.glsl reads */
    struct kernel up, down;
    struct kernel gate;                  /* experts_are_mixed only */
    uint32_t up_rows, down_rows, tokens; /* size of a workgroup's tile */
    uint32_t from; /* fewest tokens per expert, averaged over the chunk, for these tiles */
};

struct experts_grouped {
    struct kernel sort, mix;
    struct cast_f16 cast;
    bool is_f16; /* the tiles are float16 */
    /* the shared expert has the others' width and format, and is one more expert of each token */
    bool joins_shared;
    struct experts_tiles tiles[EXPERTS_MAX_TILES]; /* ordered by size */
    uint32_t n_tiles;
    uint32_t mix_group;
    uint32_t from; /* experts_grouped_from */
};

/* Returns the fewest tokens of a chunk for this path; UINT32_MAX: never used. */
uint32_t experts_grouped_from(const struct exec_caps *c, uint32_t n_experts);
int experts_grouped_open(struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                         struct moeflux_err *e);
/* Returns the floats of scratch for chunks of up to n tokens. */
uint64_t experts_grouped_scratch(const struct experts_shape *s, uint32_t n, uint32_t shared_inner);

bool experts_grouped_takes(const struct experts_grouped *op, const struct experts_call *call);
void experts_grouped_up(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                        const struct experts_call *call);
void experts_grouped_down(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                          const struct experts_call *call);

#endif
