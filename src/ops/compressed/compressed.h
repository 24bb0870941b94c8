/* compressed.h - attention over rows that are key and value at once (DeepSeek-V4, V4.1). A token sees the
 * rows of a window of positions, and rows to which blocks of `ratio` positions were compressed. Three
 * operations for a chunk of n tokens from position pos on; rope turns the last rope_dim channels of a vector
 * in pairs (2i, 2i + 1):
 *   turn:    y_h = rope(x_h), or rope(rms(x_h)), or rope(rms(x_h) * norm): queries, rows of the window, or
 *            compressed rows of the blocks that end in the chunk
 *   pool:    each block b of `ratio` positions that ends in the chunk becomes a row,
 *              row_b = rope(rms(sum_j w_j * kv_j) * norm), turned as the block's first position is,
 *              w = softmax_j(gate_j + bias_j) for each channel by itself
 *            j runs over the block's positions, bias_j is that of the position in its block. If blocks
 *            overlap, a position has two vectors kv and two of gates; j runs over the first ones of the block
 *            before, then over the second ones of the block. The first block has no block before it.
 *   attend:  o_h = rope^-1(sum_r softmax_r(scale q_h . row_r) row_r), turned back as the token's position is.
 *            r runs over the positions of the window, p > pos + t - window, and over the compressed rows of
 *            the finished blocks, (b + 1) ratio <= pos + t + 1: all, or those of an indexer's list. The
 *            softmax runs over one more score, sink_h, whose value is zero.
 *
 * Source: transformers' modeling_deepseek_v4.py.
 *
 * Rows of the window lie in the ring of windows, [positions][dim]. Compressed rows lie in blocks of the
 * cache: a cache block holds, at layer_off, the rows of the blocks that begin in it, [][dim].
 * State of pool, f32: for each of the sums in progress top, total, sum [3][dim], then the cosines and sines
 * of the block's first position [rope_dim]. The first sum is the block's, the second (overlapping blocks)
 * that of its first vectors, which the next block begins with. A total of zero
 * means that the sum is empty. */
#ifndef MOEFLUX_OPS_COMPRESSED_COMPRESSED_H
#define MOEFLUX_OPS_COMPRESSED_COMPRESSED_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "ops/attention/kv_cache.h"

struct compressed_shape {
    uint32_t dim, rope_dim;
    uint32_t ratio; /* positions of a compressed row, a power of two up to those of a cache block; 0: none */
    bool overlaps;
    float eps;
    enum kv_type kv_type;
    uint32_t n_heads; /* 0: attend is not used, nor what follows */
    uint32_t window;  /* positions that a token sees, with its own; > 0 */
    uint32_t budget;  /* most compressed rows that a token sees; 0: all */
    float scale;
};

struct compressed {
    struct compressed_shape shape;
    struct { /* vulkan */
        struct kernel turn, pool, attend;
        uint32_t heads; /* query heads of a workgroup of attend */
    } gpu;
};

struct compressed_turn_call {
    uint64_t x;    /* f32 [n][x_stride]: n_heads vectors [dim] */
    uint64_t norm; /* f32 [dim]; 0: 1; without `norms` unused */
    uint64_t rope; /* f32 [n][rope_dim / 2][2]: cos, sin */
    uint64_t y;    /* f32 [n][y_stride], may be x; 0: rows of the window or compressed rows */
    uint64_t ring; /* u64 table of the ring's blocks; rows of the window only */
    /* u64 table of the cache's blocks; compressed rows only, of the tokens that end a block. 0: the
     * window's */
    uint64_t blocks;
    uint32_t n, pos, n_heads, x_stride, y_stride;
    uint32_t row_off; /* bytes from a block's start to this layer's rows */
    bool norms;       /* divides by the rms */
};

struct compressed_pool_call {
    uint64_t kv, gates;           /* f32 [n][stride]: 1 or, overlapping, 2 vectors [dim] */
    uint64_t bias;                /* f32 [ratio][1 or 2][dim]; 0: none */
    uint64_t norm;                /* f32 [dim] */
    uint64_t rope;                /* f32 [n][rope_dim / 2][2] */
    uint64_t state_in, state_out; /* f32 [compressed_state], zeros at position 0; two buffers */
    uint64_t blocks;              /* u64 table of the cache's blocks */
    /* f32 [n][dim] and [n][rope_dim]: at the tokens that end a block its row before it is turned, and the
     * cosines and sines of its first position. 0: not written */
    uint64_t plain, angles;
    uint32_t n, pos, stride, layer_off;
};

