/* arch.h - a model's layers as the engine sees them: weights, and the lists of operations that make a layer.
 * They are the blocks that config.h describes: parts (part.h), and experts (moe.h) in the last block.
 *
 * A layer is two lists. before_experts ends with the router's logits; experts_up and experts_down compute the
 * routed and shared experts and the residual. If every expert is in the table, experts_up makes the router's
 * choice. Otherwise choose_experts makes it (idx, weights), and the engine brings the chosen experts into the
 * table; experts_up may run twice, first for the experts that are already resident. A layer without experts
 * has before_experts alone. The lists serve a chunk of any number of tokens: one is decode, more are
 * prefill. */
#ifndef MOEFLUX_ARCH_ARCH_H
#define MOEFLUX_ARCH_ARCH_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "args.h"
#include "model/config.h"
#include "model/expert_part.h"
#include "exec/exec.h"
#include "ops/attention/kv_cache.h"

struct moeflux_err;
struct expert_layout;
struct loader;
struct router_shape;

/* The position of a sequence and the addresses of its state, as operations take them. */
struct arch_sequence {
    uint32_t pos;         /* position of the first token */
    uint32_t parity;      /* 0 or 1, flips with every chunk: which of the double-buffered states is read */
    uint64_t kv_blocks;   /* u64 table of the KV cache's blocks */
    uint64_t ring_blocks; /* u64 table of the windows' blocks; those of the ring return in turn */
    /* Recurrent state of all layers before and after the chunk, zero at position 0. Equal addresses: updated
     * in place. */
    uint64_t recurrent, recurrent_out;
};

/* Which of the tokens of a batch belong to which sequence: the first n_single to a sequence each, then those
 * of prompt i, a part of a sequence's prompt, up to token ends[i] - 1. */
struct arch_batch {
    uint32_t n_single, n_prompts;
    const uint32_t *ends; /* [n_prompts] */
};

static inline uint32_t arch_batch_sequences(const struct arch_batch *b)
{
    return b->n_single + b->n_prompts;
}

/* Return the first token of sequence idx, and the one after its last. */
static inline uint32_t arch_batch_end(const struct arch_batch *b, uint32_t idx)
{
    return idx < b->n_single ? idx + 1 : b->ends[idx - b->n_single];
}

static inline uint32_t arch_batch_start(const struct arch_batch *b, uint32_t idx)
{
    return idx > 0 ? arch_batch_end(b, idx - 1) : 0;
}

/* The tokens being evaluated: n of one sequence, or a batch of several sequences; or a chain: n tokens of one
 * sequence, each with states of its own. */
struct arch_chunk {
    uint32_t n;
    uint64_t ids;            /* i32 [n] */
    uint64_t rope;           /* f32 [n][dim / 2][2]: cos, sin; for each table, one after the other */
    uint64_t ngrams;         /* f32 [n_tables][max_chunk][inner]: rows of the n-gram tables */
    struct arch_sequence of; /* the tokens are at of.pos .. of.pos + n - 1 */
    /* the sequences of a batch, or [n] of a chain; then `of` is unused. NULL: one sequence */
    const struct arch_sequence *each;
    struct arch_batch batch; /* zeroed without `each`, and for a chain */
    /* `each` has consecutive positions of one sequence: operations with a state run one after the other,
     * since a token reads what the ones before it write */
    bool is_chain;
    /* 0 < keep < n: the recurrent state after the first `keep` tokens is written to `kept`, with the other
     * parity; the parity of `of` then flips twice. 0: not kept, as always with `each` */
    uint32_t keep;
    uint64_t kept;
    /* operations take the kernels for so many tokens, whatever n is; 0: those for n. The results for a token
     * depend on this number and not on n, so it is the same in every batched evaluation */
    uint32_t plan_n;
    /* a drafter's (model/drafter.h): f32 [n][config_width], the hidden states that it goes on from: the
     * model's, or its own */
    uint64_t fed;
    bool fed_is_own;
};

/* Returns how many tokens, the chunk's first ones, are the only ones of their sequences. */
static inline uint32_t arch_n_single(const struct arch_chunk *c)
{
    return c->each && !c->is_chain ? c->batch.n_single : 0;
}

/* Returns the number of tokens that choose the kernels of a chunk's operations. */
static inline uint32_t arch_plan_n(const struct arch_chunk *c)
{
    return c->plan_n ? c->plan_n : c->n;
}

/* Tokens from .. from + n - 1 of a chunk, and its arch_plan_n. */
struct arch_tokens {
    uint32_t from, n, plan_n;
};

