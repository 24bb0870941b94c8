// linear/decode_token.comp - linear/decode.comp for one token and few matrices: what it needs to know of them is
// in the arguments, so that no load stands before the first weights.
//
// Grid: x = the segments' row blocks one after the other. A workgroup computes SUBGROUPS / SPLIT * BLOCK_ROWS rows of one
// segment. The same sums as in linear/decode.comp.
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

layout(push_constant, std430) uniform Args { linear_decode_token_args a; };

uvec2 segment_address(uint words)
{
    return addr_add(a.base + uvec2(0, words >> 30), words << 2);
}

void main()
{
    uint i = 0, first_row = 0, first_block = 0;
    [[unroll]] for (uint j = 0; j < LINEAR_TOKEN_SEGMENTS - 1; j++)
        if (gl_WorkGroupID.x >= a.later_blocks[j]) {
            i = j + 1;
            first_row = a.end_row[j];
            first_block = a.later_blocks[j];
        }
    uint rows = a.end_row[i] - first_row, cols = STEPS > 0 ? TILE : a.cols;
    Matrix m[1] = {Matrix(segment_address(a.weight[i]), segment_address(a.scales[i]), segment_address(a.biases[i]),
                          (a.formats >> 8 * i) & 0xffu, rows, cols)};
    uint row = (gl_WorkGroupID.x - first_block) * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    float acc[MAX_ACC];
    float squares[4];
    squares[0] = 0.0;
    [[unroll]] for (uint k = 0; k < SUMS; k++)
        acc[k] = 0.0;

    for (uint from = 0; from < cols; from += TILE) {
        uint n = min(TILE, cols - from);
        fetch_product(m, row, from, n);
        if (from > 0)
            barrier();
        squares[0] += put_vector(0, a.x, 0, a.norm, from, n / 4);
        if (from + TILE >= cols)
            share_sums(squares);
        barrier();
        if (STEPS > 0 || row < rows)
            add_product(acc, m, row, from, n);
    }

    finish_product(acc);
    float factor = addr_is_null(a.norm) ? 1.0 : inversesqrt(shared_sum(0) / float(cols) + a.eps);
    [[unroll]] for (uint k = 0; k < LANE_SUMS; k++) {
        uint mine = block_start(row, rows) + lane_sum(k), at = first_row + mine;
        if (lane_stores(k) && mine >= row && mine < rows)
            F32s(a.y).v[at] = a.store == LINEAR_ADD ? F32s(a.y).v[at] + acc[k] * factor : acc[k] * factor;
    }
}
