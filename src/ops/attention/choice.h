/* choice.h - which positions a token sees if an indexer chooses them (ops/indexer/indexer.h). Positions form
 * blocks of `ratio`. A token sees the unfinished block at its end and up to `budget` finished ones.
 *
 * While there are no more finished blocks than that, a token sees everything, and nothing is chosen. Other
 * tokens have a list: the finished blocks by increasing index, then the unfinished one. So the number of
 * positions follows from the token's own position. */
#ifndef MOEFLUX_OPS_ATTENTION_CHOICE_H
#define MOEFLUX_OPS_ATTENTION_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct kv_choice {
    uint32_t ratio;  /* positions of a block; 0: every token sees everything */
    uint32_t budget; /* most finished blocks that a token sees */
};

/* Returns the first position whose token does not see everything. */
static inline uint32_t kv_choice_from(const struct kv_choice *c)
{
    uint64_t from = ((uint64_t)c->budget + 1) * c->ratio - 1;
    return c->ratio == 0 || from > UINT32_MAX ? UINT32_MAX : (uint32_t)from;
}

/* The rest is for tokens at such positions. */

/* Returns the number of blocks in a token's list. */
static inline uint32_t kv_choice_n_blocks(const struct kv_choice *c, uint32_t pos)
{
    return c->budget + ((pos + 1) % c->ratio ? 1 : 0);
}

/* Returns the number of positions that a token sees. */
static inline uint32_t kv_choice_n_seen(const struct kv_choice *c, uint32_t pos)
{
    return c->budget * c->ratio + (pos + 1) % c->ratio;
}

#endif
