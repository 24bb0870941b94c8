/* choice.h - which positions a token sees if an indexer chooses them (ops/indexer/indexer.h). Positions form
 * blocks of `ratio`. A token sees the unfinished block at its end and up to `budget` finished ones.
 *
 * While there are no more finished blocks than that, a token sees everything, and nothing is chosen. Other
 * tokens have a list: the finished blocks by increasing index, then the unfinished one. So the number of
 * positions follows from the token's own position.
 *
 * With a list for each key head, the last block of a list is the one of the token's position, finished or
 * not; the budget is for the blocks before it. */
#ifndef MOEFLUX_OPS_ATTENTION_CHOICE_H
#define MOEFLUX_OPS_ATTENTION_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct kv_choice {
    uint32_t ratio;  /* positions of a block; 0: every token sees everything */
    uint32_t budget; /* most finished blocks that a token sees */
    uint32_t heads;  /* key heads with lists of their own; 0: one list for all heads */
};

/* Returns the blocks that are ranked for a token: the finished ones, with lists of heads those before its
 * own. */
static inline uint32_t kv_choice_n_ranked(const struct kv_choice *c, uint32_t pos)
{
    return (pos + (c->heads == 0)) / c->ratio;
}

/* Returns the lists of a token, and the numbers of all of them: those of a list lie together. */
static inline uint32_t kv_choice_n_lists(const struct kv_choice *c)
{
    return c->heads ? c->heads : 1;
}

static inline uint32_t kv_choice_stride(const struct kv_choice *c)
{
    return (c->budget + 1) * kv_choice_n_lists(c);
}

/* Returns the first position whose token does not see everything. */
static inline uint32_t kv_choice_from(const struct kv_choice *c)
{
    uint64_t from = ((uint64_t)c->budget + 1) * c->ratio - (c->heads == 0);
    return c->ratio == 0 || from > UINT32_MAX ? UINT32_MAX : (uint32_t)from;
}

/* The rest is for tokens at such positions. */

/* Returns the number of positions that a token sees. */
static inline uint32_t kv_choice_n_seen(const struct kv_choice *c, uint32_t pos)
{
    return c->budget * c->ratio + (c->heads ? pos % c->ratio + 1 : (pos + 1) % c->ratio);
}

#endif