static inline struct arch_tokens arch_all_tokens(const struct arch_chunk *c)
{
    return (struct arch_tokens){0, c->n, arch_plan_n(c)};
}

/* The experts of a layer for some of a chunk's tokens. */
struct arch_experts {
    uint32_t layer;
    /* addresses of this layer's experts, 0: not resident; on a host backend up leaves those out */
    uint64_t table;
    uint32_t from, n; /* the first token and the number of tokens */
    bool chooses;     /* up: it makes the router's choice too */
    uint64_t skip;    /* up: bit k leaves out the k-th expert of each token (k < 64) */
    bool skip_shared; /* up: the shared expert was computed by an earlier call */
    bool more_rounds; /* down: experts that the table lacks are computed in a later round */
    /* the experts that are computed. If it is not all, the others are computed elsewhere, and
     * arch_add_experts must follow. Only if arch_request.has_parts */
    struct expert_part part;
};

enum { ARCH_HEAD_ROWS = EXEC_MAX_INVARIANT };

/* The layers [first, end) of a model: all, or a share. The embedding belongs to the first layer, the head to
 * the last. */
struct arch_span {
    uint32_t first, end;
};

struct arch_request {
    struct exec *exec;
    struct loader *loader;
    const struct config *config;
    struct arch_span layers;             /* the layers to open */
    const struct expert_layout *experts; /* [n_layers] */
    uint32_t max_chunk;                  /* most tokens of a chunk */
    uint32_t max_batched;                /* most sequences of a chunk that have one token */
    enum kv_type kv_type;                /* number type of the KV cache */
    /* routed experts are computed elsewhere: arch_add_experts will be called, and arch_shared_expert where
     * all of a layer's are */
    bool has_host_experts;
    bool has_parts; /* experts of all layers are computed in parts (arch_experts.part) */
};

/* One array of a layer's state for a sequence.
 *   rows     a row for every `stride` positions, in the blocks of the KV cache
 *   window   such rows, of which only the last `window` are read again, in a ring of blocks of their own
 *   fixed    a recurrence, in the recurrent state */
enum arch_store_kind { ARCH_ROWS, ARCH_WINDOW, ARCH_FIXED };

struct arch_store {
    enum arch_store_kind kind;
    enum kv_type type;
    uint64_t width;  /* numbers of a row, or of one copy of a fixed store */
    uint32_t head;   /* numbers that make a row of kv_cache.h; 0: each by itself, never with q8_0 */
    uint32_t stride; /* rows: positions of a row, a power of two up to those of a block */
    uint32_t window; /* window: rows that a token sees, with its own */
    uint32_t copies; /* fixed: 1, or 2 consecutive ones of which [parity] is current */
    uint64_t off;    /* bytes from the block's start, or from the recurrent state's */
    uint32_t pitch;  /* rows: bytes from one row to the next */
};

/* The stores of a layer, as its parts define them; saved states have them in this order.
 *   attention   keys (normalised and rotated), values: [n_kv_heads][head_dim]
 *   latent      latents (normalised) [kv_lora_rank], rotary keys (rotated, every channel at its own index);
 *               with q8_0 both are one store
 *   indexer     after attention's or the latents': index keys, then the window of the unfinished block
 *   compressed  rows of the window (normalised and rotated) [head_dim]; then with a ratio: compressed rows
 *               [head_dim], the sums of the unfinished blocks (ops/compressed/compressed.h), index rows
 *   Mamba-2     last inputs of the convolution [conv_kernel - 1][channels], then
 *               S [n_heads][head_dim][state_dim]
 *   n-grams     last inputs of the convolution [(taps - 1) * dilation][streams][hidden]
 *   delta net   last inputs of the convolution [conv_kernel - 1][channels], then
 *               S [n_v_heads][v_head_dim][k_head_dim] */
enum { ARCH_MAX_STORES = 4 };
struct arch_stores {
    uint32_t n;
    struct arch_store of[ARCH_MAX_STORES];
};

static inline void arch_add_store(struct arch_stores *s, const struct arch_store *t)
{
    assert(s->n < ARCH_MAX_STORES);
    s->of[s->n++] = *t;
}

/* Returns the bytes of a row if its numbers are stored as `type`. */
static inline uint64_t arch_row_bytes(const struct arch_store *t, enum kv_type type)
{
    uint32_t head = t->head ? t->head : 1;
    return t->width / head * kv_row_bytes(type, head);
}

/* Returns the bytes of a row, or of one copy of a fixed store. */
static inline uint64_t arch_store_bytes(const struct arch_store *t)
{
    return arch_row_bytes(t, t->type);
}

