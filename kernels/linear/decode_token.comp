// linear/decode_token.comp - linear/decode.comp for few tokens and few matrices. The arguments describe the
// matrices, so that the first weights need not wait for another load.
//
// Grid: x = the row blocks of consecutive segments, y = tokens / TOKENS. A workgroup computes SUBGROUPS /
// SPLIT * BLOCK_ROWS rows of one segment, with STREAM that many blocks. Formula and tolerance are those of
// linear/decode.comp. The order of the float32 sums does not depend on TOKENS: results are batch-invariant.
// variants: plain denorm q4 q8 bf16 f32 ext extdenorm blk blkdenorm
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

// log2(head_dim) if x consists of heads that still lack the factors of their norms; else 0.
layout(constant_id = 10) const uint HEAD_SHIFT = 0;
layout(constant_id = 11) const uint SEVERAL = 0; // 1: several tokens

layout(push_constant, std430) uniform Args { linear_decode_token_args a; };

uvec2 segment_address(uint words)
{
    return addr_add(a.base + uvec2(0, words >> 30), words << 2);
}

struct Segment {
    uint weight, scales, biases, first_row, end_row, first_block, format;
};

// Chooses between constants, because a variable index would make the device look up the arguments a second
// time.
Segment find_segment()
{
    Segment s = Segment(a.weight[0], a.scales[0], a.biases[0], 0, a.end_row[0], 0,
                        LINEAR_TOKEN_FORMAT(a.call, 0));
    [[unroll]] for (uint j = 1; j < LINEAR_TOKEN_SEGMENTS; j++)
        if (gl_WorkGroupID.x >= a.later_blocks[j - 1])
            s = Segment(a.weight[j], a.scales[j], a.biases[j], a.end_row[j - 1], a.end_row[j],
                        a.later_blocks[j - 1],
                        LINEAR_TOKEN_FORMAT(a.call, j));
    return s;
}

uint first_token()
{
    return SEVERAL != 0 ? gl_WorkGroupID.y * TOKENS : 0;
}

// Returns the t-th of this workgroup's tokens; past the last it repeats the last.
uint token_of(uint t)
{
    return SEVERAL != 0 ? min(first_token() + t, LINEAR_TOKEN_N(a.call) - 1) : 0;
}

// Does put_vector for heads that lack the factors of their norms.
void put_heads(uint t, uint from, uint n4)
{
    uint cols = IS_WHOLE ? TILE : a.cols, x_at = token_of(t) * (a.x_stride / 4);
    uint squares_at = token_of(t) * (cols >> HEAD_SHIFT) * (HEAD_SQUARES / 4);
    [[unroll]] for (uint k = 0; k < (TILE / 4 + WORKGROUP - 1) / WORKGROUP; k++) {
        uint i = k * WORKGROUP + gl_LocalInvocationID.x;
        if (i >= n4)
            break;
        uint head = (from + 4 * i) >> HEAD_SHIFT;
        vec4 v = F32x4s(a.x).v[x_at + from / 4 + i], squares = vec4(0.0);
        [[unroll]] for (uint j = 0; j < HEAD_SQUARES / 4; j++)
            squares += F32x4s(a.norm).v[squares_at + head * (HEAD_SQUARES / 4) + j];
        float mean = ((squares.x + squares.y) + (squares.z + squares.w)) / float(1u << HEAD_SHIFT);
        xs_put(t, i, v * inversesqrt(mean + a.eps));
    }
}

// Copies columns [from, from + 4 * n4) of each token to shared memory, and adds this invocation's sums of
// their squares.
void put_columns(inout float squares[4], uint from, uint n4)
{
    uint at[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        at[t] = SEVERAL != 0 ? token_of(t) * a.x_stride : 0;
        if (HEAD_SHIFT > 0)
            put_heads(t, from, n4);
        else if (TOKENS <= 2)
            squares[t] += put_vector(t, a.x, at[t], a.norm, from, n4);
    }
    if (HEAD_SHIFT == 0 && TOKENS > 2)
        put_vectors(a.x, at, a.norm, from, n4, squares);
}

void clear(out float squares[4])
{
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        squares[t] = 0.0;
}

