/* args.h - the parameter block of every kernel. C and GLSL read the same definition, so that they cannot
 * drift apart.
 *
 * ADDR is a device address. Addresses come first, then 4-byte scalars. Blocks are passed as push constants:
 * at most 128 bytes. Activations are float32 and row-major unless a comment says otherwise; a stride counts
 * elements. `n` counts the tokens of the chunk; the first one has position `pos`. "out" marks what a kernel
 * writes. */
#ifndef MOEFLUX_ARGS_H
#define MOEFLUX_ARGS_H

#ifdef VULKAN
#define ADDR uvec2
#define U32  uint
#define F32  float
#define ARGS_SIZE(t, n)
#else
#include <stdint.h>
#define ADDR            uint64_t
#define U32             uint32_t
#define F32             float
#define ARGS_SIZE(t, n) _Static_assert(sizeof(struct t) == (n), #t)
#endif

/* How the numbers of a matrix are stored. Each row of the table is one kind of number:
 *   ROW(name, number, bits, group, scheme, scale, x)
 * bits: bits of a code or a number; group: columns that share a scale; scale: its type; x: what the user of
 * the table needs in each row. A row's codes are a little-endian stream of bits, so 8 codes are `bits` bytes.
 * Scales and biases are [rows][columns / group].
 *   AFFINE      value = code * scale + bias
 *   E2M1, E4M3  value = code * scale, the code being a float of 4 or 8 bits: sign, exponent, mantissa
 *   PLAIN       the numbers themselves
 * With scales of type E4M3_FACTOR, the scale is an E4M3 number times the matrix's factor, rounded to float32.
 * The factor, one float32 of the whole matrix, takes the place of the biases.
 * Block formats (FORMAT_TABLE_BLOCKS) are not in this table.
 * A format's number is that of its kind. An affine format adds FORMAT_GROUP_x if its groups are not of 64
 * columns, and FORMAT_SCALE_x if its scales and biases are not bf16. src/base/format.h has C's view of a
 * format, kernels/lib/dequant.glsl that of the shaders. */
#define FORMAT_TABLE(ROW, x) FORMAT_TABLE_BASIC(ROW, x) FORMAT_TABLE_EXTENDED(ROW, x)
/* The formats of most models. A kernel takes these four in one dispatch. */
#define FORMAT_TABLE_BASIC(ROW, x)                                                                           \
    ROW(Q4, 0, 4, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q8, 1, 8, 64, AFFINE, BF16, x)                                                                       \
    ROW(BF16, 2, 16, 1, PLAIN, NONE, x)                                                                      \
    ROW(F32, 3, 32, 1, PLAIN, NONE, x)
#define FORMAT_TABLE_EXTENDED(ROW, x)                                                                        \
    ROW(Q2, 4, 2, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q3, 5, 3, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q5, 6, 5, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q6, 7, 6, 64, AFFINE, BF16, x)                                                                       \
    ROW(MXFP4, 8, 4, 32, E2M1, E8M0, x)                                                                      \
    ROW(MXFP8, 9, 8, 32, E4M3, E8M0, x)                                                                      \
    ROW(NVFP4, 10, 4, 16, E2M1, E4M3, x)                                                                     \
    ROW(F16, 11, 16, 1, PLAIN, NONE, x)                                                                      \
    ROW(FP8, 12, 8, 128, E4M3, F32, x)                                                                       \
    ROW(FP8_32, 13, 8, 32, E4M3, F32, x)                                                                     \
    ROW(NVFP4_FACTOR, 14, 4, 16, E2M1, E4M3_FACTOR, x)
/* Block formats, the types of ggml that GGUF files have: BLOCK_ROW(name, number, columns, bytes, x), of a
 * block. A row of a matrix is blocks, each with its codes, scales and offsets; there are no planes of scales
 * and biases. Their values are those of ggml's formulas in float32 (src/base/format_blocks.c). In C and GLSL
 * their names begin with FORMAT_G_. Kernels get the address of all code books (src/exec/code_books.h) in
 * place of scales: in `scales`; the first two words of linear_decode_token_args.scales; gate_s and gate_b;
 * down_s and down_b. */
#define FORMAT_TABLE_BLOCKS(BLOCK_ROW, x)                                                                    \
    BLOCK_ROW(Q4_0, 0xb0, 32, 18, x)                                                                         \
    BLOCK_ROW(Q4_1, 0xb1, 32, 20, x)                                                                         \
    BLOCK_ROW(Q5_0, 0xb2, 32, 22, x)                                                                         \
    BLOCK_ROW(Q5_1, 0xb3, 32, 24, x)                                                                         \
    BLOCK_ROW(Q8_0, 0xb4, 32, 34, x)                                                                         \
    BLOCK_ROW(Q2_K, 0xb5, 256, 84, x)                                                                        \
    BLOCK_ROW(Q3_K, 0xb6, 256, 110, x)                                                                       \
    BLOCK_ROW(Q4_K, 0xb7, 256, 144, x)                                                                       \
    BLOCK_ROW(Q5_K, 0xb8, 256, 176, x)                                                                       \
    BLOCK_ROW(Q6_K, 0xb9, 256, 210, x)                                                                       \
    BLOCK_ROW(IQ1_S, 0xba, 256, 50, x)                                                                       \
    BLOCK_ROW(IQ1_M, 0xbb, 256, 56, x)                                                                       \
    BLOCK_ROW(IQ2_XXS, 0xbc, 256, 66, x)                                                                     \
    BLOCK_ROW(IQ2_XS, 0xbd, 256, 74, x)                                                                      \
    BLOCK_ROW(IQ2_S, 0xbe, 256, 82, x)                                                                       \
    BLOCK_ROW(IQ3_XXS, 0xbf, 256, 98, x)                                                                     \
    BLOCK_ROW(IQ3_S, 0xc0, 256, 110, x)                                                                      \
    BLOCK_ROW(IQ4_NL, 0xc1, 32, 18, x)                                                                       \
    BLOCK_ROW(IQ4_XS, 0xc2, 256, 136, x)                                                                     \
    BLOCK_ROW(TQ1_0, 0xc3, 256, 54, x)                                                                       \
    BLOCK_ROW(TQ2_0, 0xc4, 256, 66, x)                                                                       \
    BLOCK_ROW(MXFP4, 0xc5, 32, 17, x)                                                                        \
    BLOCK_ROW(NVFP4, 0xc6, 64, 36, x)
