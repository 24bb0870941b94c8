/* mixer.h - the part of a layer that mixes the tokens of a sequence: grouped-query attention, delta net or
 * latent attention.
 *   x += W_out mix(W_in norm(x))
 *
 * A mixer is one file that fills a struct mixer, and a line in arch.c's table. The configuration says which
 * layers have it, and its dimensions. */
#ifndef MOEFLUX_ARCH_MIXER_H
#define MOEFLUX_ARCH_MIXER_H

#include <stdbool.h>
#include <stdint.h>

#include "arch/arch.h"
#include "exec/exec.h"

struct linear;
struct loader;

enum { MIXER_OWN_BUFFERS = 2 };

/* Memory for activations. The first three are shared by all layers, so the largest need counts. */
struct mixer_needs {
    uint64_t proj, mixed;            /* floats per token: outputs of W_in, inputs of W_out */
    uint64_t widest;                 /* columns of the widest product */
    uint64_t own[MIXER_OWN_BUFFERS]; /* floats that only this mixer uses */
};

/* The settings and shared buffers of a model's mixers. */
struct mixer_room {
    struct exec *exec;
    const struct config *config;
    struct arch_span layers; /* the open layers */
    uint32_t max_chunk;
    enum kv_type kv_type;
    bool uses_f16; /* prompts are computed with float16 factors */
    uint64_t x;    /* f32 [n][hidden]: the hidden states */
    struct exec_buffer proj, mixed;
    struct exec_buffer f16_scratch; /* inputs of products in float16; absent without uses_f16 */
    struct exec_buffer own[MIXER_KINDS][MIXER_OWN_BUFFERS];
};

struct mixer_call {
    const struct arch_chunk *chunk;
    const struct arch_state *state; /* layout of the layer's state */
    uint64_t norm;                  /* f32 [hidden]: weights of the norm before W_in */
    uint32_t layer;
};

struct mixer {
    void (*needs)(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                  struct mixer_needs *out);
    /* Returns the layout of a layer's state, with offsets from 0. */
    struct arch_state (*state)(const struct config *c, enum kv_type type);
    /* `room` is complete and outlives the mixer. On failure *self is NULL. */
    int (*open)(void **self, const struct mixer_room *room, struct moeflux_err *e);
    void (*close)(void *self); /* NULL is legal */
    int (*load)(void *self, struct loader *l, uint32_t layer, struct moeflux_err *e);
    void (*run)(const void *self, const struct mixer_call *call);
};

extern const struct mixer mixer_delta_net, mixer_gqa, mixer_latent;

/* The tokens of a chunk that belong to one sequence. */
struct mixer_part {
    uint32_t from, n; /* tokens from .. from + n - 1 of the chunk */
    uint64_t rope;    /* the rows of arch_chunk.rope for these tokens */
    struct arch_sequence of;
};
uint32_t mixer_n_parts(const struct arch_chunk *c);
struct mixer_part mixer_part(const struct mixer_room *r, const struct arch_chunk *c, uint32_t idx);

/* Computes proj = W norm(x); the rows of proj are `stride` floats apart. */
void mixer_project(const struct mixer_room *r, const struct linear *w, const struct mixer_call *call,
                   uint32_t stride);
/* Computes x += W mixed. is_cast: the input is in f16_scratch (linear_call.is_cast). */
void mixer_add(const struct mixer_room *r, const struct linear *w, uint32_t n, bool is_cast);

#endif
