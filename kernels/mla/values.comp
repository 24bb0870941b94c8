// mla/values.comp - multiplies one token's attention results by the heads' value matrices as soon as
// attention's splits are joined (attention/merge.glsl):
//   out[h][r] = sum_c W_h[r][c] ctx[h][c],   ctx[h] = the joined row h of attention
// Grid: x = blocks of rows, y = heads. A workgroup computes SUBGROUPS / SPLIT * BLOCK_ROWS rows, whose
// weights are loaded while the splits are joined. TILE is the number of the latent's channels. float32 sums.
// Tolerance 1e-5 of the largest output.
// variants: plain denorm
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

// groups of four channels that are joined at once; divides their number and WORKGROUP
layout(constant_id = 10) const uint COLS = 128;

layout(push_constant, std430) uniform Args { mla_values_args a; };
#include "attention/merge.glsl"

void main()
{
    const uint FOURS = TILE / 4;
    uint head = gl_WorkGroupID.y, first = head * a.step, end = first + a.rows; // rows of the stack
    uint row = first + gl_WorkGroupID.x * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    Matrix m[1] = {Matrix(a.weight, a.scales, a.biases, a.format, end, TILE)};
    Row of = row_at(a.partial, head, a.part_rows, a.n_splits, FOURS);
    float acc[MAX_ACC];
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        acc[i] = 0.0;
    fetch_product(m, row, 0, TILE);
    [[dont_unroll]] for (uint from = 0; from < FOURS; from += COLS) {
        uint col = from + gl_LocalInvocationID.x % COLS;
        if (from > 0)
            barrier(); // join_parts no longer needs its shared memory
        vec4 ctx = join_parts(of, col, FOURS);
        if (gl_LocalInvocationID.x < COLS)
            xs_put(0, col, ctx);
    }
    barrier();
    if (STEPS > 0 || row < end)
        add_product(acc, m, row, 0, TILE);
    finish_product(acc);
    [[unroll]] for (uint i = 0; i < LANE_SUMS; i++) {
        uint mine = block_start(row, end) + lane_sum(i);
        if (lane_stores(i) && mine >= row && mine < end)
            F32s(a.dst).v[head * a.rows + mine - first] = acc[i];
    }
}