/* The constant_id of the number 16, the rows of a product's second factor, which VK_NV_cooperative_matrix
 * cannot name otherwise (lib/matrices.glsl, src/vulkan/khr_kernel.h). Higher than all other constant_ids. */
#define MATRIX_SECOND_SPEC 31
#define SCHEME_PLAIN       0
#define SCHEME_AFFINE      1
#define SCHEME_E2M1        2
#define SCHEME_E4M3        3
#define SCHEME_BLOCK       4
/* The type of scales and biases. E8M0: 2^(byte - 127). E4M3_FACTOR: see above. */
#define SCALE_NONE         0
#define SCALE_BF16         1
#define SCALE_F16          2
#define SCALE_F32          3
#define SCALE_E8M0         4
#define SCALE_E4M3         5
#define SCALE_E4M3_FACTOR  6
#define FORMAT_KIND_MASK   15
#define FORMAT_GROUP_SHIFT 4 /* two bits */
#define FORMAT_GROUP_64    0x00
#define FORMAT_GROUP_32    0x10
#define FORMAT_GROUP_128   0x20
#define FORMAT_SCALE_SHIFT 6 /* two bits */
#define FORMAT_SCALE_BF16  0x00
#define FORMAT_SCALE_F16   0x40
#define FORMAT_SCALE_F32   0x80
#define FORMAT_BLOCK_FIRST 0xb0 /* numbers of block formats are consecutive, those of others below */
#define FORMAT_END         0xc7 /* numbers are below this */
#define FORMAT_NONE        0xff /* the number of no format */
/* A set of formats, 64 bits: bit f for a basic format f. An extended format has a bit for its kind, from bit
 * FORMAT_SET_EXTENDED on; if it is affine, also one of 3 bits for its group and one of 3 for its scales. A
 * block format has one bit, from bit FORMAT_SET_BLOCKS on. */
#define FORMAT_SET_EXTENDED 4
#define FORMAT_SET_GROUPS   20
#define FORMAT_SET_SCALES   23
#define FORMAT_SET_BLOCKS   26
/* The constant FORMATS of kernels that take matrices of one extended format, or of one block format. All
 * other kernels' FORMATS is a set of basic formats, which is always less than such a word. */
#define FORMAT_WORD(bits, scheme, group_shift, scale)                                                        \
    ((bits) | (scheme) << 5 | (group_shift) << 8 | (scale) << 11)
#define FORMAT_WORD_BITS(word)        ((word)&31u)
#define FORMAT_WORD_SCHEME(word)      ((word) >> 5 & 7u)
#define FORMAT_WORD_GROUP_SHIFT(word) ((word) >> 8 & 7u)
#define FORMAT_WORD_SCALE(word)       ((word) >> 11 & 7u)
#define FORMAT_WORD_BLOCK(number)     (SCHEME_BLOCK << 5 | (number) << 8)
#define FORMAT_WORD_NUMBER(word)      ((word) >> 8) /* a block format's number */
#ifdef VULKAN
#define FORMAT_NUMBER(name, number, bits, group, scheme, scale, x) const uint FORMAT_##name = (number);
#define BLOCK_NUMBER(name, number, cols, bytes, x)                 const uint FORMAT_G_##name = (number);
FORMAT_TABLE_BASIC(FORMAT_NUMBER, 0)
FORMAT_TABLE_BLOCKS(BLOCK_NUMBER, 0)
#else
#define FORMAT_NUMBER(name, number, bits, group, scheme, scale, x) FORMAT_##name = (number),
#define BLOCK_NUMBER(name, number, cols, bytes, x)                 FORMAT_G_##name = (number),
enum { FORMAT_TABLE(FORMAT_NUMBER, 0) FORMAT_KINDS };
enum { FORMAT_TABLE_BLOCKS(BLOCK_NUMBER, 0) FORMAT_PAST_BLOCKS };
#endif
#undef FORMAT_NUMBER
#undef BLOCK_NUMBER

/* Columns that the product kernels take at once. Rows of quantised numbers are a multiple of them. Rows of
 * plain numbers that are not go to a slower kernel. */
#define PRODUCT_COLS 64

/* Positions of one block of the KV cache: 1 << KV_BLOCK_SHIFT. */
#define KV_BLOCK_SHIFT 8
/* How the cache's numbers are stored; the values of enum kv_type. */
#define KV_F32  0
#define KV_F16  1
#define KV_Q8_0 2

struct embed_args {
    ADDR weight, scales, biases; /* [vocab][cols] */
    ADDR ids;                    /* i32 [n] */
    ADDR dst;                    /* [n][cols] */
    U32 n, cols, format;
    F32 factor; /* multiplies every number */
};
ARGS_SIZE(embed_args, 56);

struct linear_segment {          /* one of the matrices that share an input */
    ADDR weight, scales, biases; /* [rows][cols] */
    U32 rows, format;
    U32 first_row;   /* row of the output; the segments are contiguous */
    U32 first_block; /* first workgroup */
};
ARGS_SIZE(linear_segment, 40);

