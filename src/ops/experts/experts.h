/* experts.h - the routed experts of a layer and the shared one, if there is one, two operations:
 *   up:    act[t][k] = silu(gate_e p) * (up_e p),  e = idx[t][k],  p = rms(x[t]) * norm
 *          biased: the expert's biases are added to gate_e p and up_e p, and to down_e act
 *          or another activation of gate_e p and up_e p (gating.h); the shared expert may have its own.
 *          GATING_RELU has no gate: gate_e is up_e, at the same place, and only u_t is in shared_in
 *   down:  x[t] += sum_k weights[t][k] down_e act[t][k] + w_t shared_down act(g_t, u_t), where act(g, u) is
 *          the shared expert's activation
 * With a router, up first chooses the experts as router.h says.
 * g_t and u_t are the products of the shared expert's gate and up rows. If experts_makes_shared, up computes
 * them and leaves w_t silu(g_t) * u_t in act. Otherwise they follow the n_experts router logits in
 * shared_in[t], computed by the same product as the logits. With shared_gate there is one more logit between,
 * and w_t is its sigmoid; else w_t = 1.
 * Experts are found through a table of addresses [n_experts] on the device. The caller fills in every expert
 * that idx names before the batch is submitted.
 * A call may compute one part only: the routed experts if shared_down.cols is 0, the shared one with
 * only_shared, some of the routed ones with `part`.
 * idx may be NO_EXPERT (router.h): nothing is computed or looked up for it.
 * Sums run in the router's order, then the shared part, then the residual. hidden, inner and shared_inner are
 * multiples of PRODUCT_COLS and of their formats' groups. */
#ifndef MOEFLUX_OPS_EXPERTS_EXPERTS_H
#define MOEFLUX_OPS_EXPERTS_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "model/expert_part.h"
#include "ops/experts/grouped.h"
#include "ops/weights.h"

struct linear;
struct router;

struct experts_shape {
    uint32_t n_experts, top_k, hidden, inner;
    uint32_t gate_format, up_format, down_format; /* FORMAT_* of the routed experts' projections */
    /* set (base/format.h): formats of the routed and of all layers' shared down projections */
    uint64_t down_formats;
    /* byte offsets of the parts in an expert */
    uint32_t gate_w, gate_s, gate_b, up_w, up_s, up_b, down_w, down_s, down_b;
    float eps;
    bool shared_gate; /* the shared expert has a gate */
    /* rows of the shared expert's gate and up if up may compute them (all layers store both in the same
     * format); 0: up may not */
    uint32_t shared_inner;
    uint64_t up_formats; /* set: formats of the routed and of all layers' shared gate and up */
    bool chooses;        /* up may be asked to choose with a softmax router; norm_topk: that router's norm */
    bool norm_topk;
    bool drops;                  /* idx may be NO_EXPERT, calls may have a `part`; never with `chooses` */
    bool biased;                 /* never with a shared expert */
    float gating, shared_gating; /* gating.h */
};

/* Biases of all experts of a layer, f32. */
struct experts_biases {
    uint64_t gate_up; /* [2][n_experts][inner]: gate, then up */
    uint64_t down;    /* [n_experts][hidden] */
};

/* The shared expert's gate and up rows, [shared_inner][hidden]. */
struct experts_shared {
    struct weights gate, up;
    struct exec_buffer gpu; /* vulkan */
};

/* Kernels for a part of a set of formats (format_set_part). rows: rows of a workgroup. */
struct experts_up_kernels {
    uint32_t rows;
    struct kernel kernel, choosing;
};
struct experts_up {
    uint64_t formats;
    struct experts_up_kernels one, several; /* calls of one token, of several */
};
struct experts_down {
    uint64_t formats;
    uint32_t rows;
    struct kernel kernel;
};
enum { EXPERTS_MAX_PARTS = 12 };

struct experts {
    struct experts_shape shape;
    uint32_t rounds_from; /* experts_rounds_from */
    struct
    /* Vulkan: two dispatches whatever top_k is. If the shared expert's format needs a kernel of its own,
     * there is one more for up and for down. Chunks of many tokens are computed by grouped.h. */
    {
        struct experts_up up[EXPERTS_MAX_PARTS];
        struct experts_down down[EXPERTS_MAX_PARTS];
        /* Kernels for a 4-bit (FORMAT_Q4) shared expert with routed experts in an extended format. formats 0:
         * not open. */
        struct experts_up up_with_q4;
        struct experts_down down_with_q4;
        struct experts_down whole_down, whole_several; /* calls of one token or two, of more */
        struct experts_up passes[2];                   /* experts_are_mixed only: of gate, of up */
        bool chooses;                                  /* up[].choosing are open */
        /* whole_down is open: for calls whose shared expert has the routed ones' width and format */
        bool has_whole_down;
        uint32_t makes_shared_below; /* tokens; up computes the shared rows of smaller chunks; 0: never */
        struct experts_grouped grouped;
    } gpu;
};

