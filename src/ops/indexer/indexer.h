/* indexer.h - chooses the positions that attention reads. Two operations for a chunk of tokens, for each
 * token t at position p with index queries q_h and one index key k:
 *   prepare:  q_h = rope(rms(q_h) * q_norm)
 *             for each block of `ratio` positions that ends in the chunk:
 *             row = rope(rms(mean of the block's k) * k_norm), turned as the block's first position is
 *   or, with a layer norm, where m is a block's mean and mean(m) the mean of its channels:
 *             q_h = rope(q_h),  row = rope(rms(m - mean(m)) * k_norm + k_bias)
 *   or, pooled (transformers' Glm5NextTextIndexer), with gates g for the channels c of each key:
 *             q_h = q_h,  key_j = rms(k_j - mean(k_j)) * k_norm + k_bias for each position j of the block
 *             row_c = sum_j softmax_j(g_jc + pool_bias_jc) key_jc
 *   choose:   score_b = sum_h w_h max(q_h . row_b, 0) over the finished blocks b, (b + 1) ratio <= p + 1
 *             the list of choice.h: the `budget` blocks with the largest scores; the lower index wins a tie
 * Without weights w_h = 1. Positive factors of all scores do not matter and are left out.
 *   With candidates (DeepSeek-V4.1) `group` consecutive blocks are a group. An indexer that finds them lists
 *   the `groups` groups with the largest scores of a block, always with the last group, as `chosen` lists
 *   blocks. An indexer that takes them gives blocks of other groups the score -infinity. Tokens with no more
 *   groups than that have no list.
 *   or, with lists of key heads (choice.heads = n_heads): rows are of single positions, and each query head h
 *   ranks the blocks before the token's own, (b + 1) ratio <= p, for the list of key head h:
 *             row_p = rope(rms(k_p) * k_norm),  score_hb = max of q_h . row_p over the block's positions
 *
 * RoPE turns the pairs (i, i + rotary_dim / 2), or (2i, 2i + 1) (interleaved), of the first rotary_dim
 * channels. Rows are stored in blocks of the cache: a cache block holds, at layer_off, the rows of the index
 * blocks that begin in it, [][dim].
 * Window, unless rows are of single positions: f32 [ratio - 1][indexer_width], the last ratio - 1 tokens'
 * keys as they are projected, each with its cosines and sines, or its gates, oldest first. It is read from
 * one buffer and written to another. */
#ifndef MOEFLUX_OPS_INDEXER_INDEXER_H
#define MOEFLUX_OPS_INDEXER_INDEXER_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/attention/choice.h"
#include "ops/attention/kv_cache.h"

struct indexer_shape {
    uint32_t n_heads, dim, rotary_dim;
    /* ratio is at most 1 << KV_BLOCK_SHIFT, a power of two with lists of heads; budget at least 1 */
    struct kv_choice choice;
    bool weighted;   /* calls have weights; never with lists of heads */
    bool layer_norm; /* the key has a layer norm, queries have no norm */
    bool interleaved;
    float eps;
    enum kv_type kv_type; /* type of the rows' numbers: f32 or f16 */
    bool pooled;          /* needs layer_norm and rotary_dim 0 */
    /* Candidates; never with lists of heads. groups 0: none. groups * group is at least budget + group */
    uint32_t groups, group;
    bool finds; /* it finds candidates, else it takes them */
};

struct indexer {
    struct indexer_shape shape;
    struct { /* vulkan */
        struct kernel prepare, choose;
        struct kernel one, some;     /* scores of one token, of tiles of some_tokens */
        struct kernel groups;        /* scores of groups, or without `finds` leaves out the other groups */
        uint32_t some_tokens, lanes; /* lanes: of `groups` */
    } gpu;
};

