/* arch.h - a model's layers as the engine sees them: weights, and the lists of operations that make a layer.
 * They are built from the description in config.h: a mixer (mixer.h), then experts (moe.h) or a dense part
 * (dense.h).
 *
 * A layer is two lists: before_experts ends with the router's logits; experts_up and experts_down compute the
 * routed and shared experts and the residual. Where every expert is in the table, experts_up makes the
 * router's choice. Else choose_experts does (idx, weights), and the engine makes sure that the chosen experts
 * are in their table; experts_up may run twice, first for the experts that are resident already. Of a layer
 * without experts before_experts is all. The lists serve any number of tokens of a chunk: one is decode, more
 * are prefill. */
#ifndef MOEFLUX_ARCH_ARCH_H
#define MOEFLUX_ARCH_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"
#include "exec/exec.h"
#include "ops/attention/kv_cache.h"

struct moeflux_err;
struct expert_layout;
struct loader;
struct router_shape;

/* Where a sequence is, and where its state lies. Addresses as operations take them. */
struct arch_sequence {
    uint32_t pos;       /* of the first token */
    uint32_t parity;    /* 0 or 1, flips with every chunk of a sequence (states that are read and written) */
    uint64_t kv_blocks; /* u64 table of the KV cache's blocks */
    /* The recurrent state of all layers before and after the chunk, zero at position 0. The same address:
     * updated in place. */
    uint64_t recurrent, recurrent_out;
};

/* The tokens being evaluated: n of one sequence, or one of each of n sequences. */
struct arch_chunk {
    uint32_t n;
    uint64_t ids;                     /* i32 [n] */
    uint64_t rope;                    /* f32 [n][rotary_dim / 2][2]: cos, sin */
    struct arch_sequence of;          /* the tokens stand at of.pos .. of.pos + n - 1 */
    const struct arch_sequence *each; /* [n], then `of` is unused; NULL: one sequence */
    /* 0 < keep < n: the recurrent state after the first `keep` tokens is left at `kept`, its parity the other
     * one. That of `of` then flips twice. 0: it is not kept; with `each` it is 0 */
    uint32_t keep;
    uint64_t kept;
};

/* The experts of a layer for some of a chunk's tokens. */
struct arch_experts {
    uint32_t layer;
    /* addresses of this layer's experts; up on a host backend leaves out those that it lacks (0) */
    uint64_t table;
    uint32_t from, n; /* tokens */
    bool chooses;     /* up: the choice is not made yet */
    uint64_t skip;    /* up: bit k leaves out the k-th expert of each token (k < 64) */
    bool skip_shared; /* up: it was run before, with other experts left out */
    bool more_waves;  /* down: experts that the table lacks come in a later wave */
};

enum { ARCH_HEAD_ROWS = EXEC_MAX_INVARIANT };

/* The layers [first, end) of a model: all, or a share. The embedding is with the first layer, the head with
 * the last. */
struct arch_span {
    uint32_t first, end;
};

struct arch_request {
    struct exec *exec;
    struct loader *loader;
    const struct config *config;
    struct arch_span layers;             /* those that are opened */
    const struct expert_layout *experts; /* [n_layers] */
    uint32_t max_chunk;                  /* most tokens of a chunk */
    enum kv_type kv_type;                /* of the KV cache */
    /* the routed experts of some layers are computed elsewhere: arch_shared_expert and arch_add_experts will
     * be called */
    bool has_host_experts;
};

/* One kind of rows in the KV cache: position p's stands in block p >> KV_BLOCK_SHIFT, at off plus stride
 * times p's place in the block. */
struct arch_rows {
    uint64_t off;    /* bytes from the block's start */
    uint32_t stride; /* bytes from a position to the next */
    uint32_t n;      /* numbers of a row, of arch_request.kv_type; 0: the layer has no such rows */
};

