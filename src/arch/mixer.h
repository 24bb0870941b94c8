/* mixer.h - the part of a layer where the tokens of a sequence meet: grouped-query attention, delta net,
 * latent attention.
 *   x += W_out mix(W_in norm(x)) A mixer is one file that fills a struct mixer, and a line in arch.c's table.
 * Which layers have it, and its dims, the configuration says. */
#ifndef MOEFLUX_ARCH_MIXER_H
#define MOEFLUX_ARCH_MIXER_H

#include <stdbool.h>
#include <stdint.h>

#include "arch/arch.h"
#include "exec/exec.h"

struct linear;
struct loader;

enum { MIXER_OWN_BUFFERS = 2 };

/* Memory for activations. The first three are shared by all layers, so that the largest counts. */
struct mixer_needs {
    uint64_t proj, mixed;            /* floats a token: outputs of W_in, inputs of W_out */
    uint64_t widest;                 /* columns of the widest product */
    uint64_t own[MIXER_OWN_BUFFERS]; /* floats, of the mixer alone */
};

/* What the mixers of a model work with. */
struct mixer_room {
    struct exec *exec;
    const struct config *config;
    struct arch_span layers; /* that are open */
    uint32_t max_chunk;
    enum kv_type kv_type;
    bool uses_f16; /* prompts go through float16 */
    uint64_t x;    /* f32 [n][hidden]: the hidden states */
    struct exec_buffer proj, mixed;
    struct exec_buffer f16_scratch; /* inputs of products in float16; absent without them */
    struct exec_buffer own[MIXER_KINDS][MIXER_OWN_BUFFERS];
};

struct mixer_call {
    const struct arch_chunk *chunk;
    const struct arch_state *state; /* of the layer */
    uint64_t norm;                  /* f32 [hidden], before W_in */
    uint32_t layer;
};

struct mixer {
    void (*needs)(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                  struct mixer_needs *out);
    /* A layer's share of a sequence's state, as if it were the first: offsets from 0. */
    struct arch_state (*state)(const struct config *c, enum kv_type type);
    /* `room` is complete and stays. On failure *self is NULL. */
    int (*open)(void **self, const struct mixer_room *room, struct moeflux_err *e);
    void (*close)(void *self); /* NULL is legal */
    int (*load)(void *self, struct loader *l, uint32_t layer, struct moeflux_err *e);
    void (*run)(const void *self, const struct mixer_call *call);
};

extern const struct mixer mixer_delta_net, mixer_gqa, mixer_latent;

/* The tokens of a chunk that are of one sequence. */
struct mixer_part {
    uint32_t from, n; /* tokens from .. from + n - 1 of the chunk */
    uint64_t rope;    /* of these tokens */
    struct arch_sequence of;
};
uint32_t mixer_n_parts(const struct arch_chunk *c);
struct mixer_part mixer_part(const struct mixer_room *r, const struct arch_chunk *c, uint32_t idx);

/* proj = W norm(x), whose rows are `stride` floats apart. */
void mixer_project(const struct mixer_room *r, const struct linear *w, const struct mixer_call *call,
                   uint32_t stride);
/* x += W mixed; is_cast: what is mixed is in f16_scratch, as linear_call.is_cast says */
void mixer_add(const struct mixer_room *r, const struct linear *w, uint32_t n, bool is_cast);

#endif