struct compressed_attend_call {
    uint64_t q;            /* f32 [n][q_stride]: n_heads x dim, turned */
    uint64_t sinks;        /* f32 [n_heads] */
    uint64_t rope;         /* f32 [n][rope_dim / 2][2] */
    uint64_t ring, blocks; /* u64 tables of the blocks of the ring and of the cache */
    uint64_t chosen; /* u32 [n][budget + 1]: rows; read for tokens with more finished blocks than budget */
    uint64_t dst;    /* f32 [n][n_heads * dim] */
    uint32_t n, pos, q_stride, ring_off, layer_off;
};

/* Opens the operations. ERR_UNSUPPORTED: dim is not a multiple of 4 or more than COMPRESSED_MOST, rope_dim is
 * odd or more than dim, or the ratio is not a power of two. */
enum { COMPRESSED_MOST = 1024 };
int compressed_open(struct compressed *op, struct exec *x, const struct compressed_shape *shape,
                    struct moeflux_err *e);
/* Returns the floats of a state. */
uint64_t compressed_state(const struct compressed_shape *s);
/* A token's results do not depend on the other tokens of the calls. Buffers of floats are aligned to 16
 * bytes, strides are multiples of 4. */
void compressed_turn_run(const struct compressed *op, struct exec *x,
                         const struct compressed_turn_call *call);
void compressed_pool_run(const struct compressed *op, struct exec *x,
                         const struct compressed_pool_call *call);
void compressed_attend_run(const struct compressed *op, struct exec *x,
                           const struct compressed_attend_call *call);

/* Returns the floats from one vector's kv or gates of a token to the end: 1 or 2 vectors. */
static inline uint32_t compressed_width(const struct compressed_shape *s)
{
    return s->overlaps ? 2 * s->dim : s->dim;
}

/* Returns the number of compressed rows that a token sees. */
static inline uint32_t compressed_n_far(const struct compressed_shape *s, uint32_t pos)
{
    uint32_t n = s->ratio ? (pos + 1) / s->ratio : 0;
    return s->budget && n > s->budget ? s->budget : n;
}

/* What the host implementations share. */

/* Returns the row of the window at a position. */
void *compressed_near_at(const struct compressed_shape *s, uint64_t ring, uint32_t off, uint32_t pos);
/* Returns block b's compressed row. */
void *compressed_far_at(const struct compressed_shape *s, uint64_t blocks, uint32_t off, uint32_t b);
/* Returns the cache's row that a turned vector of token t goes to; NULL: it goes to y, or nowhere. */
void *compressed_turned_at(const struct compressed_shape *s, const struct compressed_turn_call *c,
                           uint32_t t);
/* Returns the r-th row that token t sees: those of the window, of which there are n_near, come first. */
void *compressed_seen_at(const struct compressed_shape *s, const struct compressed_attend_call *c, uint32_t t,
                         uint32_t n_near, uint32_t r);
/* Returns the rows of the window that a token sees. */
static inline uint32_t compressed_n_near(const struct compressed_shape *s, uint32_t pos)
{
    return pos < s->window ? pos + 1 : s->window;
}

/* A block of positions and the part of it that the chunk has, of positions before and after it none. */
struct compressed_block {
    uint32_t from, to; /* the chunk's tokens in the block */
    uint32_t before;   /* overlapping: the chunk's tokens before.. from - 1 are in the block before */
    bool resumes;      /* the sum begins with the state's first */
    bool follows;      /* else it begins with the state's second, */
    bool is_whole;     /* the block ends in the chunk */
    bool is_last;      /* the state after the chunk comes from it; its second sum resumes as the first does */
    uint32_t idx;
};
/* Returns the i-th block that the chunk has tokens of. */
struct compressed_block compressed_block_at(const struct compressed_shape *s,
                                            const struct compressed_pool_call *c, uint32_t i);
/* Returns the number of these blocks. */
uint32_t compressed_n_blocks(const struct compressed_shape *s, const struct compressed_pool_call *c);

/* The implementations. */
int compressed_vulkan_open(struct compressed *op, struct exec *x, struct moeflux_err *e);
void compressed_turn_vulkan(const void *self, const void *what, struct exec *x);
void compressed_pool_vulkan(const void *self, const void *what, struct exec *x);
void compressed_attend_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn compressed_turn_cpu, compressed_turn_ref, compressed_pool_cpu, compressed_pool_ref,
    compressed_attend_cpu, compressed_attend_ref;

#endif
