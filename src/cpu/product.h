/* product.h - products of matrices, stored as in the file, with one vector or with many tokens.
 *
 * y = W x. All instruction sets and any division of the rows give the same bits, because the order of the
 * sums is part of the contract.
 *
 * One vector (gemv; also several at once, batch-invariant). x becomes 24-bit fixed point. Each block of 64
 * columns has a step, the largest |x| of the block / 8323071 but at least FLT_MIN, and x = step * (d0 * 65536
 * + d1 * 256 + d2), rounded, with signed bytes as digits. A block of zeros has step 0; one with a NaN or an
 * infinity has step NaN and makes the output NaN. Lane l of 8 sums code * digit over columns 8 l to 8 l + 7
 * of the block, exactly, for each digit:
 *     f = fma(fma(sum of d0, 256, sum of d1), 256, sum of d2)
 *     acc[b % 2][l] = fma(f, scale of the lane's group * step, acc[b % 2][l])         b: the block
 * A group of 32 columns is 4 lanes of a block, one of 16 columns 2 lanes; one of 64 columns is a block, one
 * of 128 two blocks.
 * acc[1] begins at 0, acc[0] at the biases' part: lane l sums fma(bias, sum of the group's x, .) over groups
 * l, l + 8, .. in order. A block's x are summed in 8 lanes, lane l over columns 8 l to 8 l + 7, then by the
 * tree of vec_sum. A group of 32 takes the tree's part for its lanes, (0 + 2) + (1 + 3); one of 128 is the
 * sum of its two blocks. Missing members of a pair of blocks or of 8 groups count as zeros. y =
 * vec_sum(acc[0] + acc[1]).
 * E2M1 codes (MXFP4, NVFP4, NVFP4_FACTOR) count as twice their value, whole numbers from -12 to 12, and their
 * scales as half of them. They have no biases, so acc[0] begins at 0.
 * The error is that of float32: largest / rms of the outputs about 2e-6.
 * Block formats: codes are signed. Lane l sums over 8 of 16 columns, 4 from cpu_block_lane(l) on and 4 from
 * cpu_block_lane(l) + 8 on: lanes 0, 1, 4 and 5 have a block's first 32 columns. f and acc are as above, with
 * the scales of 16 columns. A third accumulator begins at 0. Lane l of it sums
 *     fma(bias, sum of its 32 columns' x, .)     over the groups of 32 columns with number l mod 8.
 * Q2_K has biases of 16 columns: its lane l sums over the lots of 16 columns with number l mod 8 in the order
 * of the lanes, 4 of a block.
 * y = vec_sum((acc[0] + acc[1]) + the third).
 * Plain matrices and 8-bit floats (MXFP8, FP8, FP8_32), w = value * scale: acc[c / 8 % 2][c % 8] =
 * fma(w, x, .) over the columns c in order; a row's end is filled with zeros.
 *
 * Many tokens (gemm): y = fma(w, x, y) over the columns in order, from 0, with w = code * scale + bias, both
 * rounded (the product is exact with 16-bit scales), or w = value * scale. Largest error / rms with 2,048
 * columns: 3 to 6e-6.
 *
 * Many tokens in fixed point (gemm_fixed; only amx has it, and only if cpu_format_takes_fixed): x as for one
 * vector, f as there, from the sums over all columns of block b
 *     y = fma(bias, sum of the group's x, fma(f, scale * step, y))     over the blocks in order, from 0
 * Largest error / rms with 2,048 columns: about 2e-6.
 *
 * Many tokens in 16 bits (gemm_int16; only avx512 and amx have it, and only for block formats): each unit of
 * 256 columns of a token has a step, the largest |x| of the unit / 32767 but at least FLT_MIN, and v = x /
 * step, rounded. Zeros, NaN and infinities are as above. With the exact sums of code * v over the columns of
 * a scale, f begins at 0 in each unit and adds, for each 32 columns in order,
 *     f = fma(sum, scale, f), once or twice;  then f = fma(bias, sum of v, f) for each bias
 *     y = fma(f, step, y)     over the units in order, from 0
 * Largest error / rms with 2,048 columns, and outliers of ten sigma in each unit: 3 to 4e-4.
 *
 * The choice between gemv and gemm may depend only on the evaluation, its tokens and each expert's, never on
 * the processor: gemv for up to CPU_FEW_TOKENS, where it is faster with every instruction set, else gemm.
 *
 * Nothing here allocates, checks or fails: the caller has checked shapes and provides memory. */
