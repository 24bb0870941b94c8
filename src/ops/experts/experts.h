/* experts.h - the routed experts of a layer and the shared one, if there is one, two operations:
 *   up: act[t][k] = silu(gate_e p) * (up_e p), e = idx[t][k], p = rms(x[t]) * norm biased: gate_e p and up_e
 *          p get the expert's biases first, and so does down_e act; with a limit act = g sigmoid(1.702 g) (u
 *          + 1), g = min(gate_e p, limit), u = up_e p within -limit .. limit down: x[t] += sum_k
 *          weights[t][k] down_e act[t][k] + w_t shared_down (silu(g_t) * u_t) With a router, up makes the
 *          choice first, as router.h says. g_t, u_t, the shared expert's gate and up rows: up makes them
 *          where experts_makes_shared says so and leaves w_t silu(g_t) * u_t in act. Else they stand behind
 *          the n_experts router logits of shared_in[t]: the product that made the logits made them too. With
 *          shared_gate a logit stands between, w_t is its sigmoid; else w_t = 1. Experts are found through a
 *          table of addresses [n_experts] on the device; the caller fills in every expert that idx names
 *          before the batch is submitted. A part alone: routed experts where shared_down.cols is 0, the
 *          shared one with only_shared. idx may be NO_EXPERT (router.h), behind a token's experts: nothing is
 *          computed or looked up for it. Sums run in the router's order, then the shared part, then the
 *          residual. hidden, inner and shared_inner are multiples of PRODUCT_COLS and of their formats'
 *          groups. */
#ifndef MOEFLUX_OPS_EXPERTS_EXPERTS_H
#define MOEFLUX_OPS_EXPERTS_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/experts/grouped.h"
#include "ops/weights.h"

struct linear;
struct router;

struct experts_shape {
    uint32_t n_experts, top_k, hidden, inner;
    uint32_t up_format,
        down_format;       /* FORMAT_*, of the routed experts' gate and up, and of their down projections */
    uint32_t down_formats; /* set (base/format.h): of the routed and of all layers' shared down projections */
    /* byte offsets of the parts in an expert */
    uint32_t gate_w, gate_s, gate_b, up_w, up_s, up_b, down_w, down_s, down_b;
    float eps;
    bool shared_gate; /* the shared expert has a gate */
    /* Of its gate and up rows, if up may compute them: all layers' two matrices are stored alike. 0: it may
     * not */
    uint32_t shared_inner;
    uint32_t up_formats; /* set: of the routed and of all layers' shared gate and up */
    bool chooses;        /* up may be asked to choose with a softmax router; norm_topk: as its norm */
    bool norm_topk;
    bool drops; /* idx may be NO_EXPERT; not with `chooses` */
    /* Neither of the two where there is a shared expert. */
    bool biased;
    float limit; /* 0: act = silu(g) u */
};

#define EXPERTS_ALPHA 1.702 /* of a limited act */

/* Biases of all experts of a layer, f32. */
struct experts_biases {
    uint64_t gate_up; /* [2][n_experts][inner]: of gates, of up rows */
    uint64_t down;    /* [n_experts][hidden] */
};

/* The shared expert's gate and up rows, [shared_inner][hidden]. */
struct experts_shared {
    struct weights gate, up;
    struct exec_buffer gpu; /* vulkan */
};

/* Kernels for a part of a set of formats (format_set_part). rows: of a workgroup. */
struct experts_up_kernels {
    uint32_t rows;
    struct kernel kernel, choosing;
};
struct experts_up {
    uint32_t formats;
    struct experts_up_kernels one, several; /* tokens of a call */
};
struct experts_down {
    uint32_t formats, rows;
    struct kernel kernel;
};
enum { EXPERTS_MAX_PARTS = 12 };

