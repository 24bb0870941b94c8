/* ends.h - what stands before and behind the layers of every architecture: embedding, last norm, head. */
#ifndef MOEFLUX_ARCH_ENDS_H
#define MOEFLUX_ARCH_ENDS_H

#include <stdint.h>

#include "ops/embed.h"
#include "exec/exec.h"
#include "ops/linear.h"

struct arch_chunk;
struct config;
struct err;
struct loader;
struct scratch;

struct ends {
    const struct config *config;
    struct embed embed;
    struct linear head;
    uint64_t head_norm;
    struct exec_buffer x;      /* f32 [n][hidden]: the hidden states */
    struct exec_buffer logits; /* f32 [ARCH_HEAD_ROWS][vocab_size] */
};

int ends_load(struct ends *s, struct loader *l, const struct config *c, struct err *e);
/* Its buffers for chunks of up to n tokens. */
void ends_allocate(struct ends *s, const struct config *c, uint32_t n, struct scratch *to);
void ends_close(struct ends *s, struct exec *x);

void ends_embed(const struct ends *s, struct exec *x, const struct arch_chunk *c);
void ends_head(const struct ends *s, struct exec *x, uint32_t from, uint32_t n);

#endif