#define LINEAR_MAX_SEGMENTS 8
#define LINEAR_SET          0
#define LINEAR_ADD          1
#define LINEAR_F16          2 /* kernels named X_coop only */
struct linear_args {
    ADDR segments; /* linear_segment [n_segments] */
    ADDR x;        /* [n][x_stride]; f16 for kernels named X_coop */
    ADDR norm;     /* f32 [cols]; 0: x is used as it is */
    ADDR y;        /* [n][y_stride] */
    U32 n_segments, cols, x_stride, y_stride, n;
    U32 store; /* LINEAR_SET: y = W x, LINEAR_ADD: y += W x, LINEAR_F16: as LINEAR_SET with y in f16 */
    F32 eps;
    /* first_block of segments 1 and on; UINT32_MAX past the last */
    U32 later_blocks[LINEAR_MAX_SEGMENTS - 1];
    U32 x_step, y_step; /* distances between the x, and the y, of a stack's matrices */
    U32 n_stacked;      /* number of matrices; each has the segment's rows */
    U32 first_stacked;  /* first matrix of the stack that takes part */
    U32 step, pad;      /* rows from one matrix of a stack to the next */
};
ARGS_SIZE(linear_args, 112);

/* A product may apply the norm of the heads in its input: each head then has the sums of squares of
 * HEAD_SQUARES equal parts. */
#define HEAD_SQUARES 8

/* Arguments for few tokens, with addresses instead of a table. With HEAD_SHIFT `norm` is f32 [n][cols >>
 * HEAD_SHIFT][HEAD_SQUARES]. */
#define LINEAR_TOKEN_SEGMENTS 4
/* The parts of linear_decode_token_args.call: the k-th segment's format if it is a basic one; whether the
 * result is added to y; tokens. */
#define LINEAR_TOKEN_FORMAT(call, k)        ((call) >> 2 * (k)&3u)
#define LINEAR_TOKEN_ADDS(call)             ((call) >> 8 & 1u)
#define LINEAR_TOKEN_N(call)                ((call) >> 9)
#define LINEAR_TOKEN_CALL(formats, adds, n) ((formats) | (uint32_t)(adds) << 8 | (n) << 9)
struct linear_decode_token_args {
    ADDR base;    /* lowest address of the segments */
    ADDR x, norm; /* [n][x_stride], [cols]; norm 0: x is used as it is */
    ADDR y;       /* [n][y_stride]: rows of all segments */
    /* The members that the first weights depend on are contiguous. */
    U32 weight[LINEAR_TOKEN_SEGMENTS];           /* words from `base` on, like scales and biases */
    U32 later_blocks[LINEAR_TOKEN_SEGMENTS - 1]; /* see linear_args */
    U32 cols;
    U32 end_row[LINEAR_TOKEN_SEGMENTS]; /* output row after the segment: the next one's first */
    U32 scales[LINEAR_TOKEN_SEGMENTS], biases[LINEAR_TOKEN_SEGMENTS];
    U32 call;
    U32 x_stride, y_stride;
    F32 eps;
};
ARGS_SIZE(linear_decode_token_args, 128);

#define TRANSPOSED_TOKENS 8 /* tokens of a workgroup if there are many */
struct matvec_transposed_args {
    ADDR weight, scales, biases; /* the first matrix's; the matrices are `step` rows apart */
    ADDR x;                      /* [n][x_stride] */
    ADDR y;                      /* [n][y_stride] */
    U32 format, rows, cols, step;
    U32 x_stride, y_stride, x_step, y_step; /* see linear_args */
    U32 n, n_stacked;
};
ARGS_SIZE(matvec_transposed_args, 80);

struct cast_f16_args {
    ADDR x;    /* [n][x_stride] */
    ADDR norm; /* f32 [cols], or 0 */
    ADDR dst;  /* f16 [n][cols] */
    U32 n, cols, x_stride;
    F32 eps;
};
ARGS_SIZE(cast_f16_args, 40);

/* Replaces an expert's number if the token has fewer experts than others (router.h). */
#define NO_EXPERT 0xffffffffu

/* Whether the CPU computes an expert, if it computes n_cpu of each layer's n_experts next to a device.
 * They are spread evenly over the numbers. */
#define IS_CPU_EXPERT(expert, n_cpu, n_experts)                                                              \
    (((expert) + 1u) * (n_cpu) / (n_experts) > (expert) * (n_cpu) / (n_experts))

struct router_softmax_args {
    ADDR logits;  /* [n][stride]; each row begins with n_experts logits */
    ADDR idx;     /* u32 [n][top_k], best first */
    ADDR weights; /* [n][top_k] */
    ADDR factors; /* f32 [n_experts]: factors of the weights; 0: none */
    U32 n, stride, n_experts, top_k;
    U32 norm;  /* 1: weights sum to 1; 0: probabilities over all experts */
    F32 share; /* share of the chosen weights that stays */
};
ARGS_SIZE(router_softmax_args, 56);

struct router_sigmoid_args {
    ADDR logits;  /* [n][stride]; each row begins with n_experts logits */
    ADDR bias;    /* [n_experts] */
    ADDR idx;     /* u32 [n][top_k], best first */
    ADDR weights; /* [n][top_k] */
    ADDR ids;     /* BY_TOKEN: i32 [n]: tokens */
    ADDR table;   /* BY_TOKEN: u32 [vocab_size][row]: experts that may be chosen, by token */
    U32 n, stride, n_experts, top_k, n_groups, keep_groups;
    U32 norm; /* 1: weights sum to `scale`; 0: they are the scores times `scale` */
    F32 scale;
    F32 share; /* share of the chosen weights that stays */
    U32 row;
};
ARGS_SIZE(router_sigmoid_args, 88);

/* See ops/gating.h. GATING_INPUTS is 2^64, which no other clamp comes near. */
#define GATING_GELU   (3.0e38f)
#define GATING_RELU   (3.2e38f)
#define GATING_INPUTS (18446744073709551616.0f)
/* SiTU's numbers are 2^64 and more: this one's bits, plus those of two factors. */
#define GATING_SITU       GATING_INPUTS
#define GATING_SITU_BITS  0x5f800000u
#define GATING_SITU_SHIFT 14

/* The first constant_id of the experts' own constants, after those of lib/gemv.glsl. */
#define EXPERTS_FIRST_SPEC 12

/* The shared expert's gate and up rows [shared_inner][hidden], both in one format. */
struct experts_shared_up {
    ADDR gate_w, gate_s, gate_b, up_w, up_s, up_b;
    U32 format, pad;
};
ARGS_SIZE(experts_shared_up, 56);