// Return, for this lane's k-th sum, the row of its segment, its token, and whether this lane stores it.
uint out_row(uint k, uint row, uint rows)
{
    return block_start(row, rows) + lane_sum(k) / TOKENS;
}

uint out_token(uint k)
{
    return first_token() + lane_sum(k) % TOKENS;
}

bool stores(uint k, uint row, uint rows)
{
    uint mine = out_row(k, row, rows);
    return lane_stores(k) && mine >= row && mine < rows &&
        (SEVERAL == 0 || out_token(k) < LINEAR_TOKEN_N(a.call));
}

uint out_at(uint k, Segment s, uint row, uint rows)
{
    return (SEVERAL != 0 ? out_token(k) * a.y_stride : 0) + s.first_row + out_row(k, row, rows);
}

// Loads the numbers that this lane's sums are added to.
void load_before(out float before[LANE_SUMS], Segment s, uint row, uint rows)
{
    [[unroll]] for (uint k = 0; k < LANE_SUMS; k++)
        before[k] = LINEAR_TOKEN_ADDS(a.call) != 0 && stores(k, row, rows)
            ? F32s(a.y).v[out_at(k, s, row, rows)] : 0.0;
}

void store_sums(float acc[MAX_ACC], float before[LANE_SUMS], Segment s, uint row, uint rows, uint cols)
{
    bool has_norm = HEAD_SHIFT == 0 && !addr_is_null(a.norm);
    float factor[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factor[t] = has_norm ? inversesqrt(shared_sum(t) / float(cols) + a.eps) : 1.0;
    [[unroll]] for (uint k = 0; k < LANE_SUMS; k++)
        if (stores(k, row, rows))
            F32s(a.y).v[out_at(k, s, row, rows)] = fma(acc[k], factor[TOKENS > 1 ? lane_sum(k) % TOKENS : 0],
                                                       before[k]);
}

void stream(Segment s, Matrix m[1], uint rows)
{
    const uint BLOCK = SUBGROUPS / SPLIT * BLOCK_ROWS;
    uint first = (gl_WorkGroupID.x - s.first_block) * STREAM * BLOCK, end = min(first + STREAM * BLOCK, rows);
    float squares[4];
    begin_stream(m, first + block_row(), end);
    clear(squares);
    put_columns(squares, 0, TILE / 4);
    share_sums(squares);
    barrier();
    // All subgroups take part if SPLIT > 1, with rows or without.
    for (uint row = first + block_row(), mine = SPLIT > 1 ? first : row; mine < end; row += BLOCK,
         mine += BLOCK) {
        float acc[MAX_ACC], before[LANE_SUMS];
        load_before(before, s, row, rows);
        [[unroll]] for (uint k = 0; k < SUMS; k++)
            acc[k] = 0.0;
        add_stream(acc, m, end);
        finish_product(acc);
        store_sums(acc, before, s, row, rows, TILE);
        if (SPLIT > 1)
            barrier(); // before the next sums are shared
    }
}

void main()
{
    Segment s = find_segment();
    uint rows = s.end_row - s.first_row, cols = IS_WHOLE ? TILE : a.cols;
    Matrix m[1] =
        {Matrix(segment_address(s.weight), segment_address(s.scales), segment_address(s.biases), s.format,
                rows,
                          cols)};
    if (STREAM > 0) {
        stream(s, m, rows);
        return;
    }
    uint row = (gl_WorkGroupID.x - s.first_block) * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    float acc[MAX_ACC], before[LANE_SUMS];
    load_before(before, s, row, rows);
    float squares[4];
    clear(squares);
    [[unroll]] for (uint k = 0; k < SUMS; k++)
        acc[k] = 0.0;

    for (uint from = 0; from < cols; from += TILE) {
        uint n = min(TILE, cols - from);
        fetch_product(m, row, from, n);
        if (from > 0)
            barrier();
        else
            fill_book(uvec2(a.scales[0], a.scales[1]));
        put_columns(squares, from, n / 4);
        if (from + TILE >= cols)
            share_sums(squares);
        barrier();
        if (STEPS > 0 || row < rows)
            add_product(acc, m, row, from, n);
    }

    finish_product(acc);
    store_sums(acc, before, s, row, rows, cols);
}
