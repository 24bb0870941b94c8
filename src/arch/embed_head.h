/* embed_head.h - the parts before and after the layers of every architecture: embedding, last norm, head. */
#ifndef MOEFLUX_ARCH_EMBED_HEAD_H
#define MOEFLUX_ARCH_EMBED_HEAD_H

#include <stdint.h>

#include "arch/arch.h"
#include "arch/drafter_input.h"
#include "ops/embed/embed.h"
#include "exec/exec.h"
#include "ops/linear/linear.h"
#include "ops/softcap.h"

struct config;
struct moeflux_err;
struct loader;
struct scratch;

struct embed_head {
    const struct config *config;
    struct embed embed;
    struct linear head;
    struct softcap softcap;       /* unused without config.softcap */
    uint64_t head_norm;           /* 0: none */
    struct exec_buffer x;         /* f32 [n][hidden]: the hidden states; with streams, a part's input */
    struct exec_buffer logits;    /* arch_view.logits */
    struct drafter_input drafter; /* zero in other models */
    uint64_t f16_scratch;         /* f16 [n][hidden]; 0: no head is computed in float16 */
};

/* Loads the embedding if the layers begin with the first, and the head if they end with the last. */
int embed_head_load(struct embed_head *s, struct loader *l, const struct config *c, struct arch_span layers,
                    struct moeflux_err *e);
/* Allocates its buffers for chunks of up to n tokens, and of n_batched sequences. */
void embed_head_allocate(struct embed_head *s, const struct config *c, struct arch_span layers, uint32_t n,
                         uint32_t n_batched, struct scratch *to);
void embed_head_close(struct embed_head *s, struct exec *x);

/* Writes embeddings to s->x; a drafter's first part of its input. */
void embed_head_embed(const struct embed_head *s, struct exec *x, const struct arch_chunk *c);
/* Adds a drafter's second part to `to`, f32 [n][config_width]. */
void embed_head_add_fed(const struct embed_head *s, struct exec *x, const struct arch_chunk *c, uint64_t to);
/* Computes the logits of tokens t; in float16 if more than EXEC_MAX_INVARIANT sequences are planned for. */
void embed_head_head(const struct embed_head *s, struct exec *x, const struct arch_tokens *t);

#endif