/* The constant PASS of experts_decode_up and experts_prefill_up. */
#define PASS_BOTH 0
#define PASS_GATE 1
#define PASS_UP   2
#define PASS_ONE  3 /* without a gate: both halves of up, and their activations */

struct experts_decode_up_args {
    ADDR x;         /* [n][hidden] */
    ADDR norm;      /* f32 [hidden] */
    ADDR table;     /* ADDR [n_experts]: address of each expert of this layer; 0: not there */
    ADDR idx;       /* u32 [n][top_k]; may be NO_EXPERT */
    ADDR weights;   /* out [n][top_k] if this kernel makes the choice */
    ADDR act;       /* out [n][top_k * inner + shared_inner], then ADDR [n][top_k] */
    ADDR logits;    /* [n][stride]: logits of the router, of the shared expert's gate */
    ADDR shared_up; /* experts_shared_up; BIASED (without a shared expert): f32 [2][n_experts][inner] */
    U32 hidden, inner, format, stride;
    /* byte offsets in an expert; not PASS_BOTH: of both halves of one matrix's rows */
    U32 gate_w, gate_s, gate_b, up_w, up_s, up_b;
    F32 eps;
    U32 skip_low, skip_high; /* bit k: the k-th expert of each token is left out */
    U32 first_slot;          /* top_k: only the shared expert */
    U32 n, pad;
};
ARGS_SIZE(experts_decode_up_args, 128);

/* Most slots of experts_decode_down_long. */
#define DOWN_LONG_SLOTS 65
struct experts_decode_down_args {
    ADDR act;     /* [n][top_k * inner + shared_inner], then ADDR [n][top_k]: the experts' addresses */
    ADDR weights; /* [n][top_k] */
    /* [n][shared_stride]: the shared expert's gate and up rows at shared_at; 0: they are in act */
    ADDR shared_in;
    /* The shared expert's down projection [hidden][shared_inner]. BIASED (without a shared expert): w is the
     * biases f32 [n_experts][hidden], s the choice u32 [n][top_k]. */
    ADDR shared_w, shared_s, shared_b;
    ADDR x; /* [n][hidden]; the result is added */
    U32 top_k, hidden, inner, format;
    U32 down_w, down_s, down_b; /* byte offsets in an expert */
    U32 shared_at, shared_inner, shared_format, shared_stride;
    U32 is_gated;   /* 1: the logit before the rows gives the shared expert's weight */
    U32 act_stride; /* distance between tokens' activations */
    U32 n;
    U32 first_slot, end_slot; /* slots that take part; slot top_k is the shared expert */
    F32 gating;               /* see ops/gating.h; the shared expert's from shared_in */
    U32 pad;
};
ARGS_SIZE(experts_decode_down_args, 128);

struct experts_prefill_sort_args {
    ADDR idx;   /* u32 [n_pairs]: the router's choice; NO_EXPERT is skipped */
    ADDR table; /* ADDR [n_experts]; pairs of experts with address 0 are skipped */
    /* out u32 [n_shared + n_pairs]: pairs of the shared expert, then those of idx sorted by expert */
    ADDR rows;
    /* out uvec4 [1 + tiles]: first the number of tiles, then expert (or SHARED_EXPERT), first of rows,
     * number of pairs */
    ADDR tiles;
    U32 n_pairs, tile_tokens;
    U32 top_k, slots; /* pairs of a token in idx, in rows; the shared expert's pair is the last */
    U32 n_shared;     /* tokens of the shared expert, or 0 */
    U32 pad;
};
ARGS_SIZE(experts_prefill_sort_args, 56);

/* Replaces an expert's number in a tile. */
#define SHARED_EXPERT 0xffffffffu

struct experts_prefill_up_args {
    ADDR x;     /* [n][hidden]; x and act are f16 for kernels named X_coop */
    ADDR norm;  /* f32 [hidden]; 0: none */
    ADDR table; /* ADDR [n_experts] */
    ADDR rows, tiles;
    ADDR act;       /* [n][slots][inner] */
    ADDR shared_up; /* experts_shared_up, if it has tiles; mixed formats: gate p, f32 [n][slots][inner] */
    ADDR logits;    /* [n][stride]: the shared expert's gate at gate_at */
    ADDR biases;    /* f32 [2][stride][inner]; 0: none; excludes a shared expert */
    U32 slots, hidden, inner, format;
    U32 gate_w, gate_s, gate_b, up_w, up_s, up_b; /* see experts_decode_up_args */
    F32 eps;
    U32 stride, gate_at; /* gate_at 0: no gate */
    F32 gating;          /* see ops/gating.h */
};
ARGS_SIZE(experts_prefill_up_args, 128);

struct experts_prefill_down_args {
    ADDR act;   /* [n][slots][inner] */
    ADDR table; /* ADDR [n_experts] */
    ADDR rows, tiles;
    ADDR dst;                          /* [n][slots][hidden] */
    ADDR shared_w, shared_s, shared_b; /* the shared expert's, if it has tiles */
    ADDR biases;                       /* f32 [n_experts][hidden]; 0: none; excludes a shared expert */
    U32 hidden, inner, format;
    U32 down_w, down_s, down_b; /* byte offsets in an expert */
};
ARGS_SIZE(experts_prefill_down_args, 96);

struct experts_prefill_mix_args {
    ADDR parts;      /* [n][slots][hidden] */
    ADDR idx;        /* u32 [n][top_k] */
    ADDR weights;    /* [n][top_k] */
    ADDR shared_in;  /* [n][shared_stride]: the shared expert's gate and up rows at shared_at */
    ADDR shared_act; /* out [n][shared_inner] */
    ADDR x;          /* [n][hidden]; the result is added */
    U32 top_k, hidden, shared_at, shared_inner, shared_stride;
    U32 is_gated;            /* 1: the logit before the rows gives the shared expert's weight */
    U32 slots;               /* parts of a token */
    U32 from_slot, end_slot; /* the parts that are added up; part top_k is the shared expert's */
    F32 gating;              /* see ops/gating.h; that of shared_act */
    /* n_cpu 0: all experts are added up; else those that IS_CPU_EXPERT names (is_cpus 1), or the others
     * (0) */
    U32 n_cpu, n_experts, is_cpus, pad;
};
ARGS_SIZE(experts_prefill_mix_args, 104);

