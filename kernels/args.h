/* args.h - the parameter block of every kernel, read by C and by GLSL: one definition, no drift.
 *
 * ADDR is a device address. Addresses come first, then 4-byte scalars.
 * Blocks are pushed as push constants: at most 128 bytes. All activations are float32, row-major; a stride
 * counts elements. `n` counts tokens of the chunk, the first of which stands at position `pos`. */
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

/* How the numbers of a matrix are stored: a row a kind of number,
 *   ROW(name, number, bits, group, scheme, scale, x)
 * bits of a code or a number; group: columns that share a scale; scale: its type; x: what the user of the
 * table needs in each row. A row's codes are a little-endian stream of bits, so that 8 codes are `bits`
 * bytes; scales and biases are [rows][columns / group].
 *   AFFINE  value = code * scale + bias
 *   E2M1, E4M3  value = code * scale, the code being a float of 4 or 8 bits: sign, exponent, mantissa
 *   PLAIN   the numbers themselves
 * A format's number is that of its kind, of an affine one plus FORMAT_GROUP_x, where groups are not of 64
 * columns, plus FORMAT_SCALE_x, where scales and biases are no bf16. src/base/format.h has what C makes of
 * it, kernels/lib/dequant.glsl what the shaders do. */
#define FORMAT_TABLE(ROW, x) FORMAT_TABLE_USUAL(ROW, x) FORMAT_TABLE_OTHERS(ROW, x)
/* What most models are made of. Kernels take these four, mixed in one dispatch. */
#define FORMAT_TABLE_USUAL(ROW, x)                                                                           \
    ROW(Q4, 0, 4, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q8, 1, 8, 64, AFFINE, BF16, x)                                                                       \
    ROW(BF16, 2, 16, 1, PLAIN, NONE, x)                                                                      \
    ROW(F32, 3, 32, 1, PLAIN, NONE, x)
#define FORMAT_TABLE_OTHERS(ROW, x)                                                                          \
    ROW(Q2, 4, 2, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q3, 5, 3, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q5, 6, 5, 64, AFFINE, BF16, x)                                                                       \
    ROW(Q6, 7, 6, 64, AFFINE, BF16, x)                                                                       \
    ROW(MXFP4, 8, 4, 32, E2M1, E8M0, x)                                                                      \
    ROW(MXFP8, 9, 8, 32, E4M3, E8M0, x)                                                                      \
    ROW(NVFP4, 10, 4, 16, E2M1, E4M3, x)                                                                     \
    ROW(F16, 11, 16, 1, PLAIN, NONE, x)
/* The constant_id of 16, the rows of a product's second factors, which VK_NV_cooperative_matrix has no other
 * word for (lib/matrices.glsl; src/vulkan/khr_kernel.h needs it). Behind all others. */
#define MATRIX_SECOND_SPEC 31
#define SCHEME_PLAIN       0
#define SCHEME_AFFINE      1
#define SCHEME_E2M1        2
#define SCHEME_E4M3        3
/* The type of scales and biases. E8M0: 2^(byte - 127). */
#define SCALE_NONE         0
#define SCALE_BF16         1
#define SCALE_F16          2
#define SCALE_F32          3
#define SCALE_E8M0         4
#define SCALE_E4M3         5
#define FORMAT_KIND_MASK   15
#define FORMAT_GROUP_SHIFT 4 /* two bits */
#define FORMAT_GROUP_64    0x00
#define FORMAT_GROUP_32    0x10
#define FORMAT_GROUP_128   0x20
#define FORMAT_SCALE_SHIFT 6 /* two bits */
#define FORMAT_SCALE_BF16  0x00
#define FORMAT_SCALE_F16   0x40
#define FORMAT_SCALE_F32   0x80
#define FORMAT_END         0xb0 /* numbers are below */
#define FORMAT_NONE        0xff /* of no format */
/* A set of formats: bit f for a usual format f. The others by their kinds, from bit FORMAT_SET_OTHERS on, and
 * those among them that are affine by the two parts of their numbers, 3 bits each. */