#ifndef MOEFLUX_CPU_PRODUCT_H
#define MOEFLUX_CPU_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether gemm_fixed takes a format: 4 or 8 bits, groups of 64, bf16 scales. */
bool cpu_format_takes_fixed(uint32_t format);
/* Returns whether gemm_int16 takes a format: block formats. */
bool cpu_format_takes_int16(uint32_t format);
/* Returns whether gemv reads a vector's digits, not its floats. */
bool cpu_format_takes_digits(uint32_t format);

/* Returns lane l's first column of a block in block formats: 0, 4, 32, 36, 16, 20, 48, 52. */
static inline uint32_t cpu_block_lane(uint32_t l)
{
    return (l & 1) * 4 + (l >> 1 & 1) * 32 + (l >> 2) * 16;
}

/* A row-major matrix, rows without gaps, any alignment, any format of base/format.h. The cols of quantised
 * numbers are a multiple of 64 and of the group. */
struct cpu_matrix {
    /* codes [rows][cols * bits / 8 bytes], or numbers [rows][cols], or blocks [rows][cols / group] */
    const void *weight;
    /* [rows][cols / group], if the format has them; its factor, if it has one, is in biases */
    const void *scales, *biases;
    uint32_t rows, cols, format;
};

/* A vector as gemv reads it. */
struct cpu_vector {
    const float *x; /* [cols]; for formats without digits */
    uint32_t cols;
    /* The others are for cpu_format_takes_digits, all padded with zeros: steps to a multiple of 8 blocks;
     * sums of groups of 64, 32 and 128 columns to a multiple of 8. */
    float *steps, *sums, *sums_32, *sums_128;
    /* [block][lane]: the excess of sums of E2M1 codes, CODES_SHIFT times the lane's sum of x / step */
    int32_t *shifted;
    /* [pairs of blocks][3 digits][even columns, odd columns][2 blocks][32]: the last index 4 l + i is column
     * 8 l + 2 i (+ 1) of the block. */
    int8_t *digits;
    /* What block formats need; NULL: left out. sums_16 [block][4]: sums of 16 columns, those from
     * cpu_block_lane(2 i) on. lanes_all, lanes_high, lanes_low [block][lane]: sums of x / step, of
     * d0 * 256 + d1, and of d2. column_digits [pairs of blocks][3 digits][first, second 4 columns of the
     * lanes][2 blocks][32]: index 4 l + i of 32 is column cpu_block_lane(l) + i, or the one 8 after it. */
    float *sums_16;
    int32_t *lanes_all, *lanes_high, *lanes_low;
    int8_t *column_digits;
    /* [block][first, second 4 columns of the lanes][d0 * 256 + d1, d2][even columns, odd columns][16]; filled
     * where products need it (cpu/block_codes.h) */
    int16_t *wide_digits;
};
enum { BLOCK_WIDE_DIGITS = 2 * 64 };

enum {
    CPU_BLOCK = 64,      /* columns with one step */
    CPU_FEW_TOKENS = 5,  /* see above */
    CPU_MAX_BATCHED = 8, /* vectors that gemv takes at once */
    CPU_TILE_TOKENS = 6, /* most tokens whose sums gemm keeps in registers */
    /* tokens that use widened weights before the next ones do; their x fit the second-level cache */
    CPU_CHUNK_TOKENS = 384,
    CPU_STRIP_ROWS = 64, /* rows that gemm takes at once: a range should be a multiple of this */
    CPU_PANEL = 8192,    /* floats of gemm's scratch for widened weights */
    CPU_FIXED_TILE = 16, /* most tokens that gemm_fixed takes at once */
    /* tokens that use unpacked codes before the next ones do; a multiple of 4, 8, 12 and 16 */
    CPU_FIXED_TOKENS = 384,
    CPU_FIXED_PANEL = 8, /* blocks of 64 columns whose codes are unpacked at once */
};

/* Returns the bytes for the digits, steps and sums of a vector, a multiple of 64. The memory should be
 * aligned to 64. has_blocks: the vector has what block formats need. */