struct head_gate_args {
    ADDR x;    /* [n][n_heads * dim], in place */
    ADDR gate; /* [n][stride] */
    U32 n_heads, dim, stride, pad;
};
ARGS_SIZE(head_gate_args, 32);

/* Norms of queries and keys: the values of enum attention_norm. */
#define NORM_NONE  0
#define NORM_HEADS 1
#define NORM_ALL   2

struct gqa_prepare_args {
    ADDR qkv;            /* [n][stride]: n_heads x (query head_dim, gated: gate head_dim), keys, values */
    ADDR q_norm, k_norm; /* f32 [head_dim]; NORM_ALL: one norm over all heads */
    ADDR bias;           /* f32, laid out like a row of qkv; BIASED only */
    ADDR rope;           /* [n][rotary_dim]: cos and sin of each pair */
    ADDR q;              /* out [n][n_heads][head_dim] */
    ADDR blocks;         /* ADDR [position >> KV_BLOCK_SHIFT] */
    U32 n, pos, stride, n_heads, n_kv_heads, head_dim, rotary_dim;
    U32 layer_off; /* bytes from a block's start to this layer's keys; its values follow */
    F32 eps;
    U32 kv_type;      /* type of the cache's numbers; the kernels have it as a constant */
    U32 is_gated;     /* 1: a gate follows each query */
    U32 norms_values; /* 1: each head's values are divided by their rms */
};
ARGS_SIZE(gqa_prepare_args, 104);

/* What attention's kernels leave for attention_merge: the weighted values f32
 * [n][n_heads][n_splits][value_dim], then [n][n_heads][n_splits][2]: maximum in powers of two, sum of the
 * weights. A single whole split writes the results themselves: [n][dst_stride]: n_heads x value_dim. */
#define ATTENTION_WHOLE  1  /* the only split writes the results */
#define ATTENTION_GATED  2  /* PREPARE: a gate follows each query */
#define ATTENTION_MERGED 4  /* PREPARE: the last workgroup joins the splits */
#define ATTENTION_VALUES 8  /* PREPARE: each head's values are divided by their rms */
#define ATTENTION_STORES 16 /* PREPARE: the position's row is stored, and nothing else done; one split */
#define ATTENTION_STORED 32 /* PREPARE: such a dispatch came before */
struct attention_decode_args {
    ADDR q;       /* [n][q_stride]: n_heads x key_dim; PREPARE: gqa_prepare_args' qkv */
    ADDR keys;    /* the cache's table of blocks; FLAT: the keys [positions][n_kv_heads][key_dim] */
    ADDR values;  /* FLAT: [positions][n_kv_heads][value_dim]; PREPARE: gqa_prepare_args' bias */
    ADDR partial; /* out */
    ADDR q_norm;  /* PREPARE: see gqa_prepare_args; RATIO: u32 [n][rotary_dim], each token's list of blocks */
    ADDR k_norm, rope;  /* PREPARE only; see gqa_prepare_args */
    ADDR dst, counters; /* MERGED only: out [n_heads][value_dim]; zeros, one for each block of heads */
    ADDR sinks;         /* f32 [n_heads]; SINKS only */
    U32 n, pos, n_heads, n_kv_heads, layer_off, n_splits;
    F32 scale;
    U32 q_stride, dst_stride;
    U32 rotary_dim; /* PREPARE, RATIO only */
    F32 eps;        /* PREPARE only */
    U32 is;         /* ATTENTION_* */
};
ARGS_SIZE(attention_decode_args, 128);

struct matrices_probe_args {
    ADDR dst; /* out u32 */
};
ARGS_SIZE(matrices_probe_args, 8);

struct attention_prefill_args {
    ADDR q, keys, values, partial, sinks; /* see attention_decode_args */
    U32 n, pos, n_heads, n_kv_heads, layer_off, n_splits, is_whole;
    F32 scale;
    U32 q_stride, dst_stride;
};
ARGS_SIZE(attention_prefill_args, 80);

struct attention_wide_args {
    ADDR q;       /* [n][q_stride]: n_heads x key_dim */
    ADDR blocks;  /* the cache's table of blocks */
    ADDR weights; /* f16, rows x width pairs (attention/wide.glsl) */
    ADDR chunks;  /* f32 [width / 32][rows][2] */
    ADDR partial; /* out, with `rows` instead of n * n_heads */
    U32 n, pos, n_heads, layer_off, n_splits, q_stride;
    U32 rows, width; /* n * n_heads and pos + n, rounded up to multiples of 128 */
    U32 share;       /* 64-position steps of a split */
    F32 scale;
    U32 n_kv_heads, kv_head; /* the cache's, and the one that all n_heads read */
};
ARGS_SIZE(attention_wide_args, 88);

struct attention_merge_args {
    ADDR partial;
    ADDR qkv; /* [n][stride]: the gates; 0: none */
    ADDR dst; /* [n][dst_stride]: n_heads x value_dim */
    U32 rows; /* rows of partial: n * n_heads or more */
    U32 n_heads, value_dim, n_splits, stride, dst_stride;
};
ARGS_SIZE(attention_merge_args, 48);

