// indexer/scores.comp - index scores: score[t][b] = sum_h w_h max(q_h . row_b, 0) for the finished blocks b
// of each token; without WEIGHTED w_h = 1. With BLOCK rows are of single positions (RATIO 1), and
// score[t][h][b] is the largest q_h . row of the block's BLOCK positions, for blocks before the token's own.
// Grid: x = tiles of KEYS rows, with BLOCK blocks, whose tiles one workgroup goes through; y = tiles of
// TOKENS tokens. A tile's rows and queries come into shared memory FOURS groups of four channels at a time;
// an invocation multiplies one row with EACH queries. float32: each product is one chain of multiply-adds in
// the order of the channels, heads are added up in their order, so a score does not depend on the tile.
// Tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint DIM = 128;
layout(constant_id = 3) const uint HEADS = 4;
layout(constant_id = 4) const uint TOKENS = 1;
layout(constant_id = 5) const uint KEYS = 32; // a divisor of WORKGROUP
layout(constant_id = 6) const uint RATIO = 4; // positions of a block
layout(constant_id = 9) const uint WEIGHTED = 0;
layout(constant_id = 10) const uint BLOCK = 0; // positions of a block whose rows are of single positions

const uint FOURS = 8, GROUPS = WORKGROUP / KEYS;
const uint VECTORS = TOKENS * HEADS, EACH = (VECTORS + GROUPS - 1) / GROUPS;
const uint MINE = (VECTORS + WORKGROUP - 1) / WORKGROUP; // vectors whose largest product an invocation finds

layout(push_constant, std430) uniform Args { indexer_scores_args a; };
#include "indexer/rows.glsl"

shared vec4 rows[FOURS * KEYS], queries[FOURS * EACH * GROUPS];
shared float dots[EACH * GROUPS * KEYS];

// Returns the blocks that are ranked for a token.
uint n_blocks(uint t)
{
    return (a.pos + t + 1) / (BLOCK > 0 ? BLOCK : RATIO);
}

// Loads FOURS groups of channels from the c4-th on of the rows from `first` on; the last row in place of rows
// past it, zeros past the last channel and in place of vectors past the last.
void load(uint first, uint last, uint c4)
{
    for (uint i = gl_LocalInvocationID.x; i < KEYS * FOURS; i += WORKGROUP) {
        uint key = i / FOURS, c = i % FOURS;
        vec4 v = vec4(0.0);
        if (c4 + c < DIM / 4)
            v = cache_four(index_row(a.blocks, a.layer_off, min(first + key, last)), DIM, c4 + c);
        rows[c * KEYS + key] = v;
    }
    for (uint i = gl_LocalInvocationID.x; i < EACH * GROUPS * FOURS; i += WORKGROUP) {
        uint vector = i / FOURS, c = i % FOURS, t = min(gl_WorkGroupID.y * TOKENS + vector / HEADS, a.n - 1);
        vec4 v = vec4(0.0);
        if (vector < VECTORS && c4 + c < DIM / 4)
            v = four_at(a.q, (t * HEADS + vector % HEADS) * (DIM / 4) + c4 + c);
        queries[c * EACH * GROUPS + vector] = v;
    }
}

float dot_on(vec4 x, vec4 y, float sum)
{
    return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum))));
}

// Leaves the products of the tile's queries with the rows from `first` on in shared memory.
void multiply(uint first, uint last)
{
    uint key = gl_LocalInvocationID.x % KEYS, group = gl_LocalInvocationID.x / KEYS;
    float acc[EACH];
    [[unroll]] for (uint e = 0; e < EACH; e++)
        acc[e] = 0.0;
    for (uint c4 = 0; c4 < DIM / 4; c4 += FOURS) {
        load(first, last, c4);
        barrier();
        [[unroll]] for (uint c = 0; c < FOURS; c++) {
            vec4 row = rows[c * KEYS + key];
            [[unroll]] for (uint e = 0; e < EACH; e++)
                acc[e] = dot_on(queries[(c * GROUPS + group) * EACH + e], row, acc[e]);
        }
        barrier();
    }
    [[unroll]] for (uint e = 0; e < EACH; e++)
        dots[(group * EACH + e) * KEYS + key] = acc[e];
    barrier();
}

void score_rows()
{
    uint first = gl_WorkGroupID.x * KEYS;
    if (first >= n_blocks(min(gl_WorkGroupID.y * TOKENS + TOKENS, a.n) - 1))
        return;
    multiply(first, n_blocks(a.n - 1) - 1);
    for (uint i = gl_LocalInvocationID.x; i < TOKENS * KEYS; i += WORKGROUP) {
        uint t = gl_WorkGroupID.y * TOKENS + i / KEYS, b = first + i % KEYS;
        if (t >= a.n || b >= n_blocks(t))
            continue;
        float score = 0.0;
        for (uint h = 0; h < HEADS; h++) {
            float d = max(dots[(i / KEYS * HEADS + h) * KEYS + i % KEYS], 0.0);
            score = WEIGHTED != 0 ? fma(F32s(a.weights).v[t * a.weight_stride + h], d, score) : score + d;
        }
        F32s(a.scores).v[t * a.score_stride + b] = score;
    }
}

void score_block()
{
    uint b = gl_WorkGroupID.x, first = b * BLOCK, mine = gl_LocalInvocationID.x;
    float most[MINE];
    if (b >= n_blocks(min(gl_WorkGroupID.y * TOKENS + TOKENS, a.n) - 1))
        return;
    for (uint at = 0; at < BLOCK; at += KEYS) {
        multiply(first + at, first + BLOCK - 1);
        [[unroll]] for (uint j = 0; j < MINE; j++)
            for (uint i = 0; i < KEYS && mine + j * WORKGROUP < VECTORS; i++) {
                float d = dots[(mine + j * WORKGROUP) * KEYS + i];
                most[j] = at + i == 0 ? d : max(most[j], d);
            }
        barrier();
    }
    [[unroll]] for (uint j = 0; j < MINE; j++) {
        uint vector = mine + j * WORKGROUP, t = gl_WorkGroupID.y * TOKENS + vector / HEADS;
        if (vector < VECTORS && t < a.n && b < n_blocks(t))
            F32s(a.scores).v[(t * HEADS + vector % HEADS) * a.score_stride + b] = most[j];
    }
}

void main()
{
    if (BLOCK > 0)
        score_block();
    else
        score_rows();
}