uint64_t cpu_vector_bytes(uint32_t cols, bool has_blocks);
/* Points v into `memory` of cpu_vector_bytes(cols, has_blocks); the instruction set's `quantise` fills it. */
void cpu_vector_place(struct cpu_vector *v, uint32_t cols, bool has_blocks, void *memory);

/* Fills a placed vector from x [cols], cols a multiple of 64. v keeps x, which must stay valid. */
typedef void cpu_quantise_fn(struct cpu_vector *v, const float *x);

/* Computes y[i * y_stride + r] for rows first <= r < last and n vectors i. 1 <= n <= CPU_MAX_BATCHED. */
struct cpu_gemv_call {
    const struct cpu_matrix *w;
    const struct cpu_vector *x; /* [n] */
    uint32_t n, first, last;
    float *y;
    uint64_t y_stride;
};
typedef void cpu_gemv_fn(const struct cpu_gemv_call *call);

/* Returns the number of gemm's tiles for n tokens: at most CPU_TILE_TOKENS tokens each, as equal as possible.
 * Layout: [tile][column][token of the tile]. */
uint32_t cpu_n_tiles(uint32_t n);
/* Returns the first token of a tile; for tile = cpu_n_tiles(n) returns n. The tile's numbers begin at this
 * times cols. */
uint32_t cpu_tile_begin(uint32_t n, uint32_t tile);

/* Packs tiles first to last - 1 of the n tokens x + pick[i] * x_stride (NULL: i) into packed [n * cols]; for
 * gemm_int16, whose tiles begin in the same places, in a form of its own. */
struct cpu_pack_call {
    const float *x;
    uint64_t x_stride;
    const uint32_t *pick;
    uint32_t n, cols, first, last;
    float *packed;
};
typedef void cpu_pack_fn(const struct cpu_pack_call *call);

/* Computes y[i * y_stride + r] for rows first <= r < last and n tokens i. */
struct cpu_gemm_call {
    const struct cpu_matrix *w;
    const float *packed;
    uint32_t n, first, last;
    float *y;
    uint64_t y_stride;
    void *scratch; /* cpu_gemm_scratch_bytes(cols), aligned to 64; not shared between threads */
};
typedef void cpu_gemm_fn(const struct cpu_gemm_call *call);

/* Returns a multiple of 64. */
uint64_t cpu_gemm_scratch_bytes(uint32_t cols);

/* Tokens in the form that gemm_fixed reads: in tiles as equal as possible, filled up to tile_tokens with
 * zeros. */
struct cpu_fixed {
    uint32_t n, cols, tile_tokens; /* 4, 8, 12 or 16 */
    float *steps, *sums;           /* [tile][block][tile_tokens] */
    int8_t *digits;                /* [tile][block][3 digits][tile_tokens][even columns, odd columns][32] */
};

/* cpu_fixed_bytes returns a multiple of 64; the memory should be aligned to 64. n >= 1, cols a multiple of
 * 64. */
uint64_t cpu_fixed_bytes(uint32_t cols, uint32_t n);
void cpu_fixed_place(struct cpu_fixed *f, uint32_t cols, uint32_t n, void *memory);
uint32_t cpu_fixed_tiles(const struct cpu_fixed *f);

/* Packs tiles first to last - 1 of the filled vectors x[pick[i]] (NULL: x[i]). */
struct cpu_pack_fixed_call {
    const struct cpu_vector *x;
    const uint32_t *pick;
    const struct cpu_fixed *to;
    uint32_t first, last;
};
typedef void cpu_pack_fixed_fn(const struct cpu_pack_fixed_call *call);

/* Computes y[i * y_stride + r] for rows first <= r < last and the tokens i. */
struct cpu_gemm_fixed_call {
    const struct cpu_matrix *w; /* its format is one that cpu_format_takes_fixed */
    const struct cpu_fixed *x;
    uint32_t first, last;
    float *y;
    uint64_t y_stride;
    void *scratch; /* cpu_gemm_fixed_scratch_bytes(cols), aligned to 64; not shared between threads */
};
typedef void cpu_gemm_fixed_fn(const struct cpu_gemm_fixed_call *call);

/* Writes the weights of columns col to col + n - 1 of a row, the same as gemm uses. With quantised numbers
 * col and n are multiples of 64. */
typedef void cpu_widen_fn(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out);

/* Returns a multiple of 64. */
uint64_t cpu_gemm_fixed_scratch_bytes(uint32_t cols);

#endif