#define FORMAT_SET_OTHERS 4
#define FORMAT_SET_GROUPS 20
#define FORMAT_SET_SCALES 23
/* What kernels named X_other, which take matrices of one other format, know of it: their constant FORMATS.
 * That of the others is a set, which is always less than a word. */
#define FORMAT_WORD(bits, scheme, group_shift, scale)                                                        \
    ((bits) | (scheme) << 5 | (group_shift) << 7 | (scale) << 10)
#define FORMAT_WORD_BITS(word)        ((word)&31u)
#define FORMAT_WORD_SCHEME(word)      ((word) >> 5 & 3u)
#define FORMAT_WORD_GROUP_SHIFT(word) ((word) >> 7 & 7u)
#define FORMAT_WORD_SCALE(word)       ((word) >> 10 & 7u)
#ifdef VULKAN
#define FORMAT_NUMBER(name, number, bits, group, scheme, scale, x) const uint FORMAT_##name = (number);
FORMAT_TABLE_USUAL(FORMAT_NUMBER, 0)
#else
#define FORMAT_NUMBER(name, number, bits, group, scheme, scale, x) FORMAT_##name = (number),
enum { FORMAT_TABLE(FORMAT_NUMBER, 0) FORMAT_KINDS };
#endif
#undef FORMAT_NUMBER

/* Columns that the product kernels take at once. Rows of quantised numbers are a multiple of them; where rows
 * of plain numbers are not, a slower kernel takes them. */
#define PRODUCT_COLS 64

/* Positions of one block of the KV cache: 1 << KV_BLOCK_SHIFT. */
#define KV_BLOCK_SHIFT 8
/* How its numbers are stored; the values of enum kv_type. */
#define KV_F32 0
#define KV_F16 1

struct embed_args {
    ADDR weight, scales, biases; /* [vocab][cols] */
    ADDR ids;                    /* i32 [n] */
    ADDR dst;                    /* [n][cols] */
    U32 n, cols, format, pad;
};
ARGS_SIZE(embed_args, 56);

struct linear_segment {          /* one of the matrices that share an input */
    ADDR weight, scales, biases; /* [rows][cols] */
    U32 rows, format;
    U32 first_row;   /* of the output: segments stand one after the other */
    U32 first_block; /* workgroup that starts it */
};
ARGS_SIZE(linear_segment, 40);

#define LINEAR_MAX_SEGMENTS 8
#define LINEAR_SET          0
#define LINEAR_ADD          1
#define LINEAR_F16          2 /* kernels named X_coop */
struct linear_args {
    ADDR segments; /* linear_segment [n_segments] */
    ADDR x;        /* [n][x_stride]; f16 for kernels named X_coop */
    ADDR norm;     /* f32 [cols], or 0: x is taken as it is */
    ADDR y;        /* [n][y_stride] */
    U32 n_segments, cols, x_stride, y_stride, n;
    U32 store; /* LINEAR_SET: y = W x, LINEAR_ADD: y += W x, LINEAR_F16: as SET, y is f16 */
    F32 eps;
    U32 later_blocks[LINEAR_MAX_SEGMENTS -
                     1]; /* first_block of segments 1 and on; past the last UINT32_MAX */
    U32 x_step, y_step;  /* from one matrix of a stack to the next: its x and y in a row of x and y */
    U32 n_stacked;       /* matrices, each of the segment's rows */
    U32 first_stacked;   /* of the stack's matrices the first that takes part */
    U32 step, pad;       /* rows from the beginning of one matrix of a stack to that of the next */
};
ARGS_SIZE(linear_args, 112);

/* Heads whose norm the next product brings: sums of squares that each of them has, of as many equal parts. */
#define HEAD_SQUARES 8

/* Few tokens: addresses in the arguments in place of a table. With HEAD_SHIFT `norm` is f32 [n][cols >>
 * HEAD_SHIFT][HEAD_SQUARES]. */
#define LINEAR_TOKEN_SEGMENTS 4
/* Parts of linear_decode_token_args.call: the k-th segment's format, where that is a usual one; whether y is
 * added to; tokens. */
