// attention/wide_scores.comp - the first pass of attention over wide rows (wide.glsl):
//   s = log2(e) scale q . k,  m = the largest of 32 positions, rounded up,
//   weights = 2^(s - m),  l = sum of the weights
// Grid: x = tiles of 128 positions, y = tiles of 128 rows. While STEP channels are multiplied, the next ones
// are loaded. Queries are rounded to float16, sums are float32. Tolerance 3e-3 after the merge.
// variants: coop fragcoop
#version 460
#include "attention/wide.glsl"

const uint STEPS = KEY_DIM / STEP;
const uint STRIDE = 9; // uvec4 of a row of a step: odd, so that neighbouring rows lie in different banks
shared uvec4 stage[2 * TILE * STRIDE];

const float LOG2_E = 1.44269504;

vec4 next_queries[4][2];

// Starts loading a step of the queries: one unit of every 32nd row.
void fetch_queries(uint step)
{
    uint row = gl_LocalInvocationID.x / 8, unit = step * 8 + gl_LocalInvocationID.x % 8;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint r = min(gl_WorkGroupID.y * TILE + row + 32 * i, a.n * a.n_heads - 1);
        uint at = (r / a.n_heads * a.q_stride + r % a.n_heads * KEY_DIM) / 4 + 2 * unit;
        next_queries[i][0] = four_at(a.q, at);
        next_queries[i][1] = four_at(a.q, at + 1);
    }
}

// Returns the i-th of the loaded units, as halves.
uvec4 query_halves(uint i)
{
    float scale = a.scale * LOG2_E;
    return halves8(next_queries[i][0] * scale, next_queries[i][1] * scale);
}

// Returns the first position that a row does not see.
uint row_end(uint row)
{
    return a.pos + min(row / a.n_heads, a.n - 1) + 1;
}

#ifdef FRAG
#include "attention/wide_scores_frag.glsl"
#else
#include "attention/wide_scores_shared.glsl"
#endif

void main()
{
    uint from = gl_WorkGroupID.x * TILE;
    multiply_tile(from);
    weigh_tile(from);
}
