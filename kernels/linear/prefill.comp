// linear/prefill.comp - linear/decode.comp's product for the many tokens of a chunk:
//
//   y[t][first_row + r] (+)= f_t * sum_c W[r][c] x[t][c] norm[c]
//   f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
//
// Grid: x = blocks of BLOCK_ROWS rows of consecutive segments, y = tiles of TILE_TOKENS tokens, z = matrices
// of a stack from first_stacked on, each with its own part of x and of y. The norm's factor is applied at the
// end, so one pass over x is enough. float32 sums. Tolerance 1e-5 of the largest output.
// variants: plain coop fragcoop ext extcoop blk blkcoop
#version 460
#include "lib/memory.glsl"
#include "lib/gemm.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Segments { linear_segment v[]; };
layout(push_constant, std430) uniform Args { linear_args a; };

linear_segment find_segment()
{
    uint i = 0;
    while (i + 1 < a.n_segments && Segments(a.segments).v[i + 1].first_block <= gl_WorkGroupID.x)
        i++;
    return Segments(a.segments).v[i];
}

uint input_row(uint t)
{
    return min(gl_WorkGroupID.y * TILE_TOKENS + t, a.n - 1) * a.x_stride + gl_WorkGroupID.z * a.x_step;
}

uvec2 book_address()
{
    return find_segment().scales;
}

uint input_tokens()
{
    return min(a.n - gl_WorkGroupID.y * TILE_TOKENS, TILE_TOKENS);
}

void store(uint at, bool is_mine, float y)
{
#ifdef COOP
    // Two lanes have two neighbouring rows, which are one word.
    float next = next_row(y);
    if (a.store == LINEAR_F16) {
        if (is_mine && at % 2 == 0)
            U32s(a.y).v[at / 2] = packHalf2x16(clamp(vec2(y, next), vec2(-65504.0), vec2(65504.0)));
        return;
    }
#endif
    if (is_mine)
        F32s(a.y).v[at] = a.store == LINEAR_ADD ? F32s(a.y).v[at] + y : y;
}

void main()
{
    linear_segment seg = find_segment();
    uint first = (a.first_stacked + gl_WorkGroupID.z) * a.step, end = first + seg.rows; // rows of the stack
    Matrix m = Matrix(seg.weight, seg.scales, seg.biases, seg.format, end, a.cols);
    uint row = first + (gl_WorkGroupID.x - seg.first_block) * BLOCK_ROWS;
    float factors[16];
    multiply(factors, m, m, row, row + BLOCK_ROWS / 2, Input(a.x, a.norm), a.eps);

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (t % PART == 0)
            take(t / PART);
        uint token = gl_WorkGroupID.y * TILE_TOKENS + tile_token(t);
        bool is_there = token < a.n && has_sums();
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint mine = row + half_row(r) + (r < ROWS / 2 ? 0 : BLOCK_ROWS / 2);
            float y = acc[r * PART + t % PART] * factors[t];
            uint at = token * a.y_stride + gl_WorkGroupID.z * a.y_step + seg.first_row + mine - first;
            store(at, is_there && mine < end, y);
        }
    }
}
