/* part.h - a part of a layer that is a single list of operations: attention, delta net, latent attention,
 * n-gram rows or a dense feed-forward part.
 *   x += part(norm(x))
 *
 * A part is one file that fills a struct part, a line in arch.c's table, its description (model/config.h)
 * and its tensors (model/part_tensors.h). Each description that a layer has is opened once. Experts are
 * not a part in this sense: the host may act between their two halves (moe.h). */
#ifndef MOEFLUX_ARCH_PART_H
#define MOEFLUX_ARCH_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "arch/arch.h"
#include "exec/exec.h"
#include "model/part_tensors.h"

struct linear;
struct loader;

enum { PART_OWN_BUFFERS = 9 };

/* Memory for activations. The first three are shared by all layers, so the largest need counts. */
struct part_needs {
    uint64_t proj, mixed;           /* floats per token: outputs of W_in, inputs of W_out */
    uint64_t widest;                /* columns of the widest product */
    uint64_t own[PART_OWN_BUFFERS]; /* floats that only parts of this kind use */
};

/* The settings and shared buffers of a model's parts. */
struct part_room {
    struct exec *exec;
    const struct config *config;
    struct arch_span layers;         /* the open layers */
    uint32_t max_chunk, max_batched; /* arch_request's */
    enum kv_type kv_type;
    bool uses_f16;    /* prompts are computed with float16 factors */
    uint64_t x;       /* f32 [n][hidden]: the hidden states; with streams, a part's input */
    uint64_t streams; /* f32 [n][n_streams][hidden]; 0: the residual is plain */
    struct exec_buffer proj, mixed;
    struct exec_buffer f16_scratch; /* inputs of products in float16; absent without uses_f16 */
    struct exec_buffer own[PART_KINDS][PART_OWN_BUFFERS];
};

/* A block of a layer, and the tokens to compute. in, out: f32 [n][hidden]; out += part(norm(in)), or without
 * `adds`: out = part(norm(in)). */
struct part_call {
    const struct arch_chunk *chunk;
    const struct arch_store *stores; /* the part's, in the order in which it adds them */
    const struct arch_store *rows;   /* the mixer's stores of layer config_rows_of; NULL: there is none */
    uint64_t norm;                   /* f32 [hidden]: weights of the norm before the part; 0: none */
    uint64_t in, out;
    bool adds;
    uint32_t layer;
};

/* The most tokens, and the most sequences, of a chunk; the type of the KV cache, which decides how attention
 * computes. */
struct part_most {
    uint32_t chunk, batched;
    enum kv_type kv_type;
};

struct part {
    void (*needs)(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                  const struct part_most *most, struct part_needs *out);
    /* Adds the stores of a layer, with offsets from 0. NULL: the part has none. */
    void (*stores)(const struct part_config *p, enum kv_type type, struct arch_stores *out);
    /* `room` is complete; it and `p` outlive the part. On failure *self is NULL. */
    int (*open)(void **self, const struct part_room *room, const struct part_config *p,
                struct moeflux_err *e);
    void (*close)(void *self); /* NULL is legal */
    /* Loads a layer's tensors t (part_tensors). */
    int (*load)(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                struct moeflux_err *e);
    void (*run)(const void *self, const struct part_call *call);
};

extern const struct part part_delta_net, part_gqa, part_latent, part_compressed, part_dense, part_ngrams,
    part_mamba;

/* The tokens of a chunk that belong to one sequence. */
struct part_tokens {
    uint32_t from, n; /* tokens from .. from + n - 1 of the chunk */
    uint64_t rope;    /* the rows of arch_chunk.rope for these tokens */
    struct arch_sequence of;
};
/* Returns the activation of a feed-forward part with this clamp (0: none), as ops/gating.h has it. */
float part_gating(const struct config *c, float clamp);

/* Returns how many sequences need scratch memory at once. */
uint32_t part_n_concurrent(const struct part_most *most);
/* Returns how many sequences a chunk has. */
uint32_t part_n_sequences(const struct arch_chunk *c);
/* Returns the tokens of sequence idx. rope: index of the table of angles. */
struct part_tokens part_tokens_of(const struct part_room *r, const struct arch_chunk *c, uint32_t rope,
                                  uint32_t idx);

/* Sequences whose operations may run concurrently (ATTENTION_CONCURRENT, DELTA_CONCURRENT): each has
 * scratch memory of its own. Those of a larger chunk go in groups of so many. */
enum { PART_GROUP = 128 };
/* Returns the size of the group of sequences that begins with `first`, 0: there are no more. *are_single:
 * each has one token, and they may run concurrently. */
uint32_t part_group_from(const struct arch_chunk *c, uint32_t first, bool *are_single);
/* Does the same, and fills parts [PART_GROUP] with their tokens. If a state is kept inside the chunk, the
 * tokens before it and those after it are two parts. */
uint32_t part_tokens_with_state(const struct part_room *r, const struct arch_chunk *c, uint32_t rope,
                                uint32_t first, struct part_tokens *parts, bool *are_single);

/* Computes proj = W norm(in); the rows of proj are `stride` floats apart. */
void part_project(const struct part_room *r, const struct linear *w, const struct part_call *call,
                  uint32_t stride);
/* Computes out += W mixed, or without `adds` out = W mixed. is_cast: see linear_call, with f16_scratch. */
void part_add(const struct part_room *r, const struct linear *w, const struct part_call *call, bool is_cast);

#endif