/* Where one layer's state lies, for those who save it. A layer has rows or a recurrence, not both. */
struct arch_state {
    /* Attention: keys (normalised and rotated) and values, [n_kv_heads][head_dim]. MLA: latents (normalised)
     * [kv_lora_rank] and rotary keys (rotated, every channel in its own place) [rope_dim]. */
    struct arch_rows rows[2];
    /* Delta net, in the recurrent state: two windows f32 [conv_kernel - 1][channels], one behind the other,
     * of which [parity] is the current one, and S f32 [n_v_heads][v_head_dim][k_head_dim]. Bytes of 0: none.
     * */
    uint64_t window_off, window_bytes; /* of one window */
    uint64_t delta_off, delta_bytes;
    /* Of layers with rows, as saved states call them: heads, channels of a head's key, whether a row is a
     * latent. */
    uint32_t n_heads, head_dim;
    bool is_latent;
};

/* What open layers show to the engine. */
struct arch_view {
    uint64_t kv_block_bytes;          /* one block of the KV cache, all open layers */
    uint64_t recurrent_state_bytes;   /* 0: no layer is recurrent, the sequence can be cut anywhere */
    const struct arch_state *states;  /* [n_layers]; borrowed until close. Zero of layers that are not open */
    uint64_t scratch_bytes;           /* what it allocated for activations */
    uint32_t max_context;             /* the model's own, or what is taken where it does not say */
    struct exec_buffer x;             /* f32 [max_chunk][hidden]: the hidden states */
    struct exec_buffer idx;           /* u32 [max_chunk][top_k]: the router's choice */
    struct exec_buffer weights;       /* f32 [max_chunk][top_k]: of the choice */
    struct exec_buffer predicted;     /* u32 [EXEC_MAX_INVARIANT][top_k]: what predict_experts() made */
    struct exec_buffer router_logits; /* f32 [max_chunk][n_experts and more]: of a layer's router */
    const struct router_shape *router; /* borrowed until close */
    struct exec_buffer logits;         /* f32 [ARCH_HEAD_ROWS][vocab_size]; with the last layer */
};

struct arch;

/* Of what a layer keeps of a sequence: sizes are the model's, offsets as if there were no other layer. */
struct arch_state arch_state_of(const struct config *c, uint32_t layer, enum kv_type type);
/* Bytes of arch_view.scratch_bytes, before anything is open. */
uint64_t arch_scratch_bytes(const struct config *c, struct arch_span layers, const struct exec_caps *caps,
                            uint32_t max_chunk);
/* Bytes that the cpu's operations take by themselves meanwhile; 0 on other devices. */
uint64_t arch_host_bytes(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk);

/* Loads the weights and prepares the operations. On failure *out is NULL. ERR_UNSUPPORTED, before anything is
 * loaded: a block of the KV cache has 4 GiB or more. */
int arch_open(struct arch **out, const struct arch_request *r, struct arch_view *view, struct moeflux_err *e);
void arch_close(struct arch *a); /* NULL is legal */

/* Each records into the open batch. */
void arch_embed(const struct arch *a, const struct arch_chunk *c);
void arch_before_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer);
void arch_choose_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer);
/* For n tokens (n <= EXEC_MAX_INVARIANT), after before_experts of an earlier layer: what `layer`'s router
 * would choose for the hidden states as they are now, into view.predicted. */
void arch_predict_experts(const struct arch *a, uint32_t layer, uint32_t n);
/* Whether the experts of a chunk of n tokens may come in waves: up and down for the experts of each, the last
 * one without more_waves. Else all experts of a token are needed at once. */
bool arch_takes_waves(const struct arch *a, uint32_t n);
/* Tokens from .. from + n - 1 of the chunk. */
void arch_experts_up(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x);
void arch_experts_down(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x);
/* In place of the two, where the routed experts are computed elsewhere (host_experts.h): the shared expert,
 * if there is one, and what they sum up to, f32 [n][hidden], in memory of any kind. table: any that the
 * device can read. */
void arch_shared_expert(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t table);
void arch_add_experts(const struct arch *a, const struct arch_chunk *c, uint64_t sum);
/* Logits of tokens from .. from + n - 1 (n <= ARCH_HEAD_ROWS) into view.logits. */
void arch_head(const struct arch *a, uint32_t from, uint32_t n);

#endif