struct mla_prepare_args {
    ADDR q;    /* [n][q_stride]: n_heads x (nope_dim, rope_dim) */
    ADDR kv;   /* [n][kv_stride]: latent [latent_dim] at kv_at, then the rotary key [rope_dim] */
    ADDR norm; /* f32 [latent_dim] */
    ADDR rope; /* [n][rope_dim]: cos and sin of each pair */
    /* out [n][out_stride]: each head's rotary channels at out_at, heads out_step apart; may equal q */
    ADDR q_out;
    ADDR blocks; /* ADDR [position >> KV_BLOCK_SHIFT] */
    U32 n, pos, kv_stride, kv_at, n_heads, nope_dim, rope_dim, latent_dim;
    U32 layer_off; /* bytes from a block's start to this layer's rows [latent_dim + rope_dim] */
    F32 eps;
    U32 q_stride;
    U32 out_stride, out_step, out_at;
};
ARGS_SIZE(mla_prepare_args, 104);

struct mla_values_args {
    ADDR partial;                /* attention's splits of one token */
    ADDR weight, scales, biases; /* a stack of matrices [rows][latent_dim], `step` rows apart */
    ADDR dst;                    /* f32 [n_heads][rows] */
    U32 format, rows, step;
    U32 part_rows, n_splits; /* rows and splits in `partial` */
    U32 pad;
};
ARGS_SIZE(mla_values_args, 64);

#define MLA_TRANSPOSE_TILE 32 /* columns of latent_dim in a workgroup */
struct mla_transpose_keys_args {
    ADDR weight, scales, biases; /* [heads][latent_dim][nope_dim] */
    ADDR dst;                    /* f32 [heads that take part][nope_dim][latent_dim] */
    U32 format;                  /* a basic format's number, another one's word */
    U32 latent_dim, nope_dim;
    U32 first_head; /* first head that is transposed */
};
ARGS_SIZE(mla_transpose_keys_args, 48);

struct mla_gather_rows_args {
    ADDR blocks; /* ADDR [position >> KV_BLOCK_SHIFT] */
    ADDR latent; /* out [n][latent_dim], in the kernel's own type, like keys */
    ADDR keys;   /* out [n][n_heads][nope_dim + rope_dim]: each head's rotary channels */
    U32 pos, n_heads, nope_dim, rope_dim, latent_dim, layer_off; /* pos: position of the first row */
};
ARGS_SIZE(mla_gather_rows_args, 48);

struct swiglu_args {
    ADDR src; /* [n][2 * inner]: gate, up */
    ADDR dst; /* [n][inner] */
    U32 n, inner;
    F32 gating; /* see ops/gating.h */
    U32 pad;
};
ARGS_SIZE(swiglu_args, 32);