struct experts {
    struct experts_shape shape;
    /* the fewest tokens of a chunk whose experts may come in rounds; UINT32_MAX: never */
    uint32_t rounds_from;
    struct
    { /* vulkan: two dispatches whatever top_k is, another one of each where the shared expert's format needs a kernel of its own;
                chunks of many tokens go by grouped.h */
        struct experts_up up[EXPERTS_MAX_PARTS];
        struct experts_down down[EXPERTS_MAX_PARTS];
        /* For calls whose shared expert has 4 bits (FORMAT_Q4) beside routed ones in another format than the
         * usual ones. formats 0: they are not open. */
        struct experts_up up_with_q4;
        struct experts_down down_with_q4;
        struct experts_down whole_down;
        bool chooses;        /* up[].choosing are open */
        bool has_whole_down; /* for calls whose shared expert is as wide as the others and stored alike */
        uint32_t makes_shared_below; /* tokens of a chunk; elsewhere 0 */
        struct experts_grouped grouped;
    } gpu;
};

struct experts_call {
    uint64_t x, norm;      /* f32 [n][hidden], f32 [hidden] */
    uint64_t table;        /* u64 [n_experts] */
    uint64_t idx, weights; /* u32, f32 [n][top_k] */
    uint64_t act;          /* f32 [n][experts_act_row], scratch between the two */
    /* up: idx and weights are made, from the logits of shared_in; NULL: they are there */
    const struct router *router;
    uint64_t router_bias;
    struct experts_biases biases; /* where the shape has them */
    uint64_t shared_in;           /* f32 [n][shared_stride]; the first of a row are the router's logits */
    const struct experts_shared *shared_up; /* where experts_makes_shared */
    struct weights shared_down;             /* [hidden][shared_inner]; cols 0: there is no shared expert */
    uint32_t shared_stride, n;
    /* tokens of the chunk of which these n are a part: it chooses the way, so that results do not depend on
     * how a chunk is divided */
    uint32_t chunk;
    uint64_t scratch;                /* f32 [experts_scratch(.., n, ..)]; 0: none, one way for all */
    uint64_t f16_scratch;            /* f16 [n][shared_inner], of shared_out; 0: it stays float32 */
    const struct linear *shared_out; /* shared_down as a product; unused without a shared expert */
    uint64_t skip;                   /* up: bit k leaves out the k-th expert of each token, for k < 64 */
    bool skip_shared;                /* up: the shared expert is left out */
    bool only_shared;                /* the routed experts are computed elsewhere; idx and table are valid */
    bool more; /* for a chunk that experts_takes_rounds: experts that the table lacks (0) come later */
};

/* Floats of act for a token; of its activations alone, where up leaves float32. */
uint64_t experts_act_row(const struct experts_shape *s);
uint64_t experts_act_floats(const struct experts_shape *s, bool has_shared);
/* Floats of scratch for chunks of up to n tokens. */
uint64_t experts_scratch(const struct experts_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t shared_inner);
int experts_open(struct experts *op, struct exec *x, const struct experts_shape *shape,
                 struct moeflux_err *e);
/* Whether the experts of a chunk of so many tokens may come in rounds: up and down for each, with a table of
 * the round's experts alone, the last one without `more`. */
bool experts_takes_rounds(const struct experts *op, uint32_t chunk);
/* Whether up computes the shared expert's gate and up rows in a chunk of so many tokens. Then each call needs
 * shared_up. */
bool experts_makes_shared(const struct experts *op, uint32_t chunk);
int experts_shared_open(struct experts_shared *s, struct exec *x, const struct weights *gate,
                        const struct weights *up, struct moeflux_err *e);
void experts_shared_close(struct experts_shared *s, struct exec *x); /* one that is not open is legal */
void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call);
void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call);

/* The implementations. */
int experts_vulkan_open(struct experts *op, struct exec *x, struct moeflux_err *e);
int experts_shared_vulkan_open(struct experts_shared *s, struct exec *x, struct moeflux_err *e);
/* Whether the call's choice is made by up's own kernel. */
bool experts_vulkan_chooses(const struct experts *op, const struct experts_call *call);
void experts_up_vulkan(const void *self, const void *what, struct exec *x);
void experts_down_vulkan(const void *self, const void *what, struct exec *x);
/* Memory that the native implementations take by themselves for n tokens. has_fixed: of the caps. */
uint64_t experts_cpu_host_bytes(const struct experts_shape *s, uint32_t n, bool has_fixed);
/* On the CPU: floats of scratch. */
uint64_t experts_cpu_scratch(const struct experts_shape *s, uint32_t n);
op_host_fn experts_up_cpu, experts_down_cpu, experts_up_ref, experts_down_ref;

#endif