struct experts_call {
    uint64_t x, norm;      /* f32 [n][hidden]; f32 [hidden], 0: p = x[t] */
    uint64_t table;        /* u64 [n_experts] */
    uint64_t idx, weights; /* u32, f32 [n][top_k] */
    uint64_t act;          /* f32 [n][experts_act_row], passed from up to down */
    /* up chooses idx and weights by it from the logits in shared_in; NULL: the caller gives them */
    const struct router *router;
    /* See router_call; factors and a table exclude a shape that chooses. */
    uint64_t router_bias, router_factors, router_table, ids;
    struct experts_biases biases; /* shapes with biases only */
    uint64_t shared_in;           /* f32 [n][shared_stride]; each row begins with the router's logits */
    const struct experts_shared *shared_up; /* needed if experts_makes_shared */
    struct weights shared_down;             /* [hidden][shared_inner]; cols 0: no shared expert */
    uint32_t shared_stride, n;
    /* Tokens of the chunk that these n are a part of. It chooses the kernels, so that results do not depend
     * on how a chunk is divided. */
    uint32_t chunk;
    /* f32 [experts_scratch(.., n, ..)]; 0: none; all chunk sizes then take the same kernels */
    uint64_t scratch;
    uint64_t f16_scratch; /* f16 [n][shared_inner] for shared_out; 0: shared_out stays in float32 */
    const struct linear *shared_out; /* shared_down as a product; unused without a shared expert */
    uint64_t skip;                   /* up only: bit k leaves out the k-th expert of each token, k < 64 */
    bool skip_shared;                /* up only: the shared expert is left out */
    bool only_shared; /* routed experts are computed elsewhere; idx and table are valid all the same */
    /* The experts that are computed; the others are left out, and the table lacks them (0). Only if the shape
     * drops. */
    struct expert_part part;
    bool more; /* experts missing in the table (0) come in a later round; only if experts_takes_rounds */
};

/* Returns whether experts have no gate. Vulkan computes both halves of up's rows as two matrices then. */
bool experts_are_gateless(const struct experts_shape *s);
/* Returns whether gate and up have different formats. Vulkan computes them one after the other then, each
 * with both halves of its rows in the place of the two matrices. */
bool experts_are_mixed(const struct experts_shape *s);
/* Both halves of a matrix's rows: byte offsets in an expert of their weights, scales and biases. */
struct experts_halves {
    uint32_t format, w[2], s[2], b[2];
};
struct experts_halves experts_halves(const struct experts_shape *s, bool up);
/* Return the floats of a token's row of act; of its activations only, which the experts' addresses follow. */
uint64_t experts_act_row(const struct experts_shape *s);
uint64_t experts_act_floats(const struct experts_shape *s, bool has_shared);
/* Returns the floats of scratch for chunks of up to n tokens. */
uint64_t experts_scratch(const struct experts_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t shared_inner);
int experts_open(struct experts *op, struct exec *x, const struct experts_shape *shape,
                 struct moeflux_err *e);
/* Returns whether the experts of a chunk may come in rounds. Each round calls up and down with a table of its
 * experts only, the last one without `more`. */
bool experts_takes_rounds(const struct experts *op, uint32_t chunk);
/* Returns the fewest tokens of such a chunk before anything is open; UINT32_MAX: none. */
uint32_t experts_rounds_from(const struct exec_caps *caps, uint32_t n_experts);
/* Returns whether up computes the shared expert's gate and up rows in a chunk of that many tokens. Then each
 * call needs shared_up. */
bool experts_makes_shared(const struct experts *op, uint32_t chunk);
int experts_shared_open(struct experts_shared *s, struct exec *x, const struct weights *gate,
                        const struct weights *up, struct moeflux_err *e);
void experts_shared_close(struct experts_shared *s, struct exec *x); /* s may be zeros */
void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call);
void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call);

/* The implementations. */
int experts_vulkan_open(struct experts *op, struct exec *x, struct moeflux_err *e);
int experts_shared_vulkan_open(struct experts_shared *s, struct exec *x, struct moeflux_err *e);
/* Returns whether up's own kernel makes the call's choice. */
bool experts_vulkan_chooses(const struct experts *op, const struct experts_call *call);
void experts_up_vulkan(const void *self, const void *what, struct exec *x);
void experts_down_vulkan(const void *self, const void *what, struct exec *x);
/* Returns the bytes that the native implementations allocate by themselves for n tokens. has_fixed:
 * exec_caps. has_blocks: some matrix has a block format. */
uint64_t experts_cpu_host_bytes(const struct experts_shape *s, uint32_t n, bool has_fixed, bool has_blocks);
/* Returns the floats of scratch on the CPU. */
uint64_t experts_cpu_scratch(const struct experts_shape *s, uint32_t n);
op_host_fn experts_up_cpu, experts_down_cpu, experts_up_ref, experts_down_ref;

#endif