struct normed_add_args {                 /* ops/normed_add.h */
    ADDR y, dst;                         /* [n][cols] */
    ADDR norm, add, outer, base, factor; /* f32 [cols], [n][cols], [cols], [n][cols], [1]; 0: absent */
    U32 n, cols;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(normed_add_args, 72);

struct softcap_args {
    ADDR x; /* [n] */
    U32 n;
    F32 cap;
};
ARGS_SIZE(softcap_args, 16);

struct add_args {
    ADDR y, x;    /* f32 [n] */
    U32 n, every; /* every > 0: y is [every], repeated */
    U32 sets;     /* 1: x = y instead of x += y */
    U32 pad;
};
ARGS_SIZE(add_args, 32);

/* The choice of the next token (ops/sample/sample.h, sample/sampler.h). A workgroup of sample_largest has
 * SAMPLE_BLOCK ids and writes four words to `found`: the largest key (sample/weight.h), its lowest id, the
 * lowest id of a NaN, and that of +infinity (SAMPLE_NO_ID: none). At most SAMPLE_MAX_IDS ids. */
#define SAMPLE_BLOCK   2048
#define SAMPLE_NO_ID   0xffffffffu
#define SAMPLE_MAX_IDS (1 << 20)
/* Faults of the logits. */
#define SAMPLE_OK       0
#define SAMPLE_NAN      1
#define SAMPLE_INFINITE 2
#define SAMPLE_NOTHING  3 /* all are -infinity */

struct sample_args {
    ADDR logits;  /* f32 [n] */
    ADDR blocked; /* u32 [n / 32, rounded up]; a set bit: never chosen */
    ADDR recent;  /* i32 [n_recent]: ids with a penalty, in addition to the one at `last` */
    ADDR last;
    ADDR found; /* u32 [blocks][4] */
    ADDR keys;  /* u32 [n]: keys after the penalty, 0: blocked. keys and list are unused for greedy choices */
    ADDR list;  /* u32 [n][2]: id and key of the candidates for the draw */
    ADDR id;    /* i32: the choice, 0 if there is none */
    ADDR result; /* u32 [2]: the choice and SAMPLE_OK, or the first faulty id and its fault */
    U32 n, n_recent, penalises;
    F32 penalty, inverse_penalty;
    F32 scale; /* 0: greedy; this and the next ones as in struct sampler_rule */
    U32 top_k, top_p, min_p, random_low, random_high;
    U32 pad;
};
ARGS_SIZE(sample_args, 120);

/* exec_dispatch_each; see kernels/lib/each.glsl. */
struct each_args {
    ADDR records; /* [z of the grid]: the kernel's arguments */
};
ARGS_SIZE(each_args, 8);

struct delta_args {
    ADDR proj;                  /* [n][stride]: conv channels; z [n_v][v_dim], b [n_v], a from *_at on */
    ADDR conv;                  /* f32 [channels][conv_kernel] */
    ADDR a_log, dt_bias;        /* f32 [n_v]; [n_v], with a decay for each key channel [n_v][k_dim], like a */
    ADDR norm;                  /* f32 [v_dim] */
    ADDR window_in, window_out; /* [conv_kernel - 1][channels], oldest first; two different buffers */
    ADDR state, state_out;      /* [n_v][v_dim][k_dim]: before and after; may be equal */
    ADDR dst;                   /* [n][n_v * v_dim] */
    ADDR squares; /* out [n_v][HEAD_SQUARES], from the kernel with HEAD_SQUARES workgroups a head */
    U32 n, stride, n_k, n_v, z_at, b_at, a_at;
    F32 eps;
};
ARGS_SIZE(delta_args, 120);

/* delta_prefill_prep takes delta_args with dst = prepared, f32 [n][DELTA_PREPARED(...)]: q, k (of unit
 * length, q also scaled), v, then decay and beta of each value head; with a decay for each key channel the
 * decays [n_v][k_dim], then the betas [n_v]. `gates` is the number of decays and betas. A workgroup has
 * DELTA_RUN tokens. */
#define DELTA_RUN                       8
#define DELTA_PREPARED(channels, gates) (((channels) + (gates) + 3) / 4 * 4)

struct delta_prefill_scan_args {
    ADDR prepared;         /* [n][row] */
    ADDR state, state_out; /* [n_v][v_dim][k_dim]: before and after; may be equal */
    ADDR dst;              /* [n][n_v * v_dim]: S q, before its norm */
    U32 n, row, n_k, n_v;
};
ARGS_SIZE(delta_prefill_scan_args, 48);

/* DELTA_BLOCK: tokens that delta_prefill_walk takes at once. delta_prefill_blocks computes for it f32
 * [blocks][n_v][DELTA_COEFS], from the tokens i, j = 0 .. 3 of a block, with d their decays, e_ij the product
 * of d over j < t <= i, e_i the product over all t <= i:
 *   [4][4]  e_ij (k_j q_i) for j <= i, else 0
 *   [4]     beta_1 e_10 (k_0 k_1), beta_2 e_20 (k_0 k_2), beta_2 e_21 (k_1 k_2), e_3
 *   [4]     beta_3 e_3j (k_j k_3) for j < 3, 0
 *   [4]     e_3j
 *   [8][2]  beta_i, -beta_i e_i; then 0, e_i
 * With a decay for each key channel, e_ij weights the products' channels, and the lone factors e are 1: there
 * delta_prefill_walk multiplies the channels by them. */
#define DELTA_BLOCK 4
#define DELTA_COEFS 44

struct delta_prefill_blocks_args {
    ADDR prepared; /* [n][row] */
    ADDR coefs;
    U32 n, row, n_k, n_v, v_dim, pad;
};
ARGS_SIZE(delta_prefill_blocks_args, 40);

struct delta_prefill_walk_args {
    ADDR prepared; /* [n][row] */
    ADDR coefs;
    ADDR state, state_out; /* [n_v][v_dim][k_dim]: before and after; may be equal */
    ADDR dst;              /* [n][n_v * v_dim]: S q, before its norm */
    U32 n, row, n_k, n_v;
};
ARGS_SIZE(delta_prefill_walk_args, 56);

struct delta_prefill_out_args {
    ADDR proj; /* [n][stride]: z [n_v][v_dim] at z_at */
    ADDR norm; /* f32 [v_dim] */
    ADDR dst;  /* [n][n_v * v_dim]; in place */
    ADDR f16;  /* out [n][n_v * v_dim], instead of dst */
    U32 n, stride, z_at, n_v;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(delta_prefill_out_args, 56);

struct ssd_scan_args {
    ADDR proj; /* [n][stride]: from *_at on z [n_heads][head_dim], the conv channels, dt [n_heads] */
    ADDR conv, conv_bias;       /* f32 [channels][conv_kernel]; [channels], 0: none */
    ADDR a_log, dt_bias, d;     /* f32 [n_heads] */
    ADDR window_in, window_out; /* [conv_kernel - 1][channels], oldest first; two different buffers */
    ADDR state, state_out;      /* [n_heads][head_dim][state_dim]: before and after; may be equal */
    ADDR dst;                   /* [n][n_heads * head_dim] */
    U32 n, stride, n_heads, n_groups, z_at, x_at, dt_at, pad;
};
ARGS_SIZE(ssd_scan_args, 120);

struct ssd_norm_args {
    ADDR x;    /* [tokens][n_groups][size]; in place */
    ADDR norm; /* f32 [n_groups][size] */
    U32 n_groups, size;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(ssd_norm_args, 32);

/* Residual streams (ops/streams/streams.h). x, its norm and `up` are [n][n_streams][hidden]. */
struct streams_begin_args {
    ADDR src; /* [n][hidden] */
    ADDR x;   /* out: n_streams copies of src */
    U32 n, hidden, n_streams, pad;
};
ARGS_SIZE(streams_begin_args, 32);

struct streams_norm_args {
    ADDR x;
    ADDR add;  /* [n][hidden], added to each stream; 0: x stays as it is */
    ADDR by;   /* [n][by_stride]: n_streams logits, which weigh `add` */
    ADDR norm; /* f32 [n_streams][hidden] */
    ADDR dst;  /* out; 0: only x is changed */
    U32 n, hidden, n_streams, by_stride;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(streams_norm_args, 64);

struct streams_low_args {
    ADDR low; /* [n][stride]: the first `rank` numbers, in place */
    U32 n, rank, stride, n_streams;
};
ARGS_SIZE(streams_low_args, 24);

struct streams_mix_args {
    ADDR up, normed;
    ADDR dst; /* out [n][hidden] */
    U32 n, hidden, n_streams, pad;
};
ARGS_SIZE(streams_mix_args, 40);

struct streams_join_args {
    ADDR x;
    ADDR add;     /* [n][hidden], added to each stream after the mix; 0: x stays as it is */
    ADDR by;      /* [n][by_stride]: n_streams weights of `add`, then the mix [n_streams][n_streams] */
    ADDR squares; /* out [n][STREAMS_PIECES(hidden)]: the sum of the squares of a piece; 0: none */
    U32 n, hidden, by_stride, pad;
};
ARGS_SIZE(streams_join_args, 48);

struct streams_collapse_args {
    ADDR x, squares;
    ADDR low;         /* [n][stride]: products with x, in place; 0: all streams weigh the same */
    ADDR scale, base; /* f32 [3], or [1] without a join; f32 [one for each product] */
    ADDR dst;         /* out [n][hidden] */
    ADDR weights;     /* LAGGED: [n][n_streams], the weights of dst; 0: the first stream alone */
    ADDR kept;        /* LAGGED: out [n][n_streams], the weights of the next dst */
    U32 n, hidden, stride;
    U32 joins;  /* 1: also computes the weights of the join after the part */
    U32 lagged; /* 1: LAGGED */
    F32 eps, floor;
    U32 iterations;
};
ARGS_SIZE(streams_collapse_args, 96);

struct streams_attend_args {
    ADDR x;
    ADDR add;         /* [n][hidden], added to the first stream, or with `sets` put in its place; 0: none */
    ADDR norm, score; /* f32 [hidden]; norm 0: all 1 */
    ADDR dst;         /* out [n][hidden]; 0: none */
    U32 n, hidden, n_streams;
    U32 n_kept; /* streams that are mixed with the first one */
    U32 keep;   /* the stream that the first one is copied to; 0: none */
    U32 sets;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(streams_attend_args, 72);

/* Channels of a piece of a stream: one workgroup's part, and one sum of squares. */
#define STREAMS_PIECE          1024
#define STREAMS_PIECES(hidden) (((hidden) + STREAMS_PIECE - 1) / STREAMS_PIECE)

/* N-gram rows (ops/ngram/ngram.h). u and x are [n][n_streams][hidden]. */
struct ngram_gate_args {
    ADDR proj; /* [n][stride]: keys [n_streams][hidden], then the value [hidden] */
    ADDR x;
    ADDR x_norm, k_norm, u_norm; /* f32 [n_streams][hidden] */
    ADDR u, gates;               /* out; gates [n][n_streams] */
    U32 n, stride, hidden, n_streams;
    F32 scale, eps;
};
ARGS_SIZE(ngram_gate_args, 80);

struct ngram_conv_args {
    ADDR proj;                  /* see ngram_gate_args */
    ADDR conv;                  /* f32 [n_streams * hidden][taps] */
    ADDR u, gates;              /* the chunk's */
    ADDR window_in, window_out; /* [(taps - 1) * dilation][n_streams * hidden]: u before the chunk, out */
    ADDR x;                     /* changed in place */
    U32 n, stride, hidden, n_streams, dilation, pad;
};
ARGS_SIZE(ngram_conv_args, 80);

/* The indexer (ops/indexer/indexer.h). */
struct indexer_prepare_args {
    ADDR queries;               /* [n][stride]: n_heads queries [dim] */
    ADDR keys;                  /* [n][key_stride]: the key [dim]; POOLED: then its gates [dim] */
    ADDR q_norm, k_norm;        /* f32 [dim] */
    ADDR k_bias;                /* f32 [dim]; LAYER_NORM only */
    ADDR pool_bias;             /* f32 [ratio][dim]; POOLED only */
    ADDR rope;                  /* [n][rotary_dim]: cos and sin of each pair */
    ADDR window_in, window_out; /* [ratio - 1][dim + rotary_dim, POOLED: 2 dim] */
    ADDR q;                     /* out [n][n_heads][dim] */
    ADDR blocks;                /* ADDR [position >> KV_BLOCK_SHIFT] */
    U32 n, pos, stride, key_stride, n_heads;
    U32 layer_off; /* bytes from a block's start to this layer's rows */
    F32 eps;
    U32 pad;
};
ARGS_SIZE(indexer_prepare_args, 120);

struct indexer_scores_args {
    ADDR q;       /* [n][n_heads][dim] */
    ADDR weights; /* [n][weight_stride]; WEIGHTED only */
    ADDR blocks;  /* see indexer_prepare_args */
    ADDR scores;  /* out [n][score_stride] */
    U32 n, pos, layer_off, score_stride, weight_stride, pad;
};
ARGS_SIZE(indexer_scores_args, 56);

struct indexer_choose_args {
    ADDR scores; /* [n][n_lists][score_stride] */
    ADDR chosen; /* out u32 [n][n_lists][list_stride] */
    U32 pos;     /* 1 less than the first token's position with lists of heads */
    U32 ratio, budget, score_stride, list_stride, n_lists;
};
ARGS_SIZE(indexer_choose_args, 40);

struct indexer_groups_args {
    ADDR scores;     /* [n][score_stride]; in place without FINDS */
    ADDR groups;     /* out [n][group_stride]; FINDS only */
    ADDR candidates; /* u32 [n][n_listed + 1]; without FINDS only */
    U32 pos, ratio, group, n_listed, score_stride, group_stride;
};
ARGS_SIZE(indexer_groups_args, 48);

/* Attention over compressed rows (ops/compressed/compressed.h). */
struct compressed_turn_args {
    ADDR x;      /* [n][x_stride]: heads [dim] */
    ADDR norm;   /* f32 [dim]; 0: none */
    ADDR rope;   /* [n][rope_dim]: cos and sin of each pair */
    ADDR y;      /* out [n][y_stride]; 0: rows of the ring, or compressed rows */
    ADDR blocks; /* the ring's or the cache's: ADDR [position >> KV_BLOCK_SHIFT] */
    U32 pos, x_stride, y_stride;
    U32 row_off; /* bytes from a block's start to this layer's rows */
    F32 eps;
    U32 norms;
    U32 is_far; /* 1: rows are compressed ones */
    U32 pad;
};
ARGS_SIZE(compressed_turn_args, 72);

struct compressed_pool_args {
    ADDR kv, gates, bias, norm, rope; /* see compressed_pool_call */
    ADDR state_in, state_out;
    ADDR blocks;
    ADDR plain, angles; /* out [n][dim], [n][rope_dim]; 0: not written */
    U32 n, pos, stride, layer_off;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(compressed_pool_args, 104);

struct compressed_attend_args {
    ADDR q;     /* [n][q_stride]: n_heads x dim */
    ADDR sinks; /* f32 [n_heads] */
    ADDR rope;
    ADDR ring, blocks;
    ADDR chosen; /* u32 [n][BUDGET + 1] */
    ADDR dst;    /* out [n][n_heads][dim] */
    U32 pos, n_heads, q_stride, ring_off, layer_off;
    F32 scale;
};
ARGS_SIZE(compressed_attend_args, 80);

#endif