#define LINEAR_TOKEN_FORMAT(call, k)        ((call) >> 2 * (k)&3u)
#define LINEAR_TOKEN_ADDS(call)             ((call) >> 8 & 1u)
#define LINEAR_TOKEN_N(call)                ((call) >> 9)
#define LINEAR_TOKEN_CALL(formats, adds, n) ((formats) | (uint32_t)(adds) << 8 | (n) << 9)
struct linear_decode_token_args {
    ADDR base;    /* the lowest address of the segments */
    ADDR x, norm; /* [n][x_stride], [cols]; norm 0: x is taken as it is */
    ADDR y;       /* [n][y_stride]: rows of all segments */
    /* What the first weights wait for stands together. */
    U32 weight[LINEAR_TOKEN_SEGMENTS];           /* words from `base` on, as scales and biases */
    U32 later_blocks[LINEAR_TOKEN_SEGMENTS - 1]; /* as in linear_args */
    U32 cols;
    U32 end_row[LINEAR_TOKEN_SEGMENTS]; /* of the output: the next segment's first */
    U32 scales[LINEAR_TOKEN_SEGMENTS], biases[LINEAR_TOKEN_SEGMENTS];
    U32 call;
    U32 x_stride, y_stride;
    F32 eps;
};
ARGS_SIZE(linear_decode_token_args, 128);