/* Returns the rows of a store in one block. */
static inline uint32_t arch_store_block_rows(const struct arch_store *t)
{
    return (1u << KV_BLOCK_SHIFT) / t->stride;
}

/* The bytes that a sequence needs: in a block of the KV cache, in a block of the ring of windows, and for the
 * recurrent state. */
struct arch_store_sizes {
    uint64_t kv_block, ring_block, recurrent;
    uint32_t window; /* the largest window; 0: none */
};
/* Adds a layer's stores. */
void arch_add_sizes(struct arch_store_sizes *to, const struct arch_stores *s);

/* The properties and buffers of open layers that the engine uses. */
struct arch_view {
    struct arch_store_sizes sizes; /* all open layers */
    /* [n_layers]; borrowed until close. Empty for layers that are not open */
    const struct arch_stores *stores;
    uint64_t scratch_bytes; /* size of its buffers for activations */
    uint32_t max_context;   /* tokens, by the configuration or a default */
    /* f32 [max_chunk][config_width]: the hidden states; then f32 [max_chunk][config_lagged]: the weights of
     * the mix that follows a layer */
    struct exec_buffer x;
    struct exec_buffer experts_in;     /* f32 [max_chunk][hidden]: what experts read; x if it is one stream */
    struct exec_buffer idx;            /* u32 [max_chunk][top_k]: the router's choice */
    struct exec_buffer weights;        /* f32 [max_chunk][top_k]: weights of the chosen experts */
    struct exec_buffer predicted;      /* u32 [EXEC_MAX_INVARIANT][top_k]: result of arch_predict_experts */
    struct exec_buffer router_logits;  /* f32 [max_chunk][n_experts and more]: logits of a layer's router */
    const struct router_shape *router; /* borrowed until close */
    /* f32 [rows][vocab_size], rows: ARCH_HEAD_ROWS or arch_request.max_batched, the larger one; absent
     * without the last layer */
    struct exec_buffer logits;
    struct exec_buffer fed; /* f32 [max_chunk][config_width]: arch_chunk.fed; only a drafter has it */
};

struct arch;

/* Returns a layer's stores for a sequence, with offsets as if there were no other layer. */
struct arch_stores arch_stores_of(const struct config *c, uint32_t layer, enum kv_type type);
/* Returns arch_view.scratch_bytes before anything is open. */
uint64_t arch_scratch_bytes(const struct config *c, struct arch_span layers, const struct exec_caps *caps,
                            enum kv_type kv_type, uint32_t max_chunk, uint32_t max_batched);
/* Returns the bytes of scratch memory that the cpu's operations allocate in addition; 0 on other devices.
 * has_blocks: some matrix has a block format. */
uint64_t arch_host_bytes(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                         bool has_blocks);

/* Loads the weights and prepares the operations. On failure *out is NULL. ERR_UNSUPPORTED, before anything is
 * loaded: a block of the KV cache has 4 GiB or more. */
int arch_open(struct arch **out, const struct arch_request *r, struct arch_view *view, struct moeflux_err *e);
void arch_close(struct arch *a); /* NULL is legal */

/* Each of these records into the open batch. */
void arch_embed(const struct arch *a, const struct arch_chunk *c);
void arch_before_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer);
void arch_choose_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer);
/* Predicts the experts of a later layer: applies the router of `layer` to the current hidden states of a
 * chunk of up to EXEC_MAX_INVARIANT tokens, after before_experts of an earlier layer. Writes
 * view.predicted. */
void arch_predict_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer);
/* Whether the experts of a chunk can be computed in rounds: up and down are called for some
 * experts at a time, the last time without more_rounds. If not, all experts of a token must be resident at
 * once. */
bool arch_takes_rounds(const struct arch *a, const struct arch_chunk *c);
/* Compute the experts of tokens x->from .. x->from + x->n - 1 of the chunk. */
void arch_experts_up(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x);
void arch_experts_down(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x);
/* If routed experts are computed elsewhere (host_experts.h), the second adds their sum, f32 [n][hidden],
 * in memory of any kind, and the layer's output to the residual. If all are, both replace the two
 * functions above: the first computes the shared expert, if there is one. table: any table that the device
 * can read. If a part of them is, the second follows arch_experts_down: the sum is that over the device's
 * experts and the shared one, plus that over the others; each in the router's order. */
void arch_shared_expert(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t table);
void arch_add_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t sum);
/* Computes the logits of the chunk's tokens from .. from + n - 1 into view.logits, which has room for
 * them. */
void arch_head(const struct arch *a, const struct arch_chunk *c, uint32_t from, uint32_t n);

#endif
