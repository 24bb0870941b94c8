/* grouped.h - the routed experts of a chunk of tokens on Vulkan; experts.h picks it by their number. The
 * (token, slot) pairs are sorted by expert on the device, and each expert's matrices meet all of its tokens
 * at once:
 *   sort: rows = pairs by expert, tiles of equal expert up: act[t][k] = silu(gate_e p) * (up_e p); where its
 *   tiles are float16, p is rounded to it first. With shared_up the shared expert is one more of each token's
 *   down: parts[t][k] = down_e act[t][k] mix: x[t] += sum_k weights[t][k] parts[t][k], in the router's order,
 *   then the shared expert's; or that one's product Experts may come in rounds: sort, up and down for those
 *   that the table has, mix once after the last (call.more). Every pair is computed by itself, so that
 *   nothing depends on which others share its tile. */
#ifndef MOEFLUX_OPS_EXPERTS_GROUPED_H
#define MOEFLUX_OPS_EXPERTS_GROUPED_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "ops/cast_f16.h"

struct moeflux_err;
struct experts_call;
struct experts_shape;

enum { EXPERTS_MAX_TILES = 4 };

/* Tiles of one size. */
struct experts_tiles {
    bool is_blocked; /* x and act are stored as kernels/lib/gemm_frag.glsl takes them */
    struct kernel up, down;
    uint32_t up_rows, down_rows, tokens; /* of a workgroup */
    uint32_t from; /* the fewest tokens that an expert has on average of a chunk that goes by these tiles */
};

struct experts_grouped {
    struct kernel sort, mix;
    struct cast_f16 cast;
    bool is_f16;       /* the tiles take float16 */
    bool joins_shared; /* the shared expert, as wide as the others and stored alike, is one of each token's */
    struct experts_tiles tiles[EXPERTS_MAX_TILES]; /* by size */
    uint32_t n_tiles;
    uint32_t mix_group;
    uint32_t from; /* the fewest tokens of a chunk that go this way; UINT32_MAX: none do */
};

int experts_grouped_open(struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                         struct moeflux_err *e);
/* Floats of scratch for chunks of up to n tokens. */
uint64_t experts_grouped_scratch(const struct experts_shape *s, uint32_t n, uint32_t shared_inner);

bool experts_grouped_takes(const struct experts_grouped *op, const struct experts_call *call);
void experts_grouped_up(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                        const struct experts_call *call);
void experts_grouped_down(const struct experts_grouped *op, struct exec *x, const struct experts_shape *s,
                          const struct experts_call *call);

#endif