struct indexer_call {
    uint64_t queries;               /* f32 [n][stride]: n_heads queries [dim] */
    uint64_t keys;                  /* f32 [n][key_stride]: the key [dim]; pooled: then its gates [dim] */
    uint64_t q_norm, k_norm;        /* f32 [dim]; q_norm is unused with a layer norm */
    uint64_t k_bias;                /* f32 [dim]; with a layer norm only */
    uint64_t pool_bias;             /* f32 [ratio][dim]; pooled only */
    uint64_t rope;                  /* f32 [n][rotary_dim / 2][2]: cos, sin */
    uint64_t window_in, window_out; /* unused if rows are of single positions */
    uint64_t blocks;                /* u64 table of the cache's blocks */
    uint64_t q;                     /* scratch: f32 [n][n_heads][dim], 16-byte aligned */
    uint64_t weights; /* f32 [n][weight_stride]: n_heads, then unused; shapes with weights only */
    uint64_t scores;  /* scratch: indexer_scratch floats */
    /* u32 [n][kv_choice_stride]: the lists. Rows of tokens that see everything are not written. */
    uint64_t chosen;
    /* u32 [n][groups + 1]; written or read. Rows of tokens with few groups are neither */
    uint64_t candidates;
    uint32_t n, pos, stride, key_stride, layer_off, weight_stride;
};

/* Opens the operation. ERR_UNSUPPORTED: dim is not a multiple of 4, rotary_dim is odd or more than dim, the
 * ratio or the budget is not one that lists hold, rows are q8_0, or the device cannot have so many heads. */
int indexer_open(struct indexer *op, struct exec *x, const struct indexer_shape *shape,
                 struct moeflux_err *e);
/* Returns the bytes of the rows in a block of the cache. */
uint32_t indexer_block_bytes(const struct indexer_shape *s);
/* Returns the numbers of a token in the window. */
static inline uint32_t indexer_width(const struct indexer_shape *s)
{
    return s->dim + (s->pooled ? s->dim : s->rotary_dim);
}
/* Returns the floats of a window, and of scratch for chunks of up to n tokens that see up to n_pos positions;
 * 0 if none of them needs a choice. */
uint64_t indexer_window(const struct indexer_shape *s);
uint64_t indexer_scratch(const struct indexer_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t n_pos);
/* Returns the positions of a row. */
static inline uint32_t indexer_row_ratio(const struct indexer_shape *s)
{
    return s->choice.heads ? 1 : s->choice.ratio;
}

/* Runs both operations for a chunk, or for n_calls chunks of different sequences. Without candidates, single
 * tokens of these run concurrently if the device can do that. A token's list does not depend on the other
 * tokens. */
void indexer_run(const struct indexer *op, struct exec *x, const struct indexer_call *calls,
                 uint32_t n_calls);
/* Runs one of them. */
void indexer_prepare_run(const struct indexer *op, struct exec *x, const struct indexer_call *call);
void indexer_choose_run(const struct indexer *op, struct exec *x, const struct indexer_call *call);

/* Returns the address of row b on the host. */
void *indexer_row(const struct indexer_shape *s, const struct indexer_call *c, uint32_t b);
/* Returns how many of the call's first tokens see everything. */
uint32_t indexer_n_whole(const struct indexer_shape *s, const struct indexer_call *c);

/* Returns the groups of the blocks that a token ranks; 0: all are candidates, or there are none. */
static inline uint32_t indexer_n_groups(const struct indexer_shape *s, uint32_t pos)
{
    uint32_t n = s->groups ? (kv_choice_n_ranked(&s->choice, pos) + s->group - 1) / s->group : 0;
    return n > s->groups ? n : 0;
}

/* The implementations. */
int indexer_vulkan_open(struct indexer *op, struct exec *x, struct moeflux_err *e);
void indexer_prepare_vulkan(const void *self, const void *what, struct exec *x);
void indexer_choose_vulkan(const void *self, const void *what, struct exec *x);
void indexer_vulkan_concurrent(const struct indexer *op, struct exec *x, const struct indexer_call *calls,
                               uint32_t n);
uint64_t indexer_vulkan_scratch(const struct indexer_shape *s, uint32_t n, uint32_t n_pos);
op_host_fn indexer_prepare_cpu, indexer_prepare_ref, indexer_choose_cpu, indexer_choose_ref;

#endif