#define TRANSPOSED_TOKENS 8 /* tokens at once, of many */
struct matvec_transposed_args {
    ADDR weight, scales, biases; /* of the first matrix; the next begins `step` rows on */
    ADDR x;                      /* [n][x_stride] */
    ADDR y;                      /* [n][y_stride] */
    U32 format, rows, cols, step;
    U32 x_stride, y_stride, x_step, y_step; /* as in linear_args */
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

/* In place of an expert's number: the token has fewer experts than others (router.h). */
#define NO_EXPERT 0xffffffffu

struct router_softmax_args {
    ADDR logits;  /* [n][stride], the first n_experts of a row */
    ADDR idx;     /* u32 [n][top_k], best first */
    ADDR weights; /* [n][top_k] */
    U32 n, stride, n_experts, top_k;
    U32 norm;  /* 1: weights sum to 1; 0: probabilities over all experts */
    F32 share; /* of the chosen weights that stays */
};
ARGS_SIZE(router_softmax_args, 48);

struct router_sigmoid_args {
    ADDR logits;  /* [n][stride], the first n_experts of a row */
    ADDR bias;    /* [n_experts] */
    ADDR idx;     /* u32 [n][top_k], best first */
    ADDR weights; /* [n][top_k] */
    U32 n, stride, n_experts, top_k, n_groups, keep_groups;
    U32 norm; /* 1: weights sum to `scale`; 0: they are the scores times it */
    F32 scale;
    F32 share; /* of the chosen weights that stays */
    U32 pad;
};
ARGS_SIZE(router_sigmoid_args, 72);

/* The first constant_id of the experts' own constants, behind those of lib/gemv.glsl. */
#define EXPERTS_FIRST_SPEC 12

/* The shared expert's gate and up rows [shared_inner][hidden], both stored alike. */
struct experts_shared_up {
    ADDR gate_w, gate_s, gate_b, up_w, up_s, up_b;
    U32 format, pad;
};
ARGS_SIZE(experts_shared_up, 56);

struct experts_decode_up_args {
    ADDR x;         /* [n][hidden] */
    ADDR norm;      /* f32 [hidden] */
    ADDR table;     /* ADDR [n_experts]: where each expert of this layer lies; 0: not there */
    ADDR idx;       /* u32 [n][top_k]; may be NO_EXPERT */
    ADDR weights;   /* out [n][top_k], where the choice is made here */
    ADDR act;       /* out [n][top_k * inner + shared_inner], then ADDR [n][top_k] */
    ADDR logits;    /* [n][stride]: of the router, of the shared expert's gate */
    ADDR shared_up; /* experts_shared_up; BIASED, then there is none: f32 [2][n_experts][inner] */
    U32 hidden, inner, format, stride;
    U32 gate_w, gate_s, gate_b, up_w, up_s, up_b; /* byte offsets in an expert */
    F32 eps;
    U32 skip_low, skip_high; /* bit k: the k-th expert of each token is left out */
    U32 first_slot;          /* top_k: the shared expert alone */
    U32 n, pad;
};
ARGS_SIZE(experts_decode_up_args, 128);

/* Most slots of experts_decode_down_long. */
#define DOWN_LONG_SLOTS 65
struct experts_decode_down_args {
    ADDR act;     /* [n][top_k * inner + shared_inner], then ADDR [n][top_k]: where the experts lie */
    ADDR weights; /* [n][top_k] */
    /* [n][shared_stride]: at shared_at the shared expert's gate and up rows; 0: they are in act */
    ADDR shared_in;
    /* down projection of the shared expert [hidden][shared_inner]. BIASED, then there is none: w the biases
     * f32 [n_experts][hidden], s the choice u32 [n][top_k] */
    ADDR shared_w, shared_s, shared_b;
    ADDR x; /* [n][hidden], added to */
    U32 top_k, hidden, inner, format;
    U32 down_w, down_s, down_b; /* byte offsets in an expert */
    U32 shared_at, shared_inner, shared_format, shared_stride;
    U32 is_gated;   /* 1: the logit before the rows is the shared expert's weight */
    U32 act_stride; /* of a token's activations */
    U32 n;
    U32 first_slot, end_slot; /* of the slots that take part; top_k: the shared expert */
};
ARGS_SIZE(experts_decode_down_args, 120);

struct experts_prefill_sort_args {
    ADDR idx;   /* u32 [n_pairs]: the router's choice; NO_EXPERT is left out */
    ADDR table; /* ADDR [n_experts]; pairs of an expert with 0 are left out */
    ADDR
        /* out u32 [n_shared + n_pairs]: pairs of the shared expert, then those of idx sorted by expert */
        rows;
    ADDR
        /* out uvec4 [1 + tiles]: their number; expert (SHARED_EXPERT), first of rows, number of pairs */
        tiles;
    U32 n_pairs, tile_tokens;
    U32 top_k, slots; /* pairs of a token in idx and in rows: with a shared expert that one's is the last */
    U32 n_shared;     /* tokens of the shared expert, or 0 */
    U32 pad;
};
ARGS_SIZE(experts_prefill_sort_args, 56);

/* Of tiles: in place of an expert's number. */
#define SHARED_EXPERT 0xffffffffu

struct experts_prefill_up_args {
    ADDR x;     /* [n][hidden]; with kernels named X_coop, x and act are f16 */
    ADDR norm;  /* f32 [hidden], or 0 */
    ADDR table; /* ADDR [n_experts] */
    ADDR rows, tiles;
    ADDR act;       /* [n][slots][inner] */
    ADDR shared_up; /* experts_shared_up, where there are tiles of it */
    ADDR logits;    /* [n][stride]: at gate_at the shared expert's gate */
    ADDR biases;    /* f32 [2][stride][inner], or 0; then there is no shared expert */
    U32 slots, hidden, inner, format;
    U32 gate_w, gate_s, gate_b, up_w, up_s, up_b; /* byte offsets in an expert */
    F32 eps;
    U32 stride, gate_at; /* gate_at 0: there is no gate */
    F32 limit;           /* of a limited act; 0: it is none */
};
ARGS_SIZE(experts_prefill_up_args, 128);

struct experts_prefill_down_args {
    ADDR act;   /* [n][slots][inner] */
    ADDR table; /* ADDR [n_experts] */
    ADDR rows, tiles;
    ADDR dst;                          /* [n][slots][hidden] */
    ADDR shared_w, shared_s, shared_b; /* of the shared expert, where there are tiles of it */
    ADDR biases;                       /* f32 [n_experts][hidden], or 0; then there is no shared expert */
    U32 hidden, inner, format;
    U32 down_w, down_s, down_b; /* byte offsets in an expert */
};
ARGS_SIZE(experts_prefill_down_args, 96);

struct experts_prefill_mix_args {
    ADDR parts;      /* [n][slots][hidden] */
    ADDR idx;        /* u32 [n][top_k] */
    ADDR weights;    /* [n][top_k] */
    ADDR shared_in;  /* [n][shared_stride]: at shared_at the shared expert's gate and up rows */
    ADDR shared_act; /* out [n][shared_inner] */
    ADDR x;          /* [n][hidden], added to */
    U32 top_k, hidden, shared_at, shared_inner, shared_stride;
    U32 is_gated;            /* 1: the logit before the rows is the shared expert's weight */
    U32 slots;               /* parts of a token, */
    U32 from_slot, end_slot; /* of which these count; top_k is the shared expert's */
    U32 pad;
};
ARGS_SIZE(experts_prefill_mix_args, 88);

/* Norms of queries and keys: enum attention_norm. */
#define NORM_NONE  0
#define NORM_HEADS 1
#define NORM_ALL   2

struct gqa_prepare_args {
    ADDR qkv;            /* [n][stride]: n_heads x (query head_dim, gated: gate head_dim), keys, values */
    ADDR q_norm, k_norm; /* f32 [head_dim], NORM_ALL: of all heads */
    ADDR bias;           /* f32, as a row of qkv; BIASED alone */
    ADDR rope;           /* [n][rotary_dim]: cos and sin of each pair */
    ADDR q;              /* out [n][n_heads][head_dim] */
    ADDR blocks;         /* ADDR [position >> KV_BLOCK_SHIFT] */
    U32 n, pos, stride, n_heads, n_kv_heads, head_dim, rotary_dim;
    U32 layer_off; /* bytes from a block's start to this layer's keys; its values follow */
    F32 eps;
    U32 kv_type;  /* of the cache; the kernels have it as a constant */
    U32 is_gated; /* 1: a gate stands behind each query */
    U32 pad;
};
ARGS_SIZE(gqa_prepare_args, 104);

/* Where attention's kernels leave what attention_merge joins: the weighted values f32
 * [n][n_heads][n_splits][value_dim], and behind them [n][n_heads][n_splits][2]: maximum in powers of two, sum
 * of the weights. If there is one whole split, the results themselves: [n][dst_stride]: n_heads x value_dim.
 * */
#define ATTENTION_WHOLE  1 /* the only split writes the results */
#define ATTENTION_GATED  2 /* to be prepared: a gate stands behind each query */
#define ATTENTION_MERGED 4 /* to be prepared: the last workgroup joins the splits */
struct attention_decode_args {
    ADDR q;      /* [n][q_stride]: n_heads x key_dim; to be prepared: gqa_prepare_args' qkv */
    ADDR keys;   /* the cache's table of blocks; of FLAT rows the keys [positions][n_kv_heads][key_dim] */
    ADDR values; /* of FLAT rows [positions][n_kv_heads][value_dim]; to be prepared: gqa_prepare_args' bias */
    ADDR partial;              /* out */
    ADDR q_norm, k_norm, rope; /* to be prepared: as in gqa_prepare_args */
    ADDR dst, counters;        /* MERGED: out [n_heads][value_dim]; zeros, one of each block of heads */
    ADDR sinks;                /* f32 [n_heads]; SINKS alone */
    U32 n, pos, n_heads, n_kv_heads, layer_off, n_splits;
    F32 scale;
    U32 q_stride, dst_stride;
    U32 rotary_dim; /* to be prepared */
    F32 eps;        /* likewise */
    U32 is;         /* ATTENTION_* */
};
ARGS_SIZE(attention_decode_args, 128);

struct matrices_probe_args {
    ADDR dst; /* out u32 */
};
ARGS_SIZE(matrices_probe_args, 8);

struct attention_prefill_args {
    ADDR q, keys, values, partial, sinks; /* as in attention_decode_args */
    U32 n, pos, n_heads, n_kv_heads, layer_off, n_splits, is_whole;
    F32 scale;
    U32 q_stride, dst_stride;
};
ARGS_SIZE(attention_prefill_args, 80);

struct attention_latent_args {
    ADDR q;       /* [n][q_stride]: n_heads x key_dim */
    ADDR blocks;  /* the cache's table */
    ADDR weights; /* f16, of rows x width pairs (attention/latent.glsl) */
    ADDR chunks;  /* f32 [width / 32][rows][2] */
    ADDR partial; /* out, with `rows` in place of n * n_heads */
    U32 n, pos, n_heads, layer_off, n_splits, q_stride;
    U32 rows, width; /* n * n_heads, pos + n: to the next multiple of 128 */
    U32 share;       /* steps of 64 positions of a split */
    F32 scale;
};
ARGS_SIZE(attention_latent_args, 80);

struct attention_merge_args {
    ADDR partial;
    ADDR qkv; /* [n][stride]: the gates; 0: none */
    ADDR dst; /* [n][dst_stride]: n_heads x value_dim */
    U32 rows; /* of partial: n * n_heads or more */
    U32 n_heads, value_dim, n_splits, stride, dst_stride;
};
ARGS_SIZE(attention_merge_args, 48);

struct mla_prepare_args {
    ADDR q;    /* [n][q_stride]: n_heads x (nope_dim, rope_dim) */
    ADDR kv;   /* [n][kv_stride]: at kv_at the latent [latent_dim], then the rotary key [rope_dim] */
    ADDR norm; /* f32 [latent_dim] */
    ADDR rope; /* [n][rope_dim]: cos and sin of each pair */
    /* out [n][out_stride]: each head's rotary channels at out_at, heads out_step apart; may be q */
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
    ADDR partial; /* of attention: one token's parts */
    ADDR weight, scales,
        biases; /* a stack of matrices [rows][latent_dim], `step` rows from one to the next */
    ADDR dst;   /* f32 [n_heads][rows] */
    U32 format, rows, step;
    U32 part_rows, n_splits; /* of `partial` */
    U32 pad;
};
ARGS_SIZE(mla_values_args, 64);

#define MLA_TRANSPOSE_TILE 32 /* of latent_dim, in a workgroup */
struct mla_transpose_keys_args {
    ADDR weight, scales, biases; /* [heads][latent_dim][nope_dim] */
    ADDR dst;                    /* f32 [heads that take part][nope_dim][latent_dim] */
    U32 format;                  /* of another format than the usual ones its word */
    U32 latent_dim, nope_dim;
    U32 first_head; /* of those transposed */
};
ARGS_SIZE(mla_transpose_keys_args, 48);

struct mla_gather_rows_args {
    ADDR blocks; /* ADDR [position >> KV_BLOCK_SHIFT] */
    ADDR latent; /* out [n][latent_dim], in the kernel's own type, as the next */
    ADDR keys;   /* out [n][n_heads][nope_dim + rope_dim]: each head's rotary channels */
    U32 pos, n_heads, nope_dim, rope_dim, latent_dim, layer_off; /* pos: of the first row */
};
ARGS_SIZE(mla_gather_rows_args, 48);

struct swiglu_args {
    ADDR src; /* [n][2 * inner]: gate, up */
    ADDR dst; /* [n][inner] */
    U32 n, inner;
};
ARGS_SIZE(swiglu_args, 24);

struct add_args {
    ADDR y, x;    /* f32 [n] */
    U32 n, every; /* 0; else y is [every], again and again */
    U32 sets;     /* 1: x = y */
    U32 pad;
};
ARGS_SIZE(add_args, 32);

/* The choice of the next token (ops/sample/sample.h, sample/sampler.h). sample_largest: a workgroup has
 * SAMPLE_BLOCK ids and leaves in `found` four words: the largest key (sample/weight.h), its lowest id, the
 * lowest ids of a NaN and of +infinity (SAMPLE_NO_ID: none). At most SAMPLE_MAX_IDS ids. */
#define SAMPLE_BLOCK   2048
#define SAMPLE_NO_ID   0xffffffffu
#define SAMPLE_MAX_IDS (1 << 20)
/* What is wrong with the logits. */
#define SAMPLE_OK       0
#define SAMPLE_NAN      1
#define SAMPLE_INFINITE 2
#define SAMPLE_NOTHING  3 /* all are -infinity */

struct sample_args {
    ADDR logits;  /* f32 [n] */
    ADDR blocked; /* u32 [n / 32, rounded up] bit set: never chosen */
    ADDR recent;  /* i32 [n_recent]: the penalty's; i32 `last` is another one */
    ADDR last;
    ADDR found;  /* u32 [blocks][4] */
    ADDR keys;   /* u32 [n]: after the penalty, 0: blocked. Like the next not for greedy choices */
    ADDR list;   /* u32 [n][2]: id and key of those that may be drawn */
    ADDR id;     /* i32: the choice, 0 if there is none */
    ADDR result; /* u32 [2]: the same, and SAMPLE_OK; or the first id at fault, and the fault */
    U32 n, n_recent, penalises;
    F32 penalty, inverse_penalty;
    F32 scale; /* the next as in struct sampler_rule; 0: greedy */
    U32 top_k, top_p, min_p, random_low, random_high;
    U32 pad;
};
ARGS_SIZE(sample_args, 120);

struct delta_args {
    ADDR proj;                  /* [n][stride]: conv channels, z [n_v][v_dim], b [n_v], a [n_v] */
    ADDR conv;                  /* f32 [channels][conv_kernel] */
    ADDR a_log, dt_bias;        /* f32 [n_v] */
    ADDR norm;                  /* f32 [v_dim] */
    ADDR window_in, window_out; /* [conv_kernel - 1][channels], oldest first; two different buffers */
    ADDR state, state_out;      /* [n_v][v_dim][k_dim]: before and after, may be the same */
    ADDR dst;                   /* [n][n_v * v_dim] */
    ADDR squares;               /* out [n_v][HEAD_SQUARES], from a kernel with as many workgroups a head */
    U32 n, stride, n_k, n_v, k_dim, v_dim, conv_kernel;
    F32 eps;
};
ARGS_SIZE(delta_args, 120);

/* delta_prefill_prep: delta_args with dst = prepared, f32 [n][DELTA_PREPARED(...)]: q, k (of unit length, q
 * also scaled), v, and for each value head its decay and beta. A workgroup has DELTA_RUN tokens. */
#define DELTA_RUN                     8
#define DELTA_PREPARED(channels, n_v) (((channels) + 2 * (n_v) + 3) / 4 * 4)

struct delta_prefill_scan_args {
    ADDR prepared;         /* [n][row] */
    ADDR state, state_out; /* [n_v][v_dim][k_dim]: before and after, may be the same */
    ADDR dst;              /* [n][n_v * v_dim]: S q, before its norm */
    U32 n, row, n_k, n_v;
};
ARGS_SIZE(delta_prefill_scan_args, 48);

/* Tokens that delta_prefill_walk takes at once, and what delta_prefill_blocks finds out for it: f32
 * [blocks][n_v][DELTA_COEFS]. With the tokens i, j = 0 .. 3 of a block, d their decays, e_ij the product of d
 * over j < t <= i, e_i that over all t <= i:
 *   [4][4]  e_ij (k_j q_i) for j <= i, else 0
 *   [4]     beta_1 e_10 (k_0 k_1), beta_2 e_20 (k_0 k_2), beta_2 e_21 (k_1 k_2), e_3
 *   [4]     beta_3 e_3j (k_j k_3) for j < 3, 0
 *   [4]     e_3j
 *   [8][2]  beta_i, -beta_i e_i; then 0, e_i */
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
    ADDR state, state_out; /* [n_v][v_dim][k_dim]: before and after, may be the same */
    ADDR dst;              /* [n][n_v * v_dim]: S q, before its norm */
    U32 n, row, n_k, n_v;
};
ARGS_SIZE(delta_prefill_walk_args, 56);

struct delta_prefill_out_args {
    ADDR proj; /* [n][stride]: z [n_v][v_dim] at z_at */
    ADDR norm; /* f32 [v_dim] */
    ADDR dst;  /* [n][n_v * v_dim], in place */
    ADDR f16;  /* out [n][n_v * v_dim], in place of dst */
    U32 n, stride, z_at, n_v;
    F32 eps;
    U32 pad;
};
ARGS_SIZE(delta_prefill_out_args, 56);

#endif
